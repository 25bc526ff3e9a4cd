"""`./run simulate --mutants`: hunts every planted fault, one after the other, and tells which survived."""

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
    """One hunt. Attributes: seed_count: how many seeds it took; 0: a unit test did it. verdict: None: it survived."""

    mutant: Mutant
    seed_count: int
    verdict: Verdict | None
    seconds: float


def hunt_all(console: Console, mutants: Sequence[Mutant], first: int = 0) -> list[Hunted]:
    """Hunt each of them, with progress; where there is no terminal, a line each.

    Args:
        first: the first seed of every hunt.
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


def tell(console: Console, found: Sequence[Hunted]) -> int:
    """A table of all hunts; returns how many faults survived."""
    table = Table("planted fault", "scene", "caught", "by", "seconds")
    for each in sorted(found, key=lambda hunted: (hunted.verdict is None, hunted.seed_count)):
        scene = each.mutant.scene.name.lower().replace("_", " ") if each.mutant.scene else ""
        by = "" if each.verdict is None else each.verdict.invariant
        table.add_row(each.mutant.what, scene, _how(each), by, f"{each.seconds:.1f}")
    console.print(table)
    survived = sum(each.verdict is None for each in found)
    seconds = sum(each.seconds for each in found)
    console.print(f"{len(found)} planted faults, {survived} survived, {seconds:.0f} s")
    return survived


def _how(hunted: Hunted) -> str:
    if hunted.verdict is None:
        return f"survived {hunted.seed_count} seeds"
    return f"seed {hunted.seed_count}" if hunted.seed_count else "unit test"
