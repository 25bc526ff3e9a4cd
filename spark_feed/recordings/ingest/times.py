"""Columns of times as nanoseconds since 1970: timestamps, integers, and texts of either.

What one value means depends on the others of its column: all texts must have one form, and the unit of integers is
guessed from the largest. So a column is surveyed before it is converted. Both take it a part at a time, and the parts
may be cut anywhere. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.spark_feed.recordings.values import BadValue, cast, is_text

TIME_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
INTEGER, ZONED, LOCAL = pa.int64(), pa.timestamp("ns", "UTC"), pa.timestamp("ns")
FORMS = (INTEGER, ZONED, LOCAL)  # of texts; no text has two of them
NOT_64_BITS = "does not fit in 64 bits of nanoseconds"


class TimeColumn:
    """A column of times.

    Args:
        unit: of integers; None: guessed from their magnitude.
    """

    def __init__(self, unit: str | None) -> None:
        self._unit, self._highest = unit, 0
        self._form: Any = None  # of texts

    def needs_survey(self, kind: Any) -> bool:
        """True if values of this Arrow type must be surveyed before they can be converted."""
        if self._unit is not None or (self._form is not None and self._form != INTEGER):
            return False
        return bool(pa.types.is_integer(kind) or is_text(kind))

    def highest(self, column: Any) -> int:
        """The largest integer in a part of the column, for `learn`; 0: there is none.

        Raises:
            BadValue: as when it is converted.
        """
        if is_text(column.type):
            column = self._parsed(column)
        if not pa.types.is_integer(column.type):
            return 0
        return max(pc.max(cast(column, INTEGER, NOT_64_BITS)).as_py() or 0, 0)

    def learn(self, highest: int) -> None:
        """The unit must suit an integer that is as large as this."""
        self._highest = max(self._highest, highest)

    def nanoseconds(self, column: Any) -> NDArray[np.int64]:
        """A part of the column, in nanoseconds since 1970.

        Raises:
            BadValue: a value is missing, not a time, or of another form than those before it.
        """
        if is_text(column.type):
            column = self._parsed(column)
        if column.null_count:
            raise BadValue(pc.index(pc.is_null(column), pa.scalar(True)).as_py(), "the time is missing")
        if pa.types.is_timestamp(column.type):
            return _array(cast(column, LOCAL, NOT_64_BITS).cast(pa.int64()))
        if not pa.types.is_integer(column.type):
            raise BadValue(0, f"type is {column.type}; expected ISO 8601 times or integers")
        values = _array(cast(column, INTEGER, NOT_64_BITS))
        unit_ns = TIME_UNITS[self._unit or _unit_of(self._highest)]
        limit = ((1 << 63) - 1) // unit_ns
        too_far = np.flatnonzero((values > limit) | (values < -limit))
        if too_far.size:
            row = int(too_far[0])
            raise BadValue(row, f"{int(values[row])} {NOT_64_BITS}: give another --time-unit")
        return values * unit_ns

    def _parsed(self, column: Any) -> Any:
        """Texts as integers or timestamps, by the form of the column's first text."""
        if self._form is None:
            row = pc.index(pc.is_valid(column), pa.scalar(True)).as_py()
            if row < 0:
                return column.cast(INTEGER)
            self._form = _form_of(column[row].as_py())
            if self._form is None:
                raise BadValue(row, _not_a_time(column[row].as_py()))
        try:
            return cast(column, self._form, "")
        except BadValue as bad:
            row, text = bad.row, column[bad.row].as_py()
        if _form_of(text) is None:
            raise BadValue(row, _not_a_time(text))
        raise BadValue(
            row,
            f"{text!r} and the times above it have mixed forms (with and without zone, or text and integer); use one "
            "form",
        )


def _form_of(text: str) -> Any:
    for form in FORMS:
        try:
            pa.array([text], pa.string()).cast(form)
        except pa.ArrowInvalid:
            continue
        return form
    return None


def _not_a_time(text: str) -> str:
    return f"{text!r} is neither an ISO 8601 time nor an integer"


def _array(column: Any) -> NDArray[np.int64]:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


def _unit_of(value: int) -> str:
    """The unit that puts a time between the years 1973 and 5138."""
    return next(
        unit for unit, limit in (("s", 10**11), ("ms", 10**14), ("us", 10**17), ("ns", 1 << 63)) if value < limit
    )
