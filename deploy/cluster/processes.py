"""Starts, pauses, stops and kills the processes of a cluster, writes their logs to files, and waits for their events.

No process is left behind: each dies with the process that started it, however that ends.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import psutil

from tandemfeed.deploy.command import DISK_VARIABLE, HOST_VARIABLE, LEASH_VARIABLE, NICE_VARIABLE
from tandemfeed.journal.compiled.compile_report import ACTIVITY
from tandemfeed.runtime.durable import PRIVATE_FILE
from tandemfeed.runtime.threads import mark_unhealthy, start_thread

COMMAND = "tandemfeed.deploy.command"
STOP_TIMEOUT_S = 15.0
LOG_TAIL_LINES = 15
LOG_REST_S = 1.0  # for the lines that an ended process wrote last; its children may keep the pipe open for longer
# Kept in memory per stream; the log file has all lines. A faulty process may log a line for every packet.
LINES_KEPT_MAX = 4_096


class ProcessFailed(Exception):
    """A process of the cluster ended unexpectedly or did not report an expected event; the text has its log's tail."""


@dataclass(frozen=True, slots=True)
class ProcessPlacement:
    """Where a process runs.

    Attributes:
        host: path of its network namespace; empty: that of its parent.
        disk: a folder on which to mount a small disk, and the disk's size in bytes.
        nice: added to its parent's nice value.
    """

    host: str = ""
    disk: tuple[Path, int] | None = None
    nice: int = 0

    def environment(self) -> dict[str, str]:
        """The environment variables by which `deploy.command` applies this place."""
        variables = {LEASH_VARIABLE: "1", HOST_VARIABLE: self.host, NICE_VARIABLE: str(self.nice)}
        if self.disk is not None:
            variables[DISK_VARIABLE] = f"{self.disk[1]}:{self.disk[0].absolute()}"
        return variables


class JsonLines:
    """The JSON lines that a process wrote: the newest `kept_max` lines, and the count of all. Not thread-safe."""

    def __init__(self, kept_max: int = LINES_KEPT_MAX) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=kept_max)
        self.count = 0

    def add(self, line: dict[str, Any]) -> None:
        """Add the next line."""
        self._kept.append(line)
        self.count += 1

    def find(self, event: str, since: int = 0) -> dict[str, Any] | None:
        """The first kept line with this event, or None.

        Args:
            since: how many lines to skip, counted from the first line of the process.
        """
        return next(iter(self.find_all(event, since)), None)

    def find_all(self, event: str, since: int = 0) -> list[dict[str, Any]]:
        """The kept lines with this event."""
        skipped = max(0, since - (self.count - len(self._kept)))
        return [line for line in islice(self._kept, skipped, None) if line.get("event") == event]


def _bytecode_settings(folder: Path) -> dict[str, str]:
    """The environment in which the processes write bytecode here, if they must not write it beside the sources: to
    compile its modules takes a third of a client's start, and there may be many clients."""
    if not sys.dont_write_bytecode:
        return {}
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def kill_processes() -> None:
    """Kill every process that this process has started, directly or not, and wait for their ends."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, STOP_TIMEOUT_S)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE_FILE)  # a log names identities and addresses


class ManagedProcess:
    """One `tandemfeed` sub-command as a process.

    Args:
        name: used in errors and for its log file.
        arguments: the sub-command and its options.
        logs: folder of the log files.
        on_ended: called once, in another thread, when it has ended.
        on_log: called with each line of its log, in another thread.
        module: the module to run with these arguments instead of the `tandemfeed` command.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        logs: Path,
        *,
        place: ProcessPlacement | None = None,
        on_ended: Callable[[], None] | None = None,
        on_log: Callable[[dict[str, Any]], None] | None = None,
        module: str = COMMAND,
    ) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._events = JsonLines()
        self._logged = JsonLines()
        self._changed = threading.Condition()
        self._is_ended = False
        self._failure: BaseException | None = None  # of a thread that reads what the process writes
        self._compiled_at = -math.inf  # when it last reported that it compiles
        self._on_ended, self._on_log = on_ended, on_log
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **_bytecode_settings(logs.parent), **(place or ProcessPlacement()).environment()},
        )
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        self._log_reader = start_thread(partial(self._keep_log, stderr), f"log-{name}", self._on_failed)
        start_thread(partial(self._read, stdout), f"read-{name}", self._on_failed)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until it ends."""
        return self._process.poll() is None

    @property
    def logged_count(self) -> int:
        """The number of lines in its log so far."""
        return self._logged.count

    @property
    def reported_count(self) -> int:
        """The number of lines on its standard output so far."""
        return self._events.count

    def has_reported(self, event: str) -> bool:
        """True if it has written a line with this event to its standard output."""
        with self._changed:
            return self._events.find(event) is not None

    def await_event(self, event: str, timeout_s: float, *, since: int = 0) -> dict[str, Any]:
        """Wait for the first line with this event on its standard output.

        Args:
            timeout_s: counted from the end of compilation, if it compiles: a first start may take a minute longer.
            since: how many lines to skip: an earlier `reported_count`.

        Raises:
            ProcessFailed: it ended first, or the time is over.
        """
        return self._await(self._events, event, since, timeout_s)

    def await_log(self, event: str, timeout_s: float, *, since: int = 0) -> dict[str, Any]:
        """Wait for the first line with this event in its log.

        Args:
            since: how many lines of its log to skip: an earlier `logged_count`.

        Raises:
            ProcessFailed: it ended first, or the time is over.
        """
        return self._await(self._logged, event, since, timeout_s)

    def logged(self, event: str, *, since: int = 0) -> list[dict[str, Any]]:
        """The lines with this event in its log so far; `since` as in `await_log`."""
        with self._changed:
            return self._logged.find_all(event, since)

    def send_line(self, line: str) -> None:
        """Write a line to its standard input.

        Raises:
            ProcessFailed: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.failed("ended") from None

    def wait(self, timeout_s: float) -> int:
        """Wait until it ends; returns its exit status.

        Raises:
            ProcessFailed: it did not end in time.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failed(f"did not end within {timeout_s:.0f} s") from None

    def pause(self) -> None:
        """SIGSTOP; its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """SIGTERM; a paused process is resumed to receive it."""
        self._process.terminate()
        self.resume()

    def stop(self) -> int:
        """SIGTERM, then SIGKILL if it does not end in time; returns the exit status."""
        if self.is_running:
            self.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._process.wait()

    def failed(self, what: str) -> ProcessFailed:
        """An error with the tail of the log."""
        if not self.is_running:
            self._log_reader.join(LOG_REST_S)
        tail = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        text = "\n    ".join(tail) or "(its log is empty)"
        return ProcessFailed(f"{self.name} {what}; the last lines of {self.log}:\n    {text}")

    # ---- inside ----

    def _await(self, lines: JsonLines, event: str, since: int, timeout_s: float) -> dict[str, Any]:
        began_at = time.monotonic()
        with self._changed:
            while (found := lines.find(event, since)) is None and not self._is_ended and self._failure is None:
                left_s = max(began_at, self._compiled_at) + timeout_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
        if found is None and self._failure is not None:
            raise self.failed(f"cannot be followed any more: {self._failure!r}") from self._failure
        if found is None:
            late = f"did not report {event!r} within {timeout_s:.0f} s"
            raise self.failed(late if self.is_running else f"ended before it reported {event!r}")
        return found

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._take(line, self._events)
        self._log_reader.join(LOG_REST_S)
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._process.wait()
        if self._on_ended is not None:
            self._on_ended()

    def _on_failed(self, name: str, failure: BaseException) -> None:
        """Tell those who wait for a line that none will come; every later wait fails as well."""
        mark_unhealthy(name, failure)
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _keep_log(self, stderr: IO[str]) -> None:
        with open(self.log, "a", buffering=1, opener=_private) as log:
            for line in stderr:
                log.write(line)
                event = self._take(line, self._logged)
                if event is not None and self._on_log is not None:
                    self._on_log(event)

    def _take(self, line: str, lines: JsonLines) -> dict[str, Any] | None:
        try:
            event = json.loads(line)
        except ValueError:
            return None
        if not isinstance(event, dict):
            return None
        with self._changed:
            if event.get("activity") == ACTIVITY:
                self._compiled_at = time.monotonic()
            lines.add(event)
            self._changed.notify_all()
        return event
