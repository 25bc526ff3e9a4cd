"""Many records as numpy views of their block: nothing is copied until bytes are requested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Rows(NamedTuple):
    """Records of one size, by segment.

    Attributes:
        size: of each record, in bytes.
        starts, counts: offset of each segment's first record in the block, and number of its records, int64.
        appended_at_ns: when each segment was appended, int64.
    """

    size: int
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    appended_at_ns: NDArray[np.int64]


class Batch:
    """Consecutive records. The block stays mapped as long as the batch, or a view of it, is referenced.

    Attributes:
        first_index: index of the first record; the others follow it.
        data: the whole block, uint8, read-only.
    """

    __slots__ = ("_columns", "_count", "_rows", "data", "first_index")

    def __init__(
        self,
        first_index: int,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        appended_at_ns: NDArray[np.int64],
    ) -> None:
        self.first_index = first_index
        self.data = data
        self._count = len(starts)
        self._rows: Rows | None = None
        self._columns: Columns | None = (starts, sizes, appended_at_ns)

    @classmethod
    def of_rows(cls, first_index: int, data: NDArray[np.uint8], rows: Rows) -> Self:
        """A batch of records of one size. The offsets of single records are computed only on demand."""
        batch = cls.__new__(cls)
        batch.first_index, batch.data, batch._count = first_index, data, int(rows.counts.sum())
        batch._rows, batch._columns = rows, None
        return batch

    @property
    def starts(self) -> NDArray[np.int64]:
        """The offset of each record in `data`."""
        return self._each()[0]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The size of each record."""
        return self._each()[1]

    @property
    def appended_at_ns(self) -> NDArray[np.int64]:
        """When each record was appended, nanoseconds since 1970."""
        return self._each()[2]

    def _each(self) -> Columns:
        if self._columns is None:
            assert self._rows is not None
            size, starts, counts, times = self._rows
            before = np.repeat(np.cumsum(counts) - counts, counts)
            places = np.repeat(starts, counts) + (np.arange(self._count) - before) * size
            self._columns = places, np.full(self._count, size, np.int64), np.repeat(times, counts)
        return self._columns

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> NDArray[np.uint8]:
        """A record's bytes, as a view."""
        start = int(self.starts[place])
        return self.data[start : start + int(self.sizes[place])]

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        return (self[place] for place in range(len(self)))

    @property
    def next_index(self) -> int:
        """The index after the last record."""
        return self.first_index + len(self)

    def until(self, index: int) -> Batch:
        """The records before an index."""
        count = min(max(index - self.first_index, 0), len(self))
        columns = (column[:count] for column in (self.starts, self.sizes, self.appended_at_ns))
        return Batch(self.first_index, self.data, *columns)

    def heads(self, size: int) -> NDArray[np.uint8]:
        """The first `size` bytes of each record, one row each, copied; shorter records are filled with zeros."""
        if len(self) and int(self.sizes.min()) >= size:
            heads: NDArray[np.uint8] = self.data[self.starts[:, None] + np.arange(size)]
            return heads
        found = np.zeros((len(self), size), np.uint8)
        for place in range(size):
            long_enough = self.sizes > place
            found[long_enough, place] = self.data[self.starts[long_enough] + place]
        return found

    def rows(self, dtype: Any = np.uint8) -> NDArray[Any] | None:
        """The records as one array, one row each, not copied; None unless they have one size and even spacing.

        Args:
            dtype: a structured type of the records' size, or uint8 for rows of bytes.

        Raises:
            ValueError: the type's size differs from the records' size.
        """
        kind = np.dtype(dtype)
        if not len(self):
            return np.empty((0, 0), np.uint8) if kind == np.uint8 else np.empty(0, kind)
        spacing = self._spacing()
        if spacing is None:
            return None
        start, size, step = spacing
        if kind == np.uint8:
            return as_strided(self.data[start:], (len(self), size), (step, 1), writeable=False)
        if kind.itemsize != size:
            raise ValueError(
                f"the type {kind} has {kind.itemsize} bytes, but each record has {size} bytes; give a type of that size"
            )
        base = self.data[start : start + size].view(kind)
        return as_strided(base, (len(self),), (step,), writeable=False)

    def _spacing(self) -> tuple[int, int, int] | None:
        """(offset of the first, size, distance) if the records have one size and even spacing."""
        rows = self._rows
        if rows is not None and len(rows.starts) == 1:  # one segment: no offsets to compute
            return int(rows.starts[0]), rows.size, rows.size
        start, size = int(self.starts[0]), int(self.sizes[0])
        if len(self) == 1:
            return start, size, size
        step = int(self.starts[1]) - start
        is_even = bool((self.sizes == size).all() and (np.diff(self.starts) == step).all())
        return (start, size, step) if is_even else None

    def packed(self) -> NDArray[np.uint8]:
        """All bytes, concatenated; copied unless the records are adjacent."""
        rows = self._rows
        if rows is not None and len(rows.starts) == 1:
            return self.data[int(rows.starts[0]) :][: self._count * rows.size]
        ends = self.starts + self.sizes
        if len(self) and (ends[:-1] == self.starts[1:]).all():
            return self.data[int(self.starts[0]) : int(ends[-1])]
        return np.concatenate([*self]) if len(self) else self.data[:0]

    def records(self) -> list[bytes]:
        """Copies of the records."""
        data = self.data.data
        return [
            bytes(data[a:b]) for a, b in zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True)
        ]
