"""RangeSet compared with a plain set of integers: whatever is added and removed, both contain the same numbers."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tandemfeed.feedcore.range_set import RangeSet

NUMBERS = st.integers(-5, 45)
RANGES = st.tuples(NUMBERS, st.integers(0, 12)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))


def numbers_of(ranges: RangeSet) -> set[int]:
    return {number for first, end in ranges for number in range(first, end)}


def assert_well_formed(ranges: RangeSet) -> None:
    held = list(ranges)
    assert all(first < end for first, end in held)
    assert all(earlier[1] < later[0] for earlier, later in pairwise(held)), "ranges adjoin or are not sorted"
    assert ranges.range_count == len(held)
    assert ranges.count == sum(end - first for first, end in held)
    assert bool(ranges) == bool(held)
    if held:
        assert (ranges.first, ranges.end) == (held[0][0], held[-1][1])


class RangeSetAgainstASet(RuleBasedStateMachine):
    """Makes each call on both; after it both must contain the same numbers."""

    @initialize(ranges=st.lists(RANGES, max_size=6))
    def begin(self, ranges: list[tuple[int, int]]) -> None:
        self.ranges = RangeSet(ranges)
        self.numbers = {number for first, end in ranges for number in range(first, end)}

    @rule(added=RANGES)
    def add(self, added: tuple[int, int]) -> None:
        self.ranges.add(*added)
        self.numbers.update(range(*added))

    @rule(count=st.integers(1, 4), gap=st.integers(0, 2))
    def append(self, count: int, gap: int) -> None:
        first = (max(self.numbers) + 1 if self.numbers else 0) + gap
        self.ranges.add(first, first + count)
        self.numbers.update(range(first, first + count))

    @rule(removed=RANGES)
    def remove(self, removed: tuple[int, int]) -> None:
        self.ranges.remove(*removed)
        self.numbers.difference_update(range(*removed))

    @rule(taken=RANGES)
    def take(self, taken: tuple[int, int]) -> None:
        expected = self.numbers & set(range(*taken))
        got = self.ranges.take(*taken)
        assert_well_formed(got)
        assert numbers_of(got) == expected
        self.numbers -= expected

    @rule(number=NUMBERS)
    def truncate_before(self, number: int) -> None:
        self.ranges.truncate_before(number)
        self.numbers = {each for each in self.numbers if each >= number}

    @rule(number=NUMBERS)
    def truncate_from(self, number: int) -> None:
        self.ranges.truncate_from(number)
        self.numbers = {each for each in self.numbers if each < number}

    @rule(window=RANGES)
    def ask_of_a_window(self, window: tuple[int, int]) -> None:
        inside = set(range(*window))
        held, missing = self.ranges.within(*window), self.ranges.missing(*window)
        assert_well_formed(held)
        assert_well_formed(missing)
        assert numbers_of(held) == self.numbers & inside
        assert numbers_of(missing) == inside - self.numbers
        assert self.ranges.covers(*window) == (inside <= self.numbers)
        assert self.ranges.overlaps(*window) == bool(inside & self.numbers)

    @invariant()
    def both_hold_the_same_numbers(self) -> None:
        if hasattr(self, "ranges"):
            assert_well_formed(self.ranges)
            assert numbers_of(self.ranges) == self.numbers


TestRangeSetAgainstASet = RangeSetAgainstASet.TestCase
TestRangeSetAgainstASet.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


NUMBER_COUNT = 6
WINDOWS = [(first, end) for first in range(NUMBER_COUNT + 1) for end in range(first, NUMBER_COUNT + 1)]


def test_every_call_on_every_small_set_does_what_it_does_on_a_plain_set() -> None:
    for chosen in product((False, True), repeat=NUMBER_COUNT):
        held = {number for number, is_held in enumerate(chosen) if is_held}
        made = RangeSet((number, number + 1) for number in held)
        for first, end in WINDOWS:
            inside = set(range(first, end))
            assert (made.covers(first, end), made.overlaps(first, end)) == (inside <= held, bool(inside & held))
            expected = {
                "within": (held & inside, held),
                "missing": (inside - held, held),
                "take": (held & inside, held - inside),
                "remove": (None, held - inside),
                "add": (None, held | inside),
            }
            for name, (returned, left) in expected.items():
                changed = RangeSet(made)
                result = getattr(changed, name)(first, end)
                for ranges, numbers in ((changed, left), *(((result, returned),) if returned is not None else ())):
                    assert_well_formed(ranges)
                    assert numbers_of(ranges) == numbers, (name, held, first, end)
        for number in range(NUMBER_COUNT + 1):
            below, above = RangeSet(made), RangeSet(made)
            below.truncate_from(number)
            above.truncate_before(number)
            assert numbers_of(below) == {each for each in held if each < number}
            assert numbers_of(above) == {each for each in held if each >= number}


@given(st.lists(RANGES, max_size=8).flatmap(lambda ranges: st.tuples(st.just(ranges), st.permutations(ranges))))
def test_the_order_of_adding_makes_no_difference(
    orders: tuple[list[tuple[int, int]], list[tuple[int, int]]],
) -> None:
    assert list(RangeSet(orders[0])) == list(RangeSet(orders[1]))


@given(st.lists(RANGES, max_size=8), RANGES)
def test_adding_back_what_was_taken_restores_the_set(ranges: list[tuple[int, int]], window: tuple[int, int]) -> None:
    held = RangeSet(ranges)
    before = list(held)
    for first, end in held.take(*window):
        held.add(first, end)
    assert list(held) == before


def test_numbers_of_sixty_four_bits_are_exact() -> None:
    held = RangeSet([(0, 2**64)])
    held.remove(2**63, 2**63 + 1)
    assert list(held) == [(0, 2**63), (2**63 + 1, 2**64)]
    assert held.count == 2**64 - 1


def test_adjoining_ranges_merge_on_both_sides() -> None:
    held = RangeSet([(1, 3), (5, 7)])
    held.add(3, 5)
    assert list(held) == [(1, 7)]


def test_an_empty_set_has_neither_a_first_number_nor_an_end() -> None:
    for name in ("first", "end"):
        with pytest.raises(ValueError, match="an empty RangeSet has no"):
            getattr(RangeSet(), name)


@pytest.mark.parametrize("name", ["add", "remove", "take", "within", "missing", "covers", "overlaps"])
def test_a_range_that_ends_below_its_first_number_is_refused(name: str) -> None:
    held = RangeSet([(1, 9)])
    with pytest.raises(ValueError, match="first is 5 and end 4"):
        getattr(held, name)(5, 4)
    assert list(held) == [(1, 9)]


def test_repr_shows_the_ranges() -> None:
    assert repr(RangeSet([(1, 3), (5, 7)])) == "RangeSet([(1, 3), (5, 7)])"
