"""A user's CSV or Parquet file as columns by field, with errors that name row and column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tandemfeed.spark_feed.recordings.recording import RecordingError

TIME_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


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


def read_file(path: Path) -> Any:
    """A CSV file with a header line, whose columns stay text, or a Parquet file.

    Raises:
        RecordingError: it cannot be read.
    """
    try:
        return _read_csv(path) if path.suffix.lower() in (".csv", ".txt") else pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordingError(f"{path}: cannot be read ({error})") from error


def _read_csv(path: Path) -> Any:
    with path.open(encoding="utf-8") as file:
        names = [name.strip().strip('"') for name in file.readline().rstrip("\r\n").split(",")]
    # Every column stays text, because prices must not pass through binary floats. NA, NULL and nan may be tickers; in
    # other columns `FileColumns.column` makes them null.
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    return pyarrow.csv.read_csv(path, convert_options=convert)


@cache
def _no_value() -> Any:
    """The usual spellings of "no value" in a CSV file. Arrow imports pandas to make the first array of a list."""
    return pa.array(pyarrow.csv.ConvertOptions().null_values)


class FileColumns:
    """The columns of a file.

    Args:
        raw: the file as an Arrow table.
        mapping: field -> column.
    """

    def __init__(self, path: Path, raw: Any, mapping: Mapping[str, str], options: IngestOptions) -> None:
        self.path, self.raw, self.mapping, self.options = path, raw, mapping, options

    def column(self, name: str) -> Any:
        """The column of a field; words for no value are nulls."""
        column = self.raw.column(self.mapping[name])
        if name == "symbol" or not pa.types.is_string(column.type):
            return column
        return pc.if_else(pc.is_in(column, _no_value()), pa.scalar(None, pa.string()), column)

    def error(self, row: int, name: str, text: str) -> RecordingError:
        """What is wrong in a row, as an error that names row and column."""
        line = f"row {row + 1}" + (f" (line {row + 2})" if self.path.suffix.lower() == ".csv" else "")
        return RecordingError(f"{self.path}: {line}, column {self.mapping[name]!r}: {text}")

    def times(self, name: str = "event_at_ns") -> NDArray[np.int64]:
        """A column of times, in nanoseconds since 1970.

        Raises:
            RecordingError: names row and column.
        """
        column = self.column(name)
        if pa.types.is_string(column.type):
            column = self._parse_times(column, name)
        if column.null_count:
            raise self.error(pc.index(pc.is_null(column), pa.scalar(True)).as_py(), name, "the time is missing")
        if pa.types.is_timestamp(column.type):
            return np.asarray(column.cast(pa.timestamp("ns")).cast(pa.int64()).to_numpy(), np.int64)
        if not pa.types.is_integer(column.type):
            raise self.error(0, name, f"type is {column.type}; expected ISO 8601 times or integers")
        values = np.asarray(column.to_numpy(), np.int64)
        unit = self.options.time_unit or _unit_of(int(values.max(initial=0)))
        return values * TIME_UNITS[unit]

    def _parse_times(self, column: Any, name: str) -> Any:
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
                raise self.error(row, name, f"{text!r} is neither an ISO 8601 time nor an integer") from None
        raise self.error(0, name, "times have mixed forms (with and without zone, or text and integer); use one form")


def _unit_of(value: int) -> str:
    """The unit that puts a time between the years 1973 and 5138."""
    return next(
        unit for unit, limit in (("s", 10**11), ("ms", 10**14), ("us", 10**17), ("ns", 1 << 63)) if value < limit
    )
