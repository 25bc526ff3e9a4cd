"""Which `message_seq` were declared missing and have not turned up since; bounded."""

from __future__ import annotations


class DeclaredGaps:
    """Ranges that a `Gap` named, ascending.

    Args:
        count_max: ranges remembered; of older ones a late copy is a mere duplicate.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._ranges: list[tuple[int, int]] = []  # (first, end)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, first: int, end: int) -> None:
        """Remember a range that was declared."""
        self._ranges.append((first, end))
        del self._ranges[: -self._count_max]

    def overlaps(self, first: int, end: int) -> bool:
        """True if some of first … end - 1 was declared missing."""
        if not self._ranges or first >= self._ranges[-1][1]:  # mostly: gaps lie far behind
            return False
        return any(start < end and first < stop for start, stop in self._ranges)

    def take(self, first: int, end: int) -> list[tuple[int, int]]:
        """What of first … end - 1 was declared missing, as (first, end); it no longer is."""
        found: list[tuple[int, int]] = []
        left: list[tuple[int, int]] = []
        for start, stop in self._ranges:
            low, high = max(start, first), min(stop, end)
            if low >= high:
                left.append((start, stop))
                continue
            found.append((low, high))
            left += [(a, b) for a, b in ((start, low), (high, stop)) if a < b]
        self._ranges = left
        return found

    def renumbered_from(self, message_seq: int) -> None:
        """These numbers are given afresh from here on."""
        self._ranges = [(first, min(end, message_seq)) for first, end in self._ranges if first < message_seq]
