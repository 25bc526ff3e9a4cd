"""A block looked at from outside: its segments, their records, what is damaged, where it ends. Pure reading.

Needs no key but for the records of an encrypted journal. What is damaged is listed as what it is, where the tailer
would go around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from journal.block import Block
from journal.kernels import AT_LINK, AT_OFFSET, AT_SEQUENCE, AT_STATUS, ENDED, FILLED, WAIT, new_state
from journal.layout import (
    COUNT_MASK,
    DATA_OFFSET,
    HAS_TABLE,
    IS_SEALED,
    SEGMENT_SIZE,
)
from journal.reading import find_behind
from journal.sealing import BlockCipher
from journal.segment_walk import FIRST_SEQUENCE, FLAGS, new_columns, walk_segments

SEGMENTS_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A whole segment of a block."""

    offset: int
    length: int
    first_sequence: int
    appended_at_ns: int
    flags: int
    record_size: int
    is_consistent: bool  # the records' lengths add up to the segment's

    @property
    def record_count(self) -> int:
        """How many records."""
        return self.flags & COUNT_MASK

    @property
    def has_table(self) -> bool:
        """True if the records are of several sizes."""
        return bool(self.flags & HAS_TABLE)

    @property
    def is_sealed(self) -> bool:
        """True if encrypted."""
        return bool(self.flags & IS_SEALED)


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Whole segments that follow one another without a byte between them: `columns` as in segment_walk.py."""

    columns: NDArray[np.int64]

    def views(self) -> Iterator[SegmentView]:
        """One by one."""
        for offset, length, first, at_ns, flags, size, is_consistent in self.columns.T.tolist():
            yield SegmentView(offset, length, first, at_ns, flags, size, bool(is_consistent))


@dataclass(frozen=True, slots=True)
class DamagedStretch:
    """Bytes that are no whole segment, from `offset` to `end`, where the next one begins; None: none does."""

    offset: int
    end: int | None
    due_sequence: int
    next_sequence: int | None


@dataclass(frozen=True, slots=True)
class EndMark:
    """The block is ended, and goes on in the block `link`."""

    offset: int
    sequence: int
    link: int


@dataclass(frozen=True, slots=True)
class OpenEnd:
    """Nothing is appended from here on, yet."""

    offset: int
    sequence: int


Stretch = SegmentRows | DamagedStretch | EndMark | OpenEnd


def stretches(block: Block, written_end: int = 0) -> Iterator[Stretch]:
    """What a block's data area holds, from its beginning; EndMark or OpenEnd come last, or damage without an end.

    Args:
        written_end: something is written up to this offset for certain; nothing there is damage.
    """
    state, columns, due = new_state(), new_columns(SEGMENTS_AT_ONCE), block.header.first_sequence
    state[AT_OFFSET] = DATA_OFFSET
    while True:
        count = walk_segments(block.address, state, columns)
        if count:
            found = columns[:, :count].copy()
            due = int(found[FIRST_SEQUENCE, -1]) + (int(found[FLAGS, -1]) & COUNT_MASK)
            yield SegmentRows(found)
        offset, status = int(state[AT_OFFSET]), int(state[AT_STATUS])
        if status == FILLED:
            continue
        if status == ENDED:
            yield EndMark(offset, due, int(state[AT_LINK]))
            return
        if status == WAIT and offset >= written_end:
            yield OpenEnd(offset, due)
            return
        if not find_behind(block.address, offset, block.header.data_end, due, state):
            yield DamagedStretch(offset, None, due, None)
            return
        yield DamagedStretch(offset, int(state[AT_OFFSET]), due, int(state[AT_SEQUENCE]))


def segments(block: Block, written_end: int = 0) -> Iterator[SegmentView | DamagedStretch | EndMark | OpenEnd]:
    """As `stretches`, each segment by itself."""
    for stretch in stretches(block, written_end):
        if isinstance(stretch, SegmentRows):
            yield from stretch.views()
        else:
            yield stretch


def records_of(block: Block, segment: SegmentView, key: bytes | None = None) -> list[memoryview] | None:
    """A segment's records; None if it is encrypted and the key is not given or does not open it, or if their lengths do
    not add up."""
    if not segment.is_consistent:
        return None
    begin, end = segment.offset + SEGMENT_SIZE, segment.offset + segment.length
    body = block.view[begin:end]
    if segment.is_sealed:
        cipher = BlockCipher(key, block.header) if key is not None else None
        if cipher is None:
            return None
        plain = cipher.open(bytes(body), segment.first_sequence, segment.flags, segment.record_size)
        if plain is None:
            return None
        body = memoryview(plain)
    count, size = segment.record_count, segment.record_size
    if not segment.has_table:
        return [body[place * size : (place + 1) * size] for place in range(count)]
    ends = np.frombuffer(body[: 4 * count], "<u4").tolist()
    data = body[4 * count :]
    return [data[start:stop] for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
