"""Patience that a pause of the own process does not use up."""

from __future__ import annotations

from tandemfeed.runtime.patience import Patience, RunningTime

LIMIT_NS, PAUSE_NS = 1_000, 100


def looked(patience: Patience, until_ns: int) -> int:
    """Look whenever it is due, up to a time; returns when it was over, or 0."""
    while (at_ns := patience.next_look_ns()) is not None and at_ns <= until_ns:
        if patience.is_over(at_ns):
            return at_ns
    return 0


def test_what_is_not_heard_for_the_whole_time_counts_as_missing() -> None:
    patience = Patience(LIMIT_NS, PAUSE_NS)
    assert patience.next_look_ns() is None
    assert not patience.is_over(9_999)
    patience.begin(50)
    patience.begin(500)  # it waits already
    assert looked(patience, 9_999) == 50 + LIMIT_NS


def test_the_time_of_a_pause_proves_nothing_and_afterwards_others_get_the_whole_time() -> None:
    patience = Patience(LIMIT_NS, PAUSE_NS)
    patience.begin(0)
    assert looked(patience, 990) == 0
    assert not patience.is_over(50_000)
    assert looked(patience, 99_999) == 50_000 + LIMIT_NS


def test_the_longest_time_between_two_looks_that_is_no_pause_counts() -> None:
    patience = Patience(LIMIT_NS, PAUSE_NS)
    patience.begin(0)
    times = range(PAUSE_NS, LIMIT_NS + 1, PAUSE_NS)
    assert [at_ns for at_ns in times if patience.is_over(at_ns)] == [LIMIT_NS]


def test_what_is_heard_ends_the_wait_and_the_next_wait_begins_from_zero() -> None:
    patience = Patience(LIMIT_NS, PAUSE_NS)
    patience.begin(0)
    assert looked(patience, 990) == 0
    patience.end()
    assert not patience.is_waiting
    assert patience.next_look_ns() is None
    patience.begin(2_000)
    assert looked(patience, 9_999) == 2_000 + LIMIT_NS


def test_without_patience_the_first_look_is_the_last() -> None:
    patience = Patience(0, PAUSE_NS)
    patience.begin(7)
    assert patience.next_look_ns() == 7
    assert patience.is_over(7)


def test_a_clock_of_running_time_stands_still_during_a_pause() -> None:
    running = RunningTime(PAUSE_NS)
    assert [running.look(now_ns) for now_ns in (5_000, 5_040, 5_140, 90_000, 90_001)] == [0, 40, 140, 240, 241]
