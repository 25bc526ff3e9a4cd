"""Time that stands still while a process does not look at the network."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.pause_free_clock import LOOK_EVERY_NS, MOMENT_NS, MS, PAUSE_NS, PauseFreeClock

START_NS = 1_000 * MS


def test_time_passes_as_usual_while_the_process_looks_often() -> None:
    clock = PauseFreeClock(START_NS)
    for at_ns in range(START_NS, START_NS + 1_000 * MS, LOOK_EVERY_NS):
        assert clock.look(at_ns) == at_ns
    assert clock.paused_ns == 0


def test_a_pause_does_not_count_until_the_queues_could_be_read_and_then_counts_a_little() -> None:
    clock = PauseFreeClock(START_NS)
    resumed_ns = START_NS + 3_600_000 * MS
    assert clock.look(resumed_ns) == START_NS
    assert clock.between(resumed_ns + MS) == START_NS
    assert clock.look(resumed_ns + MS) == START_NS
    assert clock.look(resumed_ns + MOMENT_NS) == START_NS + PAUSE_NS + MOMENT_NS
    assert clock.look(resumed_ns + MOMENT_NS + MS) == START_NS + PAUSE_NS + MOMENT_NS + MS


def test_a_pause_counts_in_full_if_nothing_arrived() -> None:
    clock = PauseFreeClock(START_NS)
    resumed_ns = START_NS + 10_000 * MS
    assert clock.was_paused(resumed_ns)
    assert clock.look(resumed_ns + MOMENT_NS, missed_nothing=True) == resumed_ns + MOMENT_NS
    assert clock.look(resumed_ns + MOMENT_NS + MS) == resumed_ns + MOMENT_NS + MS


def test_a_process_that_always_pauses_still_gets_older() -> None:
    clock, at_ns = PauseFreeClock(START_NS), START_NS
    for _ in range(10):
        at_ns += 1_000 * MS
        clock.look(at_ns)
    assert clock.now_ns == START_NS + 9 * PAUSE_NS


def test_the_time_of_what_arrives_between_two_looks_is_not_after_the_second_one() -> None:
    clock = PauseFreeClock(START_NS)
    taken_ns = clock.between(START_NS + 5_000 * MS)  # stopped after something arrived, before it was taken
    assert START_NS <= taken_ns <= START_NS + PAUSE_NS
    assert clock.look(START_NS + 30 * MS) == START_NS + 30 * MS


@given(st.lists(st.tuples(st.integers(0, 300 * MS), st.booleans()), max_size=60))
def test_time_never_goes_back_and_never_passes_the_other_clock(steps: list[tuple[int, bool]]) -> None:
    clock, at_ns = PauseFreeClock(START_NS), START_NS
    for passed_ns, missed_nothing in steps:
        former_ns, limit_ns, between_ns = clock.now_ns, clock.limit_ns, clock.between(at_ns + passed_ns)
        at_ns += passed_ns
        now_ns = clock.look(at_ns, missed_nothing=missed_nothing)
        assert former_ns <= between_ns <= limit_ns
        assert former_ns <= now_ns <= at_ns
        assert now_ns == clock.now_ns == at_ns - clock.paused_ns
        assert clock.monotonic_ns(now_ns) == at_ns
