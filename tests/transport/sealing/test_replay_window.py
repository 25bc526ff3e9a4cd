"""The replay window over the whole range of u64: any counter takes constant time and memory."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.transport.sealing.replay_window import REPLAY_WINDOW, ReplayWindow

COUNTER_MAX = (1 << 64) - 1
near = st.integers(1, 3 * REPLAY_WINDOW)
counters = st.one_of(near, st.integers(0, COUNTER_MAX), near.map(lambda distance: COUNTER_MAX - distance + 1))


@given(st.lists(counters, max_size=60), counters)
def test_the_window_accepts_each_counter_once_unless_it_is_too_old(heard: list[int], first: int) -> None:
    window, seen = ReplayWindow(first), set[int]()
    for counter in heard:
        is_known = counter in seen
        is_too_old = counter < max(1, first) or counter < max(seen, default=0) + 1 - REPLAY_WINDOW
        assert window.take(counter) == (not is_known and not is_too_old)
        if not is_too_old:
            seen.add(counter)


@given(st.lists(st.integers(1, 2 * REPLAY_WINDOW), min_size=1, max_size=300), st.integers(0, COUNTER_MAX >> 1))
def test_no_counter_is_ever_accepted_twice(steps: list[int], base: int) -> None:
    window = ReplayWindow()
    taken = [base + step for step in steps if window.take(base + step)]
    assert len(taken) == len(set(taken))
    assert taken[0] == base + steps[0]


def test_a_counter_at_the_end_of_u64_allocates_nothing() -> None:
    window = ReplayWindow()
    window.take(1)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for counter in (COUNTER_MAX, COUNTER_MAX - 1, 2, COUNTER_MAX - REPLAY_WINDOW, 1 << 63):
        window.take(counter)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 1_000
    assert peak - before < 1_000
    assert not window.take(COUNTER_MAX)


def test_no_counter_below_the_first_is_accepted() -> None:
    window = ReplayWindow(100)
    assert not window.take(99)
    assert window.take(100)
    assert window.take(101)
    assert not window.take(99)
    assert not ReplayWindow().take(0)
