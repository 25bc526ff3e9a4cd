"""The health score: how each part lowers it, and that past errors are forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemfeed.adapter.reporting.health import (
    ERROR_WINDOW_NS,
    ERRORS_HOPELESS,
    LAG_HOPELESS_MESSAGES,
    Counts,
    Health,
    HealthSampler,
)

IDLE = Health(1.0, 0.0, 0, 0.0, 0)
S = 1_000_000_000


def test_an_idle_and_current_adapter_scores_one() -> None:
    assert IDLE.score == 1.0
    assert replace(IDLE, memory_available_ratio=0.25, messages_per_second=50_000.0).score == 1.0


@pytest.mark.parametrize(
    ("part", "score"),
    [
        ({"memory_available_ratio": 0.0}, 0.0),
        ({"memory_available_ratio": 0.125}, 0.5),
        ({"cpu_ratio": 1.0}, 0.5),
        ({"source_lag_messages": LAG_HOPELESS_MESSAGES, "messages_per_second": 1.0}, 0.0),
        ({"source_lag_messages": LAG_HOPELESS_MESSAGES // 2, "messages_per_second": 1.0}, 0.5),
        ({"recent_error_count": 10 * ERRORS_HOPELESS}, 0.5),
        ({"error_count": 10 * ERRORS_HOPELESS}, 1.0),
    ],
)
def test_each_part_lowers_the_score(part: dict[str, float], score: float) -> None:
    assert replace(IDLE, **part).score == pytest.approx(score)  # type: ignore[arg-type]


def test_an_adapter_that_transmits_nothing_while_messages_wait_scores_half() -> None:
    waiting = replace(IDLE, source_lag_messages=1)
    assert waiting.score == pytest.approx(0.5, abs=1e-4)
    assert replace(waiting, messages_per_second=1.0).score == pytest.approx(1.0, abs=1e-4)


def test_a_sample_has_rates_since_the_last_one_and_errors_of_the_last_minute() -> None:
    sampler = HealthSampler()
    first = sampler.sample(Counts(100, 7, 3), 10 * S)
    assert (first.messages_per_second, first.recent_error_count, first.source_lag_messages) == (0.0, 7, 3)
    second = sampler.sample(Counts(300, 10, 0), 12 * S)
    assert (second.messages_per_second, second.recent_error_count) == (100.0, 10)
    assert 0 < second.memory_available_ratio <= 1
    later = sampler.sample(Counts(300, 10, 0), 12 * S + ERROR_WINDOW_NS)
    assert (later.error_count, later.recent_error_count) == (10, 0)
    assert sampler.sample(Counts(300, 15, 0), 13 * S + ERROR_WINDOW_NS).recent_error_count == 5
