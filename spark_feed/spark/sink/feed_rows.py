"""Rows of any Spark query as rows of a recording: decimals and floats become the integers of the source format.

Never changes a value silently: what the field cannot hold exactly is a refused row, except that floats are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat
from tandemfeed.spark_feed.numbering.rows.screening import Refused
from tandemfeed.spark_feed.recordings.format_columns import columns_of
from tandemfeed.spark_feed.spark.errors import TableError

ALWAYS = ("kind", "event_at_ns")
NS_PER_US = 1_000
INT64_END = 1 << 63


class FeedRows:
    """Converts the columns of a query.

    Args:
        schema: the query's Arrow schema.
        kind: the message of every row, if the query has no column `kind`.
        also: columns that are needed whatever the source format has.

    Raises:
        TableError: a column is missing or has a type that cannot be converted.
    """

    def __init__(self, source_format: SourceFormat, schema: Any, kind: str, also: Sequence[str] = ()) -> None:
        self._kind, self._also = kind, also
        kinds = [kind] if kind else list(source_format.messages)
        unknown = [each for each in kinds if each not in source_format.messages]
        if unknown:
            known = ", ".join(source_format.messages)
            raise TableError(f"option 'message' is {kind!r}; the source format's messages are {known}")
        fields = {name: field for each in kinds for name, field in columns_of(source_format.messages[each]).items()}
        self._fields = {name: field for name, field in fields.items() if name in schema.names}
        needed = {*ALWAYS, *also, *fields} - ({"kind"} if kind else set())
        missing = sorted(needed - {*schema.names})
        if missing:
            raise TableError(
                f"the query has no columns {', '.join(missing)}, which the source format needs; it has "
                f"{', '.join(schema.names)}. Name columns as the source format does, or set option 'message'"
            )
        for name, field in self._fields.items():
            found = schema.field(name).type
            if not (_is_text(found) if field.is_text else _is_number(found)):
                raise TableError(f"column {name!r} is {found}; the source format has {field.kind.name} for it")

    def table(self, batch: Any, first_record_index: int) -> tuple[Any, list[Refused]]:
        """The rows of a recording, and those that a field cannot hold, which have null there."""
        count = batch.num_rows
        index = np.arange(first_record_index, first_record_index + count)
        columns: dict[str, Any] = {"record_index": pa.array(index)}
        columns["kind"] = pa.array([self._kind] * count, pa.string()) if self._kind else batch.column("kind")
        refused: dict[int, str] = {}
        for name in dict.fromkeys((*self._fields, *self._also, "event_at_ns")):
            if name in columns:
                continue
            column = batch.column(name)
            field = self._fields.get(name)
            if _is_text(column.type):
                columns[name] = column
                continue
            if field is not None and field.kind.is_float:
                columns[name] = column.cast(pa.float64())
                continue
            values, wrong = _integers(column, field)
            columns[name] = pa.array(values, mask=np.asarray(column.is_null()) | wrong)
            for place in np.flatnonzero(wrong).tolist():
                refused.setdefault(place, f"{name} is {column[place].as_py()}, which the source format cannot hold")
        return pa.table(columns), [Refused(*each) for each in sorted(refused.items())]


def _integers(column: Any, field: SourceField | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The values in units of the field's exponent, and which of them are wrong. Nulls are any value."""
    kind, digits = column.type, -field.exponent if field is not None else 0
    if pa.types.is_timestamp(kind):
        return np.asarray(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).fill_null(0)) * NS_PER_US, _none(
            column
        )
    if pa.types.is_integer(kind):
        return np.asarray(column.cast(pa.int64()).fill_null(0), np.int64), _none(column)
    if pa.types.is_floating(kind):
        scaled = np.rint(np.asarray(column.cast(pa.float64()).fill_null(0.0)) * 10.0**digits)
        wrong = ~(np.abs(scaled) < INT64_END)  # NaN as well
        return np.where(wrong, 0, scaled).astype(np.int64), wrong
    return _of_decimals(column, digits)


def _of_decimals(column: Any, digits: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    column = pa.concat_arrays([column]).cast(pa.decimal128(38, column.type.scale)).fill_null(0)  # without an offset
    words = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset :][: 2 * len(column)].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    wrong = high != low >> 63
    shift = digits - column.type.scale
    if shift >= 0:
        power = 10**shift
        wrong |= np.abs(low) > (INT64_END - 1) // power if power < INT64_END else low != 0
        return np.where(wrong, 0, low) * np.int64(min(power, INT64_END - 1)), wrong
    whole, rest = np.divmod(low, np.int64(10**-shift))
    return whole, wrong | (rest != 0)


def _none(column: Any) -> NDArray[np.bool_]:
    return np.zeros(len(column), np.bool_)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_timestamp)
    return any(test(kind) for test in tests)
