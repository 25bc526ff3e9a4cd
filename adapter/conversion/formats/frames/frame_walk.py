"""Compiled code that finds the frames of a source format in a run of bytes, by the document's <framing>."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numba import types
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.kernel_cache import compiled
from tandemfeed.feedcore.documents.source_layout import Framing

DATA, PLACES = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.int64, 1, "C")


@compiled(types.UniTuple(types.int64, 2)(DATA, types.intp, types.intp, PLACES))
def _walk(data, at, count_max, framing):  # type: ignore[no-untyped-def]
    """(end, number) of the whole frames from `at` on, at most `count_max`."""
    place, width, is_big_endian = framing[0], framing[1], framing[2]
    unit, adds, least = framing[3], framing[4], framing[5]
    count = np.int64(0)
    while count < count_max and at + place + width <= data.size:
        length = np.int64(0)
        for number in range(width):
            byte = np.int64(data[at + place + number])
            length |= byte << (8 * (width - 1 - number if is_big_endian else number))
        size = length * unit + adds
        if size < least or at + size > data.size:
            break
        at += size
        count += 1
    return np.int64(at), count


class FrameWalk:
    """Finds the frames of one framing.

    Args:
        allows_empty: frames that consist of their length only are frames, too.
    """

    def __init__(self, framing: Framing, *, allows_empty: bool = False) -> None:
        length = framing.length
        least = length.end if allows_empty else max(framing.size_min, framing.length_adds + 1)
        self._framing: NDArray[np.int64] = np.array(
            [
                length.offset,
                length.kind.size,
                framing.is_big_endian,
                framing.length_unit,
                framing.length_adds,
                least,
            ],
            np.int64,
        )

    def skip(self, data: NDArray[np.uint8], at: int, count_max: int) -> tuple[int, int]:
        """Pass over whole frames.

        Args:
            data: shape (bytes,).
            at: where the first frame begins.

        Returns:
            (where the last of them ends, their number). It stops before a frame that is too small or not whole.
        """
        end, count = _walk(data, at, count_max, self._framing)
        return int(end), int(count)


def part_of_chunk(framing: Framing) -> Callable[[FrameChunk, int, int], FrameChunk]:
    """A function that returns the messages of a chunk from a number up to another one, exclusive."""
    walk = FrameWalk(framing, allows_empty=True)

    def part(chunk: FrameChunk, first: int, end: int) -> FrameChunk:
        view, begin = np.frombuffer(chunk.frames, np.uint8), 0
        for wanted in (first - chunk.sequence, end - first):
            start = begin
            begin, count = walk.skip(view, start, wanted)
            if count < wanted:
                raise FormatError(
                    f"messages {first} to {end - 1} are not in their packet: the frames do not follow the source format"
                )
        return replace(chunk, frames=chunk.frames[start:begin], message_count=end - first, sequence=first)

    return part
