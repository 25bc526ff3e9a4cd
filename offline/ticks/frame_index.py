"""Compiled code that finds the messages in a run of a venue's frames: where each begins, its size and its type."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from tandemfeed.adapter.kernel_cache import compiled
from tandemfeed.feedcore.documents.source_layout import Framing

DATA, PLACES = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.int64, 1, "C")


@compiled(types.int64(DATA, types.int64, types.int64, types.int64))
def _number(data, at, width, is_big_endian):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for place in range(width):
        value |= np.int64(data[at + place]) << (8 * (width - 1 - place if is_big_endian else place))
    return value


@compiled(types.int64(DATA, PLACES, PLACES, PLACES, PLACES))
def _index(data, framing, starts, sizes, kinds):  # type: ignore[no-untyped-def]
    """The number of whole frames; what follows the last of them is left."""
    length_at, length_width, kind_at, kind_width = framing[0], framing[1], framing[2], framing[3]
    is_big_endian, unit, adds, least = framing[4], framing[5], framing[6], framing[7]
    count = at = 0
    while count < starts.size and at + least <= data.size:
        size = _number(data, at + length_at, length_width, is_big_endian) * unit + adds
        if size < least or at + size > data.size:
            break
        starts[count], sizes[count] = at, size
        kinds[count] = _number(data, at + kind_at, kind_width, is_big_endian)
        count += 1
        at += size
    return count


class FrameIndex(NamedTuple):
    """Where frames are; one element for each."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    kinds: NDArray[np.int64]

    @classmethod
    def of(cls, frames: NDArray[np.uint8], framing: Framing, count_max: int) -> FrameIndex:
        """The index of consecutive frames, of which there are at most `count_max`."""
        length, kind = framing.length, framing.type
        numbers = np.array(
            [
                length.offset,
                length.size,
                kind.offset,
                kind.size,
                framing.is_big_endian,
                framing.length_unit,
                framing.length_adds,
                framing.size_min,
            ],
            np.int64,
        )
        starts, sizes, kinds = (np.empty(count_max, np.int64) for _ in range(3))
        count = _index(frames, numbers, starts, sizes, kinds)
        return cls(starts[:count], sizes[:count], kinds[:count])
