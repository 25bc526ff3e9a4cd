"""A segment's body, made from one record, many of one size, or many of several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tandemfeed.journal.errors import RecordTooLong
from tandemfeed.journal.layout import BLOCK_SIZE_MAX, COUNT_MASK, HAS_TABLE, RECORD_SIZE_MAX

Record = bytes | bytearray | memoryview | NDArray[Any]
NO_TABLE = np.empty(0, np.uint8)


class Body(NamedTuple):
    """A segment's body in two pieces, neither of which is copied before it is appended."""

    table: NDArray[np.uint8]
    data: NDArray[np.uint8]
    count_and_flags: int
    record_size: int

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.table.size + self.data.size

    @classmethod
    def of_record(cls, record: Record) -> Self:
        """One record."""
        data = as_bytes(record)
        if data.size > RECORD_SIZE_MAX:
            raise RecordTooLong(f"the record has {data.size} bytes; the maximum is {RECORD_SIZE_MAX}")
        return cls(NO_TABLE, data, 1, data.size)

    @classmethod
    def of_rows(cls, rows: NDArray[Any]) -> Self:
        """Records of one size: the elements along the first axis."""
        if rows.ndim == 0 or not len(rows):
            raise ValueError("a batch needs at least one record")
        _check(len(rows), rows.nbytes)
        return cls(NO_TABLE, as_bytes(rows), len(rows), rows.nbytes // len(rows))

    @classmethod
    def of_columns(cls, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Self:
        """Records of several sizes: their bytes, and where each ends in them."""
        if not len(ends):
            raise ValueError("a batch needs at least one record")
        if int(ends[-1]) != data.size or ends[0] < 0 or (np.diff(ends) < 0).any():
            raise ValueError(f"the records' ends must ascend to {data.size}, the size of the data")
        _check(len(ends), data.size)
        return cls(as_bytes(ends.astype("<u4")), as_bytes(data), len(ends) | HAS_TABLE, 0)

    @classmethod
    def of_records(cls, records: Sequence[bytes]) -> Self:
        """A list of records."""
        ends = np.fromiter(accumulate(map(len, records)), np.int64, len(records))
        return cls.of_columns(as_bytes(b"".join(records)), ends)


def as_bytes(data: Record) -> NDArray[np.uint8]:
    """The bytes of any contiguous buffer, not copied."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("an array of records must be C-contiguous")
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)


def _check(count: int, size: int) -> None:
    if count > COUNT_MASK:
        raise RecordTooLong(f"the batch has {count} records; the maximum is {COUNT_MASK}: split it")
    if size > BLOCK_SIZE_MAX:
        raise RecordTooLong(f"the batch has {size} bytes; a block has at most {BLOCK_SIZE_MAX}: split it")
