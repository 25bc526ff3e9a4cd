"""The simulator finds faults: each planted fault is caught by one of its seeds or by its unit test.

`./run simulate --mutants` also runs the faults that take longer.
"""

from __future__ import annotations

import pytest
from rich.console import Console

from tests.simulation.mutants import MUTANTS, Mutant, hunt
from tests.simulation.mutants.hunting import hunt_all, print_hunts
from tests.simulation.mutants.mutant import always
from tests.simulation.running import judge

QUICK = [mutant for mutant in MUTANTS if not mutant.is_long]


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.what)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    seeds, verdict = hunt(mutant)
    assert verdict is not None, f"not caught in {seeds} seeds: {mutant.what}"


def test_a_planted_fault_is_removed_afterwards() -> None:
    mutant = MUTANTS[0]
    right = getattr(mutant.owner, mutant.method)
    seeds, _ = hunt(mutant)
    assert getattr(mutant.owner, mutant.method) is right
    assert judge(mutant.plan(seeds - 1)) is None


def test_a_replaced_inherited_method_is_inherited_again_afterwards() -> None:
    mutant = next(each for each in MUTANTS if each.method not in vars(each.owner))
    with mutant.planted():
        assert mutant.method in vars(mutant.owner)
    assert mutant.method not in vars(mutant.owner)


def test_every_killer_passes_without_a_planted_fault() -> None:
    harmless = [
        Mutant(mutant.what, mutant.owner, mutant.method, lambda right: right, killer=mutant.killer)
        for mutant in MUTANTS
        if mutant.killer
    ]
    assert harmless
    assert [mutant.what for mutant in harmless if hunt(mutant)[1] is not None] == []


def test_a_fault_that_survives_is_reported_and_counted() -> None:
    console = Console(record=True, width=160)
    harmless = Mutant("no fault at all", Mutant, "plan", lambda right: right, seed_count_max=2)
    assert print_hunts(console, hunt_all(console, [harmless])) == 1
    assert "survived 2 seeds" in console.export_text()


def test_no_two_planted_faults_have_the_same_name() -> None:
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS)
    assert always(3)(len)([]) == 3
