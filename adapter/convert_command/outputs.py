"""The output files of converted messages: one SBE file, or a Parquet or CSV file per message type."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tandemfeed.adapter.convert_command.columns import MessageColumns, column, flat
from tandemfeed.feedcore.documents.message_model import MessageModel, frame_dtype
from tandemfeed.feedcore.sbe.messages import MessageType
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME_SIZE

SOFH_SIZE = 6  # FIX Simple Open Framing Header: message length u32, encoding type u16, both big-endian
SOFH_SBE_LITTLE_ENDIAN = 0xEB50
GATHERED_MAX = 20_000  # messages of one variable-size type; the number that a reader delivers at a time


class Output(Protocol):
    """Writes output frames, in order."""

    def write(self, frames: memoryview) -> None:
        """Append frames."""

    def close(self) -> None:
        """Finish the files."""


class SbeOutput:
    """`messages.sbe`: each message after a Simple Open Framing Header, as the FIX standard frames SBE."""

    def __init__(self, folder: Path, model: MessageModel) -> None:
        self._model = model
        self._file = (folder / "messages.sbe").open("wb")

    def write(self, frames: memoryview) -> None:
        """Append frames."""
        for _, length, run in self._model.runs(frames):
            raw = np.frombuffer(run, np.uint8).reshape(-1, length)
            size = SOFH_SIZE + length - OUTPUT_FRAME_SIZE
            framed = np.empty((len(raw), size), np.uint8)
            header = size.to_bytes(4, "big") + SOFH_SBE_LITTLE_ENDIAN.to_bytes(2, "big")
            framed[:, :SOFH_SIZE] = np.frombuffer(header, np.uint8)
            framed[:, SOFH_SIZE:] = raw[:, OUTPUT_FRAME_SIZE:]
            self._file.write(framed.tobytes())

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class TableOutput:
    """One file per message type, one column per field. Decimals stay decimals, nulls stay nulls; groups become lists.

    In CSV, which has no lists, groups are JSON texts.
    """

    def __init__(self, folder: Path, model: MessageModel, kind: str) -> None:
        self._folder, self._model, self._kind = folder, model, kind
        self._writers: dict[str, Any] = {}
        self._gathered: dict[str, MessageColumns] = {}

    def write(self, frames: memoryview) -> None:
        """Append frames."""
        for message, length, run in self._model.runs(frames):
            if not message.is_fixed:
                self._gather(message, length, run)
                continue
            rows = np.frombuffer(run, frame_dtype(message, length))
            columns = [column(field, rows[name]) for name, field in message.columns.items()]
            self._write(message.name, pa.RecordBatch.from_arrays(columns, names=list(message.columns)))

    def _gather(self, message: MessageType, length: int, run: memoryview) -> None:
        """Collect messages of variable size and write many at a time, because a run has only one or two of them."""
        gathered = self._gathered.setdefault(message.name, MessageColumns(message))
        for at in range(0, len(run), length):
            gathered.take(run[at : at + length])
        if gathered.count >= GATHERED_MAX:
            self._write(message.name, gathered.batch())

    def _write(self, name: str, batch: Any) -> None:
        batch = batch if self._kind == "parquet" else flat(batch)
        if name not in self._writers:
            path = self._folder / f"{name}.{self._kind}"
            make = pyarrow.parquet.ParquetWriter if self._kind == "parquet" else pyarrow.csv.CSVWriter
            self._writers[name] = make(path, batch.schema)
        self._writers[name].write_batch(batch)

    def close(self) -> None:
        """Finish the files."""
        for name, gathered in self._gathered.items():
            if gathered.count:
                self._write(name, gathered.batch())
        for writer in self._writers.values():
            writer.close()


def open_output(folder: Path, model: MessageModel, kind: str) -> Output:
    """Create the folder, and an output of this kind: sbe, parquet or csv."""
    folder.mkdir(parents=True, exist_ok=True)
    return SbeOutput(folder, model) if kind == "sbe" else TableOutput(folder, model, kind)
