"""Reads a file with columns into tables of a recording, a batch at a time.

What one row becomes may depend on all rows: the unit of integer times, the power of ten of sizes. So the columns that
decide such things are surveyed first, and the file is read twice.

Invariant: tables and errors do not depend on how the file is cut into batches. The error is that of the first bad row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from tandemfeed.spark_feed.recordings.ingest.column_file import ColumnFile
from tandemfeed.spark_feed.recordings.ingest.file_columns import BadRow, FileColumns, IngestOptions

OnRead: TypeAlias = Callable[[int], None]  # called with the number of bytes that were read since the last call


class FileReader(ABC):
    """Reads one file.

    Args:
        mapping: field -> column.

    Attributes:
        price_conversion: how prices are converted to integers, in words.
        size_exponent: the largest power of ten in which all sizes that were surveyed are integers.
    """

    price_conversion: str
    size_exponent = 0

    def __init__(self, file: ColumnFile, mapping: Mapping[str, str], options: IngestOptions) -> None:
        self.file, self.mapping, self.options = file, mapping, options
        self.types = {name: file.type_of(column) for name, column in mapping.items()}

    @property
    @abstractmethod
    def surveyed(self) -> list[str]:
        """The fields of which all values must be known before the first row can be recorded."""

    @abstractmethod
    def look_at(self, rows: FileColumns) -> None:
        """Learn from the next rows of the fields in `surveyed`.

        Raises:
            BadRow: a row cannot be recorded; nothing was learned.
        """

    @abstractmethod
    def table(self, rows: FileColumns, size_exponent: int) -> Any:
        """Rows as a table of a recording.

        Raises:
            BadRow: a row cannot be recorded.
        """

    @property
    def work_size(self) -> int:
        """How many bytes are to be read, before the survey; a file that is surveyed is read twice."""
        return self.file.size * (2 if self.surveyed else 1)

    def survey(self, on_read: OnRead) -> None:
        """Learn what the tables depend on. What is bad is left to them: they refuse the same row, or one before it.

        Raises:
            RecordingError: the file cannot be read.
        """
        if not self.surveyed:
            return
        left = self.file.size

        def note(size: int) -> None:
            nonlocal left
            left -= size
            on_read(size)

        for rows in self._batches(self.surveyed, note):
            if not self._learn(rows) or not self.surveyed:
                break
        on_read(left)

    def tables(self, size_exponent: int, on_read: OnRead) -> Iterator[Any]:
        """All rows as tables of a recording, in order.

        Args:
            size_exponent: sizes are stored in units of 10 to this power.

        Raises:
            RecordingError: the file cannot be read, or a row cannot be recorded: names file, row and column.
        """
        convert = partial(self.table, size_exponent=size_exponent)
        for rows in self._batches(list(self.mapping), on_read):
            try:
                table = convert(rows)
            except BadRow as bad:
                raise _first_bad(rows, convert, bad) from None
            yield table

    def _learn(self, rows: FileColumns) -> bool:
        """Learn from the rows before the first bad one; False: there is one."""
        try:
            self.look_at(rows)
        except BadRow as bad:
            _first_bad(rows, self.look_at, bad)
            return False
        return True

    def _batches(self, fields: list[str], on_read: OnRead) -> Iterator[FileColumns]:
        names = list(dict.fromkeys(self.mapping[field] for field in fields))
        for batch in self.file.batches(names, on_read):
            yield FileColumns(self.file, self.mapping, batch)


def _first_bad(rows: FileColumns, use: Callable[[FileColumns], object], bad: BadRow) -> BadRow:
    """The first bad row, if one is known; columns are checked one after another, so that may be a later one."""
    while bad.row:
        try:
            use(rows.before(bad.row))
        except BadRow as earlier:
            bad = earlier
        else:
            break
    return bad
