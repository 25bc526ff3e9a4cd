"""Runs the tests of some modules against their mutants, each in a forked process that has the fault only in memory.

One process imports the modules, collects the tests and runs them once, recording which test executes which line. Each
mutant then gets a fork of this process, which replaces the code of one function and runs only the tests that execute
the changed lines, fastest first, until one fails. So most mutants cost some milliseconds: no interpreter starts,
nothing is imported, and few tests run.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import multiprocessing
import os
import resource
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from hypothesis import Phase, settings

from tests.mutation.mutants import Mutant, mutated_code
from tests.mutation.recording import LineRecorder

NOTICED_STATUS = 3
TIMEOUT_PER_BASELINE, TIMEOUT_S_MIN = 3, 3.0  # per test, in seconds of processor time: ends endless loops
WAITING_PER_COMPUTING = 20  # a process that waits for so much longer than it may compute is blocked
LAST_CHECK_TIMEOUT_S = 300.0
MEMORY_MAX = 1 << 30  # more than the tests need; an endless loop may append to a list


class Outcome(StrEnum):
    """The result for a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


class CannotRun(Exception):
    """The tests cannot be run; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Result:
    """What happened to a mutant.

    Attributes:
        by: the test that noticed it; empty if none did.
        test_count: how many tests execute its lines.
    """

    mutant: Mutant
    outcome: Outcome
    by: str
    test_count: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one test does without a fault."""

    test: pytest.Item
    lines: set[tuple[str, int]]
    computing_s: float


class Runner:
    """A pytest plugin that runs mutants instead of the collected tests.

    Args:
        root: the folder to which modules are relative.
        modules: the paths of the modules to mutate.
        test_s_max: leave out tests that take longer.
        last_check: run after the tests that a mutant survived; returns what noticed the fault, or an empty string.
    """

    def __init__(
        self,
        root: Path,
        modules: Iterable[str],
        test_s_max: float = math.inf,
        last_check: Callable[[], str] | None = None,
    ) -> None:
        self._root = root
        package = root / "tandemfeed"
        self._files = {module: str((package if (package / module).exists() else root) / module) for module in modules}
        self._test_s_max, self._last_check = test_s_max, last_check
        self._recorded: list[Recorded] = []
        self._recorder = LineRecorder(self._files.values())
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        self._failed = ""
        self._noticed: Callable[[str], None] | None = None
        self._use: Callable[[Runner], None] | None = None
        self._raised: BaseException | None = None

    def run(self, tests: Sequence[str], use: Callable[[Runner], None]) -> None:
        """Collect and record the tests, and call `use`, which may try mutants.

        Raises:
            CannotRun: the tests cannot be collected, or fail without a fault.
        """
        self._use = use
        # All runs are alike, and stop at the first failure, without shrinking or storing examples.
        settings.register_profile(
            "mutation",
            phases=[Phase.explicit, Phase.generate],
            database=None,
            derandomize=True,
            deadline=None,
            report_multiple_bugs=False,
        )
        os.environ["TANDEMFEED_ISOLATED"] = "0"  # pure modules open no sockets
        settings.load_profile("mutation")  # before the tests are imported, because they derive theirs from it
        options = ["-q", "--assert=plain", "--tb=native", "--capture=no", "-o", "addopts="]
        options += [option for name in ("cacheprovider", "xdist", "timeout") for option in ("-p", f"no:{name}")]
        options += [f"--rootdir={self._root}", "-o", f"pythonpath={self._root}"]
        with (
            contextlib.chdir(self._root),
            open(os.devnull, "w") as silence,
            contextlib.redirect_stdout(silence),
            contextlib.redirect_stderr(silence),
        ):
            status = int(pytest.main([*options, *tests], plugins=[self]))
        if self._raised is not None:
            raise self._raised
        if self._failed:
            raise CannotRun(f"{self._failed} fails without a fault: run pytest {self._failed}")
        if status != 0:
            raise CannotRun(f"pytest ends with status {status}; expected 0: run pytest {' '.join(tests)}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record the tests, then run mutants in their place."""
        assert self._use is not None
        if session.testsfailed:
            return False
        try:
            for place, test in enumerate(session.items):
                begun_s = time.process_time()
                with self._recorder:
                    _run_test(test, session.items[place + 1] if place + 1 < len(session.items) else None)
                spent_s = time.process_time() - begun_s
                self._recorded.append(Recorded(test, self._recorder.lines, spent_s))
                if self._failed:
                    return True
            self._recorded.sort(key=lambda each: each.computing_s)
            self._functions = _functions_of(set(self._files.values()))
            _forget_cached_values()
            gc.collect()
            gc.freeze()  # so that collections in the forks do not copy memory
            try:
                self._use(self)
            finally:
                gc.unfreeze()
        except BaseException as raised:  # noqa: BLE001 - pytest would only print it
            self._raised = raised
        return True

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Note a failure; in the process of a mutant, end there."""
        if call.excinfo is None or isinstance(call.excinfo.value, pytest.skip.Exception):
            return
        if self._noticed is not None:
            self._noticed(item.nodeid)
        self._failed = self._failed or item.nodeid

    @property
    def computing_s(self) -> float:
        """How long all tests take without a fault."""
        return sum(each.computing_s for each in self._recorded)

    def results(self, mutants: Iterable[Mutant], process_count: int) -> Iterator[Result]:
        """Try mutants, `process_count` at a time; yields each result as it is known.

        Raises:
            CannotRun: a mutant cannot be planted, or its process ended with an unexpected status.
        """
        waiting = iter(mutants)
        running: dict[int, tuple[BaseProcess, Connection, Mutant, int, float]] = {}
        try:
            while True:
                while len(running) < process_count and (mutant := next(waiting, None)) is not None:
                    if (self._files[mutant.module], *mutant.scope) not in self._functions:
                        yield Result(mutant, Outcome.SURVIVED, "", 0)  # no test imports its module
                        continue
                    chosen = self._tests_of(mutant)
                    computing_s = LAST_CHECK_TIMEOUT_S + sum(map(_timeout_s, chosen))
                    end_s = time.monotonic() + WAITING_PER_COMPUTING * computing_s
                    process, report = self._begin(mutant, chosen)
                    running[process.sentinel] = (process, report, mutant, len(chosen), end_s)
                if not running:
                    return
                first_end_s = min(entry[-1] for entry in running.values())
                wait(list(running), max(0.0, first_end_s - time.monotonic()))
                for sentinel, (process, report, mutant, count, end_s) in list(running.items()):
                    if process.is_alive() and time.monotonic() < end_s:
                        continue
                    del running[sentinel]
                    yield Result(mutant, *_outcome(process, report, mutant), count)
        finally:
            for process, *_ in running.values():
                process.kill()

    def _tests_of(self, mutant: Mutant) -> list[Recorded]:
        """The tests that execute one of its lines, fastest first."""
        lines = {(self._files[mutant.module], line) for line in mutant.lines}
        return [each for each in self._recorded if lines & each.lines and each.computing_s <= self._test_s_max]

    def _begin(self, mutant: Mutant, chosen: list[Recorded]) -> tuple[BaseProcess, Connection]:
        report, reporter = multiprocessing.Pipe(duplex=False)
        file = self._files[mutant.module]
        functions = self._functions[file, *mutant.scope]
        code = mutated_code(Path(file).read_text(), file, mutant, functions[0].__code__.co_freevars)
        run = functools.partial(self._run, functions, code, chosen, reporter)
        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        reporter.close()
        return process, report

    def _run(self, functions: list[FunctionType], code: CodeType, chosen: list[Recorded], reporter: Connection) -> None:
        """In the child: plant the fault, run the tests, and exit at the first that fails."""

        def noticed(name: str) -> None:
            reporter.send(name)
            os._exit(NOTICED_STATUS)

        silence = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(silence, descriptor)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_MAX, used + MEMORY_MAX))
        for function in functions:
            function.__code__ = code
        self._noticed = noticed
        for place, each in enumerate(chosen):
            signal.setitimer(signal.ITIMER_PROF, _timeout_s(each))
            _run_test(each.test, chosen[place + 1].test if place + 1 < len(chosen) else None)
        signal.setitimer(signal.ITIMER_PROF, LAST_CHECK_TIMEOUT_S)
        if self._last_check is not None and (what := self._last_check()):
            noticed(what)
        os._exit(0)


def _run_test(test: pytest.Item, following: pytest.Item | None) -> None:
    test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)


def _timeout_s(each: Recorded) -> float:
    return max(TIMEOUT_S_MIN, TIMEOUT_PER_BASELINE * each.computing_s)


def _outcome(process: BaseProcess, report: Connection, mutant: Mutant) -> tuple[Outcome, str]:
    if process.is_alive():
        process.kill()
        process.join()
        return Outcome.TIMED_OUT, ""
    process.join()
    if process.exitcode == 0:
        return Outcome.SURVIVED, ""
    if process.exitcode == -signal.SIGPROF:
        return Outcome.TIMED_OUT, ""
    if process.exitcode == NOTICED_STATUS:
        return Outcome.KILLED, str(report.recv())
    raise CannotRun(f"{mutant.id}: its process ended with status {process.exitcode}; expected 0 or {NOTICED_STATUS}")


def _functions_of(files: set[str]) -> dict[tuple[str, str, int], list[FunctionType]]:
    """Every function of the files, whatever decorates it: (file, qualified name, first line) -> its objects."""
    found: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and (code := each.__code__).co_filename in files:
            found[code.co_filename, code.co_qualname, code.co_firstlineno].append(each)
    return dict(found)


def _forget_cached_values() -> None:
    """Clear what the right functions left in caches."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and each.__module__.startswith("tandemfeed."):
            each.cache_clear()
