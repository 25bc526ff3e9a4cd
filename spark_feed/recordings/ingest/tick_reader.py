"""CSV and Parquet files of ticks as recording tables."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.feedcore.aggressor import Aggressor, by_buyer_maker, by_side
from tandemfeed.spark_feed.recordings.ingest.column_file import ColumnFile
from tandemfeed.spark_feed.recordings.ingest.column_names import map_columns
from tandemfeed.spark_feed.recordings.ingest.file_columns import FileColumns, IngestOptions
from tandemfeed.spark_feed.recordings.ingest.file_reader import FileReader
from tandemfeed.spark_feed.recordings.ingest.times import NOT_64_BITS, TimeColumn
from tandemfeed.spark_feed.recordings.prices import (
    EXACT,
    ROUNDED,
    WHOLE,
    conversion_of,
    size_exponent_of,
    to_nine_digits,
)
from tandemfeed.spark_feed.recordings.recording import (
    NULL_PRICE,
    PRICE_DIGITS,
    SCHEMA,
    SYMBOL_SIZE_MAX,
    RecordingError,
    complete,
)
from tandemfeed.spark_feed.recordings.values import BadValue, cast

TIME = "event_at_ns"
SIZE_MAX = (1 << 32) - 1
INTEGER_FIELDS = ("received_at_ns", "order_id", "sequence", "received_delta_ns", "flags", "venue_channel")
OTHERS = {  # fields of a kind, besides its time, symbol, prices and sizes
    "trade": ("side", "buyer_maker", *INTEGER_FIELDS),
    "quote": tuple(name for name in INTEGER_FIELDS if name != "flags"),
    "order": ("side", "buyer_maker", "action", *INTEGER_FIELDS),
}
SIDES = {Aggressor.BUYER: "B", Aggressor.SELLER: "A", Aggressor.UNKNOWN: "N"}


class TickReader(FileReader):
    """Reads trades, quotes or orders from a CSV (with a header line) or Parquet file.

    Raises:
        RecordingError: a column is missing; says what to do.
    """

    def __init__(self, file: ColumnFile, options: IngestOptions) -> None:
        self._kind, mapping = map_columns(str(file.path), file.schema.names, options.columns, options.kind)
        self._prices = ("bid_price", "ask_price") if self._kind == "quote" else ("price",)
        self._sizes = ("bid_size", "ask_size") if self._kind == "quote" else ("size",)
        read = {TIME, "symbol", *self._prices, *self._sizes, *OTHERS[self._kind]}
        super().__init__(file, {name: column for name, column in mapping.items() if name in read}, options)
        self._times = TimeColumn(options.time_unit)
        self.size_exponent = options.size_exponent or 0
        found = {conversion_of(self.types[name]) for name in self._prices}
        self.price_conversion = next(each for each in (ROUNDED, EXACT, WHOLE) if each in found)

    @property
    def surveyed(self) -> list[str]:
        """The times and sizes."""
        times = [TIME] if self._times.needs_survey(self.types[TIME]) else []
        return times + self._surveyed_sizes()

    def look_at(self, rows: FileColumns) -> None:
        """Learn the unit of times and the exponent of sizes."""
        exponents = [size_exponent_of(_nine_digits(rows, name, 0)) for name in self._surveyed_sizes()]
        if self._times.needs_survey(self.types[TIME]):
            try:
                self._times.learn(self._times.highest(rows.column(TIME)))
            except BadValue as bad:
                raise rows.bad(bad, TIME) from None
        self.size_exponent = min([self.size_exponent, *exponents])

    def table(self, rows: FileColumns, size_exponent: int) -> Any:
        """Rows as a table of a recording."""
        columns: dict[str, Any] = {
            "kind": pa.array([self._kind] * rows.count, pa.string()),
            "symbol": self._symbols(rows),
            TIME: pa.array(self._event_times(rows)),
        }
        for name in self._prices:
            columns[name] = pa.array(_nine_digits(rows, name, NULL_PRICE))
        for name in self._sizes:
            columns[name] = pa.array(self._size(rows, name, size_exponent))
        if self._kind != "quote":
            columns["side"] = self._sides(rows)
            columns["flags"] = pa.array(np.zeros(rows.count, np.int16))
        for name in self.mapping:
            if name in INTEGER_FIELDS:
                columns[name] = _whole(rows, name)
        if self._kind == "order":
            columns["action"] = _texts(rows, "action")
        return complete(columns, rows.count)

    def _surveyed_sizes(self) -> list[str]:
        if self.options.size_exponent is not None:
            return []
        return [name for name in self._sizes if name in self.types and conversion_of(self.types[name]) != WHOLE]

    def _event_times(self, rows: FileColumns) -> NDArray[np.int64]:
        try:
            return self._times.nanoseconds(rows.column(TIME))
        except BadValue as bad:
            raise rows.bad(bad, TIME) from None

    def _symbols(self, rows: FileColumns) -> Any:
        if self.options.symbol is None and "symbol" in self.mapping:
            column = _texts(rows, "symbol")
            wrong = pc.or_kleene(pc.is_null(column), pc.greater(pc.binary_length(column), SYMBOL_SIZE_MAX))
            if pc.any(wrong).as_py():
                row = pc.index(wrong, pa.scalar(True)).as_py()
                text = f"symbol is {column[row].as_py()!r}; it must be 1 to {SYMBOL_SIZE_MAX} bytes long"
                raise rows.error(row, "symbol", text)
            return column
        path = self.file.path
        symbol = self.options.symbol or re.split(r"[-_. ]", path.name)[0].upper()
        if not 1 <= len(symbol.encode()) <= SYMBOL_SIZE_MAX:
            raise RecordingError(
                f"{path}: no symbol column, and {symbol!r} cannot be the symbol because it is not 1 to "
                f"{SYMBOL_SIZE_MAX} bytes long: give --symbol"
            )
        return pa.array([symbol] * rows.count, pa.string())

    def _size(self, rows: FileColumns, name: str, exponent: int) -> NDArray[np.int64]:
        if name not in self.mapping:
            return np.zeros(rows.count, np.int64)
        values, rest = np.divmod(_nine_digits(rows, name, 0), int(10 ** (PRICE_DIGITS + exponent)))
        wrong = np.flatnonzero((rest != 0) | (values < 0) | (values > SIZE_MAX))
        if wrong.size:
            row = int(wrong[0])
            value = rows.column(name)[row].as_py()
            text = f"size {value} is not a 32-bit multiple of 1e{exponent}: give another --size-exponent"
            raise rows.error(row, name, text)
        return values

    def _sides(self, rows: FileColumns) -> Any:
        field, read = ("side", by_side) if "side" in self.mapping else ("buyer_maker", by_buyer_maker)
        if field not in self.mapping:
            return pa.array(["N"] * rows.count, pa.string())
        known: dict[object, str] = {}  # there are few different ones
        values = _texts(rows, field).to_pylist()
        for row, value in enumerate(values):
            if value not in known:
                try:
                    known[value] = SIDES[read(value)]
                except ValueError as reason:
                    raise rows.error(row, field, str(reason)) from None
        return pa.array([known[value] for value in values], pa.string())


def _nine_digits(rows: FileColumns, name: str, null: int) -> NDArray[np.int64]:
    try:
        return to_nine_digits(rows.column(name), null)
    except BadValue as bad:
        raise rows.bad(bad, name) from None


def _whole(rows: FileColumns, name: str) -> Any:
    kind = SCHEMA.field(name).type
    column = rows.column(name)
    try:
        if pa.types.is_timestamp(column.type):
            column = cast(column, pa.timestamp("ns"), NOT_64_BITS)
        return cast(column, kind, f"is not an integer of {kind.bit_width} bits")
    except BadValue as bad:
        raise rows.bad(bad, name) from None


def _texts(rows: FileColumns, name: str) -> Any:
    try:
        return cast(rows.column(name), pa.string(), "is not a text")
    except BadValue as bad:
        raise rows.bad(bad, name) from None
