"""Checks whether one journal has every record of another, in the same order, by content. Pure.

Compares digests of eight bytes per record. Equal records at both ends are removed. The rest is aligned at contents that
occur once on both sides (as in patience diff), and between those by the longest common subsequence. So a missing record
does not make later ones look missing, however often contents repeat.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemfeed.journal.roll_cycle import format_index

DIGEST_SIZE = 8  # among 100 million records a collision occurs in about one of 4,000 journals
PAIRS_MAX = 2_000_000  # pairs of equal contents between two anchors; with more, the first that fits is taken
Digests = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class RecordMissing:
    """The other journal's record at `index` is not in this one."""

    index: int

    def __str__(self) -> str:
        return f"record {format_index(self.index)} of the other journal is missing from this one"


@dataclass(frozen=True, slots=True)
class RecordOutOfOrder:
    """The other journal's record at `index` is in this one, at `here_index`, but not in the same order."""

    index: int
    here_index: int

    def __str__(self) -> str:
        return (
            f"record {format_index(self.index)} of the other journal is here at index {format_index(self.here_index)}, "
            "out of order"
        )


def digest(record: bytes | memoryview) -> int:
    """The digest of a record's content."""
    return int.from_bytes(hashlib.blake2b(record, digest_size=DIGEST_SIZE).digest(), "little")


def compare(
    here: Digests, here_indices: NDArray[np.int64], other: Digests, other_indices: NDArray[np.int64]
) -> Iterator[RecordMissing | RecordOutOfOrder]:
    """Records of the other journal that are missing here or out of order, in the other's order.

    Args:
        here, other: digests in order.
        here_indices, other_indices: the index of each.
    """
    is_found = np.zeros(len(other), bool)
    is_used = np.zeros(len(here), bool)
    for other_place, here_place in _aligned(here, other):
        is_found[other_place] = is_used[here_place] = True
    spare: defaultdict[int, list[int]] = defaultdict(list)
    missing = np.flatnonzero(~is_found).tolist()
    wanted = set(other[missing].tolist())
    for place in np.flatnonzero(~is_used)[::-1].tolist() if missing else ():
        if (content := int(here[place])) in wanted:
            spare[content].append(place)
    for place in missing:
        index, places = int(other_indices[place]), spare.get(int(other[place]))
        yield RecordOutOfOrder(index, int(here_indices[places.pop()])) if places else RecordMissing(index)


def _aligned(here: Digests, other: Digests) -> Iterator[tuple[int | slice, int | slice]]:
    """Matching places, (other's, here), ascending in both."""
    head = _alike(here, other)
    tail = _alike(here[head:][::-1], other[head:][::-1])
    yield slice(0, head), slice(0, head)
    yield slice(len(other) - tail, len(other)), slice(len(here) - tail, len(here))
    left, right = other[head : len(other) - tail].tolist(), here[head : len(here) - tail].tolist()
    left_begin = right_begin = 0
    for left_end, right_end in [*_anchors(left, right), (len(left), len(right))]:
        between = _between(left[left_begin:left_end], right[right_begin:right_end])
        yield from ((head + left_begin + a, head + right_begin + b) for a, b in between)
        if left_end < len(left):
            yield head + left_end, head + right_end
        left_begin, right_begin = left_end + 1, right_end + 1


def _alike(left: Digests, right: Digests) -> int:
    """Number of equal digests at the beginning."""
    count = min(len(left), len(right))
    differing = np.flatnonzero(left[:count] != right[:count])
    return int(differing[0]) if len(differing) else count


def _anchors(left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """Places of contents that occur once on both sides: the longest list that ascends on both."""
    once_left = {content for content, count in Counter(left).items() if count == 1}
    once_right = {content for content, count in Counter(right).items() if count == 1}
    places = {content: place for place, content in enumerate(right) if content in once_right}
    pairs = [(a, places[content]) for a, content in enumerate(left) if content in once_left and content in places]
    return _longest_ascending(pairs)


def _between(left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """The longest common subsequence (Hunt and Szymanski 1977), or any common one if that would take too long."""
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, content in enumerate(right):
        places[content].append(place)
    if sum(len(places[content]) for content in left if content in places) > PAIRS_MAX:
        return list(_first_that_fits(left, places))
    # Each record on the left may be in only one pair: with descending places on the right, no two of its pairs ascend.
    return _longest_ascending([(a, b) for a, content in enumerate(left) for b in reversed(places.get(content, ()))])


def _first_that_fits(left: list[int], places: dict[int, list[int]]) -> Iterator[tuple[int, int]]:
    begin = 0
    for a, content in enumerate(left):
        at = places.get(content, ())
        found = bisect_left(at, begin)
        if found < len(at):
            yield a, at[found]
            begin = at[found] + 1


def _longest_ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest sublist of pairs (ordered by their first) whose second ascends strictly."""
    ends: list[int] = []  # per length, the smallest second that ends such a sublist
    last: list[int] = []  # and the number of that pair
    before: list[int] = []
    for number, (_, b) in enumerate(pairs):
        length = bisect_left(ends, b)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(b)
            last.append(number)
        else:
            ends[length], last[length] = b, number
    chosen = []
    number = last[-1] if last else -1
    while number >= 0:
        chosen.append(pairs[number])
        number = before[number]
    return chosen[::-1]
