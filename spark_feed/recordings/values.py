"""Conversions of a column's values that name the first value that does not fit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


class BadValue(Exception):
    """A value cannot be recorded; the text says why. Attributes: row: the value's index in its column."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


def is_text(kind: Any) -> bool:
    """True for every Arrow type of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def cast(column: Any, kind: Any, reason: str) -> Any:
    """An Arrow array as another type.

    Args:
        reason: why a value does not have the type, to be read after the value.

    Raises:
        BadValue: names the first value that does not have the type.
    """
    try:
        return column.cast(kind)
    except pa.ArrowException:
        row = first_refused(column, kind)
    if row < 0:
        raise BadValue(0, f"the column's type is {column.type}; it cannot be read as {kind}")
    raise BadValue(row, f"{column[row].as_py()!r} {reason}")


def first_refused(column: Any, kind: Any) -> int:
    """The index of the first value that cannot be cast, in a column that cannot; -1: no value can."""
    if not _can_cast(column.slice(0, 0), kind):
        return -1
    good, bad = 0, len(column)  # the first `good` values can be cast, the first `bad` cannot
    while bad - good > 1:
        middle = (good + bad) // 2
        if _can_cast(column.slice(0, middle), kind):
            good = middle
        else:
            bad = middle
    return good


def _can_cast(column: Any, kind: Any) -> bool:
    try:
        column.cast(kind)
    except pa.ArrowException:
        return False
    return True
