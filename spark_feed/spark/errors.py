"""The error of this package that Spark users see."""

from __future__ import annotations


class TableError(Exception):
    """An option or a journal cannot be used; the text says what is wrong and what to do."""
