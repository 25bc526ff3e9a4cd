"""`./run crash-test --cases N [--first S] [--kind K]`: run many crash cases and report the seed of each failure."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tandemfeed.deploy.cluster.small_disk import own_mounts
from tests.crash.face_cases import cases as face_cases
from tests.crash.journal_cases import CASES
from tests.crash.journal_losses import cases as losses_cases
from tests.crash.power_cases import left_out

CHUNK = 20


def all_cases() -> dict[str, object]:
    """The kinds of case by name."""
    return {**{f"journal-{name}": case for name, case in {**CASES, **losses_cases()}.items()}, **face_cases()}


def kind_of(seed: int, kinds: Sequence[str]) -> str:
    """The kind of a seed; kinds take turns."""
    return kinds[seed % len(kinds)]


def run_case(seed: int, kinds: Sequence[str]) -> tuple[str, str]:
    """Run one case in a new folder; returns its kind and a description.

    Raises:
        AssertionError, or any exception of the journal: the case failed.
    """
    kind = kind_of(seed, kinds)
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    try:
        return kind, all_cases()[kind](folder / "journal", seed)  # type: ignore[operator,no-any-return]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_chunk(seeds: Sequence[int], kinds: Sequence[str]) -> list[tuple[int, str, str | None]]:
    """Run cases one after another; returns (seed, kind, traceback or None) of each."""
    logging.disable(logging.WARNING)  # each case causes damage, which the journal logs
    results: list[tuple[int, str, str | None]] = []
    for seed in seeds:
        try:
            results.append((seed, run_case(seed, kinds)[0], None))
        except BaseException:  # noqa: BLE001  # every failure is a finding and is reported with its seed
            results.append((seed, kind_of(seed, kinds), traceback.format_exc()))
    return results


def _own_mounts() -> None:
    """What a killed case had mounted must not stay."""
    with suppress(OSError):  # then cases with disks of their own are skipped
        own_mounts()


def main(argv: Sequence[str] | None = None) -> int:
    """Run cases; returns 1 if any fails."""
    known = list(all_cases())
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="./run crash-test", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, metavar="N", help="number of cases (default 10,000)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="first seed (default 0)")
    parser.add_argument("--kind", action="append", choices=known, help="run only this kind; repeatable")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (default: number of cores)"
    )
    arguments = parser.parse_args(argv)
    kinds = arguments.kind or known
    seeds = range(arguments.first, arguments.first + arguments.cases)
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    failed, done, began = [], Counter[str](), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, disable=not sys.stderr.isatty()) as bar,
        ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn"), initializer=_own_mounts) as pool,
    ):
        task = bar.add_task("crashing", total=len(seeds))
        for finished in as_completed([pool.submit(run_chunk, chunk, kinds) for chunk in chunks]):
            for seed, kind, failure in finished.result():
                done[kind] += 1
                if failure is not None:
                    failed.append(seed)
                    print(f"\nseed {seed} ({kind}):\n{failure}", flush=True)
            bar.update(task, completed=done.total())
            if not sys.stderr.isatty() and done.total() % 1_000 < CHUNK:
                print(f"{done.total()}/{len(seeds)} cases", file=sys.stderr, flush=True)
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
    for kind, why in left_out().items():
        print(f"left out: {kind} ({why})")
    print(f"{done.total()} cases ({text}) in {time.monotonic() - began:.0f} s, {len(failed)} failed {failed[:20]}")
    return 1 if failed else 0
