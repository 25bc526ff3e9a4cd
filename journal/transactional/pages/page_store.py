"""A thin shell around SQLite: one connection writes and makes checkpoints, the other reads committed data.

Only one connection writes or makes checkpoints, under one lock. This is simple, and avoids SQLite's WAL-reset bug
(before 3.51.3), which needs two. Readers fetch all rows of a query together, so no reader delays a checkpoint.

After an I/O error nothing more is written: what SQLite writes again through the page cache need not reach the disk, and
a checkpoint would then empty the log, which has it. The reading connection cannot write, so closing it last makes no
checkpoint; the next opening first makes everything durable (recovery.py).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from tandemfeed.journal.format.access import Access
from tandemfeed.journal.transactional.errors import StoreCorrupt, StoreFailed, StoreFull, TransactionalStoreError
from tandemfeed.journal.transactional.limits import StoreLimits
from tandemfeed.journal.transactional.log.changes import Changes, Positions
from tandemfeed.journal.transactional.pages.disk_reserve import DiskReserve
from tandemfeed.journal.transactional.pages.recovery import LOG_SUFFIX, make_durable
from tandemfeed.journal.transactional.pages.schema import (
    FILE_NAME,
    PAGE_SIZE,
    PAGES_MAX,
    check_file,
    check_version,
    connect,
    create,
    explained,
)
from tandemfeed.journal.transactional.transactions.contents import Entry
from tandemfeed.runtime import durable

LOG = logging.getLogger("tandemfeed.journal")
Row = tuple[int, ...]


class PageStore:
    """The open database."""

    def __init__(self, folder: Path, access: Access, limits: StoreLimits) -> None:
        self._access = access
        self.path = folder / FILE_NAME
        self._log_path = folder / (FILE_NAME + LOG_SUFFIX)
        self._write_lock, self._read_lock = Lock(), Lock()
        self._limits = limits
        self._may_grow, self._has_failed = True, False
        self._reserve = DiskReserve(folder, limits.log_bytes_max, access)
        make_durable(self.path, PAGE_SIZE)
        try:
            reserved_end = self._open()
        except StoreFull:
            if not self._reserve.exists:
                raise
            self._reserve.spend()
            reserved_end = self._open()
        self.positions = Positions(next=reserved_end, reserved_end=reserved_end)
        self._grow(allowed=self._reserve.make())

    def _open(self) -> int:
        """Open both connections, and return the end of the reserved positions."""
        opened: list[sqlite3.Connection] = []
        try:
            if not check_file(self.path):
                create(self.path, self._access)
            for may_write in (True, False):
                opened.append(connect(self.path, cache_bytes=self._limits.page_cache_bytes, may_write=may_write))
            self._writer, self._reader = opened
            check_version(self.path, self._reader.execute("PRAGMA user_version").fetchone()[0])  # the log's may differ
            self._probe()
            self._reader.execute("PRAGMA query_only=ON")
            durable.sync_folder(self.path.parent)  # the log may be new; SQLite ignores an error of this flush
            reserved_end: int = self._reader.execute("SELECT position_reserved_end FROM counter").fetchone()[0]
            return reserved_end
        except BaseException as error:
            for database in opened:  # the reading one last
                database.close()
            if isinstance(error, sqlite3.Error):
                raise explained(error, self.path) from error
            raise

    def _probe(self) -> None:
        """Try a write that changes nothing: SQLite opens read-only files without an error."""
        self._writer.execute("BEGIN IMMEDIATE")
        self._writer.execute("UPDATE counter SET id = id")
        self._writer.execute("ROLLBACK")

    # --- writing: the log writer's thread only ---

    def write(self, changes: Changes) -> None:
        """Make a group durable.

        Raises:
            StoreFull, StoreLocked and others: nothing was done. StoreFailed: the flush failed; the outcome is unknown.
        """
        reserved_end = changes.reserve_positions()
        with self.transaction() as database:
            _insert(database, changes)
            _remove(database, changes)
            if reserved_end is not None:
                database.execute("UPDATE counter SET position_reserved_end = ?", (reserved_end,))
        if reserved_end is not None:
            self.positions.reserved_end = reserved_end

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction on the writing connection: durable when the block ends, nothing done if it raises."""
        with self._write_lock:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                yield self._writer
            except BaseException as error:
                self._roll_back()
                if isinstance(error, sqlite3.Error):
                    raise self._explained(error) from error
                raise
            try:
                self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                refused = self._explained(error)
                if isinstance(refused, StoreFull):
                    raise refused from error
                raise StoreFailed(f"{self.path}: {error} while a group was flushed: open the store again") from error

    def _explained(self, error: sqlite3.Error) -> TransactionalStoreError:
        found = explained(error, self.path)
        if not self._may_grow and isinstance(found, StoreFull):
            needed = self._limits.log_bytes_max
            return StoreFull(
                f"{self.path}: the disk lacks {needed} bytes for the log. Free disk space or consume messages"
            )
        return found

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def free_space(self) -> bool:
        """After StoreFull: free space, or detect that some is free again. Returns whether to try again."""
        if not self._reserve.exists:
            if not self._reserve.make():
                return False
            self._grow(allowed=True)
            return True
        if not self._reserve.is_disk_low():
            return False  # the limit reached is store_bytes_max
        self._reserve.spend()
        with contextlib.suppress(StoreFull):
            self.checkpoint()
        self._grow(allowed=False)
        return True

    def _grow(self, *, allowed: bool) -> None:
        """Allow the database to grow to its limit, or keep it at its present size."""
        self._may_grow = allowed
        pages_max = self._limits.store_bytes_max // PAGE_SIZE or PAGES_MAX
        if not allowed:
            pages_max = min(pages_max, self._writer.execute("PRAGMA page_count").fetchone()[0])
        self._writer.execute(f"PRAGMA max_page_count={pages_max}")

    def log_bytes(self) -> int:
        """Size of the log."""
        try:
            return self._log_path.stat().st_size
        except FileNotFoundError:
            return 0

    def checkpoint(self) -> bool:
        """Copy the log into the database and empty it; False if another program's read prevented that.

        Raises:
            StoreFull: the log still has everything; try again.
            StoreFailed and others: the log still has everything; only `give_up` and `close` may follow.
        """
        with self._write_lock:
            try:
                self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()  # the long part: reads continue
                with self._read_lock:
                    (busy, _, _) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                raise explained(error, self.path) from error
            return not busy

    def give_up(self) -> None:
        """Write nothing more, not even by closing: a flush has failed."""
        with self._write_lock:
            self._has_failed = True
            self._writer.close()

    # --- reading ---

    def rows(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """All committed rows of a query."""
        with self._read_lock:
            try:
                return self._reader.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise explained(error, self.path) from error

    def numbers(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        """All committed rows of a query whose columns are all numbers."""
        return self.rows(statement, parameters)  # type: ignore[return-value]

    def entries_after(self, queue_id: int, position: int, last_position: int, count_max: int) -> list[Entry]:
        """Entries of a queue after `position` up to `last_position`, in order."""
        found = self.numbers(
            "SELECT position, message_id, shared, delivery_count FROM entry"
            " WHERE queue_id = ? AND position > ? AND position <= ? ORDER BY position LIMIT ?",
            (queue_id, position, last_position, count_max),
        )
        return [Entry(at, message_id, True, bool(shared), count) for at, message_id, shared, count in found]

    def body(self, message_id: int, where: str) -> bytes:
        """A message's body.

        Raises:
            StoreCorrupt: the body is missing or damaged.
        """
        found = self.rows("SELECT crc32, body FROM message WHERE id = ?", (message_id,))
        if not found:
            raise StoreCorrupt(f"{self.path}: the body of {where} is missing; `delete` the message to skip it")
        crc, body = found[0]
        if not isinstance(body, bytes) or zlib.crc32(body) != crc:
            raise StoreCorrupt(f"{self.path}: the body of {where} is damaged; `delete` the message to skip it")
        return body

    def close(self) -> None:
        """Make a final checkpoint and close the files. A checkpoint that fails leaves the log to the next opening."""
        try:
            if not self._has_failed:
                self.checkpoint()
        except TransactionalStoreError as error:
            LOG.warning("%s: could not empty the log before closing: %s", self.path, error)
            self.give_up()
        with self._write_lock, self._read_lock:
            if self._has_failed:
                self._reader.close()
                return
            self._reader.close()
            self._writer.close()  # the last connection deletes the log, once it is empty


def _insert(database: sqlite3.Connection, changes: Changes) -> None:
    _many(database, "INSERT INTO message VALUES (?, ?, ?, ?)", changes.messages)
    _many(database, "INSERT INTO entry VALUES (?, ?, ?, ?, 0)", changes.entries)
    _many(database, "INSERT INTO prepared VALUES (?, ?, ?)", changes.prepared)
    _many(database, "INSERT INTO prepared_put VALUES (?, ?, ?, ?, ?)", changes.prepared_puts)
    _many(database, "INSERT INTO prepared_hold VALUES (?, ?, ?, ?, ?, ?)", changes.prepared_holds)
    _many(database, "INSERT INTO decided_by_hand VALUES (?, ?, ?)", changes.by_hand)


def _remove(database: sqlite3.Connection, changes: Changes) -> None:
    counts = "UPDATE entry SET delivery_count = ? WHERE queue_id = ? AND position = ?"
    _many(database, counts, changes.delivery_counts)
    _many(database, "DELETE FROM entry WHERE queue_id = ? AND position = ?", changes.removed)
    _many(database, "DELETE FROM message WHERE id = ?", changes.dropped_messages)
    released = changes.released_messages
    _many(database, "UPDATE message SET reference_count = reference_count - 1 WHERE id = ?", released)
    _many(database, "DELETE FROM message WHERE id = ? AND reference_count = 0", released)
    for table, column in (("prepared", "id"), ("prepared_put", "prepared_id"), ("prepared_hold", "prepared_id")):
        _many(database, f"DELETE FROM {table} WHERE {column} = ?", changes.decided)


def _many(database: sqlite3.Connection, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
    if rows:
        database.executemany(statement, rows)
