"""Options of the data sources, as Spark passes them: texts by names that ignore case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandemfeed.spark_feed.spark.errors import TableError


def required(options: Any, name: str) -> str:
    """An option that must be given.

    Raises:
        TableError: it is missing.
    """
    value: str = options.get(name, "")
    if not value:
        what = "the path to load" if name == "path" else f"option {name!r}"
        raise TableError(f"{what} is missing")
    return value


def chosen(options: Any, name: str, values: Sequence[str], default: str = "") -> Any:
    """An option with a few possible values.

    Args:
        default: if the option is missing; empty: the first value.

    Raises:
        TableError: it has another value.
    """
    value = options.get(name, default or values[0])
    if value not in values:
        raise TableError(f"option {name!r} is {value!r}; it must be one of {', '.join(values)}")
    return value


def count(options: Any, name: str, default: int) -> int:
    """An option that is a positive integer.

    Raises:
        TableError: it is something else.
    """
    text = str(options.get(name, default))
    if not text.isdecimal() or int(text) < 1:
        raise TableError(f"option {name!r} is {text!r}; it must be a positive integer")
    return int(text)
