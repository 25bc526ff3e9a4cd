"""Conversion state: rows and order books in one array that kernels read and change."""
