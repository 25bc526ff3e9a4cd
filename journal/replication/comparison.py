"""Whether a follower's last segments are the leader's. Knows journals by three questions only; changes nothing."""

from __future__ import annotations

from typing import Protocol

from journal.replication.messages import Segment, SegmentDigest


class Segments(Protocol):
    """A journal as the comparison sees it."""

    @property
    def sequence_bits(self) -> int:
        """How many low bits of an index are the sequence."""

    def segment_at(self, index: int) -> Segment | None:
        """The segment that holds an index, or the first one behind it."""

    def end_index(self) -> int:
        """Behind the newest record."""

    def cycle_end(self, index: int) -> int | None:
        """Behind the last record that was ever appended in an index's cycle; None: released, and so not known."""

    def digest(self, segment: Segment) -> SegmentDigest:
        """What tells this segment from any other."""


def is_same(ours: Segments, found: SegmentDigest) -> bool | None:
    """Whether a follower's segment is ours; None: ours is lost or released, so nothing can be said."""
    own = ours.segment_at(found.first_index)
    first = own.first_index(ours.sequence_bits) if own is not None else None
    if own is not None and first is not None and first < found.next_index:
        return ours.digest(own) == found
    # Nothing there: either we had it once, or we never did.
    end = ours.cycle_end(found.first_index)
    return False if end is not None and found.next_index > end else None


def first_difference(ours: Segments, next_index: int, tail: tuple[SegmentDigest, ...]) -> int | None:
    """Where a follower's journal is known to differ from ours; None: it may go on at `next_index`.

    Args:
        next_index: the follower's.
        tail: its last segments, ascending. The newest one that we still have decides.
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
    # What comes next must begin where the follower ends, or behind: it can add nothing before that.
    own = ours.segment_at(next_index if common_end is None else common_end)
    first = own.first_index(bits) if own is not None else next_index
    return first if first < next_index else None
