"""Checks a whole page store and reports its problems. Changes nothing, and can run while the store is in use."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

from tandemfeed.journal.transactional.pages.schema import connect, explained

BODIES_AT_ONCE = 64  # bodies in memory at a time; each has up to message_bytes_max bytes
CACHE_BYTES = 4 << 20

_MISCOUNTED = """
WITH used AS (
    SELECT message_id, count(*) AS count FROM (
        SELECT message_id FROM entry UNION ALL SELECT message_id FROM prepared_put
    ) GROUP BY message_id
)
SELECT id, reference_count, coalesce(used.count, 0) FROM message LEFT JOIN used ON used.message_id = id
WHERE reference_count != coalesce(used.count, 0)
"""
_WITHOUT_BODY = "SELECT queue_id, position FROM entry WHERE message_id NOT IN (SELECT id FROM message)"
_WITHOUT_QUEUE = "SELECT queue_id, count(*) FROM entry WHERE queue_id NOT IN (SELECT id FROM queue) GROUP BY queue_id"
_UNLOCKABLE = """
SELECT global_id, position FROM prepared_hold JOIN prepared ON prepared.id = prepared_id
WHERE NOT EXISTS (
    SELECT 1 FROM entry WHERE entry.queue_id = prepared_hold.queue_id AND entry.position = prepared_hold.position
)
"""


def problems_of(path: Path) -> list[str]:
    """What is wrong, in sentences; empty if nothing is.

    Args:
        path: of the page store's file.

    Raises:
        StoreCorrupt: so much is wrong that it cannot be read.
    """
    try:
        database = connect(path, cache_bytes=CACHE_BYTES, may_write=False)
        try:
            database.execute("PRAGMA query_only=ON")
            database.execute("BEGIN")  # one consistent snapshot
            return list(_problems(database))
        finally:
            database.close()
    except sqlite3.Error as error:
        raise explained(error, path) from error


def _problems(database: sqlite3.Connection) -> Iterator[str]:
    for (text,) in database.execute("PRAGMA integrity_check"):
        if text != "ok":
            yield text
    for message_id, counted, used in database.execute(_MISCOUNTED):
        yield f"message {message_id} has a reference count of {counted}, but {used} references"
    for queue_id, position in database.execute(_WITHOUT_BODY):
        yield f"message {position} of queue {queue_id} has no body"
    for queue_id, count in database.execute(_WITHOUT_QUEUE):
        yield f"{count} messages belong to queue {queue_id}, which does not exist"
    for global_id, position in database.execute(_UNLOCKABLE):
        yield f"message {position}, locked by {global_id}, does not exist"
    bodies = database.execute("SELECT id, crc32, body FROM message")
    while rows := bodies.fetchmany(BODIES_AT_ONCE):
        for message_id, crc, body in rows:
            if not isinstance(body, bytes) or zlib.crc32(body) != crc:
                yield f"the body of message {message_id} is damaged"
