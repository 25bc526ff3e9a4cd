"""The server's durable state, inside the private folder: an SQLite database, and a file of notes.

Invariants: no epoch or incarnation is ever used twice, whatever crashes. What a method that changes the database has
returned for is on the disk; what it has raised for is not done. Every commit is flushed, and none precedes one that is
not, so a commit that the disk refuses takes no other with it.

Epochs are reserved in blocks before they are needed, so that a grant during a takeover waits neither for the disk nor
for another writer: the holder is written to the notes (`notes`) before the grant is sent. That survives a crash of this
process. If the machine crashes, reserved epochs are skipped, and the restarted server waits for a full term before it
grants a lease.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemfeed.admin_server.feed.keys.channel_keys import ChannelKey, new_channel_key, new_start
from tandemfeed.admin_server.feed.keys.key_times import KeyTimes
from tandemfeed.admin_server.feed.members.registrations import NONCE_SIZE, ProcessRecord, ProcessStart
from tandemfeed.admin_server.records.database import Database
from tandemfeed.admin_server.records.former_database import drop_notes_from_database, notes_in_database
from tandemfeed.admin_server.records.lease_records import EPOCH_BLOCK, STARTS_KEPT, HistoryEvent, RecordsUnavailable
from tandemfeed.admin_server.records.notes import NOTES, Notes
from tandemfeed.runtime.durable import PRIVATE_FILE, create_file
from tandemfeed.v1 import common_pb2

EXPIRED_KEPT_NS = 2 * 3_600 * 1_000_000_000
SCHEMA = """
CREATE TABLE IF NOT EXISTS epochs (feed_id INTEGER PRIMARY KEY, reserved_end INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS failed (
    feed_id INTEGER, adapter_id INTEGER, reason TEXT NOT NULL, PRIMARY KEY (feed_id, adapter_id));
CREATE TABLE IF NOT EXISTS drained (
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
CREATE TABLE IF NOT EXISTS grants (
    feed_id INTEGER, channel_id INTEGER, identity TEXT, PRIMARY KEY (feed_id, channel_id, identity)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revoked_tokens (
    feed_id INTEGER, identity TEXT, issued_before_unix_ns INTEGER NOT NULL, PRIMARY KEY (feed_id, identity));
CREATE TABLE IF NOT EXISTS generation (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 0), value INTEGER NOT NULL, folder_mark TEXT NOT NULL);
INSERT OR IGNORE INTO generation VALUES (0, 0, '');
CREATE TABLE IF NOT EXISTS documents (kind TEXT, name TEXT, document BLOB NOT NULL, PRIMARY KEY (kind, name));
"""


class Store:
    """The records of a single admin server. Safe to call from any thread.

    Owner: the database's connection and the notes each have a lock; what is written to both is written to the database
    first.

    All methods and the constructor raise `RecordsUnavailable` if the database, or the notes, cannot be used.

    Args:
        path: of the database; the notes are beside it.
        now_unix_ns: the wall clock, which the validity of keys follows.
    """

    def __init__(
        self, path: Path, key_times: KeyTimes | None = None, now_unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.key_times, self._now_unix_ns = key_times or KeyTimes(), now_unix_ns
        try:
            if not path.exists():
                create_file(path, b"")
        except OSError as refused:
            raise RecordsUnavailable(f"{path}: {refused}") from refused
        # The file contains stream keys. SQLite gives its -wal and -shm files the same mode.
        for part in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            if part.exists():
                part.chmod(PRIVATE_FILE)
        self._database = Database(path, SCHEMA)
        self._notes = Notes(path.with_name(NOTES), notes_in_database(self._database))
        drop_notes_from_database(self._database)  # only now, because the file of notes is on the disk
        with self._database.used() as database:
            value, mark = database.execute("SELECT value, folder_mark FROM generation").fetchone()
        self._generation, self._folder_mark = int(value), str(mark)
        self._noting = threading.Lock()  # two threads may have committed

    @property
    def generation(self) -> int:
        """Counts the changes that are on the disk."""
        return self._generation

    def read_generation(self) -> int:
        """The generation as recorded."""
        return self._generation

    def raise_generation(self, at_least: int) -> None:
        """Make the generation at least this, after a restored backup; on the disk when this returns."""
        with self._changed() as database:
            database.execute("UPDATE generation SET value = MAX(value, ?)", (at_least,))

    @property
    def folder_mark(self) -> str:
        """The mark of the state folder that was last noted; empty if none was."""
        return self._folder_mark

    def note_folder_mark(self, mark: str) -> None:
        """Record the mark of the state folder; on the disk when this returns."""
        with self._changed() as database:
            database.execute("UPDATE generation SET folder_mark = ?", (mark,))
        self._folder_mark = mark

    @contextmanager
    def _changed(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which is on the disk at the end of the context."""
        with self._database.changed() as database:
            yield database
            (generation,) = database.execute("UPDATE generation SET value = value + 1 RETURNING value").fetchone()
        with self._noting:
            self._generation = max(self._generation, generation)

    def may_grant(self) -> bool:
        """Always true, because the folder's lock excludes other servers."""
        return True

    def last_lease(self, feed_id: int) -> tuple[int, int] | None:
        """The last noted (epoch, holder); None if the feed's lease was never held."""
        return self._notes.of(feed_id).lease

    def reserve_epochs(self, feed_id: int, after: int) -> int:
        """Reserve a block of epochs that follow `after`; return the last. On the disk when this returns."""
        with self._changed() as database:
            database.execute(
                "INSERT INTO epochs VALUES (?, ?) ON CONFLICT (feed_id) DO UPDATE SET "
                "reserved_end = MAX(reserved_end, excluded.reserved_end)",
                (feed_id, after + EPOCH_BLOCK),
            )
        return after + EPOCH_BLOCK

    def reserved_end(self, feed_id: int) -> int:
        """The last reserved epoch; 0 if none. Every epoch that was granted had been reserved, whatever the database
        knows: it may be a restored backup."""
        last = self.last_lease(feed_id)
        reserved = self._reserved_in_database(feed_id)
        return reserved if last is None else max(last[0], reserved)

    def epochs_beyond(self) -> dict[int, tuple[int, int]]:
        """Feeds of which a later epoch was granted than the database ever reserved: that epoch, and the last reserved.

        None, unless the database is older than the notes.
        """
        leases = {feed_id: self._notes.of(feed_id).lease for feed_id in self._notes.feed_ids}
        known = {feed_id: (lease[0], self._reserved_in_database(feed_id)) for feed_id, lease in leases.items() if lease}
        return {feed_id: (epoch, reserved) for feed_id, (epoch, reserved) in known.items() if epoch > reserved}

    def _reserved_in_database(self, feed_id: int) -> int:
        with self._database.used() as database:
            row = database.execute("SELECT reserved_end FROM epochs WHERE feed_id = ?", (feed_id,)).fetchone()
        return int(row[0]) if row else 0

    def note_lease(self, feed_id: int, epoch: int, adapter_id: int) -> None:
        """Note the holder, so that it may continue after a restart of the server; does not wait for the disk."""
        self._notes.note_lease(feed_id, epoch, adapter_id)

    def noted_ttl_ns(self, feed_id: int) -> int:
        """The longest term that may have been announced; 0 if none was noted."""
        return self._notes.of(feed_id).ttl_ns

    def note_ttl(self, feed_id: int, ttl_ns: int) -> None:
        """Note the longest term; does not wait for the disk."""
        self._notes.note_ttl(feed_id, ttl_ns)

    def newest_session(self, feed_id: int) -> int:
        """The newest noted session; 0 if none."""
        return self._notes.of(feed_id).session

    def note_session(self, feed_id: int, session: int) -> None:
        """Note the session that the feed's adapters have begun; does not wait for the disk."""
        self._notes.note_session(feed_id, session)

    def failed_adapters(self, feed_id: int) -> dict[int, str]:
        """adapter_id -> reason, for the adapters that were failed and not readmitted."""
        with self._database.used() as database:
            return dict(
                database.execute("SELECT adapter_id, reason FROM failed WHERE feed_id = ?", (feed_id,)).fetchall()
            )

    def note_failed(self, feed_id: int, adapter_id: int, reason: str) -> None:
        """Record that an adapter is failed; on the disk when this returns."""
        with self._changed() as database:
            database.execute("INSERT OR REPLACE INTO failed VALUES (?, ?, ?)", (feed_id, adapter_id, reason))

    def note_readmitted(self, feed_id: int, adapter_id: int) -> None:
        """Record that an adapter is no longer failed; on the disk when this returns."""
        with self._changed() as database:
            database.execute("DELETE FROM failed WHERE feed_id = ? AND adapter_id = ?", (feed_id, adapter_id))

    def drained_adapters(self, feed_id: int) -> dict[int, str]:
        """adapter_id -> reason, for the adapters that were drained and not undrained."""
        with self._database.used() as database:
            return dict(
                database.execute("SELECT adapter_id, reason FROM drained WHERE feed_id = ?", (feed_id,)).fetchall()
            )

    def note_drained(self, feed_id: int, adapter_id: int, reason: str) -> None:
        """Record that an adapter is drained; on the disk when this returns."""
        with self._changed() as database:
            database.execute("INSERT OR REPLACE INTO drained VALUES (?, ?, ?)", (feed_id, adapter_id, reason))

    def note_undrained(self, feed_id: int, adapter_id: int) -> None:
        """Record that an adapter is no longer drained; on the disk when this returns."""
        with self._changed() as database:
            database.execute("DELETE FROM drained WHERE feed_id = ? AND adapter_id = ?", (feed_id, adapter_id))

    def history(self, feed_id: int) -> list[HistoryEvent]:
        """The last noted events, the newest last."""
        return list(self._notes.of(feed_id).history)

    def note_history(self, feed_id: int, events: list[HistoryEvent]) -> None:
        """Note the last events; does not wait for the disk."""
        self._notes.note_history(feed_id, events)

    def new_start(self, feed_id: int, adapter_id: int, public_key: bytes) -> common_pb2.AdapterStart:
        """A new start, with an incarnation that no other start ever had; on the disk when this returns."""
        with self._changed() as database:
            start = new_start(public_key)
            cursor = database.execute(
                "INSERT INTO starts (feed_id, adapter_id, salt, public_key, since_unix_ns) VALUES (?, ?, ?, ?, ?)",
                (feed_id, adapter_id, start.salt, public_key, start.since_unix_ns),
            )
            assert cursor.lastrowid is not None
            start.incarnation = cursor.lastrowid
            # SQLite remembers the highest number (AUTOINCREMENT), so the rows need not be kept for that.
            database.execute(
                "DELETE FROM starts WHERE feed_id = ? AND adapter_id = ? AND incarnation NOT IN (SELECT incarnation "
                "FROM starts WHERE feed_id = ? AND adapter_id = ? ORDER BY incarnation DESC LIMIT ?)",
                (feed_id, adapter_id, feed_id, adapter_id, STARTS_KEPT),
            )
            return start

    def newest_incarnation(self) -> int:
        """The newest incarnation that any start had; 0 if none."""
        with self._database.used() as database:
            row = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'starts'").fetchone()
        return int(row[0]) if row else 0

    def skip_incarnations(self, after: int) -> None:
        """Make later starts have incarnations after this; on the disk when this returns."""
        if self.newest_incarnation() < after:
            with self._changed() as database:
                database.execute("INSERT INTO starts VALUES (?, 0, 0, x'', x'', 0)", (after,))
                database.execute("DELETE FROM starts WHERE incarnation = ? AND feed_id = 0", (after,))

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
        with self._changed() as database:
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
        with self._changed() as database:
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
        now_unix_ns = self._now_unix_ns()
        with self._database.used() as database:
            keys = _select_keys(database, feed_id, channel_id, now_unix_ns)
        if self._next_begins_ns(keys, now_unix_ns) is None:
            return keys
        with self._changed() as database:
            keys = _select_keys(database, feed_id, channel_id, now_unix_ns)  # another thread may have created it
            begins = self._next_begins_ns(keys, now_unix_ns)
            if begins is not None:
                self._note_begun(database, keys, now_unix_ns)
                _delete_expired(database, now_unix_ns)
                keys.append(_insert_key(database, feed_id, channel_id, begins, begins + self.key_times.valid_ns))
        return keys

    def _next_begins_ns(self, keys: list[ChannelKey], now_unix_ns: int) -> int | None:
        return self.key_times.next_begins_ns(keys[-1].expires_unix_ns if keys else None, now_unix_ns)

    def replace_stream_key(self, feed_id: int, channel_id: int, lead_ns: int) -> None:
        """Create a new key, and let the channel's other keys expire soon; on the disk when this returns."""
        now_unix_ns, times, channel = self._now_unix_ns(), self.key_times, (feed_id, channel_id)
        begins = now_unix_ns + lead_ns
        with self._changed() as database:
            keys = _select_keys(database, feed_id, channel_id, now_unix_ns)
            for key in keys:
                if times.begins_in_ns(key.not_before_unix_ns, now_unix_ns):
                    database.execute("DELETE FROM channel_keys WHERE key_id = ?", (key.key_id,))
            self._note_begun(database, keys, now_unix_ns)
            _delete_expired(database, now_unix_ns)
            database.execute(
                "UPDATE channel_keys SET expires_unix_ns = MIN(expires_unix_ns, ?) "
                "WHERE feed_id = ? AND channel_id = ?",
                (now_unix_ns + times.rotation_kept_ns, *channel),
            )
            _insert_key(database, feed_id, channel_id, begins, begins + times.valid_ns)

    def _note_begun(self, database: sqlite3.Connection, keys: list[ChannelKey], now_unix_ns: int) -> None:
        """Keys that have begun by a clock that was set back since have begun now: a new one must come after them."""
        for key in keys:
            is_ahead = key.not_before_unix_ns > now_unix_ns
            if is_ahead and not self.key_times.begins_in_ns(key.not_before_unix_ns, now_unix_ns):
                statement = "UPDATE channel_keys SET not_before_unix_ns = ? WHERE key_id = ?"
                database.execute(statement, (now_unix_ns, key.key_id))

    # ---- rights that were given out ----

    def granted(self, feed_id: int) -> dict[int, set[str]]:
        """channel_id -> the identities that may have its keys."""
        with self._database.used() as database:
            rows = database.execute("SELECT channel_id, identity FROM grants WHERE feed_id = ?", (feed_id,)).fetchall()
        found: dict[int, set[str]] = {}
        for channel_id, identity in rows:
            found.setdefault(channel_id, set()).add(identity)
        return found

    def note_granted(self, feed_id: int, channel_ids: Collection[int], identity: str) -> None:
        """Record that an identity is about to get keys; on the disk when this returns."""
        with self._changed() as database:
            rows = [(feed_id, channel_id, identity) for channel_id in channel_ids]
            database.executemany("INSERT OR IGNORE INTO grants VALUES (?, ?, ?)", rows)

    def forget_granted(self, feed_id: int, channel_id: int, identities: Collection[str]) -> None:
        """Record that the keys that these identities have are no longer used; on the disk when this returns."""
        with self._changed() as database:
            rows = [(feed_id, channel_id, identity) for identity in identities]
            database.executemany("DELETE FROM grants WHERE feed_id = ? AND channel_id = ? AND identity = ?", rows)

    def revoked_tokens(self, feed_id: int) -> dict[str, int]:
        """identity ("": all) -> the time before which its tokens were revoked."""
        with self._database.used() as database:
            return dict(
                database.execute(
                    "SELECT identity, issued_before_unix_ns FROM revoked_tokens WHERE feed_id = ?", (feed_id,)
                ).fetchall()
            )

    def note_revoked_tokens(self, feed_id: int, revoked: dict[str, int]) -> None:
        """Record what `revoked_tokens` returns from now on; on the disk when this returns."""
        with self._changed() as database:
            database.execute("DELETE FROM revoked_tokens WHERE feed_id = ?", (feed_id,))
            rows = [(feed_id, identity, issued_before) for identity, issued_before in revoked.items()]
            database.executemany("INSERT INTO revoked_tokens VALUES (?, ?, ?)", rows)

    def audit_head(self) -> tuple[int, str] | None:
        """The last noted entry of the audit log: number and digest."""
        return self._notes.audit_head

    def note_audit_head(self, number: int, digest: str) -> None:
        """Remember the last entry of the audit log; does not wait for the disk."""
        self._notes.note_audit_head(number, digest)

    def documents(self, kind: str) -> dict[str, bytes]:
        """Every document of a kind, by its name."""
        with self._database.used() as database:
            return dict(database.execute("SELECT name, document FROM documents WHERE kind = ?", (kind,)).fetchall())

    def note_document(self, kind: str, name: str, document: bytes) -> None:
        """Record a document; on the disk when this returns."""
        with self._changed() as database:
            database.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (kind, name, document))

    def close(self) -> None:
        """Close the database and the notes."""
        self._notes.close()
        self._database.close()


def _select_keys(database: sqlite3.Connection, feed_id: int, channel_id: int, now: int) -> list[ChannelKey]:
    rows = database.execute(
        "SELECT key_id, channel_id, key, decision_key, not_before_unix_ns, expires_unix_ns FROM channel_keys "
        "WHERE feed_id = ? AND channel_id = ? AND expires_unix_ns > ? ORDER BY not_before_unix_ns, expires_unix_ns",
        (feed_id, channel_id, now),
    ).fetchall()
    return [ChannelKey(*row) for row in rows]


def _delete_expired(database: sqlite3.Connection, now_unix_ns: int) -> None:
    """Delete keys that have expired, even if the clock is set back by an hour."""
    database.execute("DELETE FROM channel_keys WHERE expires_unix_ns < ?", (now_unix_ns - EXPIRED_KEPT_NS,))


def _insert_key(database: sqlite3.Connection, feed_id: int, channel_id: int, begins: int, ends: int) -> ChannelKey:
    taken = {int(row[0]) for row in database.execute("SELECT key_id FROM channel_keys")}
    made = new_channel_key(channel_id, begins, ends, taken)
    database.execute(
        "INSERT INTO channel_keys (key_id, feed_id, channel_id, key, decision_key, "
        "not_before_unix_ns, expires_unix_ns) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (made.key_id, feed_id, channel_id, made.key, made.decision_key, begins, ends),
    )
    return made
