"""The output files of converted messages: one SBE file, or a Parquet, Arrow or CSV file per message type."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from tandemfeed.adapter.convert_command.output.frame_kernels import SOFH_SIZE, write_open_framing
from tandemfeed.adapter.convert_command.output.partitions import PartitionedOutput, Partitioning, parquet_writer
from tandemfeed.adapter.convert_command.output.row_groups import RecordBatch, RowGroups
from tandemfeed.adapter.convert_command.output.write_thread import WAITING_MAX, WriteThread
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, MessageModel
from tandemfeed.tables.columns import decoded, flat

SBE_WRITTEN = 4 << 20  # bytes that are handed over to be written


class Output(Protocol):
    """Writes output frames, in order."""

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Append frames; the caller may change them afterwards."""

    def close(self) -> None:
        """Finish the files."""

    def abandon(self) -> None:
        """Stop writing; the files remain incomplete."""


class SbeOutput:
    """`messages.sbe`: each message after a Simple Open Framing Header, as the FIX standard frames SBE."""

    def __init__(self, folder: Path, model: MessageModel) -> None:
        self._schema_id = model.schema.schema_id
        self._file = (folder / "messages.sbe").open("wb", buffering=0)
        self._thread = WriteThread()
        self._rooms = [np.empty(2 * SBE_WRITTEN, np.uint8) for _ in range(WAITING_MAX + 1)]
        self._end = 0

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Append frames."""
        size_max = len(frames) // PREFIX_SIZE * (PREFIX_SIZE + SOFH_SIZE)  # of the shortest messages
        if self._end + size_max > len(self._rooms[0]):
            self._hand_over()
            if size_max > len(self._rooms[0]):
                self._rooms[0] = np.empty(size_max, np.uint8)
        self._end = write_open_framing(frames, self._schema_id, self._rooms[0], self._end)
        if self._end >= SBE_WRITTEN:
            self._hand_over()

    def _hand_over(self) -> None:
        """Write in the thread what is in the first room, and use the one that was handed over longest ago."""
        self._thread.submit(write_all, self._file, self._rooms[0][: self._end].data)
        self._rooms.append(self._rooms.pop(0))
        self._end = 0

    def close(self) -> None:
        """Finish the file."""
        self._hand_over()
        self._thread.close()
        self._file.close()

    def abandon(self) -> None:
        """Stop writing."""
        self._thread.abandon()
        self._file.close()


def write_all(file: io.FileIO, data: memoryview) -> None:
    """Write all bytes; a system call may write fewer."""
    while data:
        data = data[file.write(data) :]


class TableOutput:
    """One file per message type, one column per field. Decimals stay decimals, nulls stay nulls; groups become lists.

    In CSV, which has no lists, groups are JSON texts.
    """

    def __init__(self, folder: Path, model: MessageModel, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._groups = RowGroups(model)
        self._thread = WriteThread()
        self._writers: dict[str, Any] = {}

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Append frames."""
        for name, batch in self._groups.take(frames):
            self._thread.submit(self._write, name, batch)

    def _write(self, name: str, batch: RecordBatch) -> None:
        prepare, make = TABLES[self._kind]
        batch = prepare(batch)
        if name not in self._writers:
            self._writers[name] = make(self._folder / f"{name}.{self._kind}", batch.schema)
        self._writers[name].write_batch(batch)

    def close(self) -> None:
        """Finish the files."""
        for name, batch in self._groups.rest():
            self._thread.submit(self._write, name, batch)
        self._thread.close()
        for writer in self._writers.values():
            writer.close()

    def abandon(self) -> None:
        """Stop writing."""
        self._thread.abandon()
        for writer in self._writers.values():
            with suppress(OSError):  # it may be what ended the conversion
                writer.close()


def _as_it_is(batch: RecordBatch) -> RecordBatch:
    return batch


# How a record batch is prepared for each format, and what writes it.
TABLES: dict[str, tuple[Callable[[RecordBatch], RecordBatch], Callable[[Path, Any], Any]]] = {
    "parquet": (_as_it_is, parquet_writer),
    "arrow": (decoded, pa.ipc.new_file),
    "csv": (lambda batch: flat(decoded(batch)), pyarrow.csv.CSVWriter),
}
KINDS = ("sbe", *TABLES)


def open_output(folder: Path, model: MessageModel, kind: str, partitioning: Partitioning | None = None) -> Output:
    """Create the folder, and an output of one of the KINDS; partitions are of Parquet files."""
    folder.mkdir(parents=True, exist_ok=True)
    if partitioning is not None:
        return PartitionedOutput(folder, model, partitioning)
    return SbeOutput(folder, model) if kind == "sbe" else TableOutput(folder, model, kind)
