"""Inspects a block: its segments, their records, damage and its end. Read-only.

Needs a key only for the records of an encrypted journal. Lists damage, which a tailer would skip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemfeed.journal.block import Block
from tandemfeed.journal.kernels import AT_LINK, AT_OFFSET, AT_SEQUENCE, AT_STATUS, ENDED, FILLED, WAIT, new_state
from tandemfeed.journal.layout import (
    COUNT_MASK,
    DATA_OFFSET,
    HAS_TABLE,
    IS_SEALED,
    SEGMENT_SIZE,
)
from tandemfeed.journal.reading import find_after_damage
from tandemfeed.journal.sealing import BlockCipher
from tandemfeed.journal.segment_walk import FIRST_SEQUENCE, FLAGS, new_columns, walk_segments

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
        """Number of records."""
        return self.flags & COUNT_MASK

    @property
    def has_table(self) -> bool:
        """True if the records have several sizes."""
        return bool(self.flags & HAS_TABLE)

    @property
    def is_sealed(self) -> bool:
        """True if the segment is encrypted."""
        return bool(self.flags & IS_SEALED)


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Adjacent whole segments; `columns` as in segment_walk.py."""

    columns: NDArray[np.int64]

    def views(self) -> Iterator[SegmentView]:
        """The segments one by one."""
        for offset, length, first, at_ns, flags, size, is_consistent in self.columns.T.tolist():
            yield SegmentView(offset, length, first, at_ns, flags, size, bool(is_consistent))


@dataclass(frozen=True, slots=True)
class DamagedStretch:
    """Bytes that are not a whole segment, from `offset` to `end`, where the next one begins; None if there is none."""

    offset: int
    end: int | None
    due_sequence: int
    next_sequence: int | None


@dataclass(frozen=True, slots=True)
class EndMark:
    """The block is ended; the journal continues in the block `link`."""

    offset: int
    sequence: int
    link: int


@dataclass(frozen=True, slots=True)
class OpenEnd:
    """Nothing is appended from here on yet."""

    offset: int
    sequence: int


Stretch = SegmentRows | DamagedStretch | EndMark | OpenEnd


def stretches(block: Block, written_end: int = 0) -> Iterator[Stretch]:
    """The contents of a block's data area, from its beginning; EndMark, OpenEnd, or damage without an end comes last.

    Args:
        written_end: data certainly exist up to this offset; a zero length before it is damage.
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
        if not find_after_damage(block.address, offset, block.header.data_end, due, state):
            yield DamagedStretch(offset, None, due, None)
            return
        yield DamagedStretch(offset, int(state[AT_OFFSET]), due, int(state[AT_SEQUENCE]))


def segments(block: Block, written_end: int = 0) -> Iterator[SegmentView | DamagedStretch | EndMark | OpenEnd]:
    """As `stretches`, with single segments."""
    for stretch in stretches(block, written_end):
        if isinstance(stretch, SegmentRows):
            yield from stretch.views()
        else:
            yield stretch


def records_of(block: Block, segment: SegmentView, key: bytes | None = None) -> list[memoryview] | None:
    """A segment's records; None if their lengths do not add up, or if the segment is encrypted and the key is missing
    or does not decrypt it."""
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
