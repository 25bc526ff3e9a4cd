"""Commands that a signal ends, whatever they are doing, and that then leave nothing half done.

The command works in a thread. The main thread only waits, for its end or for SIGINT or SIGTERM. At a signal it undoes
what the command has begun, and ends the process; the command's thread never sees the signal. An exception from a signal
handler would not do: it can leave a lock taken for which the command then waits, or be lost in a finaliser.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from tandemfeed.runtime.signals import StopSignal
from tandemfeed.runtime.threads import start_thread

Result = TypeVar("Result")
REMOVAL_TIMEOUT_S = 5.0
COMPLETION_TIMEOUT_S = 5.0  # to print the result of what is complete
SHOW_CURSOR = "\x1b[?25h"  # which a progress bar hides


class _Begun:
    """What the command has begun. Owner: `lock`, which is also held while the process is being ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.undo: list[Callable[[], object]] = []  # the oldest first
        self.is_complete = False


_BEGUN = _Begun()  # of this process's only command


def run_until_signal(work: Callable[[], Result], on_signal: Callable[[signal.Signals], object]) -> Result:
    """Do a command's work, and return its result. SIGINT or SIGTERM ends the process meanwhile, with status 128 and the
    signal's number, as shells report it.

    Args:
        work: is called in a thread. If this function is not called in the main thread, which alone receives signals,
            `work` is called here.
        on_signal: is called in the main thread after what was begun has been undone; prints why the command ends.

    Raises:
        BaseException: what `work` raised.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    _BEGUN.is_complete = False
    with StopSignal() as stop:
        working = _Working(work, stop.set)
        stop.wait()
        if not working.has_ended:
            _end(working, stop.number, on_signal)
        return working.result()


@contextmanager
def undone_by_signal(undo: Callable[[], object]) -> Iterator[None]:
    """Within this context, a signal that ends the command calls `undo`, in the main thread.

    Args:
        undo: must not wait for the command's thread, which may be anywhere; see `remove_folder`.
    """
    _BEGUN.undo.append(undo)
    try:
        yield
    finally:
        _BEGUN.undo.remove(undo)


@contextmanager
def completed_despite_signal() -> Iterator[None]:
    """A signal waits for the end of this context, such as a publication, which must be short. From its end on, what the
    command has done counts: a signal undoes nothing, and waits a little for the result to be printed."""
    with _BEGUN.lock:
        yield
        _BEGUN.is_complete = True


def remove_folder(folder: Path, *, is_kept: bool = False) -> None:
    """Remove a folder in which the command's thread may still be creating files. For `undone_by_signal`.

    Args:
        is_kept: remove only what is in it.
    """
    give_up_at_s = time.monotonic() + REMOVAL_TIMEOUT_S
    while folder.exists() and time.monotonic() < give_up_at_s:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
        elif paths := list(folder.iterdir()):
            for path in paths:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        else:
            return


class _Working(Generic[Result]):
    """The command's thread, and its result."""

    def __init__(self, work: Callable[[], Result], on_end: Callable[[], None]) -> None:
        self._work, self._on_end = work, on_end
        self._results: list[Result] = []
        self._failures: list[BaseException] = []
        self._thread = start_thread(self._run, "command", lambda _, failure: self._failures.append(failure))

    @property
    def has_ended(self) -> bool:
        return bool(self._results or self._failures)

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def result(self) -> Result:
        self._thread.join()
        if self._failures:
            raise self._failures[0]
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as failure:  # noqa: BLE001  # raised again in the main thread
            self._failures.append(failure)
        finally:
            self._on_end()


def _end(working: _Working[Result], number: signal.Signals, on_signal: Callable[[signal.Signals], object]) -> None:
    """End the process; return only if the command has ended, or has completed what it had to do and ends now."""
    with _BEGUN.lock:
        if _BEGUN.is_complete:
            working.wait(COMPLETION_TIMEOUT_S)
        if working.has_ended:
            return
        try:
            if not _BEGUN.is_complete:
                for undo in reversed(_BEGUN.undo.copy()):
                    undo()
                on_signal(number)
        except BaseException:  # noqa: BLE001  # it must end all the same
            traceback.print_exc()
        with suppress(OSError, ValueError):
            if sys.stderr.isatty():
                sys.stderr.write(SHOW_CURSOR)
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(128 + number)  # without waiting for threads, which may be in a system call that does not end
