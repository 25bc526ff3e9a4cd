"""Queries as feed sources: rows, and the batches that are numbered once."""
