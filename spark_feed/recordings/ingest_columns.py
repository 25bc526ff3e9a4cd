"""CSV and Parquet files of ticks as recording tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tandemfeed.spark_feed.recordings.columns import map_columns
from tandemfeed.spark_feed.recordings.prices import EXACT, ROUNDED, WHOLE, BadNumber, size_exponent_of, to_nine_digits
from tandemfeed.spark_feed.recordings.recording import (
    NULL_PRICE,
    PRICE_DIGITS,
    SYMBOL_SIZE_MAX,
    RecordingError,
    complete,
)

SIZE_MAX = (1 << 32) - 1
INTEGER_FIELDS = ("received_at_ns", "order_id", "sequence", "received_delta_ns", "flags", "venue_channel")
TIME_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
SIDES = {"b": "B", "bid": "B", "buy": "B", "buyer": "B", "1": "B", "a": "A", "ask": "A", "s": "A", "sell": "A"}
SIDES |= {"seller": "A", "-1": "A", "2": "A"}


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What the user states instead of leaving it to be guessed.

    Attributes:
        symbol: symbol of every row, for a file without a symbol column; None: the first word of the file name.
        columns: field -> column.
        time_unit: unit of integer times; None: guessed from their magnitude.
        size_exponent: sizes are stored in units of 10 to this power; None: the largest that is exact.
    """

    kind: str | None = None
    symbol: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    size_exponent: int | None = None


NO_VALUE = pa.array(pyarrow.csv.ConvertOptions().null_values)  # the usual spellings of "no value" in a CSV file


@dataclass(frozen=True, slots=True)
class Ingested:
    """A whole file as a recording table, and how its numbers were converted."""

    table: Any
    price_conversion: str
    size_exponent: int = 0


def read_columns_file(path: Path, options: IngestOptions) -> Ingested:
    """Read a CSV (with a header line) or Parquet file.

    Raises:
        RecordingError: names file, row and column, and says what to do.
    """
    try:
        raw = _read_csv(path) if path.suffix.lower() in (".csv", ".txt") else pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordingError(f"{path}: cannot be read ({error})") from error
    kind, mapping = map_columns(str(path), raw.column_names, options.columns, options.kind)
    return _Reader(path, raw, kind, mapping, options).read()


def _read_csv(path: Path) -> Any:
    with path.open(encoding="utf-8") as file:
        names = [name.strip().strip('"') for name in file.readline().rstrip("\r\n").split(",")]
    # Every column stays text, because prices must not pass through binary floats. NA, NULL and nan may be tickers; in
    # other columns `_Reader._column` makes them null.
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    return pyarrow.csv.read_csv(path, convert_options=convert)


class _Reader:
    def __init__(self, path: Path, raw: Any, kind: str, mapping: dict[str, str], options: IngestOptions) -> None:
        self._path = path
        self._raw = raw
        self._kind = kind
        self._mapping = mapping
        self._options = options
        self._how: set[str] = set()

    def read(self) -> Ingested:
        count = self._raw.num_rows
        columns: dict[str, Any] = {"kind": pa.array([self._kind] * count, pa.string()), "symbol": self._symbols()}
        columns["event_at_ns"] = pa.array(self._times())
        prices = ("bid_price", "ask_price") if self._kind == "quote" else ("price",)
        sizes = ("bid_size", "ask_size") if self._kind == "quote" else ("size",)
        for name in prices:
            values, how = self._nine_digits(name, NULL_PRICE)
            self._how.add(how)
            columns[name] = pa.array(values)
        exponent = self._sizes(sizes, columns)
        if self._kind != "quote":
            columns["side"] = self._sides()
            columns["flags"] = pa.array(np.zeros(count, np.int16))
        for name in INTEGER_FIELDS:
            if name in self._mapping and not (self._kind == "quote" and name == "flags"):
                columns[name] = self._whole(name)
        if self._kind == "order":
            columns["action"] = self._text("action")
        how = next(how for how in (ROUNDED, EXACT, WHOLE) if how in self._how)
        return Ingested(complete(columns, count), how, exponent)

    def _column(self, name: str) -> Any:
        column = self._raw.column(self._mapping[name])
        if name == "symbol" or not pa.types.is_string(column.type):
            return column
        return pc.if_else(pc.is_in(column, NO_VALUE), pa.scalar(None, pa.string()), column)

    def _error(self, row: int, name: str, text: str) -> RecordingError:
        line = f"row {row + 1}" + (f" (line {row + 2})" if self._path.suffix.lower() == ".csv" else "")
        return RecordingError(f"{self._path}: {line}, column {self._mapping[name]!r}: {text}")

    def _symbols(self) -> Any:
        if self._options.symbol is None and "symbol" in self._mapping:
            column = self._column("symbol").cast(pa.string())
            wrong = pc.or_kleene(pc.is_null(column), pc.greater(pc.binary_length(column), SYMBOL_SIZE_MAX))
            if pc.any(wrong).as_py():
                row = pc.index(wrong, pa.scalar(True)).as_py()
                raise self._error(
                    row, "symbol", f"symbol is {column[row].as_py()!r}; it must be 1 to {SYMBOL_SIZE_MAX} bytes long"
                )
            return column
        symbol = self._options.symbol or re.split(r"[-_. ]", self._path.name)[0].upper()
        if not 1 <= len(symbol.encode()) <= SYMBOL_SIZE_MAX:
            raise RecordingError(
                f"{self._path}: no symbol column, and {symbol!r} cannot be the symbol because it is not 1 to "
                f"{SYMBOL_SIZE_MAX} bytes long: give --symbol"
            )
        return pa.array([symbol] * self._raw.num_rows, pa.string())

    def _times(self) -> NDArray[np.int64]:
        column = self._column("event_at_ns")
        if pa.types.is_string(column.type):
            column = self._parse_times(column)
        if column.null_count:
            raise self._error(
                pc.index(pc.is_null(column), pa.scalar(True)).as_py(), "event_at_ns", "the time is missing"
            )
        if pa.types.is_timestamp(column.type):
            return np.asarray(column.cast(pa.timestamp("ns")).cast(pa.int64()).to_numpy(), np.int64)
        if not pa.types.is_integer(column.type):
            raise self._error(0, "event_at_ns", f"type is {column.type}; expected ISO 8601 times or integers")
        values = np.asarray(column.to_numpy(), np.int64)
        unit = self._options.time_unit or _unit_of(int(values.max(initial=0)))
        return values * TIME_UNITS[unit]

    def _parse_times(self, column: Any) -> Any:
        for kind in (pa.int64(), pa.timestamp("ns", "UTC"), pa.timestamp("ns")):
            try:
                return column.cast(kind)
            except pa.ArrowInvalid:
                continue
        for row, text in enumerate(column.to_pylist()):
            if text is None or re.fullmatch(r"-?\d+", text):
                continue
            try:
                pa.scalar(text).cast(pa.timestamp("ns", "UTC"))
            except pa.ArrowInvalid:
                raise self._error(row, "event_at_ns", f"{text!r} is neither an ISO 8601 time nor an integer") from None
        raise self._error(
            0, "event_at_ns", "times have mixed forms (with and without zone, or text and integer); use one form"
        )

    def _nine_digits(self, name: str, null: int) -> tuple[NDArray[np.int64], str]:
        try:
            return to_nine_digits(self._column(name), null)
        except BadNumber as bad:
            raise self._error(bad.row, name, f"{bad.value!r} {bad.reason}") from None

    def _sizes(self, names: tuple[str, ...], columns: dict[str, Any]) -> int:
        found = {name: self._nine_digits(name, 0)[0] for name in names if name in self._mapping}
        exponent = self._options.size_exponent
        if exponent is None:
            exponent = min((size_exponent_of(values) for values in found.values()), default=0)
        divisor = int(10 ** (PRICE_DIGITS + exponent))
        for name in names:
            if name not in found:
                columns[name] = pa.array(np.zeros(self._raw.num_rows, np.int64))
                continue
            values, rest = np.divmod(found[name], divisor)
            wrong = np.flatnonzero((rest != 0) | (values < 0) | (values > SIZE_MAX))
            if wrong.size:
                value = self._column(name)[int(wrong[0])].as_py()
                text = f"size {value} is not a 32-bit multiple of 1e{exponent}: give another --size-exponent"
                raise self._error(int(wrong[0]), name, text)
            columns[name] = pa.array(values)
        return exponent

    def _sides(self) -> Any:
        if "side" in self._mapping:
            texts = self._text("side").to_pylist()
            return pa.array([SIDES.get(str(text).strip().lower(), "N") for text in texts])
        if "buyer_maker" in self._mapping:  # the maker bought, so the aggressor sold
            texts = self._text("buyer_maker").to_pylist()
            return pa.array(["A" if str(text).lower() in ("true", "1") else "B" for text in texts])
        return pa.array(["N"] * self._raw.num_rows)

    def _text(self, name: str) -> Any:
        return self._column(name).cast(pa.string())

    def _whole(self, name: str) -> Any:
        try:
            return self._column(name).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise RecordingError(f"{self._path}: column {self._mapping[name]!r}: {error}") from error


def _unit_of(value: int) -> str:
    """The unit that puts a time between the years 1973 and 5138."""
    return next(
        unit for unit, limit in (("s", 10**11), ("ms", 10**14), ("us", 10**17), ("ns", 1 << 63)) if value < limit
    )
