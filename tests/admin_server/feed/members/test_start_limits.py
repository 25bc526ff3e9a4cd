"""How often an adapter may begin a new start."""

from __future__ import annotations

import pytest

from tandemfeed.admin_server.feed.members.start_limits import BURST, StartLimits

SECOND = 1_000_000_000


def test_an_adapter_that_begins_starts_in_a_loop_gets_one_a_second_after_a_burst() -> None:
    limits = StartLimits()
    begun = sum(limits.begin(1, now_ns) == 0 for now_ns in range(0, 100 * SECOND, SECOND // 100))
    assert BURST + 99 <= begun <= BURST + 100


def test_the_wait_that_is_named_is_enough() -> None:
    limits = StartLimits()
    while not (wait_ns := limits.begin(1, 0)):
        pass
    assert 0 < wait_ns <= SECOND
    assert limits.begin(1, wait_ns) == 0
    assert limits.begin(1, wait_ns) > 0


@pytest.mark.parametrize("other", [2, 3])
def test_an_adapter_that_flaps_takes_nothing_from_another_one(other: int) -> None:
    limits = StartLimits()
    for _ in range(10 * BURST):
        limits.begin(1, 0)
    assert limits.begin(other, 0) == 0


def test_an_adapter_that_restarts_once_a_second_is_never_refused() -> None:
    limits = StartLimits()
    assert not any(limits.begin(1, number * SECOND) for number in range(10 * BURST))
