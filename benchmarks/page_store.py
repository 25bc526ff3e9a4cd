"""SQLite against LMDB under the transactional store: durable transactions a second, group commit in both.

Producers put transactions into one queue; one writer merges whatever is there into one transaction of the page store
and makes it durable. A transaction puts a message, and removes the one that was put `BACKLOG` messages ago: a queue
that is consumed as fast as it is filled. What differs between the sides is the page store alone. `TransactionalStore`,
with its locks, indexes and futures, is measured beside them.
"""

from __future__ import annotations

import argparse
import importlib
import queue
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

BODY_SIZES = (96, 1024)
PRODUCERS = (1, 4, 16)
BACKLOG = 1_000
LOG_BYTES = 32 << 20  # of SQLite's log, before a checkpoint
CACHE_BYTES = 16 << 20
MAP_BYTES = 4 << 30
GROUP_MAX = 1_000


class PageStore(Protocol):
    """What a group commit asks of a page store."""

    def write(self, put: Sequence[tuple[int, bytes]], removed: Sequence[int]) -> None:
        """Durable on return."""

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

    def close(self) -> None:
        """Let go of the files."""
        self._environment.close()


class GroupCommit:
    """The writer thread; the same for both sides."""

    def __init__(self, pages: PageStore) -> None:
        self._pages = pages
        self._work: queue.SimpleQueue[tuple[bytes, threading.Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writer")
        self.groups = 0
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
            self.groups += 1
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


def measure(side: type[SqlitePages] | type[LmdbPages], size: int, producers: int, seconds: float) -> dict[str, float]:
    """One side, one size of message, so many producers."""
    with tempfile.TemporaryDirectory(prefix="tandemfeed-bench-") as folder:
        pages = side(Path(folder))
        writer, body = GroupCommit(pages), bytes(size)
        rate = transactions_per_s(lambda: writer.commit(body), producers, seconds)
        writer.close()
        pages.close()
        return {"transactions_per_s": rate, "transactions_per_group": rate * seconds / max(writer.groups, 1)}


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure. `arguments.pairs` A/B pairs of `arguments.seconds` each, for each size and number of producers."""
    pairs, seconds = min(getattr(arguments, "pairs", 1), 3), getattr(arguments, "seconds", 1.5)
    figures: dict[str, object] = {}
    for size in BODY_SIZES:
        for producers in PRODUCERS:
            sides: dict[str, list[dict[str, float]]] = {"sqlite": [], "lmdb": []}
            for _ in range(pairs):
                sides["sqlite"].append(measure(SqlitePages, size, producers, seconds))
                sides["lmdb"].append(measure(LmdbPages, size, producers, seconds))
            medians = {
                name: {key: round(statistics.median(cell[key] for cell in cells), 1) for key in cells[0]}
                for name, cells in sides.items()
            }
            figures[f"{size}_bytes_{producers}_producers"] = medians
            sys.stderr.write(f"{size} bytes, {producers} producers: {medians}\n")
    return figures


if __name__ == "__main__":
    run(argparse.Namespace(pairs=1, seconds=1.5))
