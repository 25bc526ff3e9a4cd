"""An index of records by the caller's sequence numbers: stores the places of some records; readers read on from there.

A feed numbers the records that it appends (`message_seq`, `source_seq`). To find a number, the places of a few records
are enough, because reading on from there takes microseconds. Numbers may restart lower, as after a takeover. The
records that they replace are then no longer found, although the journal still has them.

Pure: uses no journal. Needs sixteen bytes per `MARK_EVERY` records. Not thread-safe.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

MARK_EVERY = 64
UNBOUNDED = (1 << 63) - 1


class Stretch(NamedTuple):
    """What to read: from a place in the journal on, records whose first number is before `until_seq`."""

    begin_index: int
    until_seq: int


class SequenceMarks:
    """Places of some records, ascending by their first number."""

    __slots__ = ("_unmarked_count", "first_seqs", "indices", "next_seq")

    def __init__(self) -> None:
        self.first_seqs = array("Q")
        self.indices = array("Q")
        self.next_seq = 0  # the number after the last record added
        self._unmarked_count = 0

    def note(self, first_seq: int, end_seq: int, index: int) -> None:
        """Add the next record: its numbers, `first_seq` to before `end_seq`, and its place in the journal."""
        if first_seq < self.next_seq or not self.first_seqs or self._unmarked_count >= MARK_EVERY:
            self.mark(first_seq, index)
        self._unmarked_count += 1
        self.next_seq = end_seq

    def mark(self, first_seq: int, index: int) -> None:
        """Store the place of a record that begins with this number; replaces all marks from this number on."""
        if self.first_seqs and self.first_seqs[-1] >= first_seq:
            place = bisect_left(self.first_seqs, first_seq)
            del self.first_seqs[place:], self.indices[place:]
        # A concurrent lookup bisects first_seqs, so that array grows last.
        self.indices.append(index)
        self.first_seqs.append(first_seq)
        self._unmarked_count = 0

    def stretches(self, first_seq: int, last_seq: int) -> list[Stretch]:
        """What to read for the numbers first…last (inclusive), in order."""
        begin = max(bisect_right(self.first_seqs, first_seq) - 1, 0)
        end = bisect_right(self.first_seqs, last_seq)
        untils = [*self.first_seqs[begin + 1 : end + 1], UNBOUNDED][: end - begin]
        return [Stretch(index, until) for index, until in zip(self.indices[begin:end], untils, strict=True)]

    def release(self, first_index: int) -> None:
        """Drop the marks before the journal's first record."""
        gone = sum(1 for index in self.indices if index < first_index)
        del self.first_seqs[:gone], self.indices[:gone]
