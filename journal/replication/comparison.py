"""Compares a follower's last segments with the leader's. Read-only."""

from __future__ import annotations

from typing import Protocol

from tandemfeed.journal.replication.wire.messages import Segment, SegmentDigest


class Segments(Protocol):
    """What the comparison needs from a journal."""

    @property
    def sequence_bits(self) -> int:
        """The number of low bits of an index that are the sequence."""

    def segment_at(self, index: int) -> Segment | None:
        """The segment that contains an index, or the first one after it."""

    def end_index(self) -> int:
        """The index after the newest record."""

    def cycle_end(self, index: int) -> int | None:
        """The index after the last record ever appended in an index's cycle; None: released, so unknown."""

    def digest(self, segment: Segment) -> SegmentDigest:
        """The digest of a segment."""


def is_same(ours: Segments, found: SegmentDigest) -> bool | None:
    """Whether a follower's segment equals the leader's; None: the leader's is lost or released, so it is unknown."""
    own = ours.segment_at(found.first_index)
    first = own.first_index(ours.sequence_bits) if own is not None else None
    if own is not None and first is not None and first < found.next_index:
        return ours.digest(own) == found
    # The leader has no such segment: either it no longer has it, or it never had it.
    end = ours.cycle_end(found.first_index)
    return False if end is not None and found.next_index > end else None


def first_difference(ours: Segments, next_index: int, tail: tuple[SegmentDigest, ...]) -> int | None:
    """Where a follower's journal differs from the leader's; None: it may continue at `next_index`.

    Args:
        next_index: of the follower.
        tail: its last segments, ascending. The newest one that the leader still has decides.
    """
    bits, common_end = ours.sequence_bits, None if tail else 0
    for found in reversed(tail):
        verdict = is_same(ours, found)
        if verdict is False:
            own = ours.segment_at(found.first_index)
            return min(found.first_index, own.first_index(bits) if own is not None else ours.end_index())
        if verdict:
            common_end = found.next_index
            break
    if next_index > (end := ours.end_index()):
        return end
    # The next segment must begin at the follower's end or after it: the follower only appends.
    own = ours.segment_at(next_index if common_end is None else common_end)
    first = own.first_index(bits) if own is not None else next_index
    return first if first < next_index else None
