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


def test_without_queues_that_must_be_read_a_pause_counts_a_little_or_not_at_all() -> None:
    for counted_ns, expected in ((0, [40, 140, 140, 240, 240, 241]), (100, [40, 140, 140, 340, 340, 441])):
        clock = PauseFreeClock(5_000, pause_ns=100, moment_ns=0, counted_ns=counted_ns)
        times = (5_040, 5_140, 90_000, 90_100, 99_000, 99_001)
        assert [clock.look(at_ns) - 5_000 for at_ns in times] == expected
        assert clock.pause_count == 2


def test_what_is_waited_for_counts_as_missing_after_the_time_in_which_the_process_looked() -> None:
    clock = PauseFreeClock(0, pause_ns=100, moment_ns=0, counted_ns=0)
    looks = [*range(100, 1_000, 100), 50_000, 50_100]
    assert [at_ns for at_ns in looks if clock.look(at_ns) >= 1_000] == [50_100]


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


@given(
    st.lists(st.tuples(st.integers(0, 300 * MS), st.booleans()), max_size=60),
    st.sampled_from([(PAUSE_NS, MOMENT_NS, None), (PAUSE_NS, 0, None), (250 * MS, 0, 0), (250 * MS, MOMENT_NS, MS)]),
)
def test_time_never_goes_back_and_never_passes_the_other_clock(
    steps: list[tuple[int, bool]], form: tuple[int, int, int | None]
) -> None:
    pause_ns, moment_ns, counted_ns = form
    clock = PauseFreeClock(START_NS, pause_ns=pause_ns, moment_ns=moment_ns, counted_ns=counted_ns)
    at_ns = START_NS
    for passed_ns, missed_nothing in steps:
        former_ns, limit_ns, between_ns = clock.now_ns, clock.limit_ns, clock.between(at_ns + passed_ns)
        at_ns += passed_ns
        now_ns = clock.look(at_ns, missed_nothing=missed_nothing)
        assert former_ns <= between_ns <= limit_ns
        assert former_ns <= now_ns <= at_ns
        assert now_ns == clock.now_ns == at_ns - clock.paused_ns
        assert clock.monotonic_ns(now_ns) == at_ns
