"""Holds items that arrived early, by sequence number (`source_seq` of a source stream or `input_seq` of a channel)."""

from __future__ import annotations

from bisect import insort
from itertools import chain, islice
from typing import Generic, TypeVar

from tandemfeed.feedcore.range_set import Range

Item = TypeVar("Item")
TRIM_COUNT = 1_024  # numbers taken from the front are dropped from the list in batches of this size


class HoldQueue(Generic[Item]):
    """Early packets or decisions of one sequence, in ascending order, at most one per first number.

    Args:
        count_max: how many items the queue can hold.

    Attributes:
        items: first number -> (end, item). On a hot path, test whether this dict is empty: that calls no Python code.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._firsts: list[int] = []
        self._taken = 0  # how many at the front of `_firsts` are taken
        self.items: dict[int, tuple[int, Item]] = {}

    def __len__(self) -> int:
        return len(self.items)

    @property
    def first_item(self) -> Item | None:
        """The lowest item; None if the queue is empty."""
        return self.items[self._firsts[self._taken]][1] if self.items else None

    @property
    def end(self) -> int:
        """One past the highest number held; 0 if the queue is empty."""
        return max((end for end, _ in self.items.values()), default=0)

    def add(self, first: int, end: int, item: Item, *, prefer_newest: bool = False) -> Item | None:
        """Hold an item. If another item that begins at `first` is held, keep the longer one and return the other item.

        Args:
            prefer_newest: what to drop if the queue is full. True drops the oldest item, because the next number
                wanted is not known yet. False drops the newest, because the oldest are wanted next. A dropped item can
                be requested again.
        """
        known = self.items.get(first)
        if known is not None:
            if end > known[0]:
                self.items[first] = end, item
            return known[1]
        if len(self.items) >= self._count_max:
            place = self._taken if prefer_newest else -1
            if first < self._firsts[place] if prefer_newest else first > self._firsts[place]:
                return None
            del self.items[self._firsts.pop(place)]
        insort(self._firsts, first, self._taken)
        self.items[first] = end, item
        return None

    def pop_reaching(self, number: int) -> Item | None:
        """Remove and return the lowest item if it begins at or before `number`; it may also end before `number`."""
        if not self.items or self._firsts[self._taken] > number:
            return None
        first = self._firsts[self._taken]
        self._taken += 1
        if self._taken == TRIM_COUNT:
            del self._firsts[:TRIM_COUNT]
            self._taken = 0
        return self.items.pop(first)[1]

    def take_all(self) -> list[tuple[int, int, Item]]:
        """Remove and return everything, as (first, end, item) in ascending order."""
        found = [(first, *self.items[first]) for first in self._firsts[self._taken :]]
        self._firsts, self._taken, self.items = [], 0, {}
        return found

    def missing(self, first: int, end: int, range_count_max: int, count_max: int) -> tuple[Range, ...]:
        """The ranges within `[first, end)` that are not held, the lowest first.

        Args:
            range_count_max: how many ranges to return at most.
            count_max: how many numbers these ranges may contain in total.
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
