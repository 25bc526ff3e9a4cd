"""Finds out whether the records are a restored backup, whose keys and rights may be older than those in use.

Each proof says that something remembers a later state than the records do:

- the audit log states the generation of the records in each entry, so a lower generation was restored;
- the folder has a mark, a file that is written at each start and stop. The records keep its content and the time of its
  last change, which no program can set, so a folder that was copied or restored as a whole has another one;
- the file of notes (`notes`) names the holder of an epoch that the database has never reserved;
- an adapter presents a start or an epoch that the records do not know (`feed.broker`).

A false alarm costs a change of keys and logins. Not detected: a virtual machine that is set back as a whole, before an
adapter returns; and records and audit log that are restored together, to a time since the last start of a server that
was killed.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.records.lease_records import ClusterRecords
from tandemfeed.admin_server.records.store import Store
from tandemfeed.runtime.durable import replace_file

MARK = "records.mark"


def sign_of_restored_records(records: ClusterRecords, audit: AuditLog) -> str:
    """Why the records must be older than they were; empty if nothing says so."""
    generation, known = records.read_generation(), audit.known_generation
    if generation < known:
        return f"the records are of generation {generation}, and the audit log knows generation {known}"
    return ""


def sign_of_restored_folder(folder: Path, store: Store) -> str:
    """Why a state folder must have been restored or copied; empty if nothing says so."""
    for feed_id, (epoch, reserved) in store.epochs_beyond().items():
        return f"epoch {epoch} of feed {feed_id} was granted, and the records know epochs up to {reserved}"
    if not store.folder_mark or store.folder_mark == _mark_in(folder):
        return ""  # the folder's first start, or the folder as this server left it
    return f"{MARK} is not the file that the records know, so the folder or a part of it was copied or restored"


def renew_mark(folder: Path, store: Store) -> None:
    """Write another mark, and record it.

    Raises:
        OSError, RecordsUnavailable: the next start takes the folder for a restored one.
    """
    replace_file(folder / MARK, secrets.token_hex(16).encode() + b"\n")
    store.note_folder_mark(_mark_in(folder))


def _mark_in(folder: Path) -> str:
    try:
        descriptor = os.open(folder / MARK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return "absent"
    try:
        found = os.fstat(descriptor)
        return f"{os.read(descriptor, 64).decode(errors='replace').strip()} {found.st_ino} {found.st_ctime_ns}"
    finally:
        os.close(descriptor)
