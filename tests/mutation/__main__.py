"""`python -m tests.mutation`: plant small faults in pure modules, one at a time; list those that no test detects."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.report import Results, reason_of
from tests.mutation.running import CannotRun, Job, Outcome, baseline_s, outcomes
from tests.mutation.table import TESTS_OF

ROOT = Path(__file__).resolve().parents[2]
BASELINE_TIMEOUT_S = 600.0
TIMEOUT_PER_BASELINE, TIMEOUT_S_MIN = 5, 20.0  # per mutant: allows for slow tests, and ends endless loops


def main(argv: Sequence[str] | None = None) -> int:
    """Run mutation testing; returns 1 if a mutant survives that is not known to be equivalent."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.mutation", description=main.__doc__)
    parser.add_argument(
        "--module",
        action="append",
        metavar="FILE",
        help="test only this module, such as admin_server/lease/lease_core.py; repeatable",
    )
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="tests to run instead of those in the table")
    parser.add_argument("--sample", type=int, metavar="N", help="test N mutants of each module, the same in every run")
    parser.add_argument("--only", metavar="TEXT", help="test only mutants whose id contains TEXT")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes (default %(default)s)")
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="time-out per mutant in seconds (default: five times the duration of the tests)",
    )
    parser.add_argument("--resume", action="store_true", help="continue an earlier run")
    parser.add_argument("--again", action="store_true", help="with --resume: test surviving mutants again")
    parser.add_argument("--list", action="store_true", help="list the mutants without running tests")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "var" / "mutation", metavar="FOLDER", help="write results to FOLDER"
    )
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    modules = arguments.module or list(TESTS_OF)
    has_survivor = False
    for module in modules:
        tests = tuple(arguments.tests or TESTS_OF.get(module, ()))
        if not tests:
            parser.error(f"{module}: no tests are known; give --tests, or add the module to tests/mutation/table.py")
        try:
            has_survivor |= _try_module(module, tests, arguments)
        except (CannotRun, OSError, ValueError, SyntaxError) as failed:
            parser.exit(2, f"mutation: {failed}\n")
    return int(has_survivor)


def _try_module(module: str, tests: tuple[str, ...], arguments: argparse.Namespace) -> bool:
    """Test a module; returns True if a mutant survived that is not known to be equivalent."""
    source = (arguments.root / module).read_text()
    every = mutants_of(source, module)
    chosen = _chosen(every, arguments)
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.id} in {mutant.function}\n{mutant.change}")
        return False
    results = Results(arguments.out, module, source, is_resumed=arguments.resume)
    done = {id_ for id_, outcome in results.outcomes.items() if not (arguments.again and outcome is Outcome.SURVIVED)}
    left = [mutant for mutant in chosen if mutant.id not in done]
    job = Job(arguments.root, module, tests, BASELINE_TIMEOUT_S)
    usual_s = baseline_s(job)
    timeout_s = arguments.timeout or max(TIMEOUT_S_MIN, TIMEOUT_PER_BASELINE * usual_s)
    print(f"{module}: {len(left)} of {len(every)} mutants; the tests take {usual_s:.1f} s", flush=True)
    begun_s = time.monotonic()
    job = Job(arguments.root, module, tests, timeout_s)
    for number, (mutant, outcome) in enumerate(outcomes(job, left, arguments.jobs), 1):
        results.note(mutant, outcome)
        if outcome is Outcome.SURVIVED and reason_of(mutant) is None:
            print(f"survived: {mutant.id} in {mutant.function}\n{mutant.change}", flush=True)
        if number % 25 == 0:
            spent_s = time.monotonic() - begun_s
            print(f"{number}/{len(left)}, {spent_s:.0f} s", file=sys.stderr, flush=True)
    print(results.write_page(chosen))
    print(f"survivors: {results.page_path}")
    return any(results.outcomes[mutant.id] is Outcome.SURVIVED and reason_of(mutant) is None for mutant in chosen)


def _chosen(mutants: list[Mutant], arguments: argparse.Namespace) -> list[Mutant]:
    if arguments.only:
        mutants = [mutant for mutant in mutants if arguments.only in mutant.id]
    if arguments.sample is None or arguments.sample >= len(mutants):
        return mutants
    kept = set(random.Random(0).sample(range(len(mutants)), arguments.sample))
    return [mutant for place, mutant in enumerate(mutants) if place in kept]


if __name__ == "__main__":
    raise SystemExit(main())
