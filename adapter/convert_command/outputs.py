"""Where converted messages go: one SBE file, or a Parquet or CSV file per message type."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from feedcore.message_model import MessageModel, ModelField, ModelMessage
from feedcore.output_packet import OUTPUT_FRAME_SIZE

SOFH_SIZE = 6  # FIX Simple Open Framing Header: message length u32, encoding type u16, both big-endian
SOFH_SBE_LITTLE_ENDIAN = 0xEB50


class Output(Protocol):
    """Takes output frames, in order."""

    def write(self, frames: memoryview) -> None:
        """Append frames."""

    def close(self) -> None:
        """Finish the files."""


class SbeOutput:
    """`messages.sbe`: each message behind a Simple Open Framing Header, as the FIX standard frames SBE."""

    def __init__(self, folder: Path, model: MessageModel) -> None:
        self._model = model
        self._file = (folder / "messages.sbe").open("wb")

    def write(self, frames: memoryview) -> None:
        """Append frames."""
        for message, rows in self._model.arrays(frames):
            raw = rows.view(np.uint8).reshape(len(rows), message.frame_size)
            size = message.frame_size - OUTPUT_FRAME_SIZE
            framed = np.empty((len(rows), SOFH_SIZE + size), np.uint8)
            header = (SOFH_SIZE + size).to_bytes(4, "big") + SOFH_SBE_LITTLE_ENDIAN.to_bytes(2, "big")
            framed[:, :SOFH_SIZE] = np.frombuffer(header, np.uint8)
            framed[:, SOFH_SIZE:] = raw[:, OUTPUT_FRAME_SIZE:]
            self._file.write(framed.tobytes())

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class TableOutput:
    """A file per message type, a column per field; decimals are decimals, nulls are nulls."""

    def __init__(self, folder: Path, model: MessageModel, kind: str) -> None:
        self._folder, self._model, self._kind = folder, model, kind
        self._writers: dict[str, Any] = {}

    def write(self, frames: memoryview) -> None:
        """Append frames."""
        for message, rows in self._model.arrays(frames):
            columns = [_column(field, rows[name]) for name, field in message.fields.items()]
            batch = pa.record_batch(columns, schema=_schema(message, columns))
            self._writer(message, batch.schema).write_batch(batch)

    def _writer(self, message: ModelMessage, schema: Any) -> Any:
        if message.name not in self._writers:
            path = self._folder / f"{message.name}.{self._kind}"
            make = pyarrow.parquet.ParquetWriter if self._kind == "parquet" else pyarrow.csv.CSVWriter
            self._writers[message.name] = make(path, schema)
        return self._writers[message.name]

    def close(self) -> None:
        """Finish the files."""
        for writer in self._writers.values():
            writer.close()


def _schema(message: ModelMessage, columns: list[Any]) -> Any:
    return pa.schema([pa.field(name, column.type) for name, column in zip(message.fields, columns, strict=True)])


def _column(field: ModelField, values: NDArray[Any]) -> Any:
    """One field of many messages as an Arrow array."""
    values = np.ascontiguousarray(values)
    if field.kind.name == "char":
        return pa.array([text.decode("latin-1") for text in values.tolist()], pa.string())
    if field.length > 1:
        return pa.array(values.tolist())
    mask = None
    if field.null is not None:
        mask = np.isnan(values) if isinstance(field.null, float) else values == values.dtype.type(field.null)
    if field.exponent >= 0:
        return pa.array(values * 10**field.exponent if field.exponent else values, mask=mask)
    wide = np.zeros((len(values), 2), np.int64)  # 128 bits: the number, then its sign
    wide[:, 0] = values.astype(np.int64) if values.dtype.kind == "i" else values.astype(np.uint64).view(np.int64)
    wide[:, 1] = np.where(values < 0, -1, 0)
    plain = pa.Array.from_buffers(pa.decimal128(20, -field.exponent), len(values), [None, pa.py_buffer(wide.tobytes())])
    return plain if mask is None else pa.compute.if_else(pa.array(~mask), plain, pa.scalar(None, plain.type))


def open_output(folder: Path, model: MessageModel, kind: str) -> Output:
    """An output of one kind: sbe, parquet or csv; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return SbeOutput(folder, model) if kind == "sbe" else TableOutput(folder, model, kind)
