"""Checks an argument whose wrong type would be noticed late, or by an error that does not say what was expected."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any


def whole_number(value: Any, name: str) -> int:
    """An argument that must be an integer.

    Raises:
        TypeError: it is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected an integer") from None


def check_records(records: Any) -> None:
    """Refuse an argument that is not several records, such as a single one.

    Raises:
        TypeError: it is bytes, text or not iterable.
    """
    if isinstance(records, bytes | bytearray | str) or not isinstance(records, Iterable):
        raise TypeError(f"records is {repr(records)[:40]}; expected a sequence of bytes")
