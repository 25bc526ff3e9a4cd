"""Many records at once, as numpy views of the block they lie in: nothing is copied until somebody asks for bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray


class Batch:
    """Records that follow one another. Keeps its block mapped as long as it, or a view of it, is referred to.

    Attributes:
        first_index: of the first record; the others follow it.
        data: the whole block, uint8, read-only.
        starts, sizes: where each record lies in `data`, int64.
        appended_at_ns: when each was appended, int64.
    """

    __slots__ = ("appended_at_ns", "data", "first_index", "sizes", "starts")

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
        self.starts = starts
        self.sizes = sizes
        self.appended_at_ns = appended_at_ns

    def __len__(self) -> int:
        return len(self.starts)

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
        size = int(self.sizes[0]) if len(self) else kind.itemsize
        if len(self) > 1:
            step = int(self.starts[1] - self.starts[0])
            if (self.sizes != size).any() or (np.diff(self.starts) != step).any():
                return None
        else:
            step = size
        if kind == np.uint8:
            base = self.data[int(self.starts[0]) :] if len(self) else self.data[:0]
            return as_strided(base, (len(self), size), (step, 1), writeable=False)
        if kind.itemsize != size:
            raise ValueError(f"records of {size} bytes are no {kind}, which has {kind.itemsize}")
        base = self.data[int(self.starts[0]) :][:size].view(kind) if len(self) else np.empty(0, kind)
        return as_strided(base, (len(self),), (step,), writeable=False)

    def packed(self) -> NDArray[np.uint8]:
        """All bytes one behind the other; copied, unless they lie so."""
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
