"""Processes of a cluster on one machine: started with their logs in files, waited for by events, killed, cleaned up.

Never leaves one behind: each dies with the process that started it, whatever happens to that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from deploy.command import LEASH_VARIABLE, NICE_VARIABLE

STOP_TIMEOUT_S = 15.0
LOG_TAIL_LINES = 15


class ProcessFailed(Exception):
    """A process of the cluster ended, or did not say what it should have said; the text has the tail of its log."""


class ManagedProcess:
    """One `tandemfeed` sub-command as a process.

    Args:
        name: for people, and of its log file.
        arguments: the sub-command and its options.
        logs: folder of the log files.
        nice: how much it yields the processor to the others.
    """

    def __init__(self, name: str, arguments: Sequence[str], logs: Path, *, nice: int = 0) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._is_ended = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deploy.command", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, LEASH_VARIABLE: "1", NICE_VARIABLE: str(nice)},
            )
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), name=f"read-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until it ended."""
        return self._process.poll() is None

    def await_event(self, event: str, timeout_s: float) -> dict[str, Any]:
        """The first line on its stdout with this event.

        Raises:
            ProcessFailed: it ended before, or said nothing in time.
        """

        def find() -> dict[str, Any] | None:
            return next((line for line in self.events if line.get("event") == event), None)

        with self._changed:
            self._changed.wait_for(lambda: find() is not None or self._is_ended, timeout_s)
            found = find()
        if found is None:
            raise self.failed(f"said no {event!r} within {timeout_s:.0f} s" if self.is_running else "ended")
        return found

    def say(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait(self, timeout_s: float) -> int:
        """Its exit status.

        Raises:
            ProcessFailed: it did not end in time.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failed(f"did not end within {timeout_s:.0f} s") from None

    def kill(self) -> None:
        """SIGKILL: no chance to say good-bye."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if that does not help; the exit status."""
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._process.wait()

    def failed(self, what: str) -> ProcessFailed:
        """An error with the tail of the log."""
        tail = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        text = "\n    ".join(tail) or "(its log is empty)"
        return ProcessFailed(f"{self.name} {what}; the end of {self.log}:\n    {text}")

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
