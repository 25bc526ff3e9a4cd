"""`python -m tests.mutation`: plant small faults in pure modules, one at a time; list those that no test detects."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.running import CannotRun
from tests.mutation.table import GROUPS, Group
from tests.mutation.trying import RESULTS, ROOT, Choice, chosen_of, mutants_by_module, try_mutants


def main(argv: Sequence[str] | None = None) -> int:
    """Run mutation testing; returns 1 if too few mutants are noticed."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.mutation", description=main.__doc__)
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="FILE",
        help="test only this module, such as admin_server/lease/lease_core.py; repeatable",
    )
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="tests to run instead of those in the table")
    parser.add_argument("--sample", type=int, metavar="N", help="test N mutants of each module, the same in every run")
    parser.add_argument("--only", default="", metavar="TEXT", help="test only mutants whose id contains TEXT")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="continue an earlier run")
    parser.add_argument(
        "--again", action="store_true", help="with --resume: test surviving mutants again, unless they are equivalent"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="begin no mutant after S seconds; see --resume")
    parser.add_argument(
        "--quick", type=float, default=math.inf, metavar="S", help="leave out tests that take longer than S seconds"
    )
    parser.add_argument("--no-simulator", action="store_true", help="run only unit tests")
    parser.add_argument(
        "--seeds", type=int, default=0, metavar="N", help="run N seeds of the simulator against mutants that survive"
    )
    parser.add_argument("--list", action="store_true", help="list the mutants without running tests")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="write results to FOLDER")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    modules = tuple(arguments.module)
    if arguments.tests:
        groups: tuple[Group, ...] = (Group(modules, tuple(arguments.tests), is_simulated=False),)
    else:
        groups = GROUPS
    known = {module for group in groups for module in group.modules}
    for module in modules:
        if module not in known:
            parser.error(f"{module}: no tests are known; give --tests, or add the module to tests/mutation/table.py")
    choice = Choice(
        root=arguments.root.resolve(),
        out=arguments.out.resolve(),
        modules=modules,
        only=arguments.only,
        sample=arguments.sample,
        job_count=arguments.jobs,
        is_resumed=arguments.resume,
        is_survivor_tried_again=arguments.again,
        has_simulator=not arguments.no_simulator,
        test_s_max=arguments.quick,
        seed_count=arguments.seeds,
        end_s=time.monotonic() + arguments.seconds if arguments.seconds is not None else math.inf,
    )
    try:
        if arguments.list:
            for module, mutants in mutants_by_module(groups, choice).items():
                print(f"{module}: {len(mutants)} mutants")
                for mutant in chosen_of(mutants, choice):
                    print(f"{mutant.id} in {mutant.function}\n{mutant.change}")
            return 0
        return 0 if try_mutants(choice, groups) else 1
    except (CannotRun, OSError, ValueError, SyntaxError) as failed:
        parser.exit(2, f"mutation: {failed}\n")


if __name__ == "__main__":
    raise SystemExit(main())
