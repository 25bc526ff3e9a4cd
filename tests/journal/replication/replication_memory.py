"""A journal in memory with the interface that the cores' shells need; for simulations."""

from __future__ import annotations

from bisect import bisect_left

from tandemfeed.journal.format.roll_cycle import SECONDLY
from tandemfeed.journal.replication.limits import TAIL_COUNT_MAX
from tandemfeed.journal.replication.segments import digest_of
from tandemfeed.journal.replication.wire.messages import Segment, SegmentDigest

BITS = SECONDLY.sequence_bits


class MemoryJournal:
    """A journal in memory."""

    sequence_bits = BITS

    def __init__(self, cycle: int, journal_id: bytes) -> None:
        self.id = journal_id
        self.begin = cycle << BITS
        self.segments: list[Segment] = []
        self.ends: dict[int, int] = {}

    def end_index(self) -> int:
        return self.segments[-1].next_index(BITS) if self.segments else self.begin

    def oldest_index(self) -> int:
        return self.segments[0].first_index(BITS) if self.segments else self.begin

    def segment_at(self, index: int) -> Segment | None:
        place = bisect_left(self.segments, index + 1, key=lambda each: each.next_index(BITS))
        return self.segments[place] if place < len(self.segments) else None

    def read(self, index: int, size_max: int) -> list[Segment]:
        place = bisect_left(self.segments, index + 1, key=lambda each: each.next_index(BITS))
        found: list[Segment] = []
        while place < len(self.segments) and (not found or sum(len(each.body) + 32 for each in found) < size_max):
            found.append(self.segments[place])
            place += 1
        return found

    def append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.ends[segment.cycle] = segment.next_index(BITS)

    def truncate(self, kept: int) -> None:
        del self.segments[kept:]
        last = self.segments[-1].cycle if self.segments else -1
        self.ends = {cycle: end for cycle, end in self.ends.items() if cycle <= last}
        if self.segments:
            self.ends[last] = self.end_index()

    def cycle_end(self, index: int) -> int | None:
        cycle = index >> BITS
        return None if cycle << BITS < self.begin else self.ends.get(cycle, cycle << BITS)

    def digest(self, segment: Segment) -> SegmentDigest:
        return digest_of(segment, BITS)

    def tail(self) -> tuple[SegmentDigest, ...]:
        return tuple(map(self.digest, self.segments[-TAIL_COUNT_MAX:]))
