"""The patience with a gap: when to request it, when to repeat the request, when to give up, and how far it reaches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.gaps.gap_repair import ChannelRepair, GapRepair
from tandemfeed.feedcore.merge.history.place import BEGINNING, Place

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
    repair.request_soon(0)
    assert repair.next_deadline_ns() is None
    assert not repair.is_request_due(10**12, 0.0)
    assert not repair.has_timed_out(10**12)


def test_a_gap_is_requested_once_after_the_wait() -> None:
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
    assert repair.is_request_due(100, 0.0)
    assert not repair.has_timed_out(49_999_999)
    assert repair.has_timed_out(50_000_000)


def test_another_gap_restarts_patience_but_does_not_repeat_a_request_early() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    assert repair.is_request_due(100, 0.0)
    assert repair.is_request_due(1_100, 0.0)
    assert repair.next_deadline_ns() == 3_100
    assert repair.watch(9, 1_200)
    assert not repair.has_timed_out(50_000_100)
    assert repair.next_deadline_ns() == 3_100
    assert not repair.has_timed_out(50_001_200)
    assert repair.is_request_due(3_100, 0.0)
    assert repair.next_deadline_ns() == 4_100  # the first pause again
    assert repair.has_timed_out(50_001_200)


def test_a_gap_that_was_never_requested_is_requested_however_late_and_the_answer_awaited() -> None:
    """The application paused for longer than the patience with a gap."""
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    assert not repair.has_timed_out(80_000_000)
    assert repair.next_deadline_ns() == 100
    assert repair.is_request_due(80_000_000, 0.0)
    assert not repair.has_timed_out(89_999_999)
    assert repair.has_timed_out(90_000_000)


def test_after_an_answer_that_helped_the_rest_is_requested_without_a_pause() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    assert repair.is_request_due(100, 0.0)
    assert repair.is_request_due(1_100, 0.0)
    repair.watch(9, 1_200)
    repair.request_now(1_250)
    assert repair.is_request_due(1_250, 0.0)
    assert repair.next_deadline_ns() == 2_250


def test_before_its_own_first_request_there_is_no_time_to_give_up_a_gap() -> None:
    """Even if a long pause follows the request of the gap before it."""
    repair = GapRepair(replace(CONFIG, retry_every_ns=49_000_000, retry_every_max_ns=49_000_000))
    repair.watch(5, 0)
    assert repair.is_request_due(100, 0.5)
    repair.watch(9, 1_000)
    assert repair.next_deadline_ns() == 100 + 49_000_000 + 24_500_000


def test_without_a_gap_there_is_nothing_to_extend() -> None:
    repair = GapRepair(CONFIG)
    repair.extend_to(10**12)
    assert repair.next_deadline_ns() is None
    repair.watch(5, 0)
    assert repair.is_request_due(100, 0.0)
    assert repair.has_timed_out(50_000_000)


def test_a_closed_gap_that_opens_again_is_a_new_gap() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    assert repair.is_request_due(100, 0.0)
    repair.closed()
    assert repair.next_deadline_ns() is None
    assert repair.watch(5, 200)
    assert repair.next_deadline_ns() == 300
    repair.request_soon(200)
    assert repair.next_deadline_ns() == 210


def test_a_gap_that_every_stream_is_past_is_requested_early_but_only_once() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    repair.request_soon(20)
    assert repair.next_deadline_ns() == 30
    repair.request_soon(25)
    assert repair.next_deadline_ns() == 30
    assert repair.is_request_due(30, 0.0)
    repair.request_soon(31)
    assert repair.next_deadline_ns() == 1_030


def test_hurry_never_postpones_a_request() -> None:
    repair = GapRepair(CONFIG)
    repair.watch(5, 0)
    repair.request_soon(99)
    assert repair.next_deadline_ns() == 100


@pytest.mark.parametrize(
    ("jitter", "pauses"), [(0.0, [1_000, 2_000, 4_000, 4_000]), (0.5, [1_500, 3_000, 6_000, 6_000])]
)
def test_pauses_double_up_to_the_maximum_and_are_stretched_at_random(jitter: float, pauses: list[int]) -> None:
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
    assert repair.next_deadline_ns() == 100 + int(50 * jitter)  # so clients do not request a lost packet together


def test_the_time_to_give_up_is_a_deadline_too() -> None:
    repair = GapRepair(
        MergerConfig(retry_every_max_ns=200_000_000, declare_after_ns=201_000_000, retry_every_ns=200_000_000)
    )
    repair.watch(5, 0)
    assert repair.is_request_due(4_000_000, 0.9)
    assert repair.next_deadline_ns() == 201_000_000


def test_the_furthest_known_place_counts() -> None:
    repair = ChannelRepair(CONFIG)
    assert repair.known_end == BEGINNING
    repair.extend_known_end(Place(9, 7))
    repair.extend_known_end(Place(5, 4))
    repair.extend_known_end(Place(9, 8))
    assert repair.known_end == Place(9, 7)


def test_a_forgotten_part_of_the_channel_is_neither_known_nor_covered_by_patience() -> None:
    repair = ChannelRepair(CONFIG)
    repair.extend_known_end(Place(9, 7))
    repair.watch(3, 0)
    repair.forget_from(Place(6, 5))
    assert repair.known_end == repair.declarable_end == Place(6, 5)
    repair.forget_from(Place(8, 7))
    assert repair.known_end == repair.declarable_end == Place(6, 5)


def test_patience_covers_what_was_known_when_it_began() -> None:
    repair = ChannelRepair(CONFIG)
    repair.extend_known_end(Place(9, 7))
    assert repair.watch(3, 0)
    repair.extend_known_end(Place(20, 17))
    assert not repair.watch(3, 10)
    assert repair.declarable_end == Place(9, 7)
    assert repair.watch(4, 20)
    assert repair.declarable_end == Place(20, 17)


def with_a_request_for_all_that_is_known() -> ChannelRepair:
    """Missing from input_seq 3 on. At 0 ns the channel is known up to 9; at 1,100 ns known and requested up to 20."""
    repair = ChannelRepair(CONFIG)
    repair.extend_known_end(Place(9, 7))
    repair.watch(3, 0)
    assert repair.is_request_due(100, 0.0)
    repair.extend_known_end(Place(20, 17))
    assert not repair.is_request_due(500, 0.0)
    assert repair.is_request_due(1_100, 0.0)
    repair.requested_end = 20
    return repair


def test_after_a_declared_gap_patience_with_the_next_one_counts_from_its_first_request() -> None:
    repair = with_a_request_for_all_that_is_known()
    repair.passed_over(8)
    assert repair.declarable_end == Place(9, 7)
    assert repair.has_timed_out(50_000_000)
    repair.passed_over(9)
    assert repair.declarable_end == Place(20, 17)
    assert not repair.has_timed_out(50_001_099)
    assert repair.has_timed_out(50_001_100)
    assert not repair.watch(9, 50_000_500)


@pytest.mark.parametrize("requested_end", [0, 12])
def test_after_a_declared_gap_one_that_no_request_named_has_its_own_patience(requested_end: int) -> None:
    repair = with_a_request_for_all_that_is_known()
    repair.requested_end = requested_end
    repair.passed_over(12)
    assert repair.next_deadline_ns() is None
    assert repair.watch(12, 50_000_500)
    assert repair.is_request_due(50_000_600, 0.0)
    assert repair.has_timed_out(100_000_500)
    assert not repair.has_timed_out(100_000_499)


def test_after_a_declared_gap_up_to_the_end_nothing_is_missing() -> None:
    repair = with_a_request_for_all_that_is_known()
    repair.passed_over(20)
    assert repair.next_deadline_ns() is None


def test_before_any_request_no_later_gap_was_requested() -> None:
    repair = ChannelRepair(CONFIG)
    repair.extend_known_end(Place(9, 7))
    repair.watch(1, 0)
    repair.passed_over(2)
    assert repair.next_deadline_ns() is None


def test_a_request_in_a_superseded_history_does_not_count_in_the_new_one() -> None:
    repair = with_a_request_for_all_that_is_known()
    repair.forget_from(Place(6, 5))
    repair.extend_known_end(Place(20, 18))
    assert repair.watch(6, 2_000)
    repair.passed_over(9)
    assert repair.next_deadline_ns() is None
