"""The journal compared with SQLite, LMDB, a plain file and memcpy: append, read, latency, durable puts, recovery.

All sides run in turn, on the file system of the temporary folder. Append rates are those of appends alone, within an
existing block (another thread makes blocks in advance); `append_sustained_msgs_per_s` is the rate over many blocks,
which includes making them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tandemfeed.benchmarks.journal_baselines import (
    file_rates,
    lmdb_rates,
    memcpy_rate,
    producers_rate,
    sqlite_durable_rate,
    sqlite_rates,
)
from tandemfeed.journal import Journal
from tandemfeed.journal.persistent_queue import PersistentQueue

SIZES = (96, 1_024, 2_048, 4_096, 8_192, 10_240)
BATCH_BYTES = 960_000
BATCH_TOTAL = 384 << 20
BLOCK_SIZE = 512 << 20
SINGLE_COUNT_MAX = 300_000
SINGLE_TOTAL = 384 << 20
BASELINE_TOTAL = 24 << 20
ROUNDS = 3
PRODUCERS = 8
DURABLE_S = 3.0
LATENCY_COUNT = 200_000
TAIL_COUNT = 2_000
QUEUE_BYTES = 1 << 30


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tandemfeed-bench-") as name:
        yield Path(name)


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def append_and_read(size: int) -> dict[str, float]:
    """Median rates of the journal and of memcpy at one record size, measured in turn."""
    rows = np.random.default_rng(1).integers(0, 256, (max(BATCH_BYTES // size, 1), size), np.uint8)
    record = rows[0].tobytes()
    batches = BATCH_TOTAL // rows.nbytes
    found: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        found.setdefault(name, []).append(rate)

    for _ in range(ROUNDS):
        with _folder() as folder, Journal.open(folder, block_size=BLOCK_SIZE) as journal, journal.tailer() as tailer:
            journal.append_rows(rows)
            tailer.read_batch(len(rows))
            began = time.perf_counter()
            for _ in range(batches):
                journal.append_rows(rows)
            note("append_batch", batches * len(rows) / (time.perf_counter() - began))
            began, read = time.perf_counter(), 0
            while (batch := tailer.read_batch(65_536)) is not None:
                read += len(batch)
            note("read_batch", read / (time.perf_counter() - began))
        count = min(SINGLE_COUNT_MAX, SINGLE_TOTAL // size)
        with _folder() as folder, Journal.open(folder, block_size=BLOCK_SIZE) as journal, journal.tailer() as tailer:
            journal.append(record)
            tailer.read()
            append = journal.append
            began = time.perf_counter()
            for _ in range(count):
                append(record)
            note("append_single", count / (time.perf_counter() - began))
            read_one = tailer.read
            began = time.perf_counter()
            for _ in range(count):
                read_one()
            note("read_single", count / (time.perf_counter() - began))
        note("memcpy_bytes", memcpy_rate(rows.reshape(-1), BATCH_TOTAL))
    return {name: statistics.median(values) for name, values in found.items()}


def baselines(size: int) -> dict[str, float]:
    """Rates of SQLite, LMDB and a plain file at one record size."""
    record, count, batch = bytes(size), max(BASELINE_TOTAL // size, 1_000), max(BATCH_BYTES // size, 1)
    with _folder() as folder:
        sqlite = sqlite_rates(folder, record, count, batch)
    with _folder() as folder:
        in_lmdb = lmdb_rates(folder, record, count, batch)
    with _folder() as folder:
        plain = file_rates(folder, record, count, batch)
    return {
        **dict(zip(("sqlite_append_batch", "sqlite_append_single", "sqlite_read"), sqlite, strict=True)),
        **dict(zip(("lmdb_append_batch", "lmdb_append_single", "lmdb_read"), in_lmdb, strict=True)),
        **dict(zip(("file_fsync_batch", "file_fsync_single"), plain, strict=True)),
    }


def sustained_rate() -> float:
    """Records of 96 bytes appended per second, over a gigabyte, in blocks of the default size."""
    rows = np.zeros((10_000, 96), np.uint8)
    with _folder() as folder, Journal.open(folder) as journal:
        batches = (1 << 30) // rows.nbytes
        began = time.perf_counter()
        for _ in range(batches):
            journal.append_rows(rows)
        return batches * len(rows) / (time.perf_counter() - began)


def append_latency_ns() -> list[float]:
    """(p50, p99, p99.9) of one append of 96 bytes, including the cost of reading the clock."""
    record, took = bytes(96), np.empty(LATENCY_COUNT, np.int64)
    with _folder() as folder, Journal.open(folder, block_size=BLOCK_SIZE) as journal:
        for place in range(LATENCY_COUNT):
            began = time.perf_counter_ns()
            journal.append(record)
            took[place] = time.perf_counter_ns() - began
    return [float(each) for each in np.percentile(took, [50, 99, 99.9])]


FOLLOWER = """
import sys, time
from pathlib import Path
from tandemfeed.journal import Tailer
tailer = Tailer(Path(sys.argv[1]))
tailer.to_end()
print("ready", flush=True)
took = []
while len(took) < int(sys.argv[2]):
    if (entry := tailer.read()) is not None:
        took.append(time.time_ns() - int.from_bytes(entry[1][:8], "little"))
took.sort()
print(*[took[len(took) * part // 1000] for part in (500, 990, 999)])
"""


def tail_latency_ns() -> list[float]:
    """(p50, p99, p99.9) from before an append in one process to after the read in another one, which polls."""
    with _folder() as folder, Journal.open(folder) as journal:
        command = [sys.executable, "-c", FOLLOWER, str(folder), str(TAIL_COUNT)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "ready\n"
            for _ in range(TAIL_COUNT):
                due = time.perf_counter() + 0.000_5
                while time.perf_counter() < due:
                    pass
                journal.append(time.time_ns().to_bytes(8, "little") + bytes(88))
            return [float(each) for each in follower.stdout.readline().split()]


def durable_rates() -> tuple[float, float]:
    """(queue, SQLite): median durable puts per second of eight producers, measured in turn."""
    record = bytes(96)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        with _folder() as folder, PersistentQueue.open(folder / "queue") as queue:
            ours.append(producers_rate(PRODUCERS, DURABLE_S, lambda _number: lambda: queue.put(record)))
        with _folder() as folder:
            theirs.append(sqlite_durable_rate(folder, record, PRODUCERS, DURABLE_S))
    return statistics.median(ours), statistics.median(theirs)


def recovery_s() -> dict[str, float]:
    """Seconds to open a queue with 1 GiB of pending items whose owner did not close it, and to get the first item."""
    body = bytes(96)
    with _folder() as folder:
        builder = (
            "import os, sys; from pathlib import Path\n"
            "from tandemfeed.journal.persistent_queue import PersistentQueue\n"
            "queue = PersistentQueue.open(Path(sys.argv[1])); items = [bytes(96)] * 20_000\n"
            "for _ in range(int(sys.argv[2]) // 20_000): queue.put_many(items)\n"
            "os._exit(0)\n"
        )
        count = QUEUE_BYTES // len(body)
        subprocess.run([sys.executable, "-c", builder, str(folder / "queue"), str(count)], check=True)
        began = time.perf_counter()
        with PersistentQueue.open(folder / "queue") as queue:
            took = time.perf_counter() - began
            assert queue.pending_count == count // 20_000 * 20_000
            began = time.perf_counter()
            assert queue.get() is not None
            first_get = time.perf_counter() - began
    return {"recovery_1gib_s": took, "first_get_after_recovery_s": first_get}


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure everything."""
    sizes: dict[str, dict[str, float]] = {}
    for size in SIZES:
        say(f"measuring records of {size:,} bytes")
        sizes[str(size)] = {name: round(rate, 1) for name, rate in {**append_and_read(size), **baselines(size)}.items()}
    say("measuring latency")
    append_ns, tail_ns = append_latency_ns(), tail_latency_ns()
    say("measuring durable puts")
    ours, theirs = durable_rates()
    say("measuring recovery")
    recovery = recovery_s()
    smallest = sizes[str(SIZES[0])]
    return {
        "append_batch_msgs_per_s": smallest["append_batch"],
        "append_vs_memcpy": round(smallest["append_batch"] * SIZES[0] / smallest["memcpy_bytes"], 3),
        "append_sustained_msgs_per_s": round(sustained_rate(), 1),
        "append_single_msgs_per_s": smallest["append_single"],
        "read_batch_msgs_per_s": smallest["read_batch"],
        "read_single_msgs_per_s": smallest["read_single"],
        "durable_vs_sqlite": round(ours / theirs, 2),
        "durable_puts_per_s": round(ours, 1),
        "sqlite_durable_puts_per_s": round(theirs, 1),
        **{name: round(value, 4) for name, value in recovery.items()},
        "append_latency_ns": dict(zip(("p50", "p99", "p99.9"), append_ns, strict=True)),
        "tail_latency_ns": dict(zip(("p50", "p99", "p99.9"), tail_ns, strict=True)),
        "msgs_per_s_by_size": sizes,
    }
