"""Checks an audit log: every entry continues the one before, and the last is one that the records know.

What is detected: any entry that was changed, removed, inserted or moved inside the log, also at the end of a file and
where one file follows another; and a log that was truncated or replaced, as long as the records or a head that an
operator kept elsewhere know of a later entry. What is not: a log that was forged as a whole, together with the records,
by somebody who can write all of the private folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tandemfeed.admin_server.audit.chain import BadEntry, Entry, Head, check_continues, decode_entry
from tandemfeed.admin_server.audit.files import CURRENT, archived_name, first_number_in, opened_files
from tandemfeed.admin_server.records.former_database import audit_head_in_database
from tandemfeed.admin_server.records.notes import NOTES, read_notes

PROBLEMS_MAX = 20
DATABASE = "leases.sqlite"


@dataclass(slots=True)
class Verification:
    """The result.

    Attributes:
        problems: each names file and entry; empty: the chain is whole.
        notes: what was repaired after a crash.
    """

    entry_count: int = 0
    first_number: int = 0
    head: Head = field(default_factory=Head)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def find(self, problem: str) -> None:
        """Add a problem, unless there are many."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


def verify(folder: Path, *known_heads: Head | None) -> Verification:
    """Check the log in a folder.

    Args:
        known_heads: entries that the log must have, read before this is called. A head of number 0 says nothing.
    """
    heads = {head.number: head.digest for head in known_heads if head is not None and head.number}
    found, torn = Verification(), ""
    for name, opened in opened_files(folder):
        if torn and not _is_empty(opened):  # the file that is written to may end so, or its crashed writer's
            found.find(f"{torn}: the file ends in the middle of an entry, and another one follows it")
            torn = ""
        if not _verify_file(name, opened, heads, found):
            torn = name
    for number in sorted(each for each in heads if each > found.head.number):
        found.find(f"the log ends with entry {found.head.number}; entry {number} was written, so the end is missing")
    return found


def noted_head(folder: Path) -> Head | None:
    """The head that the records in a state folder know; None if they know none.

    Raises:
        OSError: the records cannot be read.
    """
    known = read_notes(folder / NOTES).audit_head or audit_head_in_database(folder / DATABASE)
    return None if known is None else Head(*known)


def _is_empty(opened: BinaryIO) -> bool:
    return os.fstat(opened.fileno()).st_size == 0


def _verify_file(name: str, opened: BinaryIO, heads: dict[int, str], found: Verification) -> bool:
    """Check a file; False if it ends in the middle of an entry."""
    line_count, is_whole = 0, True
    for line in opened:
        if not line.endswith(b"\n"):
            is_whole = False
            break
        line_count += 1
        place = f"{name}, line {line_count}"
        entry = _entry_in(line[:-1], place, found)
        if entry is None:
            continue
        if line_count == 1 and name not in (CURRENT, archived_name(entry.number)):
            found.find(f"{place}: the file begins with entry {entry.number}, so its name is wrong")
        _note(entry, place, heads, found)
    if not line_count and name != CURRENT:
        number = first_number_in(name)
        found.find(f"{name}: the file has no entry; its name says that it began with entry {number}")
    return is_whole


def _entry_in(line: bytes, place: str, found: Verification) -> Entry | None:
    """The entry in a line; None if there is none. Finds a problem unless it continues the chain."""
    entry = None
    try:
        entry = decode_entry(line)
        if found.entry_count:
            check_continues(entry, found.head)
        elif entry.number == 1:
            check_continues(entry, Head())
    except BadEntry as bad:
        found.find(f"{place} (entry {found.head.number + 1}): {bad}")
    return entry  # the check continues from it, even if it does not continue the chain


def _note(entry: Entry, place: str, heads: dict[int, str], found: Verification) -> None:
    found.first_number = found.first_number or entry.number
    found.entry_count += 1
    found.head = entry.head
    if heads.get(entry.number, found.head.digest) != found.head.digest:
        found.find(f"{place}: entry {entry.number} is not the one that was written; the log was replaced")
    if entry.event == "audit log repaired":
        found.notes.append(f"{place}: a damaged end was set aside in {entry.fields.get('kept_as')} at a start")
    if entry.event == "audit entries missing":
        known = entry.fields.get("known_number")
        found.find(f"{place}: entries {entry.number} to {known} had been written, and were lost or removed")
