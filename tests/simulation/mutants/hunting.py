"""`./run simulate --mutants`: tries to catch each planted fault, and reports which ones survived."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from tests.simulation.mutants.mutant import Mutant, hunt
from tests.simulation.running import Verdict


@dataclass(frozen=True, slots=True)
class Hunted:
    """The result for one planted fault.

    Attributes:
        seed_count: how many seeds were run; 0: a unit test was run.
        verdict: how the fault was caught; None: it survived.
    """

    mutant: Mutant
    seed_count: int
    verdict: Verdict | None
    seconds: float


def hunt_all(console: Console, mutants: Sequence[Mutant], first: int = 0) -> list[Hunted]:
    """Hunt each fault, showing progress; without a terminal, print one line per fault.

    Args:
        first: the first seed for every fault.
    """
    found = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("mutants", total=len(mutants))
        for mutant in mutants:
            progress.update(task, description=mutant.what[:70])
            began = time.monotonic()
            seed_count, verdict = hunt(mutant, first)
            found.append(Hunted(mutant, seed_count, verdict, time.monotonic() - began))
            progress.advance(task)
            if not console.is_terminal:
                console.print(f"{len(found)}/{len(mutants)} {_how(found[-1])}: {mutant.what}", markup=False)
    return found


def print_hunts(console: Console, found: Sequence[Hunted]) -> int:
    """Print a table of the results; returns how many faults survived."""
    table = Table("planted fault", "scenario", "caught", "by", "seconds")
    for each in sorted(found, key=lambda hunted: (hunted.verdict is None, hunted.seed_count)):
        scenario = each.mutant.scenario.name.lower().replace("_", " ") if each.mutant.scenario else ""
        by = "" if each.verdict is None else each.verdict.invariant
        table.add_row(each.mutant.what, scenario, _how(each), by, f"{each.seconds:.1f}")
    console.print(table)
    survived = sum(each.verdict is None for each in found)
    seconds = sum(each.seconds for each in found)
    console.print(f"{len(found)} planted faults, {survived} survived, {seconds:.0f} s")
    return survived


def _how(hunted: Hunted) -> str:
    if hunted.verdict is None:
        return f"survived {hunted.seed_count} seeds"
    return f"seed {hunted.seed_count}" if hunted.seed_count else "unit test"
