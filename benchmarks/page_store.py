"""SQLite against LMDB under the transactional store: durable transactions a second, group commit in both.

Producers put transactions into one queue; one writer merges whatever is there into one transaction of the page store
and makes it durable. A transaction puts a message, and removes the one that was put `BACKLOG` messages ago: a queue
that is consumed as fast as it is filled. What differs between the sides is the page store alone. Beside them:
`TransactionalStore` with its locks, indexes and futures, doing the same; large groups without threads, where the page
store is all there is; reads of one message; and the size on the disk.
"""

from __future__ import annotations

import argparse
import importlib
import queue
import random
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from journal.transactional import TransactionalStore

BODY_SIZES = (96, 1024)
PRODUCERS = (1, 4, 16)
BACKLOG = 1_000
LOG_BYTES = 32 << 20  # of SQLite's log, before a checkpoint
CACHE_BYTES = 16 << 20
MAP_BYTES = 4 << 30
GROUP_MAX = 1_000
LARGE_GROUP = 500
READS = 20_000

Measured = TypeVar("Measured")


class PageStore(Protocol):
    """What a group commit asks of a page store."""

    def write(self, put: Sequence[tuple[int, bytes]], removed: Sequence[int]) -> None:
        """Durable on return."""

    def read(self, number: int) -> bytes:
        """One message."""

    def close(self) -> None:
        """Let go of the files."""


class SqlitePages:
    """A row a message, write-ahead log, one flush a group."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "pages.db"
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"cache_size=-{CACHE_BYTES >> 10}"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("PRAGMA wal_autocheckpoint=0")
        self._db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, body BLOB)")
        self._log = Path(f"{self._path}-wal")

    def write(self, put: Sequence[tuple[int, bytes]], removed: Sequence[int]) -> None:
        """Durable on return."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO message VALUES (?, ?)", put)
        self._db.executemany("DELETE FROM message WHERE id = ?", ((number,) for number in removed))
        self._db.execute("COMMIT")
        if self._log.stat().st_size > LOG_BYTES:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def read(self, number: int) -> bytes:
        """One message."""
        body: bytes = self._db.execute("SELECT body FROM message WHERE id = ?", (number,)).fetchone()[0]
        return body

    def close(self) -> None:
        """Let go of the files."""
        self._db.close()


class LmdbPages:
    """A key a message, appended in order; copy on write, no log, two flushes a group (pages, then the root)."""

    def __init__(self, folder: Path) -> None:
        lmdb: Any = importlib.import_module("lmdb")  # a development dependency: nothing but this benchmark uses it
        self._environment = lmdb.open(str(folder / "pages"), map_size=MAP_BYTES, sync=True, metasync=True)

    def write(self, put: Sequence[tuple[int, bytes]], removed: Sequence[int]) -> None:
        """Durable on return."""
        with self._environment.begin(write=True) as transaction:
            with transaction.cursor() as cursor:
                cursor.putmulti([(number.to_bytes(8, "big"), body) for number, body in put], append=True)
            for number in removed:
                transaction.delete(number.to_bytes(8, "big"))

    def read(self, number: int) -> bytes:
        """One message."""
        with self._environment.begin() as transaction:
            body: bytes = transaction.get(number.to_bytes(8, "big"))
            return body

    def close(self) -> None:
        """Let go of the files."""
        self._environment.close()


Side = Callable[[Path], PageStore]
SIDES: dict[str, Side] = {"sqlite": SqlitePages, "lmdb": LmdbPages}


class GroupCommit:
    """The writer thread; the same for both sides."""

    def __init__(self, pages: PageStore) -> None:
        self._pages = pages
        self._work: queue.SimpleQueue[tuple[bytes, threading.Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def commit(self, body: bytes) -> None:
        """One transaction; durable on return."""
        done = threading.Event()
        self._work.put((body, done))
        done.wait()

    def close(self) -> None:
        """Stop the writer."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while (first := self._work.get()) is not None:
            group = [first]
            while len(group) < GROUP_MAX and not self._work.empty():
                if (item := self._work.get()) is None:
                    return
                group.append(item)
            put = [(number + place, body) for place, (body, _) in enumerate(group)]
            self._pages.write(put, range(max(number - BACKLOG, 0), max(number + len(group) - BACKLOG, 0)))
            number += len(group)
            for _, done in group:
                done.set()


def transactions_per_s(commit: Callable[[], object], producers: int, seconds: float) -> float:
    """Of so many threads that commit one behind the other."""
    stop, counts = threading.Event(), [0] * producers

    def produce(place: int) -> None:
        while not stop.is_set():
            commit()
            counts[place] += 1

    threads = [threading.Thread(target=produce, args=(place,)) for place in range(producers)]
    began_ns = time.monotonic_ns()
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) * 1e9 / (time.monotonic_ns() - began_ns)


def with_producers(side: Side, size: int, producers: int, seconds: float, folder: Path) -> float:
    """Transactions a second of one side."""
    pages = side(folder)
    writer, body = GroupCommit(pages), bytes(size)
    rate = transactions_per_s(lambda: writer.commit(body), producers, seconds)
    writer.close()
    pages.close()
    return rate


def of_the_store(size: int, producers: int, seconds: float, folder: Path) -> float:
    """Transactions a second of the transactional store: each takes a message, acknowledges it and puts another."""
    body = bytes(size)
    with TransactionalStore.open(folder / "store") as store:
        store.create_queue("queue")
        with store.transaction() as transaction:
            for _ in range(BACKLOG):
                transaction.put("queue", body)

        def commit() -> None:
            with store.transaction() as transaction:
                message = transaction.get("queue")
                assert message is not None
                transaction.ack(message)
                transaction.put("queue", body)

        return transactions_per_s(commit, producers, seconds)


def in_large_groups(side: Side, size: int, seconds: float, folder: Path) -> dict[str, float]:
    """One thread, groups of `LARGE_GROUP` messages put and as many removed; then reads."""
    pages, body, number = side(folder), bytes(size), 0
    began_ns = time.monotonic_ns()
    while (took_ns := time.monotonic_ns() - began_ns) < seconds * 1e9:
        put = [(place, body) for place in range(number, number + LARGE_GROUP)]
        pages.write(put, range(max(number - BACKLOG, 0), max(number + LARGE_GROUP - BACKLOG, 0)))
        number += LARGE_GROUP
    began_reads_ns, chance = time.monotonic_ns(), random.Random(1)
    for _ in range(READS):
        assert len(pages.read(chance.randrange(number - BACKLOG, number))) == size
    read_ns = (time.monotonic_ns() - began_reads_ns) / READS
    on_disk = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    pages.close()
    return {
        "messages_per_s": round(number * 1e9 / took_ns),
        "read_us": round(read_ns / 1_000, 1),
        "mib_on_disk": round(on_disk / (1 << 20), 1),
    }


def fresh(measure: Callable[[Path], Measured]) -> Measured:
    """In a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="tandemfeed-bench-") as folder:
        return measure(Path(folder))


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure. `arguments.pairs` rounds of `arguments.seconds` on each side, for each size and number of producers."""
    pairs, seconds = getattr(arguments, "pairs", 1), getattr(arguments, "seconds", 1.0)
    figures: dict[str, object] = {}

    def note(name: str, measured: object) -> None:
        figures[name] = measured
        sys.stderr.write(f"{name}: {measured}\n")

    for size in BODY_SIZES:
        for producers in PRODUCERS:
            rates: dict[str, list[float]] = {"sqlite": [], "lmdb": [], "store": []}
            for _ in range(pairs):
                for name, side in SIDES.items():
                    rates[name].append(fresh(partial(with_producers, side, size, producers, seconds)))
                rates["store"].append(fresh(partial(of_the_store, size, producers, seconds)))
            medians = {name: round(statistics.median(measured)) for name, measured in rates.items()}
            note(f"{size}_bytes_{producers}_producers_transactions_per_s", medians)
        large = {name: fresh(partial(in_large_groups, side, size, seconds)) for name, side in SIDES.items()}
        note(f"{size}_bytes_groups_of_{LARGE_GROUP}", large)
    return figures


if __name__ == "__main__":
    run(argparse.Namespace(pairs=1, seconds=1.0))
