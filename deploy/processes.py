"""Processes of a cluster on one machine: started with their logs in files, waited for by events, paused, killed.

Never leaves one behind: each dies with the process that started it, whatever happens to that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from deploy.command import DISK_VARIABLE, HOST_VARIABLE, LEASH_VARIABLE, NICE_VARIABLE

STOP_TIMEOUT_S = 15.0
LOG_TAIL_LINES = 15
LINES_KEPT_MAX = (
    4_096  # of each stream, in memory; the log's file has all. A process gone wrong may log for every packet
)


class ProcessFailed(Exception):
    """A process of the cluster ended, or did not say what it should have said; the text has the tail of its log."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs.

    Attributes:
        host: path of its network namespace; empty: that of the process that starts it.
        disk: a folder that becomes a disk of its own, and its size in bytes.
        nice: how much it yields the processor to the others.
    """

    host: str = ""
    disk: tuple[Path, int] | None = None
    nice: int = 0

    def environment(self) -> dict[str, str]:
        """What tells the process."""
        told = {LEASH_VARIABLE: "1", NICE_VARIABLE: str(self.nice), HOST_VARIABLE: self.host}
        if self.disk is not None:
            told[DISK_VARIABLE] = f"{self.disk[1]}:{self.disk[0].absolute()}"
        return told


class SaidLines:
    """What a process said, one JSON object a line: the newest `kept_max` lines, and how many there were in all.

    Not for several threads at once.
    """

    def __init__(self, kept_max: int = LINES_KEPT_MAX) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=kept_max)
        self.count = 0

    def add(self, line: dict[str, Any]) -> None:
        """The next line."""
        self._kept.append(line)
        self.count += 1

    def find(self, event: str, since: int = 0) -> dict[str, Any] | None:
        """The first line kept with this event; None if there is none.

        Args:
            since: how many lines, from the process's first, to pass over.
        """
        passed_over = max(0, since - (self.count - len(self._kept)))
        return next((line for line in islice(self._kept, passed_over, None) if line.get("event") == event), None)


class ManagedProcess:
    """One `tandemfeed` sub-command as a process.

    Args:
        name: for people, and of its log file.
        arguments: the sub-command and its options.
        logs: folder of the log files.
        on_ended: called once, from a thread, when it has ended.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        logs: Path,
        *,
        place: Place | None = None,
        on_ended: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._events = SaidLines()
        self._logged = SaidLines()
        self._changed = threading.Condition()
        self._is_ended = False
        self._on_ended = on_ended
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.command", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(place or Place()).environment()},
        )
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        self._log_reader = threading.Thread(target=self._keep_log, args=(stderr,), name=f"log-{name}", daemon=True)
        self._log_reader.start()
        threading.Thread(target=self._read, args=(stdout,), name=f"read-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until it ended."""
        return self._process.poll() is None

    @property
    def logged_count(self) -> int:
        """Lines of its log so far."""
        return self._logged.count

    def has_said(self, event: str) -> bool:
        """True if a line on its stdout had this event."""
        with self._changed:
            return self._events.find(event) is not None

    def await_event(self, event: str, timeout_s: float) -> dict[str, Any]:
        """The first line on its stdout with this event.

        Raises:
            ProcessFailed: it ended before, or said nothing in time.
        """
        return self._await(self._events, event, 0, timeout_s)

    def await_log(self, event: str, timeout_s: float, *, since: int = 0) -> dict[str, Any]:
        """The first line of its log with this event.

        Args:
            since: lines of its log to pass over, as `logged_count` told.

        Raises:
            ProcessFailed: it ended before, or logged nothing of it in time.
        """
        return self._await(self._logged, event, since, timeout_s)

    def say(self, line: str) -> None:
        """Write a line to its stdin.

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
        """Its exit status.

        Raises:
            ProcessFailed: it did not end in time.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failed(f"did not end within {timeout_s:.0f} s") from None

    def pause(self) -> None:
        """SIGSTOP: it stands still, and its connections stand."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: no chance to say good-bye."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """SIGTERM, which a paused process hears as well."""
        self._process.terminate()
        self.resume()

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if that does not help; the exit status."""
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
            self._log_reader.join(1.0)
        tail = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        text = "\n    ".join(tail) or "(its log is empty)"
        return ProcessFailed(f"{self.name} {what}; the end of {self.log}:\n    {text}")

    # ---- inside ----

    def _await(self, lines: SaidLines, event: str, since: int, timeout_s: float) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: lines.find(event, since) is not None or self._is_ended, timeout_s)
            found = lines.find(event, since)
        if found is None:
            raise self.failed(f"said no {event!r} within {timeout_s:.0f} s" if self.is_running else "ended")
        return found

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._take(line, self._events)
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._process.wait()
        if self._on_ended is not None:
            self._on_ended()

    def _keep_log(self, stderr: IO[str]) -> None:
        with self.log.open("a", buffering=1) as log:
            for line in stderr:
                log.write(line)
                self._take(line, self._logged)

    def _take(self, line: str, lines: SaidLines) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return
        if isinstance(event, dict):
            with self._changed:
                lines.add(event)
                self._changed.notify_all()
