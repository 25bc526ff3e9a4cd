"""CSV and Parquet files of ticks as recording tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from tandemfeed.spark_feed.recordings.columns import map_columns
from tandemfeed.spark_feed.recordings.file_columns import FileColumns, IngestOptions, read_file
from tandemfeed.spark_feed.recordings.prices import EXACT, ROUNDED, WHOLE, BadNumber, size_exponent_of, to_nine_digits
from tandemfeed.spark_feed.recordings.recording import (
    NULL_PRICE,
    PRICE_DIGITS,
    SCHEMA,
    SYMBOL_SIZE_MAX,
    RecordingError,
    complete,
)

SIZE_MAX = (1 << 32) - 1
INTEGER_FIELDS = ("received_at_ns", "order_id", "sequence", "received_delta_ns", "flags", "venue_channel")
SIDES = {"b": "B", "bid": "B", "buy": "B", "buyer": "B", "1": "B", "a": "A", "ask": "A", "s": "A", "sell": "A"}
SIDES |= {"seller": "A", "-1": "A", "2": "A"}


@dataclass(frozen=True, slots=True)
class Ingested:
    """A file as tables of a recording, in order, and how its numbers were converted."""

    tables: Iterable[Any]
    price_conversion: str
    size_exponent: int = 0
    schema: Any = SCHEMA


def read_columns_file(path: Path, options: IngestOptions) -> Ingested:
    """Read a CSV (with a header line) or Parquet file.

    Raises:
        RecordingError: names file, row and column, and says what to do.
    """
    raw = read_file(path)
    kind, mapping = map_columns(str(path), raw.column_names, options.columns, options.kind)
    return _Reader(path, raw, kind, mapping, options).read()


class _Reader(FileColumns):
    def __init__(self, path: Path, raw: Any, kind: str, mapping: dict[str, str], options: IngestOptions) -> None:
        super().__init__(path, raw, mapping, options)
        self._kind = kind
        self._how: set[str] = set()

    def read(self) -> Ingested:
        count = self.raw.num_rows
        columns: dict[str, Any] = {"kind": pa.array([self._kind] * count, pa.string()), "symbol": self._symbols()}
        columns["event_at_ns"] = pa.array(self.times())
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
            if name in self.mapping and not (self._kind == "quote" and name == "flags"):
                columns[name] = self._whole(name)
        if self._kind == "order":
            columns["action"] = self._text("action")
        how = next(how for how in (ROUNDED, EXACT, WHOLE) if how in self._how)
        return Ingested([complete(columns, count)], how, exponent)

    def _symbols(self) -> Any:
        if self.options.symbol is None and "symbol" in self.mapping:
            column = self.column("symbol").cast(pa.string())
            wrong = pc.or_kleene(pc.is_null(column), pc.greater(pc.binary_length(column), SYMBOL_SIZE_MAX))
            if pc.any(wrong).as_py():
                row = pc.index(wrong, pa.scalar(True)).as_py()
                raise self.error(
                    row, "symbol", f"symbol is {column[row].as_py()!r}; it must be 1 to {SYMBOL_SIZE_MAX} bytes long"
                )
            return column
        symbol = self.options.symbol or re.split(r"[-_. ]", self.path.name)[0].upper()
        if not 1 <= len(symbol.encode()) <= SYMBOL_SIZE_MAX:
            raise RecordingError(
                f"{self.path}: no symbol column, and {symbol!r} cannot be the symbol because it is not 1 to "
                f"{SYMBOL_SIZE_MAX} bytes long: give --symbol"
            )
        return pa.array([symbol] * self.raw.num_rows, pa.string())

    def _nine_digits(self, name: str, null: int) -> tuple[NDArray[np.int64], str]:
        try:
            return to_nine_digits(self.column(name), null)
        except BadNumber as bad:
            raise self.error(bad.row, name, f"{bad.value!r} {bad.reason}") from None

    def _sizes(self, names: tuple[str, ...], columns: dict[str, Any]) -> int:
        found = {name: self._nine_digits(name, 0)[0] for name in names if name in self.mapping}
        exponent = self.options.size_exponent
        if exponent is None:
            exponent = min((size_exponent_of(values) for values in found.values()), default=0)
        divisor = int(10 ** (PRICE_DIGITS + exponent))
        for name in names:
            if name not in found:
                columns[name] = pa.array(np.zeros(self.raw.num_rows, np.int64))
                continue
            values, rest = np.divmod(found[name], divisor)
            wrong = np.flatnonzero((rest != 0) | (values < 0) | (values > SIZE_MAX))
            if wrong.size:
                value = self.column(name)[int(wrong[0])].as_py()
                text = f"size {value} is not a 32-bit multiple of 1e{exponent}: give another --size-exponent"
                raise self.error(int(wrong[0]), name, text)
            columns[name] = pa.array(values)
        return exponent

    def _sides(self) -> Any:
        if "side" in self.mapping:
            texts = self._text("side").to_pylist()
            return pa.array([SIDES.get(str(text).strip().lower(), "N") for text in texts])
        if "buyer_maker" in self.mapping:  # the maker bought, so the aggressor sold
            texts = self._text("buyer_maker").to_pylist()
            return pa.array(["A" if str(text).lower() in ("true", "1") else "B" for text in texts])
        return pa.array(["N"] * self.raw.num_rows)

    def _text(self, name: str) -> Any:
        return self.column(name).cast(pa.string())

    def _whole(self, name: str) -> Any:
        try:
            return self.column(name).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise RecordingError(f"{self.path}: column {self.mapping[name]!r}: {error}") from error
