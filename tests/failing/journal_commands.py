"""The journal's commands on a real journal, one of whose calls fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.failing.outcomes import problems_of_end
from tests.failing_calls import Fault, failing_calls
from tests.journal.journals_made import made, numbered

RECORD_COUNT = 200
COMMAND_S = 120.0


class Outcome(NamedTuple):
    """What a command has done. Attributes: files: what it has written."""

    status: int
    out: bytes
    files: dict[str, bytes]


class JournalCommands:
    """A journal, and what each command says about it when nothing fails.

    Attributes:
        folder: part of the paths of the files.
    """

    folder = "/journal-of-commands/"

    def __init__(self, root: Path) -> None:
        self._root = root / self.folder.strip("/")
        self._root.mkdir()
        made(self._root / "journal", numbered(RECORD_COUNT))
        journal, copy = str(self._root / "journal"), str(self._root / "replayed")
        self.commands = {
            "dump": ["dump", journal],
            "tail": ["tail", journal],
            "tail --reverse": ["tail", journal, "--reverse", "--last", "50"],
            "verify": ["verify", journal],
            "replay": ["replay", journal, "--to", copy, "--speed", "max", "--overwrite"],
        }
        self._expected = {name: self._run(name) for name in self.commands}
        assert all(each.status == 0 for each in self._expected.values())
        self._journal = self._files("journal")
        self.failed_counts: list[int] = []

    def round(self, name: str, fault: Fault) -> list[str]:
        """Run a command with a fault; returns what was wrong."""
        (self._root / "replayed").unlink(missing_ok=True)
        with failing_calls(self._command(name), fault, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as (
            process, injection,
        ):  # fmt: skip
            out, log = process.communicate(timeout=COMMAND_S)
            status = process.returncode
        self.failed_counts.append(len(injection.failed))
        found = problems_of_end(status, log.decode(), injection, was_asked=True)
        if status == 0 and Outcome(status, out, self._files("replayed")) != self._expected[name]:
            found.append(f"{fault}: {name} ended with status 0, and its output differs")
        if self._files("journal") != self._journal:
            found.append(f"{fault}: {name} has changed the journal")
        if (again := self._run(name)) != self._expected[name]:
            found.append(f"{fault}: afterwards, {name} says something else: {again}")
        return [f"{name}: {each}" for each in found]

    def _run(self, name: str) -> Outcome:
        (self._root / "replayed").unlink(missing_ok=True)
        done = subprocess.run(self._command(name), capture_output=True, check=False, timeout=COMMAND_S)
        return Outcome(done.returncode, done.stdout, self._files("replayed"))

    def _command(self, name: str) -> list[str]:
        return [sys.executable, "-m", "tandemfeed.deploy.command", "journal", *self.commands[name]]

    def _files(self, folder: str) -> dict[str, bytes]:
        path = self._root / folder
        if path.is_file():
            return {folder: path.read_bytes()}
        return {each.name: each.read_bytes() for each in path.glob("*.tfj")}
