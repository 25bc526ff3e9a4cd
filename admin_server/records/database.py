"""One connection to an SQLite database, used by one thread at a time.

Invariant: every commit is flushed. A commit that is not flushed would precede later ones in the write-ahead log; if the
disk then refuses a flush, the unflushed part is lost, and with it, after a power failure, every later commit.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemfeed.admin_server.records.lease_records import RecordsUnavailable


class Database:
    """A connection. Translates SQLite's errors to `RecordsUnavailable`.

    Owner: its lock.

    Args:
        script: SQL to run when the connection opens.

    Raises:
        RecordsUnavailable: the file cannot be used.
    """

    def __init__(self, path: Path, script: str) -> None:
        self._path, self._lock = path, threading.Lock()
        with self._translated():
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.executescript(script)

    @contextmanager
    def used(self) -> Iterator[sqlite3.Connection]:
        """The connection, for exclusive use; every statement is a transaction. Rows must be fetched inside the context.

        Raises:
            RecordsUnavailable: SQLite failed; the text names the file and the error.
        """
        with self._lock, self._translated():
            yield self._connection

    @contextmanager
    def changed(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one transaction, which is committed at the end of the context unless it raises.

        Raises:
            RecordsUnavailable: SQLite failed, and nothing was changed.
        """
        with self._lock, self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection."""
        with self._lock, self._translated():
            self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as failed:
            raise RecordsUnavailable(f"{self._path}: {failed}") from failed
