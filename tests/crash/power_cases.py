"""Crash cases with power failures: of the queue and of a follower on a disk that keeps only what was flushed, and of
the transactional store on a real file system.

Victims are killed while they write, roll to new blocks, create and rename files, and recover what an earlier victim
left; the disk may refuse some flushes. At the end, and sometimes in between, each page and each name that was not
flushed is on the disk or not, by chance. What was acknowledged must be there.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tandemfeed.journal import Journal, JournalError
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN, CONTROL_NAME
from tandemfeed.journal.replication import Limits, ReplicationFollower, ReplicationLeader
from tandemfeed.journal.transactional import TransactionalStoreError
from tests.crash.victims import FORK, LIFE_LENGTHS, live_and_die, module_of
from tests.failing_device import MB, FailingDevice
from tests.journal.replication.replication_process import records_of
from tests.losing_disk import FailsAt, Fault, LosingDisk, losing_disk

MS = 1_000_000
LIMITS = Limits(heartbeat_interval_ns=50 * MS, silence_ns_max=1_000 * MS, backoff_ns_min=2 * MS, backoff_ns_max=20 * MS)
WAIT_S = 60.0
FAILURES_MAX = 20  # more than any fault that ends lets happen
OPERATIONS = (("flush",), ("flush",), ("flush", "flush_folder"), ("flush", "rewrite", "rename"))


def fault_by(source: random.Random) -> Fault:
    """None, or some operations are refused from a random one on, once or a few times or for good."""
    if source.random() < 0.4:
        return lambda operation, path: None
    first = source.choice((1, 2, 4, source.randrange(1, 60)))
    return FailsAt(first, source.choice((1, 1, 2, 5, None)), source.choice(OPERATIONS))


class Lives:
    """Lives of victims on a disk whose power fails now and then."""

    def __init__(self, folder: Path, source: random.Random) -> None:
        self._source, self._folder = source, folder
        self._root = folder / "disk-0"
        self._root.mkdir(parents=True)
        self._number = 0

    def live(self, work: Callable[[LosingDisk], None]) -> Path:
        """One or more lives of victims, then a power failure; returns what is left.

        Args:
            work: lets one victim live and die.
        """
        self._number += 1
        after = self._folder / f"disk-{self._number}"
        with losing_disk(self._root, self._folder / f"kept-{self._number}") as disk:
            disk.stored_to = CONTROL_NAME  # the same values too, which only the kernel sees
            for _ in range(self._source.choice((1, 1, 2, 3))):
                disk.fault = fault_by(self._source)
                work(disk)
            disk.fault = lambda operation, path: None
            disk.image(after, self._source)
        self._root = after
        return after


# ---- the queue ----


def _queue_victim(folder: Path, pipe: Connection, seed: int) -> None:
    """Ends when the queue has failed."""
    threading.excepthook = lambda _: None  # of its producers: they end as the queue fails
    with suppress(JournalError):
        module_of("queue").child(folder, pipe, seed)


def queue_power_case(folder: Path, seed: int) -> str:
    """The queue's victims: see tests/journal/persistent_queue/queue_crash_child.py."""
    module, source = module_of("queue"), random.Random(seed)
    lives, reported, number = Lives(folder, source), list[Any](), 0

    def work(disk: LosingDisk) -> None:
        nonlocal number
        number += 1
        reported.extend(live_and_die(_queue_victim, disk.root, seed * 10 + number, source.choice(LIFE_LENGTHS)))

    for _ in range(source.choice((1, 1, 2))):
        module.verify(lives.live(work), reported, has_lost_power=True)
        reported.append(("power lost",))
    return f"power lost, {number} lives"


# ---- a replication follower ----


def _lead(folder: Path, pipe: Connection, seed: int) -> None:
    """Append at random; report the leader's endpoint, then how far a follower has acknowledged."""
    source, acknowledged = random.Random(seed), 0
    with (
        Journal.open(folder, roll_cycle="SECONDLY", block_size=BLOCK_SIZE_MIN) as journal,
        ReplicationLeader(folder, "tcp://127.0.0.1:*", limits=LIMITS) as leader,
    ):
        pipe.send(leader.endpoint)
        while True:
            for _ in range(source.choice((1, 1, 5))):
                sizes = [source.choice((10, 100, 5_000)) for _ in range(source.choice((1, 1, 3, 20)))]
                last = journal.append_batch([source.randbytes(size) for size in sizes])
            leader.wake()
            leader.wait_for_replicated(last, 0.05)
            known = max(leader.status.followers.values(), default=0)
            if known > acknowledged:
                acknowledged = known
                pipe.send(acknowledged)


def _follow(folder: Path, pipe: Connection, seed: int, endpoint: str) -> None:
    """Report the position; end if the disk refuses for good."""
    with suppress(JournalError), ReplicationFollower(folder, endpoint, durable=True, limits=LIMITS) as follower:
        position = 0
        while follower.status.failure_count < FAILURES_MAX:
            follower.wait_for(
                lambda status, at=position: status.next_index > at or status.failure_count >= FAILURES_MAX,  # type: ignore[misc]
                WAIT_S,
            )
            position = follower.status.next_index
            pipe.send(position)


def follower_power_case(folder: Path, seed: int) -> str:
    """A durable follower is killed and started again, then its power fails; its leader's disk never fails."""
    source, own = random.Random(seed), folder / "leader"
    lives, number = Lives(folder, source), 0
    receiver, sender = FORK.Pipe(duplex=False)
    leader = FORK.Process(target=_lead, args=(own, sender, seed))
    leader.start()
    sender.close()
    endpoint, acknowledged = receiver.recv(), 0

    def work(disk: LosingDisk) -> None:
        nonlocal number
        number += 1
        child = partial(_follow, endpoint=endpoint)
        live_and_die(child, disk.root / "follower", seed * 10 + number, source.choice(LIFE_LENGTHS))

    try:
        for _ in range(source.choice((1, 1, 2))):
            left = lives.live(work)
            while receiver.poll():
                acknowledged = receiver.recv()
            _check_follower(left / "follower", own, acknowledged)
    finally:
        leader.kill()
        leader.join()
        receiver.close()
    return f"power lost, {number} lives"


def _check_follower(folder: Path, leader: Path, acknowledged: int) -> None:
    """Check a copy: the follower continues with the files as they are."""
    if not acknowledged:
        return  # killed before it had a journal
    ours = {index: record for index, record in records_of(leader) if index < acknowledged}
    copy = folder.with_name("checked")
    shutil.copytree(folder, copy)
    Journal.open(copy, roll_cycle="SECONDLY", block_size=BLOCK_SIZE_MIN).close()
    theirs = dict(records_of(copy))
    shutil.rmtree(copy)
    lost = [index for index in ours if index not in theirs]
    assert not lost, f"acknowledged but lost: {len(lost)} of {len(ours)}, from {lost[0]:#x} on"
    assert all(theirs[index] == record for index, record in ours.items()), "a record differs from the leader's"


# ---- the transactional store ----


def _store_victim(folder: Path, pipe: Connection, seed: int) -> None:
    """Ends if the disk refuses what the last victim left."""
    with suppress(TransactionalStoreError):
        module_of("store").child(folder, pipe, seed)


def store_power_case(folder: Path, seed: int) -> str:
    """On a real file system, which may refuse writes for a while, because SQLite flushes its files itself."""
    module, source = module_of("store"), random.Random(seed)
    reported: list[Any] = []
    folder.mkdir()
    with FailingDevice(folder, 24 * MB, is_thin=True) as device:
        store = device.folder / "store"
        for life in range(source.choice((1, 2, 3))):
            interrupt = partial(_refuse_for_a_while, device, source) if source.random() < 0.6 else lambda: None
            reported += _without_refusals(
                live_and_die(_store_victim, store, seed * 3 + life, source.choice(LIFE_LENGTHS), interrupt)
            )
            if source.random() < 0.3:
                device.lose_power()
        device.lose_power()
        module.verify(store, reported)
    return "power lost"


def _refuse_for_a_while(device: FailingDevice, source: random.Random) -> None:
    with device.failing():
        for _ in range(source.choice((100, 10_000, 100_000))):
            os.stat(device.folder)  # shorter than a timer's resolution, longer than a flush


def _without_refusals(reported: Sequence[Any]) -> list[Any]:
    """Without the reports of operations that the store refused because of the disk, which are neither done nor not."""
    return [
        each for each in reported if each[0] != "broken" or not str(each[2]).startswith(("StoreFailed", "StoreFull"))
    ]


POWER_CASES: dict[str, Callable[[Path, int], str]] = {
    "queue-power": queue_power_case,
    "follower-power": follower_power_case,
    "store-power": store_power_case,
}


def left_out() -> dict[str, str]:
    """The kinds of case that this system does not allow, and why."""
    missing = [tool for tool in ("mkfs.ext4", "dumpe2fs", "mount") if shutil.which(tool) is None]
    if os.geteuid() == 0 and not missing:
        return {}
    why = f"{', '.join(missing)} is not installed" if missing else "a loop device needs root"
    return {"journal-device": why, "store-power": why}
