"""The patience with a gap: when to ask, when to ask again, when to give up, and what of the channel that concerns."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.gap_repair import ChannelRepair, GapRepair
from tandemfeed.feedcore.merge.place import BEGINNING, Place

CONFIG = MergerConfig(
    lineage_wait_ns=31_000_000,
    reorder_ns=10,
    request_after_ns=100,
    retry_every_ns=1_000,
    retry_every_max_ns=4_000,
    declare_after_ns=50_000_000,
)


def test_without_a_gap_nothing_is_due() -> None:
    repair = GapRepair(CONFIG)
    repair.hurry(0)
    assert repair.next_deadline_ns() is None
    assert not repair.is_request_due(10**12, 0.0)
    assert not repair.is_hopeless(10**12)


def test_a_gap_is_asked_for_after_the_wait_and_not_twice_at_once() -> None:
    repair = GapRepair(CONFIG)
    assert repair.watch(5, 1_000)
    assert repair.next_deadline_ns() == 1_100
    assert not repair.is_request_due(1_099, 0.0)
    assert repair.is_request_due(1_100, 0.0)
    assert not repair.is_request_due(1_100, 0.0)
    assert repair.next_deadline_ns() == 2_100


def test_a_gap_that_is_seen_again_is_the_same_gap() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    assert not repair.watch(5, 50)
    assert repair.next_deadline_ns() == 100
    assert not repair.is_hopeless(49_999_999)
    assert repair.is_hopeless(50_000_000)


def test_when_another_gap_follows_patience_begins_anew_but_a_request_is_not_repeated_early() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    assert repair.is_request_due(100, 0.0)
    assert repair.is_request_due(1_100, 0.0)
    assert repair.next_deadline_ns() == 3_100
    assert repair.watch(9, 1_200)
    assert not repair.is_hopeless(50_000_100)
    assert repair.next_deadline_ns() == 3_100
    assert repair.is_request_due(3_100, 0.0)
    assert repair.next_deadline_ns() == 4_100  # the first pause again
    assert repair.is_hopeless(50_001_200)


def test_a_gap_that_was_closed_is_a_new_one_when_it_opens_again() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    assert repair.is_request_due(100, 0.0)
    repair.closed()
    assert repair.next_deadline_ns() is None
    assert repair.watch(5, 200)
    assert repair.next_deadline_ns() == 300
    repair.hurry(200)
    assert repair.next_deadline_ns() == 210


def test_a_gap_that_every_stream_is_past_is_asked_for_soon_but_only_once_early() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    repair.hurry(20)
    assert repair.next_deadline_ns() == 30
    repair.hurry(25)
    assert repair.next_deadline_ns() == 30
    assert repair.is_request_due(30, 0.0)
    repair.hurry(31)
    assert repair.next_deadline_ns() == 1_030


def test_hurry_never_puts_a_request_off() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    repair.hurry(99)
    assert repair.next_deadline_ns() == 100


@pytest.mark.parametrize(
    ("jitter", "pauses"), [(0.0, [1_000, 2_000, 4_000, 4_000]), (0.5, [1_500, 3_000, 6_000, 6_000])]
)
def test_pauses_double_up_to_the_cap_and_are_stretched_at_random(jitter: float, pauses: list[int]) -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    at_ns, found = 100, []
    assert repair.is_request_due(at_ns, jitter)
    for _ in pauses:
        next_ns = repair.next_deadline_ns()
        assert next_ns is not None
        assert repair.is_request_due(next_ns, jitter)
        found.append(next_ns - at_ns)
        at_ns = next_ns
    assert found == pauses
    repair.closed()
    repair.watch(9, 0)
    assert repair.next_deadline_ns() == 100 + int(50 * jitter)  # clients that lost the same packet do not ask in step


def test_giving_up_is_a_deadline_too() -> None:
    repair = GapRepair(
        MergerConfig(retry_every_max_ns=200_000_000, declare_after_ns=201_000_000, retry_every_ns=200_000_000)
    )
    repair.watch(5, 0)
    assert repair.is_request_due(4_000_000, 0.9)
    assert repair.next_deadline_ns() == 201_000_000


def test_the_furthest_place_heard_of_counts() -> None:
    repair = ChannelRepair(CONFIG)
    assert repair.known_end == BEGINNING
    repair.hear_of(Place(9, 7))
    repair.hear_of(Place(5, 4))
    repair.hear_of(Place(9, 8))
    assert repair.known_end == Place(9, 7)


def test_what_is_forgotten_was_neither_heard_of_nor_waited_for() -> None:
    repair = ChannelRepair(CONFIG)
    repair.hear_of(Place(9, 7))
    repair.watch(3, 0)
    repair.forget_from(Place(6, 5))
    assert repair.known_end == repair.patience_end == Place(6, 5)
    repair.forget_from(Place(8, 7))
    assert repair.known_end == repair.patience_end == Place(6, 5)


def test_patience_covers_what_was_known_when_it_began() -> None:
    repair = ChannelRepair(CONFIG)
    repair.hear_of(Place(9, 7))
    assert repair.watch(3, 0)
    repair.hear_of(Place(20, 17))
    assert not repair.watch(3, 10)
    assert repair.patience_end == Place(9, 7)
    assert repair.watch(4, 20)
    assert repair.patience_end == Place(20, 17)


def with_a_request_for_all_that_is_known() -> ChannelRepair:
    """Missing from 3 on; known at 0 ns: up to 9; known, and all of it requested, at 1,100 ns: up to 20."""
    repair = ChannelRepair(CONFIG)
    repair.hear_of(Place(9, 7))
    repair.watch(3, 0)
    assert repair.is_request_due(100, 0.0)
    repair.hear_of(Place(20, 17))
    assert not repair.is_request_due(500, 0.0)
    assert repair.is_request_due(1_100, 0.0)
    repair.requested_end = 20
    return repair


def test_after_a_declared_gap_the_next_one_has_been_waited_for_since_it_was_first_requested() -> None:
    repair = with_a_request_for_all_that_is_known()
    repair.passed_over(8)
    assert repair.patience_end == Place(9, 7)
    assert repair.is_hopeless(50_000_000)
    repair.passed_over(9)
    assert repair.patience_end == Place(20, 17)
    assert not repair.is_hopeless(50_001_099)
    assert repair.is_hopeless(50_001_100)
    assert not repair.watch(9, 50_000_500)


@pytest.mark.parametrize("requested_end", [0, 12])
def test_after_a_declared_gap_one_that_no_request_named_is_a_new_gap(requested_end: int) -> None:
    repair = with_a_request_for_all_that_is_known()
    repair.requested_end = requested_end
    repair.passed_over(12)
    assert repair.next_deadline_ns() is None
    assert repair.watch(12, 50_000_500)
    assert repair.is_hopeless(100_000_500)
    assert not repair.is_hopeless(100_000_499)


def test_after_a_declared_gap_that_reached_to_the_end_nothing_is_missing() -> None:
    repair = with_a_request_for_all_that_is_known()
    repair.passed_over(20)
    assert repair.next_deadline_ns() is None


def test_before_any_request_no_later_gap_was_requested() -> None:
    repair = ChannelRepair(CONFIG)
    repair.hear_of(Place(9, 7))
    repair.watch(1, 0)
    repair.passed_over(2)
    assert repair.next_deadline_ns() is None


def test_what_was_requested_of_a_history_that_no_longer_counts_was_not_requested_of_the_new_one() -> None:
    repair = with_a_request_for_all_that_is_known()
    repair.forget_from(Place(6, 5))
    repair.hear_of(Place(20, 18))
    assert repair.watch(6, 2_000)
    repair.passed_over(9)
    assert repair.next_deadline_ns() is None
