"""Output messages as Arrow columns: one column per field, a list of structures per group, a text per variable data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.sbe.messages import Block, Column, MessageType, VarData


def column(field: Column, values: NDArray[Any]) -> Any:
    """One field of many messages, as an Arrow array."""
    values = np.ascontiguousarray(values)
    if field.kind.name == "char":
        return pa.array([text.decode("latin-1") for text in values.tolist()], pa.string())
    if field.length > 1:
        return pa.array(values.tolist(), pa.list_(pa.from_numpy_dtype(values.dtype)))
    mask = None
    if field.null is not None:
        mask = np.isnan(values) if isinstance(field.null, float) else values == values.dtype.type(field.null)
    if field.exponent >= 0:
        return pa.array(values * 10**field.exponent if field.exponent else values, mask=mask)
    wide = np.zeros((len(values), 2), np.int64)  # 128 bits: the number, then its sign bits
    wide[:, 0] = values.astype(np.int64) if values.dtype.kind == "i" else values.astype(np.uint64).view(np.int64)
    wide[:, 1] = np.where(values < 0, -1, 0)
    plain = pa.Array.from_buffers(pa.decimal128(20, -field.exponent), len(values), [None, pa.py_buffer(wide.tobytes())])
    return plain if mask is None else pa.compute.if_else(pa.array(~mask), plain, pa.scalar(None, plain.type))


class _Blocks:
    """Consecutive blocks of one kind, and the parts that follow each block."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._bytes, self.count = bytearray(), 0
        self._groups = [(group, [0], _Blocks(group)) for group in block.groups.values()]
        self._data: list[tuple[VarData, list[bytes]]] = [(each, []) for each in block.data.values()]

    def take(self, view: memoryview, at: int) -> int:
        """Add the block at `at` and the parts that follow it; returns where they end."""
        self._bytes += view[at : at + self._block.block_length]
        self.count += 1
        at += self._block.block_length
        for group, offsets, entries in self._groups:
            count = int.from_bytes(view[at + group.count.offset : at + group.count.end], "little")
            at += group.dimension.size
            for _ in range(count):
                at = entries.take(view, at)
            offsets.append(entries.count)
        for data, texts in self._data:
            start = at + data.length_kind.size
            at = start + int.from_bytes(view[at:start], "little")
            texts.append(bytes(view[start:at]))
        return at

    def arrays(self) -> dict[str, Any]:
        """The columns, by name."""
        found: dict[str, Any] = {}
        kind = self._block.dtype("<")
        rows = np.frombuffer(bytes(self._bytes), kind, self.count) if kind.itemsize else np.empty(self.count, kind)
        for name, field in self._block.columns.items():
            found[name] = column(field, rows[name])
        for group, offsets, entries in self._groups:
            inner = entries.arrays()
            structs = (
                pa.StructArray.from_arrays(list(inner.values()), list(inner))
                if inner
                else pa.array([{}] * entries.count, pa.struct([]))
            )
            found[group.name] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)
        for data, texts in self._data:
            if data.character_encoding:
                found[data.name] = pa.array(
                    [text.decode(data.character_encoding, "replace") for text in texts], pa.string()
                )
            else:
                found[data.name] = pa.array(texts, pa.binary())
        return found


class MessageColumns:
    """Messages of one variable-size type, collected until they are written."""

    def __init__(self, message: MessageType) -> None:
        self._message = message
        self._blocks = _Blocks(message)

    @property
    def count(self) -> int:
        """The number of collected messages."""
        return self._blocks.count

    def take(self, frame: memoryview) -> None:
        """Add a framed message that a converter of this schema wrote."""
        end = self._blocks.take(frame, PREFIX_SIZE)
        assert end == len(frame), "a converter's frames are complete"

    def batch(self) -> Any:
        """Return the collected messages as a record batch, and clear them."""
        arrays = self._blocks.arrays()
        self._blocks = _Blocks(self._message)
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def flat(batch: Any) -> Any:
    """A batch for text formats: lists of structures become JSON, and octets become hexadecimal digits."""
    arrays = [
        _as_text(array) if pa.types.is_nested(array.type) or pa.types.is_binary(array.type) else array
        for array in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _as_text(array: Any) -> Any:
    if pa.types.is_binary(array.type):
        return pa.array([value.hex() for value in array.to_pylist()], pa.string())
    return pa.array([json.dumps(value, default=_plain) for value in array.to_pylist()], pa.string())


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
