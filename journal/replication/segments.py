"""Reads a journal's whole segments, unencrypted, including those not yet visible to tailers. Read-only.

Checks each segment's CRC. Skips damage, as a tailer does, which leaves a gap in the indices. Invariant: from one place
on, first indices strictly ascend.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from pathlib import Path

import numpy as np

from tandemfeed.journal.compiled.kernels import (
    AT_LINK,
    AT_OFFSET,
    AT_SEQUENCE,
    AT_SKIP,
    AT_STATUS,
    ENDED,
    SEALED,
    WAIT,
    new_state,
)
from tandemfeed.journal.compiled.reading import find_after_damage, read_ahead
from tandemfeed.journal.format.block import Block
from tandemfeed.journal.format.layout import (
    COUNT_MASK,
    END,
    IS_SEALED,
    NEXT_SEQUENCE,
    ORDINAL,
    PART_BITS,
    SEGMENT,
    SEGMENT_SIZE,
    aligned,
)
from tandemfeed.journal.format.sealing import BlockCipher
from tandemfeed.journal.read.library import UNLIMITED, Library
from tandemfeed.journal.replication.wire.messages import Segment, SegmentDigest

LOG = logging.getLogger("tandemfeed.journal.replication")
COLUMNS_COUNT = 1_024  # records checked in one compiled call
DIGESTED = struct.Struct("<QQQII")
DIGEST_SIZE = 16


class Place:
    """A position of a segment reader. Keeps its block mapped."""

    __slots__ = ("block", "offset", "sequence")

    def __init__(self, block: Block, offset: int, sequence: int) -> None:
        self.block = block
        self.offset = offset
        self.sequence = sequence  # expected next


class SegmentReader:
    """Reads the segments of one journal, from any number of places.

    Args:
        folder: of the journal; it need not exist yet.
        key: of an encrypted journal.

    Raises:
        WrongKey, ForeignFile, NewerFormat, BlockCorrupt: now, or later when the journal is created.
    """

    def __init__(self, folder: Path, key: bytes | None = None) -> None:
        self._library = Library(folder, key)
        self._key = key
        self._state = new_state()
        self._columns = tuple(np.empty(COLUMNS_COUNT, np.int64) for _ in range(3))
        self._cipher: tuple[int, BlockCipher] | None = None

    @property
    def sequence_bits(self) -> int:
        """The number of low bits of an index that are the sequence; 0 before there is a journal."""
        return self._library.sequence_bits if self._library.control is not None else 0

    def words(self) -> tuple[int, int]:
        """Two words, read from memory, that change with every append."""
        control = self._library.control
        return (control.word(ORDINAL), control.word(END)) if control is not None else (0, 0)

    def next_index_seen(self) -> int:
        """The index after the newest record; during a roll it can be lower, never higher. Reads two words of memory."""
        control = self._library.control
        if control is None:
            return 0
        # The order matters: a roll stores the ordinal last, so a new ordinal comes with its sequence.
        cycle = control.word(ORDINAL) >> PART_BITS
        return cycle << self.sequence_bits | control.word(NEXT_SEQUENCE)

    def end_index(self) -> int:
        """The index after the newest record, from the records themselves; 0 before there is a journal."""
        newest = self._library.newest()
        if newest is None:
            return 0
        self._library.go_to(newest, UNLIMITED, self._state)
        return self._library.index_of(newest, int(self._state[AT_SEQUENCE]))

    def oldest_index(self) -> int:
        """The first index of the oldest block; 0 before there is a journal."""
        first = self._library.first()
        return first.header.first_index if first is not None else 0

    def place_at(self, index: int) -> Place | None:
        """The place of the segment that contains an index, or of the first one after it; None without a journal."""
        library = self._library
        block = library.containing(index) or library.before_index(index) or library.first()
        if block is None:
            return None
        base = library.index_of(block, 0)
        if index <= block.header.first_index:
            target = 0
        else:
            target = index - base if index >> library.sequence_bits == block.header.cycle else UNLIMITED
        state = self._state
        library.go_to(block, target, state)
        return Place(block, int(state[AT_OFFSET]), int(state[AT_SEQUENCE] - state[AT_SKIP]))

    def read(self, place: Place, size_max: int) -> list[Segment]:
        """The next segments, at least one if there is any, until they reach `size_max` bytes; advances the place."""
        found: list[Segment] = []
        size, looked_again = 0, False
        while size < size_max:
            more = self._read_run(place, size_max - size)
            if more:
                size += sum(SEGMENT_SIZE + len(each.body) for each in more)
                found += more
                looked_again = False
                continue
            status = int(self._state[AT_STATUS])
            if status == WAIT:
                if not self._library.is_written(place.block, place.offset):
                    break
                if not looked_again:  # a segment may have arrived between the two checks
                    looked_again = True
                    continue
            looked_again = False
            if not self._advance(place, status):
                break
        return found

    def segment_at(self, index: int) -> Segment | None:
        """The segment that contains an index, or the first one after it; None if there is none."""
        place = self.place_at(index)
        found = self.read(place, 1) if place is not None else []
        return found[0] if found else None

    def segment_before(self, index: int) -> Segment | None:
        """The last segment that begins before an index; None if there is none. Not found right before damage."""
        library = self._library
        block = library.before_index(index)
        while block is not None:
            base = library.index_of(block, 0)
            library.go_to(block, UNLIMITED, self._state)
            end = base + int(self._state[AT_SEQUENCE])
            wanted = min(index, end) - 1
            if wanted >= block.header.first_index:
                found = self.segment_at(wanted)
                if found is not None and found.first_index(self.sequence_bits) < index:
                    return found
            block = library.before(block.ordinal)
        return None

    def cycle_end(self, index: int) -> int | None:
        """The index after the last record ever appended in an index's cycle; None: released, so unknown."""
        library, cycle = self._library, index >> self.sequence_bits
        first, newest = library.first(), library.newest()
        if first is None or newest is None or cycle < first.header.cycle:
            return None
        block = library.before_index((cycle + 1) << self.sequence_bits)
        if block is None or block.header.cycle != cycle:
            return cycle << self.sequence_bits  # nothing was appended in this cycle
        if (tail := block.tail()) is not None:  # it includes records that are now damaged
            return library.index_of(block, tail[2])
        library.go_to(block, UNLIMITED, self._state)
        return library.index_of(block, int(self._state[AT_SEQUENCE]))

    def tail(self, count_max: int) -> tuple[SegmentDigest, ...]:
        """Digests of the last segments, ascending."""
        found: list[SegmentDigest] = []
        index = self.end_index()
        while len(found) < count_max and (segment := self.segment_before(index)) is not None:
            index = segment.first_index(self.sequence_bits)
            found.append(self.digest(segment))
        return tuple(reversed(found))

    def digest(self, segment: Segment) -> SegmentDigest:
        """The digest of a segment."""
        return digest_of(segment, self.sequence_bits)

    def close(self) -> None:
        """Drop all blocks."""
        self._library.close()

    def _read_run(self, place: Place, size_max: int) -> list[Segment]:
        """Whole segments from a place on, within its block; if none, the reason is in AT_STATUS."""
        state, block = self._state, place.block
        begin = place.offset
        state[AT_SEQUENCE] = place.sequence
        read_ahead(block.address, begin, 0, UNLIMITED, *self._columns, state)
        if state[AT_STATUS] == SEALED and state[AT_OFFSET] == begin:
            return self._read_sealed(place)
        checked_end = int(state[AT_OFFSET])
        found: list[Segment] = []
        size, offset = 0, begin
        # If only some records of a segment fitted the columns, the whole segment was still checked.
        while size < size_max and (offset < checked_end or (offset == checked_end and state[AT_SKIP] > 0)):
            length, _, first, at_ns, flags, record_size = SEGMENT.unpack_from(block.view, offset)
            body = bytes(block.view[offset + SEGMENT_SIZE : offset + length])
            found.append(Segment(block.header.cycle, first, at_ns, flags, record_size, body))
            size += length
            offset = aligned(offset + length)
            place.sequence = first + (flags & COUNT_MASK)
        place.offset = offset
        return found

    def _read_sealed(self, place: Place) -> list[Segment]:
        """One segment, decrypted; if it was altered, none, and AT_STATUS is neither WAIT nor ENDED."""
        block, offset = place.block, place.offset
        length, _, first, at_ns, flags, record_size = SEGMENT.unpack_from(block.view, offset)
        if self._cipher is None or self._cipher[0] != block.ordinal:
            assert self._key is not None
            self._cipher = block.ordinal, BlockCipher(self._key, block.header)
        body = self._cipher[1].open(
            bytes(block.view[offset + SEGMENT_SIZE : offset + length]), first, flags, record_size
        )
        if body is None:
            self._state[AT_STATUS] = -1  # skip it as damage
            return []
        place.offset, place.sequence = aligned(offset + length), first + (flags & COUNT_MASK)
        return [Segment(block.header.cycle, first, at_ns, flags & ~IS_SEALED, record_size, body)]

    def _advance(self, place: Place, status: int) -> bool:
        """Go to the next block at a block's end, or skip damage; False if there is nothing yet."""
        library, block = self._library, place.block
        if status == ENDED:
            following = library.following(block.ordinal, int(self._state[AT_LINK]))
        elif find_after_damage(block.address, place.offset, library.data_limit(block), place.sequence, self._state):
            LOG.warning("%s: skipping damage at offset %d", block.path, place.offset)
            place.offset, place.sequence = int(self._state[AT_OFFSET]), int(self._state[AT_SEQUENCE])
            return True
        else:
            following = library.following(block.ordinal, None)
        if following is None:
            return False
        missing = library.missing_between(block, place.sequence, following)
        if missing.count:
            LOG.warning("%s: the next block: %s", block.path, missing)
        place.block, place.offset = following, following.header.data_offset
        place.sequence = following.header.first_sequence
        return True


def digest_of(segment: Segment, sequence_bits: int) -> SegmentDigest:
    """The digest of a segment."""
    head = (
        segment.cycle,
        segment.first_sequence,
        segment.appended_at_ns,
        segment.count_and_flags,
        segment.record_size,
    )
    digest = hashlib.blake2b(DIGESTED.pack(*head), digest_size=DIGEST_SIZE)
    digest.update(segment.body)
    return SegmentDigest(segment.first_index(sequence_bits), segment.next_index(sequence_bits), digest.digest())
