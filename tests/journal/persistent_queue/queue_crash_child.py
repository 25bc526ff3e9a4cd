"""A process that uses a queue until it is killed, and the check of the queue afterwards.

The child reports an operation before it begins (`("begin", ...)`) and after it is acknowledged (`("end", ...)`).
Operations that were begun but not acknowledged may or may not have happened; everything else is certain.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.persistent_queue import Cancelled, PersistentQueue

BLOCK = BLOCK_SIZE_MIN
PUTS_MAX = 20
PRODUCERS = 2
Report = tuple[Any, ...]  # ("begin" or "end", kind, ...)


def open_queue(folder: Path) -> PersistentQueue:
    """Open the queue as the child does: small blocks on two paths and frequent checkpoints, to cover all code."""
    return PersistentQueue.open(
        folder / "first", more_paths=[folder / "second"], block_size=BLOCK, checkpoint_interval_items=500,
        checkpoint_interval_s=0.05,
    )  # fmt: skip


def child(folder: Path, pipe: Connection, seed: int) -> None:
    """Put, get, settle, release and cancel at random until killed, while other threads put; report each operation."""
    lock = threading.Lock()

    def report(*values: Any) -> None:
        with lock:
            pipe.send(values)

    with open_queue(folder) as queue:
        report("begin", "life")
        ids: list[int] = []

        def produce(thread_seed: int) -> None:
            chance = random.Random(thread_seed)
            while True:
                _put(queue, chance, report, ids)

        for number in range(PRODUCERS):
            threading.Thread(target=produce, args=(seed * PRODUCERS + number,), daemon=True).start()
        chance, held = random.Random(seed), []
        while True:
            kind = chance.choice(
                ["put", "get", "get", "get", "get", "done", "done", "done", "release", "cancel", "all"]
            )
            if kind == "put":
                _put(queue, chance, report, ids)
            elif kind == "get":
                entry = queue.get()
                if entry is not None:
                    held.append(entry[0])
                    report("end", "get", *entry)
            elif kind == "done" and held:
                item_id, durable = held.pop(chance.randrange(len(held))), chance.random() < 0.2
                report("begin", "done", item_id, durable)
                queue.done(item_id, durable=durable)
                report("end", "done", item_id, durable)
            elif kind == "release" and held:
                queue.release(held.pop(chance.randrange(len(held))))
            elif kind == "cancel" and ids:
                item_id = chance.choice(ids)
                report("begin", "cancel", item_id)
                if isinstance(queue.cancel(item_id), Cancelled):
                    report("end", "cancel", item_id)
            elif kind == "all" and chance.random() < 0.02:
                report("begin", "cancel_all")
                queue.cancel_all()
                report("end", "cancel_all", set(held))


def _put(queue: PersistentQueue, chance: random.Random, report: Callable[..., None], ids: list[int]) -> None:
    items = [chance.randbytes(chance.randrange(8, 200)) for _ in range(chance.choice([1, 1, 1, PUTS_MAX]))]
    report("begin", "put", items)
    found = [queue.put(items[0])] if len(items) == 1 else list(queue.put_many(items))
    ids += found
    report("end", "put", found, items)


def verify(folder: Path, reported: list[Report], *, has_lost_power: bool = False) -> None:
    """Open the queue, take everything out, and compare it to the reports of all child processes.

    Reports are in the order in which they were sent, one process after the other.

    Args:
        has_lost_power: a power failure may undo a plain `done`, until a later group is acknowledged, or until the queue
            is opened again.

    Raises:
        AssertionError: an acknowledged item is lost, or an item was delivered twice or was never put.
    """
    expected = Expected(has_lost_power=has_lost_power)
    for report in reported:
        expected.note(report)
    with open_queue(folder) as queue:
        served: list[tuple[int, bytes]] = []
        while (entry := queue.get()) is not None:
            served.append(entry)
        for item_id, _ in served:
            queue.release(item_id)
    ids = [item_id for item_id, _ in served]
    assert ids == sorted(set(ids)), "items were served out of order or twice"
    assert not (again := expected.settled & set(ids)), f"delivered or cancelled, but served again: {sorted(again)[:5]}"
    for item_id, item in served:
        if item_id in expected.items:
            assert item == expected.items[item_id], f"item {item_id} differs from what was put"
        else:
            assert item in expected.doubtful_items, f"item {item_id} was never put: {item!r}"
    certain = expected.items.keys() - expected.settled - expected.doubtful_ids
    assert not (lost := certain - set(ids)), f"acknowledged but lost: {sorted(lost)[:5]} of {len(certain)}"


class Expected:
    """The state that the reports imply."""

    def __init__(self, *, has_lost_power: bool) -> None:
        self._has_lost_power = has_lost_power
        self._plain: set[int] = set()  # delivered by a plain `done`, perhaps not yet on the disk
        self._plain_before: dict[tuple[str, Any], set[int]] = {}  # when an operation began
        self.items: dict[int, bytes] = {}
        self.settled: set[int] = set()
        self.doubtful_items: set[bytes] = set()  # begun, not acknowledged
        self.doubtful_ids: set[int] = set()
        self._before_cancel_all: set[int] = set()
        self._is_cancelling = False
        self._open_puts: dict[bytes, bool] = {}  # by first item: whether a cancel_all overlapped

    def note(self, report: Report) -> None:
        """Apply one report."""
        match report:
            case "begin", "life":
                self._is_cancelling, self._open_puts = False, {}
                self.settled |= self._plain
                self._plain_before.clear()
            case ("power lost",):
                self._plain.clear()
            case "begin", "put", items:
                self._plain_before["put", items[0]] = set(self._plain)
                self.doubtful_items.update(items)
                self._open_puts[items[0]] = self._is_cancelling
            case "end", "put", ids, items:
                self.settled |= self._plain_before.pop(("put", items[0]))
                if self._open_puts.pop(items[0]):  # a concurrent cancel_all may have cancelled it
                    self.doubtful_ids.update(ids)
                for item_id, item in zip(ids, items, strict=True):  # `get` may have been reported before
                    assert self.items.setdefault(item_id, item) == item, f"id {item_id} was assigned twice"
            case "begin", ("done" | "cancel") as kind, item_id, *_:
                self.doubtful_ids.add(item_id)
                self._plain_before[kind, item_id] = set(self._plain)
            case "end", "done", item_id, False:
                (self._plain if self._has_lost_power else self.settled).add(item_id)
            case "end", ("done" | "cancel") as kind, item_id, *_:
                self.settled |= {item_id} | self._plain_before.pop((kind, item_id))
            case "end", "get", item_id, item:
                assert item_id not in self.settled, f"item {item_id} was settled but delivered again"
                assert self.items.get(item_id, item) == item, f"item {item_id} was delivered with different content"
                assert item_id in self.items or item in self.doubtful_items, f"item {item_id} was never put"
                self.items[item_id] = item
            case "begin", "cancel_all":
                self.doubtful_ids.update(self.items)
                self._before_cancel_all = set(self.items)
                self._is_cancelling, self._open_puts = True, dict.fromkeys(self._open_puts, True)
            case "end", "cancel_all", held:
                self.settled |= self._before_cancel_all - held
                self._is_cancelling = False
            case _:
                raise AssertionError(f"unknown report: {report!r}")
