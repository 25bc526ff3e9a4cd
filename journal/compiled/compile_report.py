"""Reports what is compiled, so that a first start is not silent. A start that compiles nothing reports nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core.event import Event, Listener, install_listener

from tandemfeed.journal.compiled.compiling import CACHE_FOLDER
from tandemfeed.journal.compiled.places import FOLDER_VARIABLE

COMPILE_EVENT = "numba:compile"  # numba's event for each function that is not in the cache
ACTIVITY = "compilation"  # marks the log lines
INTERVAL_S = 5.0  # between reports
LOG = logging.getLogger(__name__)

_thread = threading.local()  # `reports` is true in a thread whose compilations are being reported

Report = Callable[[str], None]


@contextmanager
def compilation_reported(
    what: str, folder: Path | None, *, module: str = "", total: int = 0, report: Report | None = None
) -> Iterator[None]:
    """Report what this thread compiles in the block: when it begins, at intervals, and when all is compiled.

    Of nested blocks, only the outer one reports.

    Args:
        what: what is compiled, such as "the journal's functions".
        folder: the cache folder; None: there is none, so every start compiles.
        module: how the names of the modules begin whose functions are counted; empty: all are counted.
        total: the number of functions to count; 0: unknown.
        report: receives the lines; None: they are logged.
    """
    if getattr(_thread, "reports", False):
        yield
        return
    progress = _Progress(what, folder, module, total, report or _log)
    _thread.reports = True
    try:
        with install_listener(COMPILE_EVENT, progress):
            yield
    finally:
        _thread.reports = False
    progress.finish()


@contextmanager
def journal_compilation_reported(report: Report | None = None) -> Iterator[None]:
    """Report the compilation of the journal's functions."""
    with compilation_reported("the journal's functions", CACHE_FOLDER, report=report):
        yield


def _log(line: str) -> None:
    LOG.info(line, extra={"activity": ACTIVITY})


class _Progress(Listener):  # type: ignore[misc]  # numba has no types
    """Counts and reports the functions that one thread compiles."""

    def __init__(self, what: str, folder: Path | None, module: str, total: int, report: Report) -> None:
        self._what, self._folder, self._module, self._report = what, folder, module, report
        self._of = f" of {total}" if total else ""
        self._thread = threading.get_ident()  # numba reports the compilations of all threads
        self._count = 0
        self._began_at: float | None = None
        self._reported_at = 0.0

    def on_start(self, event: Event) -> None:
        """Numba begins to compile a function."""
        if threading.get_ident() != self._thread or self._began_at is not None:
            return
        self._began_at = self._reported_at = time.monotonic()
        later = f"later starts load them from {self._folder}"
        if self._folder is None:
            later = f"every start compiles them, unless {FOLDER_VARIABLE} names a folder of this user only"
        self._report(f"compiling {self._what}; {later}")

    def on_end(self, event: Event) -> None:
        """Numba has compiled a function and those that it calls."""
        if threading.get_ident() != self._thread:
            return
        function: Any = event.data["dispatcher"].py_func
        self._count += function.__module__.startswith(self._module)
        if time.monotonic() - self._reported_at >= INTERVAL_S:
            self._reported_at = time.monotonic()
            self._report(f"compiling {self._progress()}")

    def finish(self) -> None:
        """Report the end, if anything was compiled."""
        if self._began_at is not None:
            self._report(f"compiled {self._progress()}")

    def _progress(self) -> str:
        seconds = time.monotonic() - (self._began_at or 0.0)
        return f"{self._what}: {self._count}{self._of} in {seconds:.1f} s"
