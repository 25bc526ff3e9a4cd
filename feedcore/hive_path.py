"""Columns in the path of a file: folders such as `symbol=AAPL`, as Hive and Spark write partitions of a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from urllib.parse import unquote

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # a folder of rows whose value is null


def columns_of_path(path: PurePath, of_file: Sequence[str]) -> dict[str, str | None]:
    """The columns that the folders of an absolute path name, with their value in its files.

    Args:
        of_file: the columns of the file itself.

    Raises:
        ValueError: a column is in both, in upper or lower case.
    """
    found: dict[str, str | None] = {}
    for folder in path.parent.parts:
        name, is_column, value = folder.partition("=")
        if is_column and name:
            found[unquote(name)] = None if value == NO_VALUE else unquote(value)
    lower = {name.lower() for name in of_file}
    if twice := next((name for name in found if name.lower() in lower), None):
        raise ValueError(f"both the file and its path have a column {twice!r}; rename one of them")
    return found
