"""SQLite and LMDB as page stores of the transactional store: durable transactions per second, both with group commit.

Producers put transactions into one queue; one writer merges all that wait into one durable transaction of the page
store. A transaction puts one message and removes the one that was put `BACKLOG` messages before, as in a queue that is
consumed as fast as it is filled. The two sides differ only in the page store. Also measured: the same work on
`TransactionalStore`, with its locks, indexes and futures; large groups from one thread, where only the page store
works; reads of single messages; and the size on the disk.
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

from tandemfeed.journal.transactional import TransactionalStore
from tandemfeed.runtime.threads import end_process, start_thread

BODY_SIZES = (96, 1024)
PRODUCERS = (1, 4, 16)
BACKLOG = 1_000
LOG_BYTES = 32 << 20  # size of SQLite's log that leads to a checkpoint
CACHE_BYTES = 16 << 20
MAP_BYTES = 4 << 30
GROUP_MAX = 1_000
LARGE_GROUP = 500
READS = 20_000

Measured = TypeVar("Measured")


class PageStore(Protocol):
    """What a group commit needs of a page store."""

    def write(self, put: Sequence[tuple[int, bytes]], removed: Sequence[int]) -> None:
        """Put and remove messages; durable on return."""

    def read(self, number: int) -> bytes:
        """Read one message."""

    def close(self) -> None:
        """Close the files."""


class SqlitePages:
    """One row per message, a write-ahead log, one flush per group."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "pages.db"
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"cache_size=-{CACHE_BYTES >> 10}"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("PRAGMA wal_autocheckpoint=0")
        self._db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, body BLOB)")
        self._log = Path(f"{self._path}-wal")

    def write(self, put: Sequence[tuple[int, bytes]], removed: Sequence[int]) -> None:
        """Put and remove messages; durable on return."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO message VALUES (?, ?)", put)
        self._db.executemany("DELETE FROM message WHERE id = ?", ((number,) for number in removed))
        self._db.execute("COMMIT")
        if self._log.stat().st_size > LOG_BYTES:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def read(self, number: int) -> bytes:
        """Read one message."""
        body: bytes = self._db.execute("SELECT body FROM message WHERE id = ?", (number,)).fetchone()[0]
        return body

    def close(self) -> None:
        """Close the files."""
        self._db.close()


class LmdbPages:
    """One key per message, in order; copy on write, no log, two flushes per group (pages, then the root)."""

    def __init__(self, folder: Path) -> None:
        lmdb: Any = importlib.import_module("lmdb")  # a development dependency, which only benchmarks use
        self._environment = lmdb.open(str(folder / "pages"), map_size=MAP_BYTES, sync=True, metasync=True)

    def write(self, put: Sequence[tuple[int, bytes]], removed: Sequence[int]) -> None:
        """Put and remove messages; durable on return."""
        with self._environment.begin(write=True) as transaction:
            with transaction.cursor() as cursor:
                cursor.putmulti([(number.to_bytes(8, "big"), body) for number, body in put], append=True)
            for number in removed:
                transaction.delete(number.to_bytes(8, "big"))

    def read(self, number: int) -> bytes:
        """Read one message."""
        with self._environment.begin() as transaction:
            body: bytes = transaction.get(number.to_bytes(8, "big"))
            return body

    def close(self) -> None:
        """Close the files."""
        self._environment.close()


Side = Callable[[Path], PageStore]
SIDES: dict[str, Side] = {"sqlite": SqlitePages, "lmdb": LmdbPages}


class GroupCommit:
    """The writer thread, the same for both sides."""

    def __init__(self, pages: PageStore) -> None:
        self._pages = pages
        self._work: queue.SimpleQueue[tuple[bytes, threading.Event] | None] = queue.SimpleQueue()
        self._thread = start_thread(self._run, "writer", end_process)

    def commit(self, body: bytes) -> None:
        """Put a message; durable on return."""
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
    """Transactions per second of `producers` threads, each of which commits one after another."""
    stop, counts = threading.Event(), [0] * producers

    def produce(place: int) -> None:
        while not stop.is_set():
            commit()
            counts[place] += 1

    began_ns = time.monotonic_ns()
    threads = [start_thread(partial(produce, place), f"producer-{place}", end_process) for place in range(producers)]
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) * 1e9 / (time.monotonic_ns() - began_ns)


def side_rate(side: Side, size: int, producers: int, seconds: float, folder: Path) -> float:
    """Transactions per second of one side."""
    pages = side(folder)
    writer, body = GroupCommit(pages), bytes(size)
    rate = transactions_per_s(lambda: writer.commit(body), producers, seconds)
    writer.close()
    pages.close()
    return rate


def store_rate(size: int, producers: int, seconds: float, folder: Path) -> float:
    """Transactions per second of the transactional store: each takes a message, acknowledges it and puts another."""
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


def large_group_figures(side: Side, size: int, seconds: float, folder: Path) -> dict[str, float]:
    """One thread puts groups of `LARGE_GROUP` messages and removes as many; then it reads single messages."""
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


def in_temporary_folder(measure: Callable[[Path], Measured]) -> Measured:
    """Call `measure` with a new temporary folder."""
    with tempfile.TemporaryDirectory(prefix="tandemfeed-bench-") as folder:
        return measure(Path(folder))


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure each size and number of producers, on each side, `arguments.pairs` times for `arguments.seconds`."""
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
                    rates[name].append(in_temporary_folder(partial(side_rate, side, size, producers, seconds)))
                rates["store"].append(in_temporary_folder(partial(store_rate, size, producers, seconds)))
            medians = {name: round(statistics.median(measured)) for name, measured in rates.items()}
            note(f"{size}_bytes_{producers}_producers_transactions_per_s", medians)
        large = {
            name: in_temporary_folder(partial(large_group_figures, side, size, seconds)) for name, side in SIDES.items()
        }
        note(f"{size}_bytes_groups_of_{LARGE_GROUP}", large)
    return figures


if __name__ == "__main__":
    run(argparse.Namespace(pairs=1, seconds=1.0))
