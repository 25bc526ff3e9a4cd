"""Early items are held once, come out in order, and are limited in number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.hold_queue import TRIM_COUNT, HoldQueue
from tandemfeed.feedcore.range_set import RangeSet

ITEMS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), max_size=30)


def held(ranges: list[tuple[int, int]], count_max: int = 100) -> HoldQueue[str]:
    """A queue of these items, each given as (first number, count)."""
    queue: HoldQueue[str] = HoldQueue(count_max)
    for first, count in ranges:
        queue.add(first, first + count, f"{first}+{count}")
    return queue


@given(ITEMS, st.integers(1, 60), st.integers(0, 20), st.integers(0, 5), st.integers(0, 50))
def test_what_is_missing_is_what_no_item_covers(
    ranges: list[tuple[int, int]], first: int, length: int, range_count_max: int, count_max: int
) -> None:
    end = first + length
    gaps = RangeSet((low, low + count) for low, count in ranges).missing(first, end)
    expected = [number for low, high in list(gaps)[:range_count_max] for number in range(low, high)][:count_max]
    found = held(ranges).missing(first, end, range_count_max, count_max)
    assert [number for low, high in found for number in range(low, high)] == expected


def test_what_is_missing_is_limited_in_ranges_and_in_numbers_over_all_ranges() -> None:
    queue = held([(4, 2), (8, 2)])
    assert queue.missing(1, 20, 9, 100) == ((1, 4), (6, 8), (10, 20))
    assert queue.missing(1, 20, 2, 100) == ((1, 4), (6, 8))
    assert queue.missing(1, 20, 9, 6) == ((1, 4), (6, 8), (10, 11))
    assert queue.missing(1, 20, 9, 3) == ((1, 4),)


@given(ITEMS)
def test_items_come_out_in_order_and_the_longer_of_two_at_one_place_first(ranges: list[tuple[int, int]]) -> None:
    longest: dict[int, int] = {}
    for first, count in ranges:
        longest[first] = max(count, longest.get(first, 0))
    queue = held(ranges)
    assert queue.end == max((first + count for first, count in longest.items()), default=0)
    found = []
    while (item := queue.pop_reaching(30)) is not None:
        found.append(item)
    rest = [item for _, _, item in queue.take_all()]
    assert found + rest == [f"{first}+{count}" for first, count in sorted(longest.items())]
    assert all(int(item.split("+")[0]) <= 30 for item in found)
    assert len(queue) == 0


def test_the_other_copy_is_returned() -> None:
    queue = held([(5, 3)])
    assert queue.add(5, 7, "shorter") == "5+3"
    assert queue.add(5, 9, "longer") == "5+3"
    assert queue.first_item == "longer"


def test_a_full_queue_drops_the_newest_items_or_the_oldest_if_the_newest_are_wanted() -> None:
    queue = held([(1, 1), (5, 1), (9, 1)], count_max=3)
    queue.add(11, 12, "newest")
    assert [first for first, _, _ in queue.take_all()] == [1, 5, 9]
    queue = held([(1, 1), (5, 1), (9, 1)], count_max=3)
    queue.add(3, 4, "between")
    assert [first for first, _, _ in queue.take_all()] == [1, 3, 5]
    queue = held([(2, 1), (5, 1), (9, 1)], count_max=3)
    assert queue.pop_reaching(2) == "2+1"
    for first in (11, 1, 7):
        queue.add(first, first + 1, "new", prefer_newest=True)
    assert [first for first, _, _ in queue.take_all()] == [7, 9, 11]


def test_a_long_queue_is_taken_from_the_front() -> None:
    count = 3 * TRIM_COUNT
    queue = held([(first, 1) for first in range(1, count + 1)], count_max=count)
    for number in range(1, count + 1):
        assert queue.pop_reaching(number) == f"{number}+1"
        assert queue.pop_reaching(number) is None
    assert queue.first_item is None


def test_a_queue_that_is_never_empty_forgets_the_numbers_that_were_taken() -> None:
    queue = held([(1, 1)])
    for number in range(1, 3 * TRIM_COUNT):
        queue.add(number + 1, number + 2, "next")
        queue.pop_reaching(number)
    assert len(queue._firsts) <= TRIM_COUNT
