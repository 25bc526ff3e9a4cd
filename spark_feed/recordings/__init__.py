"""Recordings of ticks: generated, or converted from CSV, Parquet and DBN files."""
