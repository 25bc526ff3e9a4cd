"""`python -m tests.mutation.shells`: plant small faults in shells (files, threads, sockets, clocks), one at a time.

A shell's tests use threads and processes, so a mutant cannot be a fork of a process that has them: each is written into
a copy of the tree, and its tests run there from the start. That takes seconds, so a run tries a sample of each module,
the same at every run. `--flushes` tries every statement that flushes.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants_of, mutated_tree
from tests.mutation.report import NOTICED_SHARE_MIN
from tests.mutation.shell_table import EQUIVALENT, SHELLS, Shell

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("proto", "pyproject.toml", "tandemfeed", "tests", "docs", "mkdocs.yml", "run")
FLUSH = re.compile(
    r"\b(sync|flush|fsync|replace_file|create_file|rename_file|remove_file|flush_file|sync_folder|rewrite)\w*\("
)
TIMEOUT_FACTOR, TIMEOUT_S_MIN = 4, 60.0  # of the time that the tests take without a fault


@dataclass(frozen=True, slots=True)
class Tried:
    """A mutant, and the test that noticed it; empty: none did."""

    mutant: Mutant
    by: str


class Copies:
    """Copies of the tree, one for each job, so that the tree itself is never changed."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: queue.Queue[Path] = queue.Queue()
        packages = [each.resolve().name for each in (ROOT / "tandemfeed").iterdir() if each.is_symlink()]
        for number in range(count):
            copy = folder / str(number)
            copy.mkdir()
            for name in (*(name for name in packages if name != "v1"), *COPIED):
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(source, copy / name, symlinks=True)
                else:
                    shutil.copy2(source, copy / name)
            self._free.put(copy)

    def run(self, tests: Sequence[str], timeout_s: float, module: str = "", text: str = "") -> tuple[int, str, float]:
        """Run tests in a copy, with another text of a module; (status, the failed test, seconds)."""
        copy = self._free.get()
        path = copy / module
        former = path.read_text() if module else ""
        try:
            if module:
                path.write_text(text)
            return _run(copy, tests, timeout_s)
        finally:
            if module:
                path.write_text(former)
            self._free.put(copy)


def _run(copy: Path, tests: Sequence[str], timeout_s: float) -> tuple[int, str, float]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["-m", "not long and not spark and not processes", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    began_s = time.monotonic()
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return 1, "timed out", time.monotonic() - began_s
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return process.returncode, failed[1] if failed else output[-300:].strip(), time.monotonic() - began_s


def chosen(module: str, sample: int, *, is_flushes: bool) -> list[Mutant]:
    """The mutants of a module to try."""
    source = (ROOT / module).read_text()
    found = [each for each in mutants_of(source, module) if each.change not in EQUIVALENT.get(module, {})]
    found = [each for each in found if not each.change.startswith("- LOG.")]  # logs are for people
    if is_flushes:
        lines = source.splitlines()
        return [
            mutant for mutant in found if mutant.kind == "statement_removed" and FLUSH.search(lines[mutant.line - 1])
        ]
    return sorted(random.Random(module).sample(found, min(sample, len(found))), key=lambda mutant: mutant.line)


def try_all(copies: Copies, shell: Shell, mutants: Sequence[Mutant], pool: ThreadPoolExecutor) -> Iterator[Tried]:
    """Try the mutants of one shell."""
    status, failed, spent_s = copies.run(shell.tests, 1_800.0)
    if status != 0:
        raise SystemExit(f"{shell.module}: its tests fail without a fault: {failed}")
    timeout_s = max(TIMEOUT_S_MIN, TIMEOUT_FACTOR * spent_s)

    def attempt(mutant: Mutant) -> Tried:
        text = ast.unparse(mutated_tree((ROOT / shell.module).read_text(), mutant))
        status, failed, _ = copies.run(shell.tests, timeout_s, shell.module, text)
        return Tried(mutant, failed if status else "")

    for done in as_completed([pool.submit(attempt, mutant) for mutant in mutants]):
        yield done.result()


def main(argv: Sequence[str] | None = None) -> int:
    """Try mutants of shells; returns 1 if fewer than nine in ten are noticed."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m tests.mutation.shells", description=main.__doc__
    )
    known = [shell.module for shell in SHELLS]
    parser.add_argument("--module", action="append", choices=known, metavar="FILE", help="only this one; repeatable")
    parser.add_argument("--sample", type=int, default=10, metavar="N", help="mutants of each module (default 10)")
    parser.add_argument("--flushes", action="store_true", help="every statement that flushes, instead of a sample")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time (default 1)")
    arguments = parser.parse_args(argv)
    noticed = tried = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        copies = Copies(Path(folder), arguments.jobs)
        for shell in SHELLS:
            if arguments.module and shell.module not in arguments.module:
                continue
            mutants = chosen(shell.module, arguments.sample, is_flushes=arguments.flushes)
            if not mutants:
                continue
            results = list(try_all(copies, shell, mutants, pool))
            survivors = [each.mutant for each in results if not each.by]
            tried, noticed = tried + len(results), noticed + len(results) - len(survivors)
            print(f"{shell.module}: {len(results) - len(survivors)} of {len(results)} noticed", flush=True)
            for mutant in sorted(survivors, key=lambda mutant: mutant.line):
                print(f"  survived: {mutant.id} in {mutant.function}\n    " + mutant.change.replace("\n", "\n    "))
    share = noticed / tried if tried else 1.0
    print(f"{noticed} of {tried} noticed ({share:.1%}; at least {NOTICED_SHARE_MIN:.0%} wanted)")
    return 0 if share >= NOTICED_SHARE_MIN else 1


if __name__ == "__main__":
    raise SystemExit(main())
