"""Tries the mutants of modules, and prints survivors and a table; `./run simulate --mutants` and the tool use it."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.report import NOTICED_SHARE_MIN, Results, Tally, reason_of, table, together
from tests.mutation.running import Outcome, Runner
from tests.mutation.simulated import noticed_by_seeds
from tests.mutation.table import GROUPS, SIMULATOR, Group

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "var" / "mutation"
PROGRESS_EVERY = 25


@dataclass(frozen=True, slots=True)
class Choice:
    """Which mutants to try, and how.

    Attributes:
        modules: only these; empty: all.
        is_resumed: continue an earlier run.
        is_survivor_tried_again: try surviving mutants again, unless they are known to be equivalent.
        has_simulator: run the simulator's plans, too, where it runs the module.
        test_s_max: leave out tests that take longer.
        seed_count: run this many seeds of the simulator against mutants that survive all else.
        end_s: begin no mutant after this time of `time.monotonic`.
    """

    root: Path = ROOT
    out: Path = RESULTS
    modules: tuple[str, ...] = ()
    only: str = ""
    sample: int | None = None
    job_count: int = 1
    is_resumed: bool = False
    is_survivor_tried_again: bool = False
    has_simulator: bool = True
    test_s_max: float = math.inf
    seed_count: int = 0
    end_s: float = math.inf


def try_mutants(choice: Choice, groups: Sequence[Group] = GROUPS, out: TextIO | None = None) -> bool:
    """Try the chosen mutants, print each survivor and a table; returns whether enough of them were noticed.

    Raises:
        CannotRun: the tests fail without a fault.
    """
    out = out or sys.stdout  # pytest's own output is silenced while mutants run
    tallies: list[Tally] = []
    for group in groups:
        modules = tuple(module for module in group.modules if not choice.modules or module in choice.modules)
        tallies += _try_group(replace(group, modules=modules), choice, out) if modules else []
    tallies = [each for each in tallies if each.mutant_count]
    print("\n".join(table([*tallies, together(tallies)])), file=out)
    few = [each for each in (*tallies, together(tallies)) if not each.is_enough]
    for each in few:
        print(f"{each.module}: less than {NOTICED_SHARE_MIN:.0%} of the mutants were noticed", file=out)
    print(f"survivors, module by module: {choice.out}", file=out, flush=True)
    return not few


def _try_group(group: Group, choice: Choice, out: TextIO) -> list[Tally]:
    results: dict[str, Results] = {}
    left: list[Mutant] = []
    for module, mutants in mutants_by_module((group,), choice).items():
        results[module] = Results(choice.out, module, mutants, is_resumed=choice.is_resumed)
        left += [each for each in chosen_of(mutants, choice) if _is_left(each, results[module], choice)]

    def use(runner: Runner) -> None:
        begun_s = time.monotonic()
        print(f"{len(left)} mutants; the tests take {runner.computing_s:.1f} s", file=out, flush=True)
        until_end = iter(lambda: time.monotonic() >= choice.end_s, True)
        chosen = (mutant for mutant, _ in zip(left, until_end, strict=False))
        for number, result in enumerate(runner.results(chosen, choice.job_count), 1):
            mutant = result.mutant
            results[mutant.module].note(result)
            if result.outcome is Outcome.SURVIVED and reason_of(mutant) is None:
                tests = f"{result.test_count} tests" if result.test_count else "no test executes it"
                print(f"survived ({tests}): {mutant.id} in {mutant.function}\n{mutant.change}", file=out, flush=True)
            if number % PROGRESS_EVERY == 0:
                print(f"{number}/{len(left)}, {time.monotonic() - begun_s:.0f} s", file=sys.__stderr__, flush=True)

    if left and time.monotonic() < choice.end_s:
        tests = (*group.tests, SIMULATOR) if group.is_simulated and choice.has_simulator else group.tests
        has_seeds = group.is_simulated and choice.seed_count
        check = (lambda: noticed_by_seeds(choice.seed_count)) if has_seeds else None
        Runner(choice.root, results, choice.test_s_max, check).run(tests, use)
    for each in results.values():
        each.write_page()
    return [each.tally() for each in results.values()]


def _is_left(mutant: Mutant, results: Results, choice: Choice) -> bool:
    outcome = results.outcome_of(mutant)
    if outcome is Outcome.SURVIVED:
        return choice.is_survivor_tried_again and reason_of(mutant) is None
    return outcome is None


def mutants_by_module(groups: Sequence[Group], choice: Choice) -> dict[str, list[Mutant]]:
    """Every mutant of the chosen modules."""
    modules = [module for group in groups for module in group.modules]
    return {
        module: mutants_of((choice.root / module).read_text(), module)
        for module in modules
        if not choice.modules or module in choice.modules
    }


def chosen_of(mutants: list[Mutant], choice: Choice) -> list[Mutant]:
    """The mutants of a module to try."""
    mutants = [mutant for mutant in mutants if choice.only in mutant.id]
    if choice.sample is None or choice.sample >= len(mutants):
        return mutants
    kept = set(random.Random(0).sample(range(len(mutants)), choice.sample))
    return [mutant for place, mutant in enumerate(mutants) if place in kept]
