"""The server's durable state: epochs, incarnations and stream keys, in SQLite inside the private folder.

Invariant: no epoch or incarnation is ever used twice, whatever crashes. Epochs are reserved in blocks before they are
needed, so that a grant during a takeover does not wait for the disk: the holder is written before the grant is sent,
but only to the page cache. That survives a crash of this process. If the machine crashes, reserved epochs are skipped,
and the restarted server waits for a full term before it grants a lease.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemfeed.admin_server.feed.channel_keys import ChannelKey, new_channel_key, new_start
from tandemfeed.admin_server.feed.key_times import KeyTimes
from tandemfeed.admin_server.feed.registrations import NONCE_SIZE, ProcessRecord, ProcessStart
from tandemfeed.admin_server.records.lease_records import EPOCH_BLOCK, STARTS_KEPT, RecordsUnavailable
from tandemfeed.v1 import common_pb2

SCHEMA = """
CREATE TABLE IF NOT EXISTS epochs (feed_id INTEGER PRIMARY KEY, reserved_end INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS leases (feed_id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, adapter_id INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS terms (feed_id INTEGER PRIMARY KEY, ttl_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (feed_id INTEGER PRIMARY KEY, session INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS failed (
    feed_id INTEGER, adapter_id INTEGER, reason TEXT NOT NULL, PRIMARY KEY (feed_id, adapter_id));
CREATE TABLE IF NOT EXISTS starts (
    incarnation INTEGER PRIMARY KEY AUTOINCREMENT, feed_id INTEGER NOT NULL, adapter_id INTEGER NOT NULL,
    salt BLOB NOT NULL, public_key BLOB NOT NULL, since_unix_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS registrations (
    feed_id INTEGER, adapter_id INTEGER, incarnation INTEGER NOT NULL, rpc_endpoint TEXT NOT NULL,
    PRIMARY KEY (feed_id, adapter_id));
CREATE TABLE IF NOT EXISTS processes (
    feed_id INTEGER, adapter_id INTEGER, nonce BLOB NOT NULL, process_id INTEGER NOT NULL, host TEXT NOT NULL,
    peer TEXT NOT NULL, at_unix_ns INTEGER NOT NULL, is_attended INTEGER NOT NULL, replaced BLOB NOT NULL,
    PRIMARY KEY (feed_id, adapter_id));
CREATE TABLE IF NOT EXISTS channel_keys (
    key_id INTEGER PRIMARY KEY, feed_id INTEGER NOT NULL, channel_id INTEGER NOT NULL,
    key BLOB NOT NULL, decision_key BLOB NOT NULL,
    not_before_unix_ns INTEGER NOT NULL, expires_unix_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS documents (kind TEXT, name TEXT, document BLOB NOT NULL, PRIMARY KEY (kind, name));
"""


class Store:
    """The records of a single admin server. Safe to call from any thread.

    All methods and the constructor raise `RecordsUnavailable` if the database cannot be used.
    """

    def __init__(self, path: Path, key_times: KeyTimes | None = None) -> None:
        self.key_times = key_times or KeyTimes()
        # The file contains stream keys. SQLite gives its -wal and -shm files the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for part in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            if part.exists():
                part.chmod(0o600)
        self._database = _Database(path, "FULL", SCHEMA)
        # This connection flushes neither at commits nor at checkpoints; the other one does.
        self._leases = _Database(path, "NORMAL", "PRAGMA wal_autocheckpoint=0")

    def may_grant(self) -> bool:
        """Always true, because the folder's lock excludes other servers."""
        return True

    def last_lease(self, feed_id: int) -> tuple[int, int] | None:
        """The last recorded (epoch, holder); None if the feed's lease was never held."""
        with self._database.used() as database:
            row = database.execute("SELECT epoch, adapter_id FROM leases WHERE feed_id = ?", (feed_id,)).fetchone()
        return None if row is None else (int(row[0]), int(row[1]))

    def reserve_epochs(self, feed_id: int, after: int) -> int:
        """Reserve a block of epochs that follow `after`; return the last. On the disk when this returns."""
        with self._database.used() as database:
            database.execute(
                "INSERT INTO epochs VALUES (?, ?) ON CONFLICT (feed_id) DO UPDATE SET "
                "reserved_end = MAX(reserved_end, excluded.reserved_end)",
                (feed_id, after + EPOCH_BLOCK),
            )
        return after + EPOCH_BLOCK

    def reserved_end(self, feed_id: int) -> int:
        """The last reserved epoch; 0 if none."""
        with self._database.used() as database:
            row = database.execute("SELECT reserved_end FROM epochs WHERE feed_id = ?", (feed_id,)).fetchone()
        return int(row[0]) if row else 0

    def note_lease(self, feed_id: int, epoch: int, adapter_id: int) -> None:
        """Record the holder, so that it may continue after a restart of the server; does not wait for the disk."""
        with self._leases.used() as leases:
            leases.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", (feed_id, epoch, adapter_id))

    def noted_ttl_ns(self, feed_id: int) -> int:
        """The longest term that may have been announced; 0 if none was noted."""
        with self._database.used() as database:
            row = database.execute("SELECT ttl_ns FROM terms WHERE feed_id = ?", (feed_id,)).fetchone()
        return int(row[0]) if row else 0

    def note_ttl(self, feed_id: int, ttl_ns: int) -> None:
        """Record the longest term; does not wait for the disk."""
        with self._leases.used() as leases:
            leases.execute("INSERT OR REPLACE INTO terms VALUES (?, ?)", (feed_id, ttl_ns))

    def newest_session(self, feed_id: int) -> int:
        """The newest noted session; 0 if none."""
        with self._database.used() as database:
            row = database.execute("SELECT session FROM sessions WHERE feed_id = ?", (feed_id,)).fetchone()
        return int(row[0]) if row else 0

    def note_session(self, feed_id: int, session: int) -> None:
        """Record the session that the feed's adapters have begun; does not wait for the disk."""
        with self._leases.used() as leases:
            leases.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?)", (feed_id, session))

    def failed_adapters(self, feed_id: int) -> dict[int, str]:
        """adapter_id -> reason, for the adapters that were failed and not readmitted."""
        with self._database.used() as database:
            return dict(
                database.execute("SELECT adapter_id, reason FROM failed WHERE feed_id = ?", (feed_id,)).fetchall()
            )

    def note_failed(self, feed_id: int, adapter_id: int, reason: str) -> None:
        """Record that an adapter is failed; on the disk when this returns."""
        with self._database.used() as database:
            database.execute("INSERT OR REPLACE INTO failed VALUES (?, ?, ?)", (feed_id, adapter_id, reason))

    def note_readmitted(self, feed_id: int, adapter_id: int) -> None:
        """Record that an adapter is no longer failed; on the disk when this returns."""
        with self._database.used() as database:
            database.execute("DELETE FROM failed WHERE feed_id = ? AND adapter_id = ?", (feed_id, adapter_id))

    def new_start(self, feed_id: int, adapter_id: int, public_key: bytes) -> common_pb2.AdapterStart:
        """A new start, with an incarnation that no other start ever had; on the disk when this returns."""
        with self._database.used() as database:
            start = new_start(public_key)
            cursor = database.execute(
                "INSERT INTO starts (feed_id, adapter_id, salt, public_key, since_unix_ns) VALUES (?, ?, ?, ?, ?)",
                (feed_id, adapter_id, start.salt, public_key, start.since_unix_ns),
            )
            assert cursor.lastrowid is not None
            start.incarnation = cursor.lastrowid
            return start

    def starts(self, feed_id: int) -> dict[int, list[common_pb2.AdapterStart]]:
        """The last STARTS_KEPT starts of each adapter, the newest last."""
        with self._database.used() as database:
            rows = database.execute(
                "SELECT adapter_id, incarnation, salt, public_key, since_unix_ns FROM ("
                "  SELECT *, ROW_NUMBER() OVER (PARTITION BY adapter_id ORDER BY incarnation DESC) AS age"
                "  FROM starts WHERE feed_id = ?) WHERE age <= ? ORDER BY incarnation",
                (feed_id, STARTS_KEPT),
            ).fetchall()
        found: dict[int, list[common_pb2.AdapterStart]] = {}
        for adapter_id, incarnation, salt, public_key, since in rows:
            start = common_pb2.AdapterStart(
                incarnation=incarnation, salt=salt, public_key=public_key, since_unix_ns=since
            )
            found.setdefault(adapter_id, []).append(start)
        return found

    def note_registration(self, feed_id: int, adapter_id: int, incarnation: int, rpc_endpoint: str) -> None:
        """Record the adapter's address, for clients that ask after a restart of the server."""
        with self._database.used() as database:
            database.execute(
                "INSERT OR REPLACE INTO registrations VALUES (?, ?, ?, ?)",
                (feed_id, adapter_id, incarnation, rpc_endpoint),
            )

    def registrations(self, feed_id: int) -> dict[int, tuple[int, str]]:
        """(incarnation, RPC endpoint) of each adapter that has ever registered."""
        with self._database.used() as database:
            rows = database.execute(
                "SELECT adapter_id, incarnation, rpc_endpoint FROM registrations WHERE feed_id = ?", (feed_id,)
            ).fetchall()
        return {adapter_id: (incarnation, endpoint) for adapter_id, incarnation, endpoint in rows}

    def note_process(self, feed_id: int, adapter_id: int, record: ProcessRecord) -> None:
        """Record which process is registered as an adapter; on the disk when this returns."""
        start = record.start
        reported = (start.nonce, start.process_id, start.host, start.peer)
        noted = (record.at_unix_ns, record.is_attended, b"".join(record.replaced))
        with self._database.used() as database:
            database.execute(
                "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (feed_id, adapter_id, *reported, *noted),
            )

    def processes(self, feed_id: int) -> dict[int, ProcessRecord]:
        """adapter_id -> its last noted process."""
        with self._database.used() as database:
            rows = database.execute(
                "SELECT adapter_id, nonce, process_id, host, peer, at_unix_ns, is_attended, replaced "
                "FROM processes WHERE feed_id = ?",
                (feed_id,),
            ).fetchall()
        found: dict[int, ProcessRecord] = {}
        for adapter_id, nonce, process_id, host, peer, at_unix_ns, is_attended, joined in rows:
            replaced = tuple(joined[place : place + NONCE_SIZE] for place in range(0, len(joined), NONCE_SIZE))
            start = ProcessStart(nonce, process_id, host, peer)
            found[adapter_id] = ProcessRecord(start, at_unix_ns, bool(is_attended), replaced)
        return found

    def stream_keys(self, feed_id: int, channel_id: int) -> list[ChannelKey]:
        """The channel's keys that have not expired, ordered by the start of their validity.

        Creates the first key, and a successor when the last key is about to expire; on the disk when this returns.
        """
        now_unix_ns = time.time_ns()
        with self._database.used() as database:
            keys = _select_keys(database, feed_id, channel_id, now_unix_ns)
            begins = self.key_times.next_begins_ns(keys[-1].expires_unix_ns if keys else None, now_unix_ns)
            if begins is None:
                return keys
            made = _insert_key(database, feed_id, channel_id, begins, begins + self.key_times.valid_ns)
        return [*keys, made]

    def replace_stream_key(self, feed_id: int, channel_id: int) -> None:
        """Create a new key, and let the channel's other keys expire soon; on the disk when this returns."""
        now_unix_ns, times, channel = time.time_ns(), self.key_times, (feed_id, channel_id)
        begins = now_unix_ns + times.rotation_lead_ns
        with self._database.used() as database:
            database.execute(
                "DELETE FROM channel_keys WHERE feed_id = ? AND channel_id = ? AND not_before_unix_ns > ?",
                (*channel, now_unix_ns),
            )
            database.execute(
                "UPDATE channel_keys SET expires_unix_ns = MIN(expires_unix_ns, ?) "
                "WHERE feed_id = ? AND channel_id = ?",
                (now_unix_ns + times.rotation_kept_ns, *channel),
            )
            _insert_key(database, feed_id, channel_id, begins, begins + times.valid_ns)

    def documents(self, kind: str) -> dict[str, bytes]:
        """Every document of a kind, by its name."""
        with self._database.used() as database:
            return dict(database.execute("SELECT name, document FROM documents WHERE kind = ?", (kind,)).fetchall())

    def note_document(self, kind: str, name: str, document: bytes) -> None:
        """Record a document; on the disk when this returns."""
        with self._database.used() as database:
            database.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (kind, name, document))

    def close(self) -> None:
        """Close the database."""
        self._leases.close()
        self._database.close()


class _Database:
    """One connection, used by one thread at a time. Translates SQLite's errors to `RecordsUnavailable`.

    Args:
        synchronous: FULL: commits are on the disk; NORMAL: they are in the page cache.
        script: SQL to run when the connection opens.

    Raises:
        RecordsUnavailable: the file cannot be used.
    """

    def __init__(self, path: Path, synchronous: str, script: str) -> None:
        self._path, self._lock = path, threading.Lock()
        with self._translated():
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(f"PRAGMA synchronous={synchronous}")
            self._connection.executescript(script)

    @contextmanager
    def used(self) -> Iterator[sqlite3.Connection]:
        """The connection, for exclusive use. Rows must be fetched inside the context.

        Raises:
            RecordsUnavailable: SQLite failed; the text names the file and the error.
        """
        with self._lock, self._translated():
            yield self._connection

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


def _select_keys(database: sqlite3.Connection, feed_id: int, channel_id: int, now: int) -> list[ChannelKey]:
    rows = database.execute(
        "SELECT key_id, channel_id, key, decision_key, not_before_unix_ns, expires_unix_ns FROM channel_keys "
        "WHERE feed_id = ? AND channel_id = ? AND expires_unix_ns > ? ORDER BY not_before_unix_ns, expires_unix_ns",
        (feed_id, channel_id, now),
    ).fetchall()
    return [ChannelKey(*row) for row in rows]


def _insert_key(database: sqlite3.Connection, feed_id: int, channel_id: int, begins: int, ends: int) -> ChannelKey:
    taken = {int(row[0]) for row in database.execute("SELECT key_id FROM channel_keys")}
    made = new_channel_key(channel_id, begins, ends, taken)
    database.execute(
        "INSERT INTO channel_keys (key_id, feed_id, channel_id, key, decision_key, "
        "not_before_unix_ns, expires_unix_ns) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (made.key_id, feed_id, channel_id, made.key, made.decision_key, begins, ends),
    )
    return made
