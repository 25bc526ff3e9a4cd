"""Checks and inspection: blocks, whole journals, completeness, and the findings as types."""
