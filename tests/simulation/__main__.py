"""`./run simulate`: run many seeds of the simulator, and shrink and report the first violation."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.mutation.trying import Choice, try_mutants
from tests.simulation.drawing import draw_plan
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants.hunting import hunt_all, print_hunts
from tests.simulation.plan import Plan, decode_plan
from tests.simulation.running import Verdict, judge, judge_seeds
from tests.simulation.shrinking import shrink

TIMELINE_LINES_SHOWN = 60
SEEDS, SEEDS_PER_SURVIVOR = 2_000, 100
PROGRESS_INTERVAL_S = 20.0  # without a terminal for a progress bar


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds or one plan; returns 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="./run simulate", description=__doc__)
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help=f"number of seeds (default {SEEDS:,}; with --mutants, {SEEDS_PER_SURVIVOR} for each small fault that "
        "survives the tests)",
    )
    parser.add_argument("--first", type=int, default=0, metavar="S", help="first seed (default 0)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (default: number of cores)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="run only this seed and print its plan")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="run a plan that was saved for a violation")
    parser.add_argument(
        "--mutants",
        nargs="?",
        const="all",
        choices=("all", "named", "small"),
        help="plant faults, and check that simulator and tests catch them: the named ones (a minute or two), every "
        "small one in the pure cores (an hour or more), or all (default)",
    )
    parser.add_argument("--resume", action="store_true", help="with --mutants: continue with the small faults")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        metavar="S",
        help="with --mutants: plant no small fault after S seconds",
    )
    parser.add_argument("--no-shrink", action="store_true", help="report a violation without shrinking its plan")
    parser.add_argument(
        "--shrink-runs", type=int, default=400, metavar="N", help="limit on the runs of shrinking (default 400)"
    )
    parser.add_argument("--keep-going", action="store_true", help="count violations instead of stopping at the first")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("var/simulation"),
        metavar="FOLDER",
        help="write plans and timelines of violations to FOLDER (default %(default)s)",
    )
    arguments = parser.parse_args(argv)
    if arguments.seeds is None:
        arguments.seeds = SEEDS_PER_SURVIVOR if arguments.mutants else SEEDS
    for option, count in (("--jobs", arguments.jobs), ("--seeds", arguments.seeds)):
        if count < 1:
            parser.error(f"{option} is {count}; it must be at least 1")
    console = Console()
    if arguments.mutants:
        return _plant(console, arguments)
    if arguments.seed is not None or arguments.plan is not None:
        return _run_one(console, arguments)
    return _run_many(console, arguments)


def _plant(console: Console, arguments: argparse.Namespace) -> int:
    """Plant faults; returns 1 if a named one, or more than a tenth of the small ones, is not caught."""
    is_enough = True
    if arguments.mutants != "small":
        is_enough = print_hunts(console, hunt_all(console, MUTANTS, arguments.first)) == 0
    if arguments.mutants != "named":
        choice = Choice(
            job_count=arguments.jobs,
            is_resumed=arguments.resume,
            seed_count=arguments.seeds,
            end_s=time.monotonic() + arguments.seconds,
        )
        is_enough = try_mutants(choice) and is_enough
    return 0 if is_enough else 1


def _run_one(console: Console, arguments: argparse.Namespace) -> int:
    plan = decode_plan(arguments.plan.read_bytes()) if arguments.plan else draw_plan(arguments.seed)
    verdict = judge(plan)
    if verdict is None:
        console.print("\n".join(plan.describe()), markup=False, highlight=False)
        console.print("no invariant was violated")
        return 0
    _explain(console, plan, verdict, arguments)
    return 1


def _run_many(console: Console, arguments: argparse.Namespace) -> int:
    failed: list[Verdict] = []
    began = reported = time.monotonic()
    done = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("seeds", total=arguments.seeds)
        for count, verdicts in judge_seeds(arguments.first, arguments.seeds, arguments.jobs):
            done += count
            failed += verdicts
            for verdict in verdicts:
                progress.console.print(f"seed {verdict.seed}: {verdict.text}", markup=False, highlight=False)
            now = time.monotonic()
            description = f"seeds, {done / (now - began):.0f} per second, {len(failed)} violations"
            progress.update(task, advance=count, description=description)
            if not console.is_terminal and now - reported >= PROGRESS_INTERVAL_S:
                reported = now
                print(f"{done}/{arguments.seeds} {description}", file=sys.stderr, flush=True)
            if failed and not arguments.keep_going:
                break
    elapsed = time.monotonic() - began
    if failed and not arguments.keep_going:
        _explain(console, draw_plan(failed[0].seed), failed[0], arguments)
    rate = f"{done / elapsed:.0f} per second in {arguments.jobs} processes"
    console.print(f"{done:,} seeds from {arguments.first}, {len(failed)} violations, {elapsed:.0f} s, {rate}")
    return 1 if failed else 0


def _explain(console: Console, plan: Plan, verdict: Verdict, arguments: argparse.Namespace) -> None:
    """Print the seed, the shrunk plan and the end of the timeline; write the plan and the whole timeline to files."""
    if arguments.no_shrink:
        verdict = judge(plan, is_verbose=True) or verdict
        how = "as drawn"
    else:
        with console.status("shrinking …") as status:
            shrunk = shrink(
                plan, verdict, arguments.shrink_runs, lambda runs: status.update(f"shrinking, {runs} runs …")
            )
        plan, verdict, how = shrunk.plan, shrunk.verdict, f"shrunk in {shrunk.runs} runs"
    arguments.out.mkdir(parents=True, exist_ok=True)
    plan_path = arguments.out / f"seed-{plan.seed}.plan.json"
    timeline_path = arguments.out / f"seed-{plan.seed}.timeline.txt"
    plan_path.write_bytes(plan.encode())
    story = [f"seed {plan.seed}: {verdict.text}", "", f"the plan, {how}:", *plan.describe(), "", *verdict.timeline]
    timeline_path.write_text("\n".join(story) + "\n")
    lines = [f"\nseed {plan.seed}: {verdict.text}\n", f"the plan, {how}:", *(f"  {line}" for line in plan.describe())]
    lines += [
        f"\nthe end of its timeline ({timeline_path} has all of it):",
        *verdict.timeline[-TIMELINE_LINES_SHOWN:],
    ]
    lines += [f"\nto run it again: ./run simulate --plan {plan_path}\n"]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
