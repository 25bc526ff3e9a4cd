"""The output files of converted messages: one SBE file, or a Parquet, Arrow or CSV file per message type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from tandemfeed.adapter.convert_command.frame_kernels import SOFH_SIZE, write_open_framing
from tandemfeed.adapter.convert_command.partitions import PartitionedOutput, Partitioning, parquet_writer
from tandemfeed.adapter.convert_command.row_groups import FrameIndex, RecordBatch, RowGroups
from tandemfeed.feedcore.documents.message_model import MessageModel
from tandemfeed.tables.columns import decoded, flat


class Output(Protocol):
    """Writes output frames, in order."""

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Append frames."""

    def close(self) -> None:
        """Finish the files."""


class SbeOutput:
    """`messages.sbe`: each message after a Simple Open Framing Header, as the FIX standard frames SBE."""

    def __init__(self, folder: Path, model: MessageModel) -> None:
        self._schema_id = model.schema.schema_id
        self._file = (folder / "messages.sbe").open("wb")
        self._room = np.empty(0, np.uint8)

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Append frames."""
        index = FrameIndex.of(frames, self._schema_id)
        size_max = len(frames) + len(index.starts) * SOFH_SIZE
        if len(self._room) < size_max:
            self._room = np.empty(size_max, np.uint8)
        size = write_open_framing(frames, index.starts, index.sizes, len(index.starts), self._room)
        self._file.write(self._room[:size].data)

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class TableOutput:
    """One file per message type, one column per field. Decimals stay decimals, nulls stay nulls; groups become lists.

    In CSV, which has no lists, groups are JSON texts.
    """

    def __init__(self, folder: Path, model: MessageModel, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._groups = RowGroups(model)
        self._writers: dict[str, Any] = {}

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Append frames."""
        for name, batch in self._groups.take(frames):
            self._write(name, batch)

    def _write(self, name: str, batch: RecordBatch) -> None:
        prepare, make = TABLES[self._kind]
        batch = prepare(batch)
        if name not in self._writers:
            self._writers[name] = make(self._folder / f"{name}.{self._kind}", batch.schema)
        self._writers[name].write_batch(batch)

    def close(self) -> None:
        """Finish the files."""
        for name, batch in self._groups.rest():
            self._write(name, batch)
        for writer in self._writers.values():
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
