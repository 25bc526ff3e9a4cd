"""The simulator finds faults: each one planted in a core is caught within its budget of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.drawing import draw_plan
from tests.simulation.mutants import MUTANTS, Mutant, hunt
from tests.simulation.running import judge


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    seeds, verdict = hunt(mutant)
    assert verdict is not None, f"{seeds} seeds, and nobody noticed that {mutant.what}"


def test_a_planted_fault_is_gone_afterwards() -> None:
    mutant = MUTANTS[0]
    right = getattr(mutant.owner, mutant.method)
    seeds, _ = hunt(mutant)
    assert getattr(mutant.owner, mutant.method) is right
    assert judge(draw_plan(seeds - 1)) is None
