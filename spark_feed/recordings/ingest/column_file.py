"""A CSV or Parquet file as a stream of rows, so that its size does not matter.

Folders named as Hive and Spark name partitions, such as `symbol=AAPL`, are columns of the files in them.

The columns of a CSV file are texts, because prices must not pass through binary floats. NA, NULL and nan are texts,
too: they may be tickers.

Invariant: the rows and their order do not depend on how they are cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tandemfeed.feedcore.hive_path import columns_of_path
from tandemfeed.spark_feed.recordings.recording import RecordingError

CSV_SUFFIXES, PARQUET_SUFFIXES = (".csv", ".txt"), (".parquet", ".pq")
CSV_BLOCK_SIZE = 1 << 20  # bytes of a batch, and of the longest row
PARQUET_BATCH_ROWS = 32 * 1_024
PARQUET_BUFFER_SIZE = 1 << 20  # bytes of a column that are read at once; otherwise, all that a row group has of it
SEPARATORS = (";", "\t", "|")  # of columns, which a file may have by mistake
NOT_UTF_8 = "is not UTF-8 text; convert the file first, for example with iconv"
SHOWN_MAX = 160  # characters of a row, or of a library's text, in an error


class Batch(NamedTuple):
    """Consecutive rows. Attributes: first_row: the number of the first, from 0; rows: an Arrow record batch."""

    first_row: int
    rows: Any


class ColumnFile:
    """A file with columns.

    Attributes:
        path: its path; errors name it.
        schema: the columns, as Arrow types; those of its path come last.
        size: in bytes.

    Raises:
        RecordingError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_csv = path.suffix.lower() in CSV_SUFFIXES
        self._invalid_row: Any = None  # of a CSV file: a row with another number of columns
        try:
            self._state = _state_of(path)
            self.schema = self._csv_schema() if self.is_csv else pq.read_schema(path)
        except (pa.ArrowException, OSError) as reason:
            raise self._unreadable(reason) from reason
        self.size = path.stat().st_size
        try:
            self._of_path = columns_of_path(path.absolute(), self.schema.names)
        except ValueError as twice:
            raise RecordingError(f"{path}: {twice}") from None
        for name in self._of_path:
            self.schema = self.schema.append(pa.field(name, pa.string()))

    def type_of(self, name: str) -> Any:
        """The Arrow type of a column.

        Raises:
            RecordingError: the file has several columns of this name.
        """
        if self.schema.names.count(name) > 1:
            raise RecordingError(f"{self.path}: there are several columns {name!r}; rename or remove all but one")
        return self.schema.field(name).type

    def where(self, row: int) -> str:
        """The file and a row of it, for errors.

        Args:
            row: its number, from 0.
        """
        line = f" (line {row + 2})" if self.is_csv else ""
        return f"{self.path}: row {row + 1}{line}"

    def batches(self, names: Sequence[str], on_read: Callable[[int], None]) -> Iterator[Batch]:
        """Some columns of all rows, in order. Columns of a CSV file are binary: not all bytes are text.

        Args:
            on_read: called with the number of bytes that were read since the last call.

        Raises:
            RecordingError: the file cannot be read further, or has changed since it was opened.
        """
        read_batches = self._csv_batches if self.is_csv else self._parquet_batches
        first_row = read = 0
        of_path = [name for name in names if name in self._of_path]
        try:
            for rows, at in read_batches([name for name in names if name not in self._of_path]):
                on_read(at - read)
                read = at
                if rows.num_rows:
                    for name in of_path:
                        rows = rows.append_column(name, pa.array([self._of_path[name]] * rows.num_rows, pa.string()))
                    yield Batch(first_row, rows)
                first_row += rows.num_rows
            on_read(self.size - read)
            is_same = _state_of(self.path) == self._state
        except (pa.ArrowException, OSError) as reason:
            raise self._unreadable(reason, first_row) from reason
        if not is_same:
            raise RecordingError(f"{self.path} changed while it was read; ingest it when it is complete")

    def _csv_schema(self) -> Any:
        with self.path.open("rb") as file:
            first_line = file.readline(CSV_BLOCK_SIZE)
        try:
            first_line.decode()
        except UnicodeDecodeError:
            raise RecordingError(f"{self.path}: the line of column names {NOT_UTF_8}") from None
        with pa.OSFile(str(self.path)) as file, self._opened_csv(file, None) as opened:
            names = opened.schema.names
        separator = next((each for each in SEPARATORS if len(names) == 1 and each in names[0]), None)
        if separator is not None:
            raise RecordingError(
                f"{self.path}: its columns are separated by {separator!r}; they must be separated by commas"
            )
        return pa.schema([(name, pa.string()) for name in names])

    def _csv_batches(self, names: list[str]) -> Iterator[tuple[Any, int]]:
        """Each batch, and how many bytes of the file were read for it."""
        with pa.OSFile(str(self.path)) as file, self._opened_csv(file, names) as opened:
            for rows in opened:
                yield rows, file.tell()

    def _opened_csv(self, file: Any, names: list[str] | None) -> Any:
        """A reader of some columns; None: of all, whose types are guessed."""

        def on_invalid_row(row: Any) -> str:
            self._invalid_row = row
            return "error"

        types = dict.fromkeys(names or [], pa.binary())
        return pyarrow.csv.open_csv(
            file,
            # Only the serial reader knows the number of a row.
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_SIZE),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=on_invalid_row),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=names or [], column_types=types, strings_can_be_null=True, null_values=[""]
            ),
        )

    def _parquet_batches(self, names: list[str]) -> Iterator[tuple[Any, int]]:
        with pq.ParquetFile(self.path, buffer_size=PARQUET_BUFFER_SIZE) as file:
            row_count, done = max(file.metadata.num_rows, 1), 0
            for rows in file.iter_batches(PARQUET_BATCH_ROWS, columns=names):
                done += rows.num_rows
                yield rows, self.size * done // row_count

    def _unreadable(self, reason: Exception, row: int = 0) -> RecordingError:
        if (invalid := self._invalid_row) is not None:
            what = f"it has {invalid.actual_columns} columns instead of {invalid.expected_columns}"
            # the line of column names is its row 1
            return RecordingError(f"{self.where(invalid.number - 2)}: {what}: {_shown(invalid.text)!r}")
        text = _shown(" ".join(str(reason).split()))
        if "Empty CSV" in text:
            text = "it has no line of column names with rows below it"
        elif "straddling" in text:
            text = f"a row is longer than {CSV_BLOCK_SIZE:,} bytes, or a quotation mark is not closed"
        after = f" after row {row}" if row else ""
        return RecordingError(f"{self.path}: cannot be read{after} ({text})")


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else "." for each in text[:SHOWN_MAX])


def _state_of(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
