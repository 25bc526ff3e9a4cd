"""Compiled code that finds messages that do not contain their length, and puts it before each.

The length follows from a message's type and parts, as the source format describes them: the fixed part, then groups and
variable data. A message of a type that the format does not have ends the walk, because nothing says where it ends.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from tandemfeed.adapter.kernel_cache import compiled, compiled_part
from tandemfeed.feedcore.documents.primitive_types import Place
from tandemfeed.feedcore.documents.source_layout import (
    Framing,
    SourceData,
    SourceFormat,
    SourceGroup,
)

DATA, OUT = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.uint8, 1, "C")
PLACES, TABLE = types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")
MEASURE_SIZE = 2  # of the length before each message, as the format's loader declares it
MESSAGE_SIZE_LEAST = 4  # of a message with its type; a packet cannot have more messages than it has room for


@compiled_part
def _number(data, at, size, is_big_endian):  # type: ignore[no-untyped-def]
    """An unsigned integer; the caller has checked that it is there."""
    value = np.int64(0)
    for place in range(size):
        shift = 8 * (size - 1 - place if is_big_endian else place)
        value |= np.int64(data[at + place]) << shift
    return value


@compiled_part
def _end_of_part(data, at, part):  # type: ignore[no-untyped-def]
    """Where a group or a variable text that begins at `at` ends; -1 if its header is not whole."""
    header, count_at, count_size = part[0], part[1], part[2]
    size_at, size_size, size, is_big_endian = part[3], part[4], part[5], part[6]
    if at + header > data.size:
        return np.int64(-1)
    count = part[7] if count_size == 0 else _number(data, at + count_at, count_size, is_big_endian)
    if size_size > 0:
        size = _number(data, at + size_at, size_size, is_big_endian)
    return at + header + count * size


@compiled(types.UniTuple(types.int64, 3)(DATA, types.intp, OUT, PLACES, TABLE, TABLE))
def _measure(data, at, out, framing, kinds, parts):  # type: ignore[no-untyped-def]
    """(bytes written, messages, where the last whole message ends)."""
    type_at, type_size, block_at, block_size = framing[0], framing[1], framing[2], framing[3]
    version_at, version_size, header, is_big_endian = framing[4], framing[5], framing[6], framing[7]
    least, written, count, at = framing[8], np.int64(0), np.int64(0), np.int64(at)
    while at + least <= data.size:
        kind = _number(data, at + type_at, type_size, is_big_endian)
        row = 0
        while row < kinds.shape[0] and kinds[row, 0] != kind:
            row += 1
        if row == kinds.shape[0]:
            break
        fixed = kinds[row, 1] if block_size == 0 else _number(data, at + block_at, block_size, is_big_endian)
        version = np.int64(0) if version_size == 0 else _number(data, at + version_at, version_size, is_big_endian)
        end = at + header + fixed
        for place in range(kinds[row, 2], kinds[row, 3]):
            if end >= 0 and version >= parts[place, 8]:
                end = _end_of_part(data, end, parts[place])
        if end < 0 or end > data.size:
            break
        length = end - at + MEASURE_SIZE
        out[written + (1 if is_big_endian else 0)] = length & 255
        out[written + (0 if is_big_endian else 1)] = length >> 8
        for place in range(end - at):
            out[written + MEASURE_SIZE + place] = data[at + place]
        written, count, at = written + length, count + 1, end
    return written, count, at


class MessageMeasure:
    """Finds the messages of one source format whose framing has no length."""

    def __init__(self, source_format: SourceFormat) -> None:
        framing = source_format.framing
        self._framing: NDArray[np.int64] = np.array(_framing(framing), np.int64)
        kinds: list[list[int]] = []
        parts: list[list[int]] = []
        for message in source_format.messages.values():
            first = len(parts)
            parts += [_part(part) for part in message.parts]
            kinds.append([message.type_id, message.size, first, len(parts)])
        self._kinds: NDArray[np.int64] = np.array(kinds, np.int64)
        self._parts: NDArray[np.int64] = np.array(parts or [[0] * 9], np.int64)

    def frames(self, data: NDArray[np.uint8], at: int) -> tuple[bytes, int, int]:
        """(the messages from `at` on, each after its length; their number; where the last whole one ends).

        Args:
            data: shape (bytes,): a datagram.
        """
        out = np.zeros(len(data) + MEASURE_SIZE * (len(data) // MESSAGE_SIZE_LEAST + 1), np.uint8)
        written, count, end = _measure(data, at, out, self._framing, self._kinds, self._parts)
        return out[:written].tobytes(), int(count), int(end)


def _framing(framing: Framing) -> list[int]:
    """The places that `_measure` reads, counted from the venue's message."""

    def place(found: Place | None) -> list[int]:
        return [0, 0] if found is None else [found.offset - MEASURE_SIZE, found.size]

    header, least = framing.header_size - MEASURE_SIZE, framing.size_min - MEASURE_SIZE
    places = [*place(framing.type), *place(framing.block_length), *place(framing.version)]
    return [*places, header, framing.is_big_endian, max(least, MESSAGE_SIZE_LEAST)]


def _part(part: SourceGroup | SourceData) -> list[int]:
    """A row of `_end_of_part`."""
    if isinstance(part, SourceData):
        return [part.header_size, 0, part.length_kind.size, 0, 0, 1, part.is_big_endian, 0, part.since_version]
    count, size = part.count, part.entry_size
    place = [count.offset, count.size] if isinstance(count, Place) else [0, 0]
    sizes = [0, 0] if size is None else [size.offset, size.size]
    number = 0 if isinstance(count, Place) else count
    return [part.header_size, *place, *sizes, part.size, part.is_big_endian, number, part.since_version]
