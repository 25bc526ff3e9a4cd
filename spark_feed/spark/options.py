"""Options of the data sources, as Spark passes them: texts by names that ignore case."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from tandemfeed.spark_feed.spark.errors import TableError

OF_SPARK = ("path", "paths", "checkpointLocation", "queryName", "outputMode")  # which Spark may add itself


def require_known(options: Any, names: Sequence[str]) -> None:
    """Check that all options are known: a misspelt one would silently have no effect.

    Args:
        names: the options of a data source.

    Raises:
        TableError: one is not known.
    """
    known = {name.lower(): name for name in (*names, *OF_SPARK)}
    for name in options:
        if name.lower() not in known:
            close = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"did you mean {known[close[0]]!r}?" if close else f"it must be one of {', '.join(names)}"
            raise TableError(f"option {name!r} is unknown; {hint}")


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
