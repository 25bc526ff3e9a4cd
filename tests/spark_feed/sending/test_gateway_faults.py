"""The faults that a gateway makes on request: as often as asked for, repeatable, and nothing else is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from tandemfeed.spark_feed.sending.faults import REORDER_COUNT_MAX, REPEATED_COUNT_MAX, FaultInjector, FaultPlan, Sent

COUNT = 10_000
STEP_NS = 100_000  # 10,000 datagrams a second


def run(plan: FaultPlan, seed: int = 7, count: int = COUNT) -> tuple[FaultInjector, list[tuple[int, int]]]:
    """The numbers that are sent, each with the time in datagrams."""
    injector = FaultInjector(plan, seed, 0)
    sent = []
    for number in range(count):
        datagram = Sent(b"group", number.to_bytes(4, "big"))
        sent += [
            (number, int.from_bytes(each.datagram, "big")) for each in injector.on_datagram(datagram, number * STEP_NS)
        ]
    sent += [(count, int.from_bytes(each.datagram, "big")) for each in injector.rest()]
    return injector, sent


def numbers(plan: FaultPlan, seed: int = 7) -> list[int]:
    return [number for _, number in run(plan, seed)[1]]


def test_without_faults_every_datagram_is_sent_once_and_in_order() -> None:
    assert numbers(FaultPlan()) == list(range(COUNT))
    assert not FaultPlan()


def test_loss_loses_its_share_and_repeats_exactly_for_a_seed() -> None:
    sent = numbers(FaultPlan(loss=0.1))
    assert sent == numbers(FaultPlan(loss=0.1))
    assert sent != numbers(FaultPlan(loss=0.1), seed=8)
    assert sorted(set(sent)) == sent
    assert 0.08 * COUNT < COUNT - len(sent) < 0.12 * COUNT


def test_duplication_sends_its_share_twice() -> None:
    injector, sent = run(FaultPlan(duplicate=0.1))
    counted = Counter(number for _, number in sent)
    assert set(counted) == set(range(COUNT))
    assert sum(count == 2 for count in counted.values()) == injector.counts["duplicate"] > 0.08 * COUNT


def test_reordered_datagrams_are_late_by_a_few_places_and_none_is_lost() -> None:
    sent = numbers(FaultPlan(reorder=0.05))
    assert sorted(sent) == list(range(COUNT))
    assert sent != sorted(sent)
    assert max(place - number for place, number in enumerate(sent)) <= REORDER_COUNT_MAX


def test_a_burst_holds_everything_back_and_sends_it_at_once_in_order() -> None:
    _, sent = run(FaultPlan(burst=50), count=15_000)
    assert [number for _, number in sent] == list(range(15_000))
    at_once = Counter(at for at, _ in sent)
    assert at_once.most_common(2) == [(500, 501), (10_500, 501)]  # of 50 ms


def test_a_reset_repeats_what_was_sent_last() -> None:
    injector, sent = run(FaultPlan(reset=0.5))
    counted = Counter(number for _, number in sent)
    assert injector.counts["reset"] == 1
    twice = sorted(number for number, count in counted.items() if count == 2)
    assert twice == list(range(5_000 - REPEATED_COUNT_MAX, 5_000))


def test_all_faults_together_lose_no_more_than_loss_does() -> None:
    injector, sent = run(FaultPlan.parse(["loss=0.02", "duplicate=0.02", "reorder=0.02", "burst=20", "reset=0.3"]))
    assert COUNT - len({number for _, number in sent}) <= injector.counts["loss"]
    assert all(injector.counts.values())


@pytest.mark.parametrize("text", ["loss", "loss=x", "gone=1", "=1"])
def test_an_unknown_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected NAME=NUMBER"):
        FaultPlan.parse([text])


def test_an_impossible_share_is_refused() -> None:
    with pytest.raises(ValueError, match="the fault loss is 2; it must be from 0 to 1"):
        FaultPlan.parse(["loss=2"])
