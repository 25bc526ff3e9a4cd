"""Finding records by a sequence of the caller's own: some places are remembered, and the journal is read on from there.

A feed numbers what it appends (`message_seq`, `source_seq`); to find a number again one needs not remember where each
record is, only where some are: reading on costs microseconds. Numbers may begin anew at a lower one, as after a
takeover; what they replace is then found no more, though the journal still has it.

Pure: knows no journal. Sixteen bytes for each `MARK_EVERY` records. Not for several threads at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

MARK_EVERY = 64
UNBOUNDED = (1 << 63) - 1


class Stretch(NamedTuple):
    """Where to read: from a place in the journal on, for records whose first number is before `until_seq`."""

    begin_index: int
    until_seq: int


class SequenceMarks:
    """Places of some records, ascending by their first number."""

    __slots__ = ("_unmarked_count", "first_seqs", "indices", "next_seq")

    def __init__(self) -> None:
        self.first_seqs = array("Q")
        self.indices = array("Q")
        self.next_seq = 0  # behind the last record noted
        self._unmarked_count = 0

    def note(self, first_seq: int, end_seq: int, index: int) -> None:
        """The next record: its numbers `first_seq` up to before `end_seq`, and its place in the journal."""
        if first_seq < self.next_seq or not self.first_seqs or self._unmarked_count >= MARK_EVERY:
            self.mark(first_seq, index)
        self._unmarked_count += 1
        self.next_seq = end_seq

    def mark(self, first_seq: int, index: int) -> None:
        """Mark the next record, which begins with this number; it replaces what was marked from this number on."""
        if self.first_seqs and self.first_seqs[-1] >= first_seq:
            place = bisect_left(self.first_seqs, first_seq)
            del self.first_seqs[place:], self.indices[place:]
        # Who looks up while this goes on bisects first_seqs, so that array grows last.
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
        """Forget what is before the journal's first record."""
        gone = sum(1 for index in self.indices if index < first_index)
        del self.first_seqs[:gone], self.indices[:gone]
