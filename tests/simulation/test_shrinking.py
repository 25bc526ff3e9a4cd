"""A failing plan is shrunk to a small one that fails in the same way, and the command reports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import __main__ as command
from tests.simulation.mutants import MUTANTS, hunt
from tests.simulation.plan import decode_plan
from tests.simulation.running import judge
from tests.simulation.shrinking import shrink

FENCELESS = next(mutant for mutant in MUTANTS if mutant.what == "a lease never ends at its holder")


def test_a_failing_plan_shrinks_to_a_small_plan_that_fails_in_the_same_way() -> None:
    seeds, verdict = hunt(FENCELESS)
    assert verdict is not None
    plan = FENCELESS.plan(seeds - 1)
    with FENCELESS.planted():
        shrunk = shrink(plan, verdict, run_count_max=200)
        again = judge(decode_plan(shrunk.plan.encode()))
    assert again is not None
    assert again.invariant == shrunk.verdict.invariant == verdict.invariant
    assert shrunk.runs <= 200
    assert len(shrunk.plan.faults) <= min(2, len(plan.faults)), shrunk.plan.describe()
    assert shrunk.plan.message_count == 1
    assert any("transmits" in line for line in shrunk.verdict.timeline)


def test_the_command_reports_the_seed_the_shrunk_plan_and_the_path_of_the_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FENCELESS.planted():
        assert command.main(["--seeds", "300", "--jobs", "1", "--out", str(tmp_path)]) == 1
        output = capsys.readouterr().out
        (plan_path,) = tmp_path.glob("*.plan.json")
        (timeline_path,) = tmp_path.glob("*.timeline.txt")
        assert command.main(["--plan", str(plan_path), "--no-shrink", "--out", str(tmp_path)]) == 1
    seed = decode_plan(plan_path.read_bytes()).seed
    assert f"seed {seed}: invariant 5" in output
    assert "the plan, shrunk in" in output
    assert str(timeline_path) in output.replace("\n", "")
    assert timeline_path.read_text().startswith(f"seed {seed}: invariant 5")
    assert command.main(["--plan", str(plan_path)]) == 0, "without the planted fault the same plan passes"


def test_the_command_runs_seeds_in_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--first", "100", "--seeds", "60", "--jobs", "2"]) == 0
    assert "60 seeds from 100, 0 violations" in capsys.readouterr().out


def test_the_command_runs_one_seed_and_prints_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "7"]) == 0
    output = capsys.readouterr().out
    assert "seed 7, chance seed 7" in output
    assert "no invariant was violated" in output
