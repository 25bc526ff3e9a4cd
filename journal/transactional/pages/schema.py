"""The page store's tables; checks a file before SQLite opens it, and creates files atomically."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from tandemfeed.journal.format.access import Access
from tandemfeed.journal.transactional.errors import (
    ForeignStore,
    NewerStore,
    StoreClosed,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    TransactionalStoreError,
)
from tandemfeed.runtime.durable import PRIVATE_FILE, flush_file, rename_file

FILE_NAME = "store.db"
APPLICATION_ID = int.from_bytes(b"TFTS", "big")
SCHEMA_VERSION = 1
PAGE_SIZE = 4096  # like the blocks of the disk and the pages of memory
PAGES_MAX = 4_294_967_294  # SQLite's own limit
_MAGIC = b"SQLite format 3\0"
_VERSION_AT, _APPLICATION_AT, _HEADER_SIZE = 60, 68, 100  # SQLite's database header, big-endian

TABLES = """
CREATE TABLE counter (id INTEGER PRIMARY KEY CHECK (id = 1), position_reserved_end INTEGER NOT NULL);
INSERT INTO counter VALUES (1, 1);
CREATE TABLE queue (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE subscriber (
    name TEXT PRIMARY KEY, pattern TEXT NOT NULL, queue_id INTEGER NOT NULL UNIQUE REFERENCES queue
) WITHOUT ROWID;
CREATE TABLE message (
    id INTEGER PRIMARY KEY, reference_count INTEGER NOT NULL, crc32 INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE TABLE entry (
    queue_id INTEGER NOT NULL, position INTEGER NOT NULL, message_id INTEGER NOT NULL, shared INTEGER NOT NULL,
    delivery_count INTEGER NOT NULL, PRIMARY KEY (queue_id, position)
) WITHOUT ROWID;
CREATE TABLE prepared (
    id INTEGER PRIMARY KEY, global_id TEXT NOT NULL UNIQUE, prepared_at_ns INTEGER NOT NULL
);
CREATE TABLE prepared_put (
    prepared_id INTEGER NOT NULL, place INTEGER NOT NULL, queue_id INTEGER NOT NULL, message_id INTEGER NOT NULL,
    size INTEGER NOT NULL, PRIMARY KEY (prepared_id, place, queue_id)
) WITHOUT ROWID;
CREATE TABLE prepared_hold (
    prepared_id INTEGER NOT NULL, queue_id INTEGER NOT NULL, position INTEGER NOT NULL, fate INTEGER NOT NULL,
    place INTEGER NOT NULL, target_id INTEGER NOT NULL, PRIMARY KEY (prepared_id, queue_id, position)
) WITHOUT ROWID;
CREATE TABLE decided_by_hand (
    global_id TEXT PRIMARY KEY, committed INTEGER NOT NULL, decided_at_ns INTEGER NOT NULL
) WITHOUT ROWID;
"""


def explained(error: sqlite3.Error, path: Path) -> TransactionalStoreError:
    """An SQLite error as an error of the store that says what to do."""
    if isinstance(error, sqlite3.ProgrammingError):  # another thread closed the store during a call
        return StoreClosed(f"{path}: the store is closed")
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:  # the latter: no space for the -shm file
        return StoreFull(f"{path}: {error}. Free disk space, consume messages, or raise store_bytes_max")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreReadOnly(f"{path}: {error}. Make the folder and its files writable for this user")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLocked(f"{path}: {error}. Another program uses the file: end it and open the store again")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(f"{path}: {error}. Restore the folder from a backup; do not delete the -wal file")
    return StoreFailed(f"{path}: {error}. See the system log for disk errors")


def check_file(path: Path) -> bool:
    """Check the file without SQLite, which would already create files next to it.

    Returns:
        Whether the file exists.

    Raises:
        ForeignStore, NewerStore, StoreReadOnly.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_SIZE)
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        raise ForeignStore(f"{path} is a folder, not a store: choose another folder") from None
    except PermissionError as error:
        raise StoreReadOnly(f"{path}: {error.strerror}. Make it readable and writable for this user") from error
    application = int.from_bytes(header[_APPLICATION_AT : _APPLICATION_AT + 4], "big")
    if not header.startswith(_MAGIC) or application != APPLICATION_ID:
        raise ForeignStore(f"{path} is not a transactional store, and was not changed: choose another folder")
    check_version(path, int.from_bytes(header[_VERSION_AT : _VERSION_AT + 4], "big"))
    return True


def check_version(path: Path, version: int) -> None:
    """Refuse a schema that this release does not know."""
    if version > SCHEMA_VERSION:
        raise NewerStore(
            f"{path} has schema version {version}; this release reads up to {SCHEMA_VERSION}: use a later release"
        )
    if version < SCHEMA_VERSION:
        raise StoreCorrupt(f"{path} has schema version {version}, which does not exist: restore it from a backup")


def create(path: Path, access: Access) -> None:
    """Create an empty store under a temporary name, and rename it once it is complete and on the disk.

    SQLite gives its log the mode and group of the database file.

    Raises:
        FlushFailed: the store is there, but after a power failure it may not be.
    """
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        access.give(descriptor)
    finally:
        os.close(descriptor)
    database = sqlite3.connect(unfinished, isolation_level=None)
    try:
        database.execute(f"PRAGMA page_size={PAGE_SIZE}")
        database.execute("PRAGMA synchronous=FULL")
        database.execute(f"PRAGMA application_id={APPLICATION_ID}")
        database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        database.executescript(f"BEGIN; {TABLES} COMMIT;")
        database.execute("PRAGMA journal_mode=WAL")
    finally:
        database.close()
    flush_file(unfinished)
    rename_file(unfinished, path)


def connect(path: Path, *, cache_bytes: int, may_write: bool = True) -> sqlite3.Connection:
    """A connection that never waits for locks and makes no automatic checkpoints.

    Args:
        may_write: False: it changes nothing, and its end makes no checkpoint.
    """
    source = path.absolute().as_uri() + ("" if may_write else "?mode=ro")
    database = sqlite3.connect(source, isolation_level=None, check_same_thread=False, timeout=0.0, uri=True)
    try:
        if database.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            raise StoreFailed(f"{path}: the file system does not support SQLite's write-ahead log: use a local disk")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("PRAGMA wal_autocheckpoint=0")
        database.execute(f"PRAGMA cache_size=-{max(cache_bytes >> 10, 1)}")
    except BaseException:
        database.close()
        raise
    return database
