"""Runs a module's tests against one mutant, in a separate process that has the fault only in memory.

The process is forked from one that has imported the test tools and all installed packages that the tests need, but
nothing of the project. So each mutant costs the time of its tests, without a start of the interpreter.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import math
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from hypothesis import Phase, settings

from tests.mutation.mutants import Mutant, mutated_tree

NO_FAULT = -1
WAITING_PER_COMPUTING = 20  # a process that waits for so much longer than it may compute is blocked
# pytest's exit statuses. "Interrupted" and "not found" mean that the fault prevents the import of a test module.
TESTS_PASSED, TESTS_FAILED, TESTS_INTERRUPTED, TESTS_NOT_FOUND = 0, 1, 2, 4


class Outcome(StrEnum):
    """The result for a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


class CannotRun(Exception):
    """The tests cannot be run; the text gives the reason."""


class FaultFinder(importlib.abc.MetaPathFinder):
    """Imports one module with a fault, and leaves all others to the next finders."""

    def __init__(self, name: str, path: Path, place: int) -> None:
        self._name, self._path, self._place = name, path, place

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the faulty module; None for any other."""
        if fullname != self._name:
            return None
        loader = _FaultLoader(fullname, str(self._path), self._place)
        return importlib.util.spec_from_loader(fullname, loader, origin=str(self._path))


class _FaultLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, place: int) -> None:
        super().__init__(name, path)
        self._place = place

    def get_code(self, fullname: str) -> CodeType:
        """Compile the mutated tree, without reading or writing a cache."""
        source = Path(self.path).read_text()
        return compile(mutated_tree(source, self._place), self.path, "exec")


@dataclass(frozen=True, slots=True)
class Job:
    """What all runs for the mutants of a module have in common.

    Attributes:
        root: the folder to which the other paths are relative.
        module, tests: paths of the module and of its tests.
        timeout_s: limit per mutant in seconds of processor time; so a busy machine does not look like an endless loop.
    """

    root: Path
    module: str
    tests: tuple[str, ...]
    timeout_s: float


def baseline_s(job: Job) -> float:
    """Measure how long the tests take without a fault.

    Raises:
        CannotRun: the tests fail, or take longer than the job's time-out.
    """
    begun_s = time.monotonic()
    imported, report = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = _begin(job, NO_FAULT, report)
    report.close()
    if not imported.poll(job.timeout_s):
        process.kill()
        raise CannotRun(f"{job.module}: its tests take longer than {job.timeout_s:.0f} s without a fault")
    try:
        names: list[str] = imported.recv()
    except EOFError:
        names = []
    process.join()
    if process.exitcode != TESTS_PASSED:
        raise CannotRun(
            f"{job.module}: its tests end with status {process.exitcode} without a fault; expected 0: run pytest "
            f"{' '.join(job.tests)}"
        )
    spent_s = time.monotonic() - begun_s
    for name in names:
        with contextlib.suppress(Exception):  # a module that depends on another is imported with it
            importlib.import_module(name)
    return spent_s


def outcomes(job: Job, mutants: Sequence[Mutant], process_count: int) -> Iterator[tuple[Mutant, Outcome]]:
    """Yield each mutant with its result as it ends; runs `process_count` at a time.

    Raises:
        CannotRun: a test process ended with an unexpected status.
    """
    waiting = list(reversed(mutants))
    running: dict[int, tuple[BaseProcess, Mutant, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < process_count:
                mutant = waiting.pop()
                process = _begin(job, mutant.place)
                end_s = time.monotonic() + WAITING_PER_COMPUTING * job.timeout_s
                running[process.sentinel] = (process, mutant, end_s)
            first_end_s = min(end_s for _, _, end_s in running.values())
            wait(list(running), max(0.0, first_end_s - time.monotonic()))
            for sentinel, (process, mutant, end_s) in list(running.items()):
                if process.is_alive() and time.monotonic() < end_s:
                    continue
                del running[sentinel]
                yield mutant, _outcome(process, mutant)
    finally:
        for process, _, _ in running.values():
            process.kill()


def _outcome(process: BaseProcess, mutant: Mutant) -> Outcome:
    if process.is_alive():
        process.kill()
        process.join()
        return Outcome.TIMED_OUT
    process.join()
    if process.exitcode == TESTS_PASSED:
        return Outcome.SURVIVED
    if process.exitcode == -signal.SIGXCPU:
        return Outcome.TIMED_OUT
    if process.exitcode in (TESTS_FAILED, TESTS_INTERRUPTED, TESTS_NOT_FOUND):
        return Outcome.KILLED
    raise CannotRun(f"{mutant.id}: the tests ended with status {process.exitcode}; expected 0, 1, 2 or 4")


def _begin(job: Job, place: int, report: Connection | None = None) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=_run_tests, args=(job, place, report))
    process.start()
    return process


def _run_tests(job: Job, place: int, report: Connection | None) -> None:
    """In the child: plant the fault, run the tests, report the imported packages, and exit with the tests' status."""
    os.chdir(job.root)
    sys.path.insert(0, str(job.root))
    silence = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(silence, descriptor)
    computing_s = math.ceil(job.timeout_s)
    resource.setrlimit(resource.RLIMIT_CPU, (computing_s, computing_s + 1))
    name = job.module.removesuffix(".py").replace("/", ".")
    if (job.root / "tandemfeed" / job.module).exists():
        name = f"tandemfeed.{name}"
    if name in sys.modules:
        raise CannotRun(f"{name} is already imported, so a fault in it would have no effect")
    if place != NO_FAULT:
        sys.meta_path.insert(0, FaultFinder(name, job.root / job.module, place))
    # All runs are alike, and stop at the first failure, without shrinking or storing examples.
    settings.register_profile(
        "mutation", phases=[Phase.explicit, Phase.generate], database=None, derandomize=True, deadline=None
    )
    settings.load_profile("mutation")
    options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={job.root}"]
    status = int(pytest.main([*options, *job.tests]))
    if report is not None:
        report.send([name for name, module in list(sys.modules.items()) if _is_installed(module)])
    os._exit(status)


def _is_installed(module: ModuleType) -> bool:
    """True for modules of installed packages and of the standard library."""
    return str(getattr(module, "__file__", None) or "").startswith((sys.prefix, sys.base_prefix))
