"""What came early, by the numbers that it covers: `source_seq` of a source stream, `input_seq` of a channel."""

from __future__ import annotations

from bisect import insort
from itertools import chain, islice
from typing import Generic, TypeVar

from tandemfeed.feedcore.range_set import Range

Item = TypeVar("Item")
TRIM_COUNT = 1_024  # numbers taken from the front are dropped from the list so many at a time


class HoldQueue(Generic[Item]):
    """Early packets or decisions of one sequence, ascending, at most one per first number.

    Args:
        count_max: how many are held.

    Attributes:
        items: by first number, with the end. On a hot path ask whether it is empty, which calls no Python code.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._firsts: list[int] = []
        self._taken = 0  # of `_firsts`, at its front
        self.items: dict[int, tuple[int, Item]] = {}  # by first number, with the end

    def __len__(self) -> int:
        return len(self.items)

    @property
    def first_item(self) -> Item | None:
        """The lowest; None if nothing is held."""
        return self.items[self._firsts[self._taken]][1] if self.items else None

    @property
    def end(self) -> int:
        """One past the furthest number held; 0 if nothing is."""
        return max((end for end, _ in self.items.values()), default=0)

    def add(self, first: int, end: int, item: Item, *, is_newest_wanted: bool = False) -> Item | None:
        """Hold an item; returns the other if one that begins there is held already. The longer one stays.

        Args:
            is_newest_wanted: too many drop the oldest, as what is wanted next is not known yet; otherwise the newest,
                as the oldest are wanted next. What is dropped can be asked for again.
        """
        known = self.items.get(first)
        if known is not None:
            if end > known[0]:
                self.items[first] = end, item
            return known[1]
        if len(self.items) >= self._count_max:
            place = self._taken if is_newest_wanted else -1
            if first < self._firsts[place] if is_newest_wanted else first > self._firsts[place]:
                return None
            del self.items[self._firsts.pop(place)]
        insort(self._firsts, first, self._taken)
        self.items[first] = end, item
        return None

    def pop_reaching(self, number: int) -> Item | None:
        """Remove and return the lowest item if it begins at or before a number; it may be all old."""
        if not self.items or self._firsts[self._taken] > number:
            return None
        first = self._firsts[self._taken]
        self._taken += 1
        if self._taken == TRIM_COUNT:
            del self._firsts[:TRIM_COUNT]
            self._taken = 0
        return self.items.pop(first)[1]

    def take_all(self) -> list[tuple[int, int, Item]]:
        """Remove everything: (first, end, item) each, ascending."""
        found = [(first, *self.items[first]) for first in self._firsts[self._taken :]]
        self._firsts, self._taken, self.items = [], 0, {}
        return found

    def missing(self, first: int, end: int, range_count_max: int, count_max: int) -> tuple[Range, ...]:
        """What is not held of `[first, end)`, the lowest first.

        Args:
            range_count_max, count_max: no more ranges than this, and no more numbers in all of them.
        """
        ranges: list[Range] = []
        for held_first in chain(islice(self._firsts, self._taken, None), (end,)):
            if not count_max or len(ranges) == range_count_max:
                break
            gap_end = min(held_first, end, first + count_max)
            if gap_end > first:
                ranges.append((first, gap_end))
                count_max -= gap_end - first
            if held_first >= end:
                break
            first = max(first, self.items[held_first][0])
        return tuple(ranges)
