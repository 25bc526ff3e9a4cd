"""Consecutive rows of a user's CSV or Parquet file as columns by field, with errors that name row and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tandemfeed.spark_feed.recordings.ingest.column_file import NOT_UTF_8, Batch, ColumnFile
from tandemfeed.spark_feed.recordings.recording import RecordingError
from tandemfeed.spark_feed.recordings.values import BadValue, cast, is_text


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


class BadRow(RecordingError):
    """A row cannot be recorded. Attributes: row: its index in the batch."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


@cache
def _no_value() -> Any:
    """The usual spellings of "no value" in a CSV file. Arrow imports pandas to make the first array of a list."""
    return pa.array(pyarrow.csv.ConvertOptions().null_values)


class FileColumns:
    """The columns of a batch.

    Args:
        mapping: field -> column.
    """

    def __init__(self, file: ColumnFile, mapping: Mapping[str, str], batch: Batch) -> None:
        self.file, self.mapping, self.batch = file, mapping, batch
        self.count: int = batch.rows.num_rows
        self._columns: dict[str, Any] = {}

    def before(self, row: int) -> FileColumns:
        """The rows that precede one."""
        first, rows = self.batch
        return FileColumns(self.file, self.mapping, Batch(first, rows.slice(0, row)))

    def column(self, name: str) -> Any:
        """The column of a field as an Arrow array; texts are strings, and words for no value are nulls.

        Raises:
            BadRow: a text is not UTF-8.
        """
        if name not in self._columns:
            self._columns[name] = self._read(name)
        return self._columns[name]

    def _read(self, name: str) -> Any:
        column = self.batch.rows.column(self.mapping[name])
        if self.file.is_csv or is_text(column.type):
            try:
                column = cast(column, pa.string(), NOT_UTF_8)
            except BadValue as bad:
                raise self.bad(bad, name) from None
        if name == "symbol" or not pa.types.is_string(column.type):
            return column
        return pc.if_else(pc.is_in(column, _no_value()), pa.scalar(None, pa.string()), column)

    def error(self, row: int, name: str, text: str) -> BadRow:
        """What is wrong in a row, as an error that names row and column."""
        where = self.file.where(self.batch.first_row + row)
        return BadRow(row, f"{where}, column {self.mapping[name]!r}: {text}")

    def bad(self, value: BadValue, name: str) -> BadRow:
        """As `error`, of a field's value."""
        return self.error(value.row, name, str(value))
