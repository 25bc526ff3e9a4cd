"""Parquet files in folders by day, message type and bucket of instruments, as Hive, Spark and Arrow read partitions.

Each conversion adds files; it changes none that exists. Until a file is complete its name begins with a dot, so that
readers pass over it. Few files are open at a time, so memory is bounded. `Staging.publish` flushes them.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from tandemfeed.adapter.convert_command.output.row_groups import ROWS_MAX, TOTAL_BYTES_MAX, RecordBatch, RowGroups
from tandemfeed.adapter.convert_command.output.write_thread import WriteThread
from tandemfeed.feedcore.documents.message_model import MessageModel
from tandemfeed.feedcore.hive_path import NO_VALUE
from tandemfeed.runtime import durable

OPEN_MAX = 256  # files; the one that was not used for longest is completed first
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How rows are divided.

    Attributes:
        buckets: of instruments.
        columns: name an instrument; the first of them that a message has, and that is not null, decides.
        day: of all rows; None: the UTC day of a message's first time.
    """

    buckets: int
    columns: Sequence[str] = ("instrumentId", "symbol")
    day: date | None = None

    def days(self, batch: RecordBatch) -> NDArray[np.int64]:
        """The day of each row, since 1970; -1: it has none."""
        if self.day is not None:
            return np.full(batch.num_rows, (self.day - EPOCH).days)
        times = [column for column in batch.columns if pa.types.is_timestamp(column.type)]
        if not times:
            return np.full(batch.num_rows, -1)
        days = times[0].cast(pa.date32(), safe=False).cast(pa.int32())
        return np.asarray(pc.fill_null(days, -1)).astype(np.int64)

    def buckets_of(self, batch: RecordBatch) -> NDArray[np.int64]:
        """The bucket of each row; 0 if nothing names its instrument."""
        found = np.full(batch.num_rows, -1, np.int64)
        for name in self.columns:
            if name in batch.schema.names and (found < 0).any():
                found = np.where(found < 0, self._buckets(batch[name]), found)
        return np.maximum(found, 0)

    def _buckets(self, column: Any) -> NDArray[np.int64]:
        """By one column; -1 for null."""
        if pa.types.is_dictionary(column.type):
            by_code = [zlib.crc32(str(each).encode()) % self.buckets for each in column.dictionary.to_pylist()]
            codes = np.asarray(pc.fill_null(column.indices, len(by_code)))
            return np.asarray(np.array([*by_code, -1], np.int64)[codes])
        if not pa.types.is_integer(column.type):
            return np.full(len(column), -1)
        numbers = np.asarray(pc.fill_null(column, 0)).astype(np.uint64) % np.uint64(self.buckets)
        return np.where(np.asarray(column.is_null()), -1, numbers.astype(np.int64))


def parquet_writer(path: Path, schema: Any) -> Any:
    """A writer of Parquet files.

    Only integers and times have statistics: those of decimals and texts take a third of the time of writing, and are
    the same in most row groups, because these have messages of all instruments.
    """
    has_statistics = [
        each.name for each in schema if pa.types.is_integer(each.type) or pa.types.is_timestamp(each.type)
    ]
    return pyarrow.parquet.ParquetWriter(path, schema, write_statistics=has_statistics)


class _Place(NamedTuple):
    """A partition."""

    name: str
    day: int
    bucket: int

    def folder(self, root: Path) -> Path:
        day = NO_VALUE if self.day < 0 else (EPOCH + timedelta(self.day)).isoformat()
        return root / f"day={day}" / f"type={self.name}" / f"bucket={self.bucket:03}"


class _PartFile:
    """A Parquet file that is being written."""

    def __init__(self, folder: Path, schema: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("part-*.parquet")))
        while True:
            self._path, self._written = folder / f"part-{number:05}.parquet", folder / f".part-{number:05}.parquet"
            try:
                self._written.open("xb").close()  # no other process writes this number
            except FileExistsError:
                number += 1
                continue
            if not self._path.exists():
                break
            self._written.unlink()
            number += 1
        self._writer = parquet_writer(self._written, schema)
        self._batches: list[RecordBatch] = []
        self.byte_count = self.row_count = 0  # of what is collected

    def add(self, batch: RecordBatch) -> None:
        self._batches.append(batch)
        self.byte_count += batch.nbytes
        self.row_count += batch.num_rows

    def take(self) -> list[RecordBatch]:
        """What is collected; afterwards nothing is."""
        taken, self._batches = self._batches, []
        self.byte_count = self.row_count = 0
        return taken

    def write(self, batches: list[RecordBatch]) -> None:
        """Write a row group."""
        if batches:
            rows = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
            self._writer.write_table(rows, len(rows))

    def close(self) -> None:
        self._writer.close()
        durable.rename_unsynced(self._written, self._path)

    def abandon(self) -> None:
        with suppress(OSError):  # it may be what ended the conversion
            self._writer.close()


class PartitionedOutput:
    """Writes output frames to a Parquet file per partition.

    What a row group of all instruments has of a partition is little, so rows are collected once more, by partition.
    """

    def __init__(self, folder: Path, model: MessageModel, partitioning: Partitioning) -> None:
        self._folder, self._partitioning = folder, partitioning
        self._groups = RowGroups(model)
        self._thread = WriteThread()
        self._files: OrderedDict[_Place, _PartFile] = OrderedDict()
        self._byte_count = 0  # collected by all files

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Append frames."""
        for name, batch in self._groups.take(frames):
            self._add(name, batch)

    def close(self) -> None:
        """Complete the files."""
        for name, batch in self._groups.rest():
            self._add(name, batch)
        while self._files:
            self._complete_oldest()
        self._thread.close()

    def abandon(self) -> None:
        """Stop writing."""
        self._thread.abandon()
        for file in self._files.values():
            file.abandon()

    def _add(self, name: str, batch: RecordBatch) -> None:
        for day, bucket, rows in self._parts(batch):
            place = _Place(name, day, bucket)
            if place not in self._files:
                if len(self._files) == OPEN_MAX:
                    self._complete_oldest()
                self._files[place] = _PartFile(place.folder(self._folder), batch.schema)
            self._files.move_to_end(place)
            file = self._files[place]
            self._byte_count -= file.byte_count
            file.add(rows)
            self._byte_count += file.byte_count
            if file.row_count >= ROWS_MAX:
                self._write(file)
        while self._byte_count > TOTAL_BYTES_MAX:
            self._write(max(self._files.values(), key=lambda file: file.byte_count))

    def _write(self, file: _PartFile) -> None:
        """Write what a file has collected."""
        self._byte_count -= file.byte_count
        self._thread.submit(file.write, file.take())

    def _parts(self, batch: RecordBatch) -> Iterator[tuple[int, int, RecordBatch]]:
        """(day, bucket, the rows of that partition in their order)."""
        days, buckets = self._partitioning.days(batch), self._partitioning.buckets_of(batch)
        order = np.lexsort((buckets, days))
        changes = np.flatnonzero(np.diff(days[order]) | np.diff(buckets[order])) + 1
        for rows in np.split(order, changes):
            yield int(days[rows[0]]), int(buckets[rows[0]]), batch.take(pa.array(rows))

    def _complete_oldest(self) -> None:
        _, file = self._files.popitem(last=False)
        self._write(file)
        self._thread.submit(file.close)
