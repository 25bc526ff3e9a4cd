"""What an adapter has lost: the first reason counts, and a lost thread makes the process unhealthy too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandemfeed.adapter.peers.translation import peer_state_to_proto
from tandemfeed.adapter.reporting.fitness import REASON_LENGTH_MAX, Fitness
from tandemfeed.adapter.reporting.health import Health
from tandemfeed.feedcore.replica.channel_state import PeerState
from tandemfeed.runtime import threads
from tandemfeed.runtime.threads import failed_threads


@pytest.fixture(autouse=True)
def _no_failed_threads() -> Iterator[None]:
    threads._failed.clear()
    yield
    threads._failed.clear()


def test_an_adapter_is_fit_until_it_loses_something_and_the_first_loss_is_the_reason() -> None:
    fitness = Fitness()
    assert fitness.reason == ""
    fitness.lose("output journal", "its output journal failed")
    fitness.lose("output journal", "again")
    fitness.lose("follow-2", "its thread failed")
    assert fitness.reason == "its output journal failed"


def test_a_thread_that_the_adapter_needs_makes_it_unfit_and_the_process_unhealthy() -> None:
    fitness = Fitness()
    fitness.on_thread_failed("follow-2", KeyError("broken" * 1_000))
    assert fitness.reason.startswith("its thread follow-2 failed (KeyError: 'broken")
    assert len(fitness.reason) == REASON_LENGTH_MAX
    assert list(failed_threads()) == ["follow-2"]


def test_an_unfit_adapter_has_a_health_of_zero_and_reports_why() -> None:
    health = Health(1.0, 0.0, 0, 0.0, 0, unfit_reason="its output journal failed")
    assert health.score == 0.0
    state = peer_state_to_proto(PeerState(1, 1, 1, (), health=health.score), health)
    assert (state.health.score, state.health.unfit_reason) == (0.0, "its output journal failed")
