"""A set of integers stored as ranges: for what was received, is missing or was requested, or what a file contains.

A range is half-open, `[first, end)`: `end` is the first number after it. The ranges of a set are sorted and never
touch: adding `[1, 3)` and `[3, 5)` makes `[1, 5)`. Appending at the end takes constant time; every other operation
takes a binary search and one move within a list.

The set has no limit. A caller that fills it from the network must bound `range_count` or the numbers it adds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]  # first, end


class RangeSet:
    """Integers as sorted half-open ranges that neither overlap nor touch.

    Args:
        ranges: initial pairs `(first, end)`, in any order; they may overlap.

    Every method that takes `first` and `end` raises `ValueError` if `end` is below `first`. If they are equal, the
    range is empty.
    """

    __slots__ = ("_ends", "_firsts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []  # as long as _firsts; _firsts[i] < _ends[i] < _firsts[i + 1]
        for first, end in ranges:
            self.add(first, end)

    @property
    def first(self) -> int:
        """The lowest number. Raises `ValueError` if the set is empty."""
        if not self._firsts:
            raise ValueError("an empty RangeSet has no first number; check the set first")
        return self._firsts[0]

    @property
    def end(self) -> int:
        """The highest number plus one. Raises `ValueError` if the set is empty."""
        if not self._ends:
            raise ValueError("an empty RangeSet has no end; check the set first")
        return self._ends[-1]

    @property
    def count(self) -> int:
        """How many integers the set contains. The time grows with the number of ranges."""
        return sum(self._ends) - sum(self._firsts)

    @property
    def range_count(self) -> int:
        """How many ranges the set has."""
        return len(self._firsts)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __iter__(self) -> Iterator[Range]:
        """The ranges `(first, end)`, lowest first. The set must not change during the iteration."""
        return zip(self._firsts, self._ends, strict=True)

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def add(self, first: int, end: int) -> None:
        """Add every number of `[first, end)`, joining it with the ranges it overlaps or touches."""
        if first >= end:
            _refuse_backwards(first, end)
            return
        firsts, ends = self._firsts, self._ends
        if not ends or first > ends[-1]:
            firsts.append(first)
            ends.append(end)
        elif first >= firsts[-1]:
            ends[-1] = max(end, ends[-1])
        else:
            self._join(first, end)

    def _join(self, first: int, end: int) -> None:
        firsts, ends = self._firsts, self._ends
        low = bisect_left(ends, first)  # the lowest range that overlaps or touches
        high = bisect_right(firsts, end, low)  # the first range entirely above
        if low < high:
            first = min(first, firsts[low])
            end = max(end, ends[high - 1])
        firsts[low:high] = [first]
        ends[low:high] = [end]

    def remove(self, first: int, end: int) -> None:
        """Remove every number of `[first, end)` from the set."""
        firsts, ends = self._firsts, self._ends
        if firsts and first <= firsts[0] < end < ends[0]:
            firsts[0] = end
        else:
            self.take(first, end)

    def take(self, first: int, end: int) -> RangeSet:
        """Remove every number of `[first, end)` from the set, and return the removed ones."""
        taken = self.within(first, end)
        if taken:
            firsts, ends = self._firsts, self._ends
            low = bisect_right(ends, first)
            high = low + taken.range_count
            lowest_first, highest_end = firsts[low], ends[high - 1]
            below, above = lowest_first < first, highest_end > end
            firsts[low:high] = [lowest_first] * below + [end] * above
            ends[low:high] = [first] * below + [highest_end] * above
        return taken

    def within(self, first: int, end: int) -> RangeSet:
        """The numbers of `[first, end)` in the set."""
        _refuse_backwards(first, end)
        low = bisect_right(self._ends, first)  # the lowest range that ends after first
        high = bisect_left(self._firsts, end, low)  # the first range that begins at or after end
        if low >= high or first == end:
            return RangeSet()
        firsts, ends = self._firsts[low:high], self._ends[low:high]
        firsts[0] = max(first, firsts[0])
        ends[-1] = min(end, ends[-1])
        return _of(firsts, ends)

    def missing(self, first: int, end: int) -> RangeSet:
        """The numbers of `[first, end)` that are not in the set: the gaps inside that window."""
        held = self.within(first, end)
        gap_firsts = [first, *held._ends]
        gap_ends = [*held._firsts, end]
        if gap_firsts[0] == gap_ends[0]:
            del gap_firsts[0], gap_ends[0]
        if gap_ends and gap_firsts[-1] == gap_ends[-1]:
            del gap_firsts[-1], gap_ends[-1]
        return _of(gap_firsts, gap_ends)

    def covers(self, first: int, end: int) -> bool:
        """True if every number of `[first, end)` is in the set; always true for an empty range."""
        _refuse_backwards(first, end)
        at = bisect_right(self._ends, first)
        return first == end or (at < len(self._firsts) and self._firsts[at] <= first and end <= self._ends[at])

    def overlaps(self, first: int, end: int) -> bool:
        """True if any number of `[first, end)` is in the set; never true for an empty range."""
        _refuse_backwards(first, end)
        at = bisect_right(self._ends, first)
        return first < end and at < len(self._firsts) and self._firsts[at] < end

    def truncate_before(self, number: int) -> None:
        """Remove every number below `number`."""
        if self._firsts and self._firsts[0] < number:
            self.remove(self._firsts[0], number)

    def truncate_from(self, number: int) -> None:
        """Remove `number` and every number above it."""
        if self._ends and self._ends[-1] > number:
            self.remove(number, self._ends[-1])


def _of(firsts: list[int], ends: list[int]) -> RangeSet:
    """A set that owns these lists, which must satisfy its invariant."""
    made = RangeSet()
    made._firsts, made._ends = firsts, ends
    return made


def _refuse_backwards(first: int, end: int) -> None:
    if end < first:
        raise ValueError(f"a range's end must not be below its first number: first is {first} and end {end}")
