"""Runs some seeds of the simulator, and checks that a seed always gives the same run; `./run simulate` runs more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandemfeed.feedcore.replica.config import SessionState
from tests.simulation.cluster import Cluster
from tests.simulation.drawing import draw_plan
from tests.simulation.plan import FaultKind, decode_plan
from tests.simulation.running import judge
from tests.simulation.scenarios import Scenario

SEEDS = 2_000
BLOCK = 250
LYING_SEEDS = 500
TRACED_SEEDS = range(40, 52)
FOUND = sorted((Path(__file__).parent / "found").glob("*.plan.json"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_seed_violates_an_invariant(first: int) -> None:
    for seed in range(first, first + BLOCK):
        verdict = judge(draw_plan(seed))
        if verdict is not None:
            story = "\n".join(verdict.timeline)
            pytest.fail(f"seed {seed}: {verdict.text}\n{story}\nto shrink it: ./run simulate --seed {seed}")


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name.partition(".")[0])
def test_a_plan_that_once_failed_passes(path: Path) -> None:
    verdict = judge(decode_plan(path.read_bytes()))
    assert verdict is None, f"{verdict.text}\nto see its timeline: ./run simulate --plan {path}"


def test_a_signed_stream_that_is_idle_does_not_end_because_a_backup_says_so() -> None:
    test_a_plan_that_once_failed_passes(
        FOUND[0].with_name("an_end_that_a_backup_invents_on_an_idle_signed_stream.plan.json")
    )


@pytest.mark.parametrize("first", range(0, LYING_SEEDS, BLOCK))
def test_an_adapter_that_lies_with_valid_keys_violates_no_invariant(first: int) -> None:
    for seed in range(first, first + BLOCK):
        plan = draw_plan(seed, Scenario.LIES)
        assert plan.has(FaultKind.LIE)
        verdict = judge(plan)
        assert verdict is None, f"seed {seed}: {verdict.text}"


def digests() -> list[str]:
    """The digests of all effects of some runs."""
    return [Cluster(draw_plan(seed), is_traced=True).run().digest for seed in TRACED_SEEDS]


def test_the_same_seed_gives_the_same_run_for_any_hash_seed() -> None:
    code = "from tests.simulation.test_simulation import digests; print(*digests())"
    runs = []
    for hash_seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        runs.append(run.stdout.split())
    assert runs[0] == runs[1] == digests()
    assert len(set(runs[0])) == len(TRACED_SEEDS)


def test_a_saved_plan_gives_the_same_run() -> None:
    plan = draw_plan(41)
    again = decode_plan(plan.encode())
    assert again == plan
    assert Cluster(again, is_traced=True).run() == Cluster(plan, is_traced=True).run()


def test_drawn_plans_cover_every_size_and_kind_of_fault() -> None:
    plans = [draw_plan(seed) for seed in range(SEEDS)]
    assert {len(plan.adapters) for plan in plans} == {1, 2, 3, 4, 5}
    assert {len(plan.clients) for plan in plans} == {1, 2, 3}
    assert {len(plan.channels) for plan in plans} == {1, 2, 3, 4}
    assert any(len(streams) == 1 for plan in plans for streams in plan.channels)
    assert any(len(streams) > 1 for plan in plans for streams in plan.channels)
    shared = [plan for plan in plans if len(plan.streams) < sum(map(len, plan.channels))]
    assert len(shared) > SEEDS // 10
    assert {1, 2, 3} <= {len(streams) for plan in shared for streams in plan.channels}
    assert {min(map(len, plan.channels)) == 1 for plan in shared if plan.journal_gaps} == {False, True}
    assert any(plan.new_sessions for plan in shared)
    assert {plan.weather.loss for plan in plans} >= {0.0, 0.3}
    assert any(plan.journal_gaps for plan in plans)
    assert any(plan.has_real_codec for plan in plans)
    assert any(client.is_live for plan in plans for client in plan.clients)
    assert {len(plan.new_sessions) for plan in plans} == {0, 1, 2}
    assert {plan.session_state for plan in plans if plan.new_sessions} == set(SessionState)
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert kinds == set(FaultKind)
