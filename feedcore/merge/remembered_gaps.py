"""Numbers that were passed over and may still turn up: a `RangeSet` with a limit."""

from __future__ import annotations

from feedcore.range_set import RangeSet


class RememberedGaps(RangeSet):
    """Ranges that were passed over.

    Args:
        range_count_max: beyond it the lowest range is forgotten: a late copy of it is then a mere duplicate.
    """

    __slots__ = ("_range_count_max",)

    def __init__(self, range_count_max: int) -> None:
        super().__init__()
        self._range_count_max = range_count_max

    def add(self, first: int, end: int) -> None:
        """Remember `[first, end)`."""
        super().add(first, end)
        while self.range_count > self._range_count_max:
            lowest_first, lowest_end = next(iter(self))
            self.remove(lowest_first, lowest_end)
