"""The files of an audit log, and reading them.

The log is written to `audit.jsonl`. A full or old file is renamed to `audit-NUMBER.jsonl`, after its first entry, and
the chain continues in the next one. No file is ever deleted here; a chain whose oldest files were moved away begins
later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tandemfeed.admin_server.audit.chain import BadEntry, Entry, decode_entry

CURRENT = "audit.jsonl"
READ_SIZE = 1 << 16


def archived_name(first_number: int) -> str:
    """The name of a file that is no longer written to; names sort by number."""
    return f"audit-{first_number:012}.jsonl"


def audit_files(folder: Path) -> list[Path]:
    """All files of the log, the oldest first."""
    current = folder / CURRENT
    return sorted(folder.glob("audit-" + "[0-9]" * 12 + ".jsonl")) + ([current] if current.exists() else [])


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, without their newlines. What follows the last newline is not read: it is being written."""
    with path.open("rb") as opened:
        for line in opened:
            if line.endswith(b"\n"):
                yield line[:-1]


def newest_entries(folder: Path, is_wanted: Callable[[Entry], bool], count_max: int) -> list[Entry]:
    """The newest entries that are wanted, the oldest first. Skips damaged lines, which `verification` reports."""
    found: list[Entry] = []
    for path in reversed(audit_files(folder)):
        try:
            entries = [entry for entry in _entries_of(path) if is_wanted(entry)]
        except FileNotFoundError:
            continue  # renamed meanwhile
        found = [*entries[-(count_max - len(found)) :], *found]
        if len(found) >= count_max:
            break
    return found


def _entries_of(path: Path) -> Iterator[Entry]:
    for line in lines_of(path):
        try:
            yield decode_entry(line)
        except BadEntry:
            continue
