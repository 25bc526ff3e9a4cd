"""What a database of an earlier version has that is in the file of notes now (`notes`): read once, then removed.

The order is a promise: the tables are dropped only when the file of notes has what they say, on the disk. If an earlier
version was used in between, both are merged.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from tandemfeed.admin_server.records.database import Database
from tandemfeed.admin_server.records.lease_records import HistoryEvent
from tandemfeed.admin_server.records.notes import FeedNotes, NotedValues

TABLES = ("leases", "terms", "sessions", "history", "audit_head")


def notes_in_database(database: Database) -> NotedValues | None:
    """The notes in the tables of an earlier version; None if it has none of them.

    Raises:
        RecordsUnavailable
    """
    present = _present(database)
    if not present:
        return None
    leases, ttls = _rows(database, present, "leases"), _rows(database, present, "terms")
    sessions, histories = _rows(database, present, "sessions"), _rows(database, present, "history")
    found = NotedValues(audit_head=_rows(database, present, "audit_head").get(0))
    for feed_id in leases.keys() | ttls.keys() | sessions.keys() | histories.keys():
        (ttl_ns,), (session,) = ttls.get(feed_id, (0,)), sessions.get(feed_id, (0,))
        (events,) = histories.get(feed_id, ("[]",))
        history = tuple(HistoryEvent(*event) for event in json.loads(events))
        found.feeds[feed_id] = FeedNotes(leases.get(feed_id), ttl_ns, session, history)
    return found


def audit_head_in_database(path: Path) -> tuple[int, str] | None:
    """The last entry of the audit log that a database of an earlier version knows; None if it knows none.

    Raises:
        OSError: it cannot be read.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'audit_head'").fetchone():
                return None
            return cast(
                "tuple[int, str] | None", connection.execute("SELECT number, digest FROM audit_head").fetchone()
            )
    except sqlite3.Error as failed:
        raise OSError(f"{path}: {failed}") from failed


def drop_notes_from_database(database: Database) -> None:
    """Remove the tables; durable on return. Does nothing if there are none.

    Raises:
        RecordsUnavailable: the next start does it.
    """
    present = _present(database)
    if present:
        with database.changed() as connection:
            for table in present:
                connection.execute(f"DROP TABLE {table}")


def _present(database: Database) -> list[str]:
    with database.used() as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [table for table in TABLES if table in names]


def _rows(database: Database, present: list[str], table: str) -> dict[int, Any]:
    """The rows of a table by their first column, without it."""
    if table not in present:
        return {}
    with database.used() as connection:
        return {row[0]: row[1:] for row in connection.execute(f"SELECT * FROM {table}").fetchall()}
