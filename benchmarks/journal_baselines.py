"""What the journal is compared with: SQLite in WAL mode, LMDB, a plain file with write and fsync, and memcpy."""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray

from tandemfeed.runtime.threads import end_process, start_thread

KEY = struct.Struct(">Q")
LMDB_SIZE_MAX = 4 << 30
BUSY_TIMEOUT_S = 60.0


def memcpy_rate(batch: NDArray[np.uint8], total: int) -> float:
    """Bytes per second of copying the batch repeatedly into memory that is mapped already."""
    target = np.ones(total, np.uint8)
    began = time.perf_counter()
    for start in range(0, total - batch.size + 1, batch.size):
        target[start : start + batch.size] = batch
    return (total // batch.size) * batch.size / (time.perf_counter() - began)


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """A database with a write-ahead log and one table."""
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("CREATE TABLE IF NOT EXISTS messages (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    return connection


def sqlite_rates(folder: Path, record: bytes, count: int, batch: int) -> tuple[float, float, float]:
    """(batch append, single append, read) in records per second; each batch or single record is a transaction."""
    connection = connect(folder / "batch.sqlite", "NORMAL")
    rows = [(record,)] * batch
    began = time.perf_counter()
    for _ in range(count // batch):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO messages (body) VALUES (?)", rows)
        connection.execute("COMMIT")
    batched = count // batch * batch / (time.perf_counter() - began)
    singles = max(count // 50, 200)
    began = time.perf_counter()
    for _ in range(singles):
        connection.execute("INSERT INTO messages (body) VALUES (?)", (record,))
    single = singles / (time.perf_counter() - began)
    began, read = time.perf_counter(), 0
    for _ in connection.execute("SELECT sequence, body FROM messages ORDER BY sequence"):
        read += 1
    reading = read / (time.perf_counter() - began)
    connection.close()
    return batched, single, reading


def lmdb_rates(folder: Path, record: bytes, count: int, batch: int) -> tuple[float, float, float]:
    """(batch append, single append, read) in records per second, without waiting for the disk."""
    environment = lmdb.open(str(folder / "lmdb"), map_size=LMDB_SIZE_MAX, sync=False, writemap=True)
    number = 0
    began = time.perf_counter()
    for _ in range(count // batch):
        with environment.begin(write=True) as transaction:
            for _ in range(batch):
                transaction.put(KEY.pack(number), record, append=True)
                number += 1
    batched = number / (time.perf_counter() - began)
    singles = max(count // 20, 200)
    began = time.perf_counter()
    for _ in range(singles):
        with environment.begin(write=True) as transaction:
            transaction.put(KEY.pack(number), record, append=True)
        number += 1
    single = singles / (time.perf_counter() - began)
    began, read = time.perf_counter(), 0
    with environment.begin() as transaction:
        for _ in transaction.cursor():
            read += 1
    reading = read / (time.perf_counter() - began)
    environment.close()
    return batched, single, reading


def file_rates(folder: Path, record: bytes, count: int, batch: int) -> tuple[float, float]:
    """(batch append, single append) in records per second; each is one write and one fsync."""
    data = record * batch
    descriptor = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    began = time.perf_counter()
    for _ in range(count // batch):
        os.write(descriptor, data)
        os.fsync(descriptor)
    batched = count // batch * batch / (time.perf_counter() - began)
    singles = 500
    began = time.perf_counter()
    for _ in range(singles):
        os.write(descriptor, record)
        os.fsync(descriptor)
    single = singles / (time.perf_counter() - began)
    os.close(descriptor)
    return batched, single


def producers_rate(producers: int, seconds: float, make: Callable[[int], Callable[[], object]]) -> float:
    """Calls per second of several threads. `make(number)` gives a thread its call, which returns when it is durable."""
    works = [make(number) for number in range(producers)]
    counts, start = [0] * producers, threading.Barrier(producers + 1)
    ends_at = 0.0

    def run(number: int) -> None:
        work, count = works[number], 0
        start.wait()
        while time.perf_counter() < ends_at:
            work()
            count += 1
        counts[number] = count

    threads = [start_thread(partial(run, number), f"producer-{number}", end_process) for number in range(producers)]
    ends_at = time.perf_counter() + seconds
    began = time.perf_counter()
    start.wait()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def sqlite_durable_rate(folder: Path, record: bytes, producers: int, seconds: float) -> float:
    """Puts per second of several threads, each with its own connection; every put is flushed (synchronous=FULL)."""
    path = folder / "durable.sqlite"
    connect(path, "FULL").close()
    connections = [connect(path, "FULL") for _ in range(producers)]

    def make(number: int) -> Callable[[], object]:
        connection = connections[number]
        return lambda: connection.execute("INSERT INTO messages (body) VALUES (?)", (record,))

    rate = producers_rate(producers, seconds, make)
    for connection in connections:
        connection.close()
    return rate
