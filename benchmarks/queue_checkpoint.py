"""Checkpoint intervals of a persistent queue: items per second and recovery time.

A process fills and drains a queue and is killed; another one opens the queue. Checkpoints depend on the number of
items alone, so the interval bounds what recovery must walk. Short intervals flush state areas often; long ones make
recovery walk more. Every round measures every interval.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tandemfeed.journal.persistent_queue import PersistentQueue
from tandemfeed.runtime.threads import end_process, start_thread

INTERVALS_ITEMS = (1_000, 10_000, 100_000, 1_000_000)
ITEM_SIZE = 96
BATCH = 50  # items per put: orders come in bursts
PRODUCERS = 4
KEPT_SHARE = 4  # one item in four stays in flight, so that its block is kept
WARM_UP_S = 0.5


def _open(folder: Path, interval_items: int) -> PersistentQueue:
    return PersistentQueue.open(folder, checkpoint_interval_s=3_600.0, checkpoint_interval_items=interval_items)


def _work(folder: Path, interval_items: int, seconds: float, pipe: Connection) -> None:
    """Put and take for `seconds`, send (items per second, checkpoints), and kill this process."""
    queue = _open(folder, interval_items)
    is_over = threading.Event()

    def produce() -> None:
        batch = [bytes(ITEM_SIZE)] * BATCH
        while not is_over.is_set():
            queue.put_many(batch)

    def consume() -> None:
        while not is_over.is_set():
            held = [entry[0] for _ in range(BATCH) if (entry := queue.get(0.01)) is not None]
            queue.done_many(item_id for item_id in held if item_id % KEPT_SHARE)

    for number, run in enumerate((*[produce] * PRODUCERS, consume)):
        start_thread(run, f"{run.__name__}-{number}", end_process)
    is_over.wait(WARM_UP_S)
    before, began = queue.statistics(), time.perf_counter()
    is_over.wait(seconds)
    after, took_s = queue.statistics(), time.perf_counter() - began
    pipe.send(((after.put_count - before.put_count) / took_s, after.checkpoint_count - before.checkpoint_count))
    os.kill(os.getpid(), signal.SIGKILL)


def measure(folder: Path, interval_items: int, seconds: float) -> tuple[float, int, float, int]:
    """(items per second, checkpoints, recovery in ms, changes replayed) with one interval."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(folder, interval_items, seconds, sender))
    process.start()
    sender.close()
    rate, checkpoint_count = receiver.recv()
    process.join()
    with _open(folder, interval_items) as queue:
        found = queue.statistics()
    return rate, checkpoint_count, found.recovery_s * 1_000, found.replayed_count


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure every interval, `arguments.pairs` times for `arguments.seconds`."""
    rounds, seconds = getattr(arguments, "pairs", 3), getattr(arguments, "seconds", 3.0)
    found: dict[int, list[tuple[float, int, float, int]]] = {interval: [] for interval in INTERVALS_ITEMS}
    with tempfile.TemporaryDirectory(prefix="tandemfeed-bench-") as root:
        _open(Path(root) / "warm", 1).close()  # loads the compiled code before any recovery is timed
        with _open(Path(root) / "warm", 1) as queue:
            queue.put(b"")
        for number in range(rounds):
            for interval in INTERVALS_ITEMS:
                found[interval].append(measure(Path(root) / f"{interval}-{number}", interval, seconds))
                rate, count, recovery_ms, _ = found[interval][-1]
                sys.stderr.write(
                    f"round {number + 1}/{rounds}, checkpoint every {interval:,} items: {rate:,.0f} items/s, "
                    f"{count} checkpoints, recovery {recovery_ms:.1f} ms\n"
                )
    return {
        "intervals": [
            {
                "interval_items": interval,
                "items_per_s": round(statistics.median(each[0] for each in rows)),
                "checkpoints_per_s": round(statistics.median(each[1] for each in rows) / seconds, 1),
                "recovery_ms": round(statistics.median(each[2] for each in rows), 1),
                "recovery_ms_max": round(max(each[2] for each in rows), 1),
                "replayed_changes": round(statistics.median(each[3] for each in rows)),
            }
            for interval, rows in found.items()
        ],
        "item_size": ITEM_SIZE,
        "batch": BATCH,
        "producers": PRODUCERS,
    }
