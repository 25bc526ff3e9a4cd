"""Many records at once, as numpy views of the block they lie in: nothing is copied until somebody asks for bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Rows(NamedTuple):
    """Records of one size, as they lie in segments.

    Attributes:
        size: of each record.
        starts, counts: where each segment's records begin in the block, and how many there are, int64.
        appended_at_ns: when each segment was appended, int64.
    """

    size: int
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    appended_at_ns: NDArray[np.int64]


class Batch:
    """Records that follow one another. Keeps its block mapped as long as it, or a view of it, is referred to.

    Attributes:
        first_index: of the first record; the others follow it.
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
        """Records of one size; what each record's place is, is worked out only if somebody asks."""
        batch = cls.__new__(cls)
        batch.first_index, batch.data, batch._count = first_index, data, int(rows.counts.sum())
        batch._rows, batch._columns = rows, None
        return batch

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each record begins in `data`."""
        return self._each()[0]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How long each record is."""
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
        """Behind the last record."""
        return self.first_index + len(self)

    def until(self, index: int) -> Batch:
        """The part before an index."""
        count = min(max(index - self.first_index, 0), len(self))
        columns = (column[:count] for column in (self.starts, self.sizes, self.appended_at_ns))
        return Batch(self.first_index, self.data, *columns)

    def heads(self, size: int) -> NDArray[np.uint8]:
        """The first bytes of each record, a row each, copied; zeros where a record is shorter."""
        if len(self) and int(self.sizes.min()) >= size:
            heads: NDArray[np.uint8] = self.data[self.starts[:, None] + np.arange(size)]
            return heads
        found = np.zeros((len(self), size), np.uint8)
        for place in range(size):
            long_enough = self.sizes > place
            found[long_enough, place] = self.data[self.starts[long_enough] + place]
        return found

    def rows(self, dtype: Any = np.uint8) -> NDArray[Any] | None:
        """The records as one array, a row each, without copying; None if they are not of one size and evenly spaced.

        Args:
            dtype: a structured type of the records' size, or uint8 for rows of bytes.

        Raises:
            ValueError: the type's size is not the records'.
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
            raise ValueError(f"records of {size} bytes are no {kind}, which has {kind.itemsize}")
        base = self.data[start : start + size].view(kind)
        return as_strided(base, (len(self),), (step,), writeable=False)

    def _spacing(self) -> tuple[int, int, int] | None:
        """(start of the first, size, distance) of records of one size that lie evenly."""
        rows = self._rows
        if rows is not None and len(rows.starts) == 1:  # one segment: nothing is to be worked out
            return int(rows.starts[0]), rows.size, rows.size
        start, size = int(self.starts[0]), int(self.sizes[0])
        if len(self) == 1:
            return start, size, size
        step = int(self.starts[1]) - start
        is_even = bool((self.sizes == size).all() and (np.diff(self.starts) == step).all())
        return (start, size, step) if is_even else None

    def packed(self) -> NDArray[np.uint8]:
        """All bytes one behind the other; copied, unless they lie so."""
        rows = self._rows
        if rows is not None and len(rows.starts) == 1:
            return self.data[int(rows.starts[0]) :][: self._count * rows.size]
        ends = self.starts + self.sizes
        if len(self) and (ends[:-1] == self.starts[1:]).all():
            return self.data[int(self.starts[0]) : int(ends[-1])]
        return np.concatenate([*self]) if len(self) else self.data[:0]

    def records(self) -> list[bytes]:
        """Copies."""
        data = self.data.data
        return [
            bytes(data[a:b]) for a, b in zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True)
        ]
