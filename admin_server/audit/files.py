"""The files of an audit log, and reading them.

The log is written to `audit.jsonl`. A full or old file is renamed to `audit-NUMBER.jsonl`, after its first entry, and
the chain continues in the next one. No file is ever deleted here; a chain whose oldest files were moved away begins
later. A reader meets every file once, even if the log continues in the next one meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from tandemfeed.admin_server.audit.chain import BadEntry, Entry, decode_entry

CURRENT = "audit.jsonl"


def archived_name(first_number: int) -> str:
    """The name of a file that is no longer written to; names sort by number."""
    return f"audit-{first_number:012}.jsonl"


def first_number_in(name: str) -> int:
    """The number of the first entry of a file that is no longer written to."""
    return int(name.removeprefix("audit-").removesuffix(".jsonl"))


def audit_files(folder: Path) -> list[Path]:
    """All files of the log, the oldest first."""
    current = folder / CURRENT
    return _archived_files(folder) + ([current] if current.exists() else [])


def opened_files(folder: Path) -> Iterator[tuple[str, BinaryIO]]:
    """Every file of the log with its present name, the oldest first, opened for reading until the next is requested."""
    read: set[str] = set()
    while True:
        with ExitStack() as opened:
            current: BinaryIO | None = None
            with suppress(FileNotFoundError):
                # Before the others are listed: by then it may be one of them, and is read as that.
                current = opened.enter_context((folder / CURRENT).open("rb"))
            unread = [path for path in _archived_files(folder) if path.name not in read]
            if not unread:
                if current is not None:
                    yield CURRENT, current
                return
            for path in unread:
                read.add(path.name)
                with suppress(FileNotFoundError), path.open("rb") as archived:  # an operator may move it away
                    yield path.name, archived


def newest_entries(folder: Path, is_wanted: Callable[[Entry], bool], count_max: int) -> list[Entry]:
    """The newest entries that are wanted, the oldest first. Skips damaged lines, which `verification` reports."""
    while True:
        before = _newest_file(folder)
        found: list[Entry] = []
        with suppress(FileNotFoundError):
            for path in reversed(audit_files(folder)):
                with path.open("rb") as opened:
                    entries = [entry for entry in _entries_of(opened) if is_wanted(entry)]
                found = [*entries[-(count_max - len(found)) :], *found]
                if len(found) >= count_max:
                    break
        if _newest_file(folder) == before:
            return found


def _archived_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("audit-" + "[0-9]" * 12 + ".jsonl"))


def _newest_file(folder: Path) -> tuple[int, int]:
    """What changes whenever the log continues in another file."""
    try:
        found = os.stat(folder / CURRENT)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def _entries_of(opened: BinaryIO) -> Iterator[Entry]:
    for line in opened:
        with suppress(BadEntry):
            if line.endswith(b"\n"):
                yield decode_entry(line[:-1])
