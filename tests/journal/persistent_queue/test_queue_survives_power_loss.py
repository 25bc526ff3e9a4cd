"""After a power loss, each page contains either its last flushed or its latest content, at random. No acknowledged
item may be lost.

Images of the disk are taken before flushes, in the middle of groups, checkpoints and recycling.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandemfeed.journal.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.persistent_queue import Cancelled, PersistentQueue

PAGE = 4_096
STEPS = 250
IMAGES = 8


@dataclass
class Known:
    """What the caller knows at a moment."""

    acknowledged: dict[int, bytes]
    settled: set[int]  # and durable
    doubtful: set[int]  # settled, but perhaps not yet on the disk


class Disk:
    """Records each file's contents at its last flush, by inode."""

    def __init__(self, folder: Path, chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._chance = chance
        self._flushed: dict[int, bytes] = {}
        self._flush = os.fdatasync
        self._lock = threading.Lock()
        self.known = Known({}, set(), set())
        self.begun: set[bytes] = set()
        self.images: list[tuple[Path, Known]] = []
        monkeypatch.setattr(os, "fdatasync", self._fdatasync)

    def _fdatasync(self, descriptor: int) -> None:
        with self._lock:
            if len(self.images) < IMAGES and self._chance.random() < 0.06:
                self._take_image()
            self._flush(descriptor)
            status = os.fstat(descriptor)
            self._flushed[status.st_ino] = os.pread(descriptor, status.st_size, 0)

    def _take_image(self) -> None:
        # Certain results are recorded before the files are read, uncertain ones after: other threads may be running.
        certain = Known(dict(self.known.acknowledged), set(self.known.settled), set())
        image = self._folder.with_name(f"image-{len(self.images)}")
        image.mkdir()
        for path in self._folder.iterdir():
            if not path.name.startswith("."):
                (image / path.name).write_bytes(self._left_of(path))
        certain.doubtful = set(self.known.doubtful)
        self.images.append((image, certain))

    def _left_of(self, path: Path) -> bytes:
        now = path.read_bytes()
        was = self._flushed.get(path.stat().st_ino)
        if was is None or len(was) != len(now):
            return now
        share = self._chance.random()
        pages = (
            (now if self._chance.random() < share else was)[place : place + PAGE] for place in range(0, len(now), PAGE)
        )
        return b"".join(pages)


def work(queue: PersistentQueue, disk: Disk, chance: random.Random) -> None:
    """Perform random operations, one after another."""
    known, held = disk.known, []
    for _ in range(STEPS):
        kind = chance.choice(["put", "put", "get", "get", "get", "done", "done", "cancel", "all", "checkpoint"])
        if kind == "put":
            items = [chance.randbytes(chance.choice([20, 500, 9_000])) for _ in range(chance.randrange(1, 8))]
            disk.begun.update(items)
            known.acknowledged.update(zip(queue.put_many(items), items, strict=True))
        elif kind == "get" and (entry := queue.get()) is not None:
            held.append(entry[0])
        elif kind == "done" and held:
            item_id, is_durable = held.pop(chance.randrange(len(held))), chance.random() < 0.5
            known.doubtful.add(item_id)
            queue.done(item_id, durable=is_durable)
            if is_durable:
                known.settled.add(item_id)
        elif kind == "cancel" and known.acknowledged:
            item_id = chance.choice(list(known.acknowledged))
            known.doubtful.add(item_id)
            if isinstance(queue.cancel(item_id), Cancelled):
                known.settled.add(item_id)
        elif kind == "all" and chance.random() < 0.2:
            cancelled = known.acknowledged.keys() - set(held)
            known.doubtful |= cancelled
            queue.cancel_all()
            known.settled |= cancelled  # earlier calls of `done` are in the same group, or in an earlier one
        elif kind == "checkpoint" and chance.random() < 0.5:
            queue.checkpoint()


@pytest.mark.parametrize("seed", range(20))
def test_no_acknowledged_item_is_lost_or_repeated_whichever_pages_survive_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    with monkeypatch.context() as patched:
        disk = Disk(tmp_path / "queue", random.Random(seed + 1_000), patched)
        with PersistentQueue.open(
            tmp_path / "queue", block_size=BLOCK_SIZE_MIN, checkpoint_interval_s=3_600.0
        ) as queue:
            work(queue, disk, chance)
    for image, known in disk.images:
        with PersistentQueue.open(image, block_size=BLOCK_SIZE_MIN) as queue:
            served = {}
            while (entry := queue.get()) is not None:
                served[entry[0]] = entry[1]
        assert list(served) == sorted(served)
        assert not known.settled & served.keys(), image
        lost = known.acknowledged.keys() - known.settled - known.doubtful - served.keys()
        assert not lost, f"{image}: {sorted(lost)}"
        for item_id, item in served.items():
            assert item == known.acknowledged.get(item_id, item)
            assert item in disk.begun
