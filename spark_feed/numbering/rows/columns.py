"""The columns of recorded rows as numpy arrays, each converted once for both screening and encoding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.spark_feed.numbering.rows.kernels import pad_texts
from tandemfeed.spark_feed.recordings.prices import signed

Table: TypeAlias = Any  # pyarrow has no type annotations


@dataclass(frozen=True)
class Coded:
    """A column as codes of its distinct values.

    Attributes:
        distinct: an Arrow array without nulls: texts as binary, or integers.
        codes: shape (rows,), each row's index in `distinct`; of a null, the number of distinct values.
    """

    distinct: Any
    codes: NDArray[np.int64]

    @cached_property
    def texts(self) -> list[bytes]:
        """The distinct values as bytes; of integers, their decimal digits."""
        texts: list[bytes] = self.distinct.cast(pa.string()).cast(pa.binary()).to_pylist()
        return texts

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Of distinct texts, in bytes."""
        return np.diff(self._offsets).astype(np.int64)

    def padded(self, length: int, null: bytes = b"") -> NDArray[np.uint8]:
        """The distinct texts, then the text of a null, each padded with zeros to `length` bytes or cut off there."""
        padded = np.zeros((len(self.distinct) + 1, length), np.uint8)
        pad_texts(self._data, self._offsets, padded)
        padded[-1, : len(null)] = np.frombuffer(null, np.uint8)
        return padded

    @property
    def _offsets(self) -> NDArray[np.int32]:
        first = self.distinct.offset
        buffer = self.distinct.buffers()[1]
        if buffer is None:
            return np.zeros(1, np.int32)
        return np.frombuffer(buffer, np.int32)[first : first + len(self.distinct) + 1]

    @property
    def _data(self) -> NDArray[np.uint8]:
        buffer = self.distinct.buffers()[2]
        return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


class RecordedRows:
    """Rows of a recording: a record batch or a table."""

    def __init__(self, rows: Table) -> None:
        self.rows = rows
        self.count: int = rows.num_rows
        self.names = frozenset(rows.schema.names)
        self._arrays: dict[str, Any] = {}
        self._coded: dict[str, Coded] = {}
        self._numbers: dict[tuple[str, float], NDArray[Any]] = {}

    def only(self, is_good: NDArray[np.bool_]) -> RecordedRows:
        """Some of the rows."""
        return self if is_good.all() else RecordedRows(self.rows.filter(pa.array(is_good)))

    def array(self, name: str) -> Any:
        """A column as a single Arrow array."""
        if name not in self._arrays:
            column = self.rows.column(name)
            if isinstance(column, pa.ChunkedArray):
                column = column.unify_dictionaries().combine_chunks()
            if isinstance(column, pa.ChunkedArray):  # of extreme size, or of no chunk
                column = column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
            self._arrays[name] = column
        return self._arrays[name]

    def nulls(self, name: str) -> NDArray[np.int64]:
        """The rows that are null in a column."""
        array = self.array(name)
        return np.flatnonzero(~_is_valid(array)) if array.null_count else np.empty(0, np.int64)

    def coded(self, name: str) -> Coded:
        """A column of texts or integers as codes."""
        if name not in self._coded:
            array = self.array(name)
            encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
            distinct = encoded.dictionary
            codes = _filled(encoded.indices, np.int64, len(distinct))
            if not pa.types.is_integer(distinct.type):
                distinct = distinct.cast(pa.binary())
            self._coded[name] = Coded(distinct, codes)
        return self._coded[name]

    def integers(self, name: str, null: int = 0) -> NDArray[np.int64]:
        """A column of integers; `null` where it has none. Unsigned ones above 63 bits become their two's complement."""
        return self._numbers_of(name, signed(null), np.int64)

    def floats(self, name: str, null: float = 0.0) -> NDArray[np.float64]:
        """A column of floats; `null` where it has none."""
        return self._numbers_of(name, null, np.float64)

    def _numbers_of(self, name: str, null: float, kind: Any) -> NDArray[Any]:
        key = name, null
        if key not in self._numbers:
            self._numbers[key] = _filled(self.array(name), kind, null)
        return self._numbers[key]


def _filled(array: Any, kind: Any, null: float) -> NDArray[Any]:
    """Numbers of an Arrow array, with another one instead of nulls."""
    count = len(array)
    if not count or array.null_count == count:
        return np.full(count, null, kind)
    stored = np.frombuffer(array.buffers()[1], array.type.to_pandas_dtype())[array.offset : array.offset + count]
    if not array.null_count:
        return stored.astype(kind, copy=False)
    filled = stored.astype(kind)
    filled[~_is_valid(array)] = null
    return filled


def _is_valid(array: Any) -> NDArray[np.bool_]:
    """Which values are not null."""
    bitmap = array.buffers()[0]
    if bitmap is None:  # an array of type null, or one without nulls
        return np.full(len(array), not array.null_count, np.bool_)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(np.bool_)
