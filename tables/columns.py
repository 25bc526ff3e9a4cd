"""Output messages as Arrow columns: one column per field, a list of structures per group, a text per variable data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.sbe.messages import Block, Column, MessageType, VarData
from tandemfeed.feedcore.sbe.types import CompositeType, EnumType, SimpleType, time_unit

DEFAULT_CHARSET = "latin-1"  # it has a character for every byte
TIME, TIME_SIZE = pa.timestamp("ns", "UTC"), 8
WORDS = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}  # by size
DECIMAL_DIGITS = 20  # of the largest 64-bit integer


class Texts(NamedTuple):
    """Texts by number.

    Attributes:
        codes: of each message, an index of `distinct`.
        distinct: the texts; shape (texts,), S.
    """

    codes: NDArray[np.int32]
    distinct: NDArray[np.bytes_]


class ColumnType(NamedTuple):
    """How a column of a message appears in a table.

    Attributes:
        charset: of a text.
        unit: of a time since the Unix epoch: ns or D; None: it is not a time.
        names: an enumeration whose names are shown instead of its values.
    """

    column: Column
    charset: str
    unit: str | None
    names: EnumType | None = None

    def array(self, values: NDArray[Any] | Texts) -> Any:
        """The values of many messages, as an Arrow array, which may share their memory."""
        field = self.column
        if isinstance(values, Texts):
            return _by_code(pa.array(values.codes), values.distinct, self.charset, is_optional=field.null is not None)
        values = np.ascontiguousarray(values)
        if self.names is not None:
            return _names(self.names, values)
        if field.kind.name == "char":
            return _texts(values, self.charset, is_optional=field.null is not None)
        if field.length > 1:
            return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), field.length)
        nulls = _nulls(field, values)
        if self.unit == "ns" and values.dtype.itemsize == TIME_SIZE:
            return _plain(TIME, values.view(np.int64), nulls)
        if self.unit == "D":
            return pa.array(values.astype(np.int32), pa.int32(), mask=nulls).cast(pa.date32())
        if field.exponent == 0:
            return _plain(pa.from_numpy_dtype(values.dtype), values, nulls)
        if field.exponent > 0:
            return pa.array(values * 10**field.exponent, mask=nulls)
        wide = np.empty((len(values), 2), np.int64)  # 128 bits: the number, then its sign bits
        wide[:, 0] = values if values.dtype.kind == "i" else values.astype(np.uint64).view(np.int64)
        wide[:, 1] = wide[:, 0] >> 63 if values.dtype.kind == "i" else 0
        return _plain(pa.decimal128(DECIMAL_DIGITS, -field.exponent), wide, nulls)


def column_types(block: Block, *, shows_names: bool = False) -> dict[str, ColumnType]:
    """The columns of a block, by name.

    Args:
        shows_names: an enumeration becomes the names of its values, not the values.
    """
    found = {}
    for field in block.fields.values():
        for column in field.columns():
            kind, meaning = field.type, field.semantic_type
            if isinstance(kind, CompositeType) and "." in column.name:
                kind, meaning = kind.members[column.name.rpartition(".")[2]].type, ""
            if isinstance(kind, SimpleType):
                meaning = meaning or kind.semantic_type
            charset = (kind.character_encoding if isinstance(kind, SimpleType) else "") or DEFAULT_CHARSET
            unit = time_unit(kind, meaning) if column.exponent == 0 else None
            names = kind if shows_names and isinstance(kind, EnumType) else None
            found[column.name] = ColumnType(column, charset, unit, names)
    return found


def _nulls(field: Column, values: NDArray[Any]) -> NDArray[np.bool_] | None:
    if field.null is None:
        return None
    return np.asarray(np.isnan(values) if isinstance(field.null, float) else values == values.dtype.type(field.null))


def _plain(kind: Any, data: NDArray[Any], nulls: NDArray[np.bool_] | None) -> Any:
    """An array of a type with a fixed size, from its bytes."""
    valid = None if nulls is None or not nulls.any() else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, len(data), [valid, pa.py_buffer(np.ascontiguousarray(data))])


def _texts(values: NDArray[Any], charset: str, *, is_optional: bool) -> Any:
    """Texts as a dictionary array: each distinct text is decoded once. An optional text that is empty is null."""
    size = values.dtype.itemsize
    kind = WORDS.get(size, pa.binary(size))  # Arrow finds equal integers several times as fast as equal texts
    encoded = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)]).dictionary_encode()
    distinct = np.frombuffer(encoded.dictionary.buffers()[1], f"S{size}", len(encoded.dictionary))
    return _by_code(encoded.indices, distinct, charset, is_optional=is_optional)


def _by_code(codes: Any, distinct: NDArray[np.bytes_], charset: str, *, is_optional: bool) -> Any:
    texts = [text.decode(charset, "replace") for text in distinct.tolist()]  # without the zero bytes at the end
    if is_optional and "" in texts:
        numbers = np.asarray(codes)
        codes = _plain(codes.type, numbers, numbers == texts.index(""))
    return pa.DictionaryArray.from_arrays(codes, pa.array(texts, pa.string()))


def _names(kind: EnumType, values: NDArray[Any]) -> Any:
    """The names of an enumeration's values; a value without a name is null."""
    raw = values.view("u1") if values.dtype.kind == "S" else values
    known = np.array(sorted(kind.values.values()), raw.dtype)
    names = {value: name for name, value in kind.values.items()}
    places = np.minimum(np.searchsorted(known, raw), len(known) - 1)
    indices = pa.array(places.astype(np.int32), mask=known[places] != raw)
    return pa.DictionaryArray.from_arrays(indices, [names[int(value)] for value in known])


class FixedColumns:
    """Makes record batches of messages of one type without groups and variable data.

    Args:
        shows_names: as for `column_types`.
    """

    def __init__(self, message: MessageType, *, shows_names: bool = False) -> None:
        self._types = column_types(message, shows_names=shows_names)

    def batch(self, rows: NDArray[np.void]) -> Any:
        """The messages as a record batch; messages of an older version have fewer columns."""
        return self.batch_of({name: rows[name] for name in rows.dtype.names or ()})

    def batch_of(self, columns: Mapping[str, NDArray[Any] | Texts]) -> Any:
        """The same, from the values of each column; the record batch may share their memory."""
        present = [name for name in self._types if name in columns]
        return pa.RecordBatch.from_arrays([self._types[name].array(columns[name]) for name in present], names=present)


class _Blocks:
    """Consecutive blocks of one kind, and the parts that follow each block."""

    def __init__(self, block: Block) -> None:
        self._block, self._types = block, column_types(block)
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
        row = self._block.dtype("<")
        rows = np.frombuffer(bytes(self._bytes), row, self.count) if row.itemsize else np.empty(self.count, row)
        for name, kind in self._types.items():
            found[name] = kind.array(rows[name])
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


def decoded(batch: Any) -> Any:
    """A batch with plain texts, for formats that have no dictionaries."""
    columns = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


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
    return pa.array([json.dumps(value, default=_shown) for value in array.to_pylist()], pa.string())


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
