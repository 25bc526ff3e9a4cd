"""Ticks in CSV and Parquet files: each row is a trade or a quote, framed as in `tick-table.xml`.

Columns are found by their usual names (`ALIASES`), in upper or lower case; folders such as `symbol=AAPL` are columns.
Decimal text is exact to the last digit; more than nine decimals are an error. Floating-point numbers are rounded to
nine decimals, because further digits are noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.formats.chunks import MESSAGE_COUNT_MAX, FormatError, FrameChunk
from tandemfeed.feedcore.aggressor import Aggressor, by_buyer_maker, by_side
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.hive_path import columns_of_path

DECIMALS = 9
NULL = (1 << 63) - 1
SYMBOL_SIZE = 32
NO_VALUE = pa.array(pyarrow.csv.ConvertOptions().null_values)  # the usual spellings of "no value" in a CSV file
SEPARATORS = (";", "\t", "|")  # of columns, which a file may use by mistake
REASON_SHOWN_MAX = 160  # characters: the library's text may contain a whole line of the file
UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
ALIASES: dict[str, tuple[str, ...]] = {
    "event_at_ns": ("event_at_ns", "timestamp", "time", "datetime", "ts", "ts_event", "date_time"),
    "symbol": ("symbol", "ticker", "instrument", "pair"),
    "bid_price": ("bid", "bid_price", "bid_px", "best_bid"),
    "ask_price": ("ask", "ask_price", "ask_px", "best_ask", "offer"),
    "bid_size": ("bid_size", "bid_qty", "bid_sz", "bid_volume"),
    "ask_size": ("ask_size", "ask_qty", "ask_sz", "ask_volume"),
    "price": ("price", "px", "last", "trade_price"),
    "size": ("size", "quantity", "qty", "amount", "volume"),
    "trade_id": ("trade_id", "id", "agg_trade_id"),
    "side": ("side", "aggressor_side", "taker_side"),
    "buyer_maker": ("buyer_maker", "is_buyer_maker"),
}
SIDES = {Aggressor.BUYER: b"B", Aggressor.SELLER: b"S", Aggressor.UNKNOWN: b"N"}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a file itself may not contain.

    Attributes:
        symbol: the symbol of every row, if there is no column for it.
        time_unit: the unit of times that are plain integers: s, ms, us or ns.
    """

    symbol: str = ""
    time_unit: str = "ns"

    def __post_init__(self) -> None:
        """Check the user's choices."""
        if self.time_unit not in UNITS_NS:
            raise FormatError(f"the time unit is {self.time_unit!r}; it must be one of {', '.join(UNITS_NS)}")
        if len(self.symbol.encode()) > SYMBOL_SIZE:
            raise FormatError(f"symbol {self.symbol!r} has more than {SYMBOL_SIZE} bytes")


def read_tick_file(
    path: Path, source_format: SourceFormat, options: TableOptions | None = None
) -> Iterator[FrameChunk]:
    """The rows of a CSV (.csv, .csv.gz) or Parquet file, in chunks, numbered from 1.

    Raises:
        FormatError: with the column and the first invalid row, counted from 1.
    """
    options = options or TableOptions()
    try:
        table = pyarrow.parquet.read_table(path) if path.suffix == ".parquet" else _read_csv(path)
    except (pa.ArrowException, UnicodeDecodeError) as wrong:
        raise unreadable(wrong) from None
    try:
        of_path = columns_of_path(path.absolute(), table.column_names)
    except ValueError as twice:
        raise FormatError(str(twice)) from None
    for name, value in of_path.items():
        table = table.append_column(name, pa.array([value] * table.num_rows, pa.string()))
    columns = _Columns(table, options)
    name = "quote" if columns.has("bid_price") or columns.has("ask_price") else "trade"
    wanted = list(source_format.messages[name].fields)
    values = {field: columns.values(field) for field in wanted}
    rows = source_format.messages[name].encode(values, table.num_rows)
    for first in range(0, len(rows), MESSAGE_COUNT_MAX):
        part = rows[first : first + MESSAGE_COUNT_MAX]
        yield FrameChunk(part.tobytes(), len(part), first + 1)


def unreadable(wrong: Exception) -> FormatError:
    """The error for a file that is not the table that its name promises, in one printable line."""
    if isinstance(wrong, UnicodeDecodeError) or "UTF8" in str(wrong):
        return FormatError("its text is not UTF-8; convert it first, for example with iconv")
    text = "".join(each if each.isprintable() else "." for each in " ".join(str(wrong).split()))
    return FormatError(f"cannot be read: {text[:REASON_SHOWN_MAX]}")


def _read_csv(path: Path) -> pa.Table:
    """Read every column as text: guessed types would lose digits. NA and nan stay texts: they may be tickers."""
    names = pyarrow.csv.open_csv(path).schema.names
    separator = next((each for each in SEPARATORS if len(names) == 1 and each in names[0]), None)
    if separator is not None:
        raise FormatError(f"its columns are separated by {separator!r}; they must be separated by commas")
    convert = pyarrow.csv.ConvertOptions(
        column_types={name: pa.string() for name in names}, strings_can_be_null=True, null_values=[""]
    )
    return pyarrow.csv.read_csv(path, convert_options=convert)


class _Columns:
    """The columns of a table, by the format's names."""

    def __init__(self, table: pa.Table, options: TableOptions) -> None:
        self._table = table
        self._options = options
        self._names: dict[str, str] = {}
        twice = next((name for name in table.column_names if table.column_names.count(name) > 1), None)
        if twice is not None:
            raise FormatError(f"the file has several columns {twice!r}; rename or remove all but one")
        by_lower = {name.lower().strip(): name for name in table.column_names}
        for field, aliases in ALIASES.items():
            found = [by_lower[alias] for alias in aliases if alias in by_lower]
            if found:
                self._names[field] = found[0]
        needed = ("bid_price", "ask_price") if self.has("bid_price") or self.has("ask_price") else ("price",)
        for field in ("event_at_ns", *needed):
            if not self.has(field):
                raise FormatError(
                    f"no column for {field!r}; its name must be one of {', '.join(ALIASES[field])}; "
                    f"the file has {', '.join(table.column_names)}"
                )

    def has(self, field: str) -> bool:
        """True if the table has a column for the field."""
        return field in self._names

    def values(self, field: str) -> NDArray[np.generic]:
        """The values of a field."""
        if field == "side":
            return self._sides()
        if field == "symbol":
            return self._symbols()
        if not self.has(field):
            return np.full(self._table.num_rows, NULL, np.int64)
        column = self._table.column(self._names[field]).combine_chunks()
        if pa.types.is_string(column.type):
            column = pc.if_else(pc.is_in(column, NO_VALUE), pa.scalar(None, pa.string()), column)
        try:
            if field == "event_at_ns":
                return self._times(column)
            if field == "trade_id":
                return _filled(column.cast(pa.int64()))
            return nine_decimals(column)
        except pa.ArrowInvalid as wrong:
            raise FormatError(f"column {self._names[field]!r}: {_where(column, field)}{wrong}") from None

    def _times(self, column: pa.Array) -> NDArray[np.int64]:
        is_text = pa.types.is_string(column.type)
        if pa.types.is_integer(column.type) or (is_text and pc.all(pc.match_substring_regex(column, r"^\d+$")).as_py()):
            column = pc.multiply_checked(column.cast(pa.int64()), UNITS_NS[self._options.time_unit])
        elif is_text:
            zoned = pc.any(pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)$")).as_py()
            column = column.cast(pa.timestamp("ns", "UTC" if zoned else None))
        elif not pa.types.is_timestamp(column.type):
            raise pa.ArrowInvalid(f"{column.type} is not a time")
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64())
        if column.null_count:
            raise pa.ArrowInvalid("a row without a time")
        return np.asarray(column, dtype=np.int64)

    def _symbols(self) -> NDArray[np.bytes_]:
        if not self.has("symbol"):
            return np.full(self._table.num_rows, self._options.symbol.encode(), f"S{SYMBOL_SIZE}")
        texts = [(value or "").encode() for value in self._table.column(self._names["symbol"]).to_pylist()]
        for row, text in enumerate(texts, 1):
            if len(text) > SYMBOL_SIZE:
                raise FormatError(
                    f"column {self._names['symbol']!r}, row {row}: {text!r} has more than {SYMBOL_SIZE} bytes"
                )
        return np.array(texts, f"S{SYMBOL_SIZE}")

    def _sides(self) -> NDArray[np.bytes_]:
        """The side of the aggressor: if the buyer was the maker, the seller was the aggressor."""
        field, read = ("buyer_maker", by_buyer_maker) if self.has("buyer_maker") else ("side", by_side)
        if not self.has(field):
            return np.full(self._table.num_rows, b"N", "S1")
        known: dict[object, bytes] = {}  # there are few different ones
        values = self._table.column(self._names[field]).to_pylist()
        for row, value in enumerate(values, 1):
            if value not in known:
                try:
                    known[value] = SIDES[read(value)]
                except ValueError as reason:
                    raise FormatError(f"column {self._names[field]!r}, row {row}: {reason}") from None
        return np.array([known[value] for value in values], "S1")


def nine_decimals(column: pa.Array) -> NDArray[np.int64]:
    """Numbers, or texts of numbers, as integers with nine decimals; null becomes `NULL`.

    Raises:
        pa.ArrowInvalid: a value is not a number, or has more than nine decimals or 64 bits.
    """
    if pa.types.is_floating(column.type):
        return np.array([_rounded(value) for value in column.to_pylist()], np.int64)
    decimals = column.cast(pa.decimal128(38, DECIMALS))
    if isinstance(decimals, pa.ChunkedArray):
        decimals = decimals.combine_chunks()
    words = np.frombuffer(decimals.buffers()[1] or b"", "<i8")[2 * decimals.offset :][: 2 * len(decimals)]
    low, high = words[::2], words[1::2]  # Arrow stores a decimal as an integer of 128 bits
    is_set = np.asarray(decimals.is_valid())
    if np.any(is_set & ((high != low >> 63) | (low == NULL))):
        raise pa.ArrowInvalid("a number that does not fit in 64 bits with nine decimals")
    return np.where(is_set, low, NULL)


def _rounded(value: float | None) -> int:
    """The shortest decimal number for this float, rounded, so that digits of its binary form do not appear."""
    if value is None or math.isnan(value):
        return NULL
    scaled = Decimal(repr(value)).scaleb(DECIMALS)
    if not abs(scaled) < NULL:
        raise pa.ArrowInvalid(f"{value} does not fit in 64 bits with nine decimals")
    return int(scaled.to_integral_value())


def _filled(column: pa.Array) -> NDArray[np.int64]:
    return np.asarray(column.fill_null(NULL), dtype=np.int64)


def _where(column: pa.Array, field: str) -> str:
    """The first row that cannot be read, for the error text."""
    for row, value in enumerate(column, 1):
        part = pa.array([value.as_py()], column.type)
        try:
            if field == "trade_id":
                part.cast(pa.int64())
            elif field != "event_at_ns":
                nine_decimals(part)
            elif pa.types.is_string(column.type):
                part.cast(pa.timestamp("ns", "UTC"))
        except pa.ArrowInvalid:
            return f"row {row}: "
    return ""
