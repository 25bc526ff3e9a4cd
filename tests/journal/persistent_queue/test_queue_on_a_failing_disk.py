"""A queue whose disk refuses flushes, or whose process was killed: what it acknowledged and handed out survives a power
failure. On a disk that keeps only what was flushed.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemfeed.journal import JournalError
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.layout import (
    BLOCK_SIZE_MIN,
    CONTROL_NAME,
    DATA_OFFSET,
    FAILED_NAME,
    FLUSHER,
    IS_FAILED,
    LOCK,
    PIDS,
    SEGMENT_SIZE,
    STATES_FLUSHER,
)
from tandemfeed.journal.persistent_queue import PersistentQueue, QueueFailed
from tandemfeed.journal.persistent_queue.blocks import catalogue as catalogue_module
from tandemfeed.journal.persistent_queue.blocks.members import LIST_NAME, MARKER_NAME
from tandemfeed.runtime.durable import FlushFailed
from tests.dying_process import die_after
from tests.losing_disk import FailsAt, Fault, LosingDisk, losing_disk

BLOCK = BLOCK_SIZE_MIN
WAIT_S = 60.0
LONG = bytes(50_000)  # a block has room for three


def never(operation: str, path: Path) -> None:
    """The disk refuses nothing."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LosingDisk]:
    (tmp_path / "disk").mkdir()
    with losing_disk(tmp_path / "disk", tmp_path / "kept") as disk:
        yield disk


def opened(folder: Path, **options: object) -> PersistentQueue:
    options = {"block_size": BLOCK, "checkpoint_interval_s": 3_600.0} | options
    return PersistentQueue.open(folder, **options)  # type: ignore[arg-type]


def queue_on(disk: LosingDisk, **options: object) -> PersistentQueue:
    return opened(disk.root / "queue", **options)


def pending(queue: PersistentQueue) -> list[bytes]:
    """All pending items, without the zeros at their ends; they stay pending."""
    taken = []
    while (entry := queue.get()) is not None:
        taken.append(entry)
    for item_id, _ in taken:
        queue.release(item_id)
    return [item.strip(b"\0") for _, item in taken]


def reopened(disk: LosingDisk, **options: object) -> list[bytes]:
    """What a new process finds, which then dies. Nothing that it could read is in the page cache only."""
    found = die_after(lambda: pending(queue_on(disk, **options)))
    image = disk.image(disk.root.parent / f"opened-{len(list(disk.root.parent.iterdir()))}")
    for path in disk.root.rglob("*.tfj"):
        assert (image / path.relative_to(disk.root)).read_bytes() == path.read_bytes(), f"{path} is not on the disk"
    return found


def after_power_failure(disk: LosingDisk) -> list[bytes]:
    """The pending items that are left if the power fails now."""
    image = disk.image(disk.root.parent / f"image-{len(list(disk.root.parent.iterdir()))}")
    with opened(image / "queue") as queue:
        return pending(queue)


def refuse(disk: LosingDisk, fault: Fault, work: Callable[[], object]) -> None:
    """Work while the disk refuses something."""
    disk.fault = fault
    try:
        work()
    finally:
        disk.fault = never


# ---- failed flushes ----

ITEMS = [b"%d" % number for number in range(1, 9)]  # in three blocks


def put(queue: PersistentQueue) -> None:
    queue.put(b"doubtful" + LONG)


def put_long(queue: PersistentQueue) -> None:
    queue.put_many([LONG] * 4)


def put_nowait(queue: PersistentQueue) -> None:
    queue.put_nowait(b"doubtful" + LONG).result(WAIT_S)


def deliver(queue: PersistentQueue) -> None:
    entry = queue.get()
    assert entry is not None
    queue.done(entry[0], durable=True)


def cancel(queue: PersistentQueue) -> None:
    queue.cancel(0)


def cancel_all(queue: PersistentQueue) -> None:
    queue.cancel_all()


def checkpoint(queue: PersistentQueue) -> None:
    queue.checkpoint()


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    ("operation", "first", "matching"),
    [
        *[(operation, 1, ".tfj") for operation in (put, put_long, put_nowait, deliver, cancel, cancel_all, checkpoint)],
        *[(put_long, 2, ".tfj"), (checkpoint, 2, ".tfj"), (checkpoint, 1, "-000000.tfj")],
    ],
)
def test_after_a_failed_flush_a_queue_has_failed_and_once_opened_again_it_loses_nothing(
    disk: LosingDisk, operation: Callable[[PersistentQueue], None], first: int, matching: str, is_closed: bool
) -> None:
    def fail() -> None:
        queue = queue_on(disk)
        for item in ITEMS:
            queue.put(item + LONG)
        if operation is checkpoint:
            deliver(queue)
        fault = FailsAt(first, matching=matching)
        with pytest.raises(QueueFailed, match="open the queue again"):
            refuse(disk, fault, lambda: operation(queue))
        assert fault.failed == 1
        for call in (put, put_long, deliver, cancel_all, checkpoint, lambda queue: queue.put_nowait(b"late")):
            with pytest.raises(QueueFailed):  # the disk works again; the queue does not
                call(queue)
        if is_closed:
            queue.close()

    die_after(fail)
    seen = reopened(disk)
    assert set(ITEMS[1:]) <= set(seen) or operation is cancel_all
    assert (ITEMS[0] in seen) == (operation in (put, put_long, put_nowait))
    die_after(lambda: queue_on(disk).put(b"acknowledged" + LONG))
    assert after_power_failure(disk) == [*seen, b"acknowledged"]
    die_after(lambda: deliver(queue_on(disk)))
    assert after_power_failure(disk) == [*seen, b"acknowledged"][1:]


def test_no_group_is_written_after_another_flush_has_failed(disk: LosingDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next flush would succeed although data is lost. Those who wait for a group learn it, in threads or not."""
    monkeypatch.setattr(catalogue_module, "OPEN_MAX", 2)
    queue = queue_on(disk)
    ids = [queue.put(b"%03d" % number + LONG) for number in range(24)]  # six blocks
    leader: list[threading.Thread] = []
    reached, may_go = threading.Event(), threading.Event()

    def fault(operation: str, path: Path) -> None:
        if threading.current_thread() in leader:
            reached.set()
            assert may_go.wait(WAIT_S)
        elif operation == "flush":
            raise OSError(errno.EIO, "Input/output error")

    def lead() -> int:
        leader.append(threading.current_thread())
        return queue.put(b"in progress")

    with ThreadPoolExecutor(8) as pool:
        disk.fault = fault
        first = pool.submit(lead)
        assert reached.wait(WAIT_S)
        late = [queue.put_nowait(b"late %d" % number) for number in range(3)]
        late += [pool.submit(queue.put, b"in a thread") for _ in range(2)]
        while queue._groups.waiting_count < len(late):
            time.sleep(0.001)  # until the threads wait; they report it nowhere
        with pytest.raises(QueueFailed):
            queue.cancel_many(ids[::4])  # a block must be unmapped, and its states flushed
        disk.fault = lambda operation, path: fault(operation, path) if threading.current_thread() in leader else None
        may_go.set()
        assert first.result(WAIT_S) == 24  # its own flush succeeded
        for each in late:
            assert isinstance(each.exception(WAIT_S), QueueFailed)
    disk.fault = never
    queue.close()


def test_a_group_whose_pages_were_lost_by_a_failed_flush_of_another_descriptor_is_not_acknowledged(
    disk: LosingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint's flush writes the pages of the group that is being written, and the group learns of its failure."""
    queue = queue_on(disk)
    queue.put(b"first" + LONG)
    flush = queue._log.flush

    def flush_after_a_checkpoint() -> None:
        with pytest.raises(FlushFailed):
            refuse(disk, FailsAt(1), lambda: queue._durability.flush_states([queue._log.position.block]))
        flush()

    monkeypatch.setattr(queue._log, "flush", flush_after_a_checkpoint)
    with pytest.raises(QueueFailed):
        queue.put(b"doubtful")
    queue.close()
    assert after_power_failure(disk) == [b"first"]


def test_a_thread_that_waits_for_others_does_not_write_their_group_after_a_failure(
    disk: LosingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_on(disk, group_delay_s=2.0)
    queue._groups._expected = 2  # as after a group of two
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(queue._upkeep, "wake", lambda: None)  # the keeper is busy
        waiting = pool.submit(queue.put, b"item")
        while not queue._groups.waiting_count:
            time.sleep(0.001)  # until the thread waits; it reports it nowhere
        queue._fail(OSError(errno.EIO, "Input/output error"))
        assert isinstance(waiting.exception(WAIT_S), QueueFailed)
    queue.close()
    assert reopened(disk) == []


def test_a_get_that_waits_for_an_item_learns_that_the_queue_failed(disk: LosingDisk) -> None:
    queue = queue_on(disk)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.get, 10 * WAIT_S)
        while not queue._registry._waiting_count:
            time.sleep(0.001)  # until the thread waits; it reports it nowhere
        with pytest.raises(QueueFailed):
            refuse(disk, FailsAt(1), lambda: queue.put(b"doubtful"))
        assert isinstance(waiting.exception(WAIT_S), QueueFailed)
    queue.close()


def put_until_it_fails(queue: PersistentQueue, text: str) -> None:
    with pytest.raises(QueueFailed, match=text):  # noqa: PT012
        while True:
            queue.put_nowait(b"item").result(WAIT_S)


def test_callers_that_wait_learn_that_a_checkpoint_in_the_background_failed(disk: LosingDisk) -> None:
    queue = queue_on(disk, checkpoint_interval_s=0.01)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: [queue.get(WAIT_S) for _ in range(1_000_000)])
        disk.fault = FailsAt(1, None, matching=".tfj")
        put_until_it_fails(queue, "input/output error")
        disk.fault = never
        assert isinstance(waiting.exception(WAIT_S), QueueFailed)
    queue.close()


@pytest.mark.parametrize(("part", "method"), [("_upkeep", "_commit"), ("_checkpointer", "checkpoint")])
def test_a_thread_of_the_queue_that_dies_fails_it_and_releases_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, method: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    queue = opened(tmp_path / "queue", checkpoint_interval_s=0.01)
    monkeypatch.setattr(getattr(queue, part), method, broken)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: [queue.get(WAIT_S) for _ in range(1_000_000)])
        put_until_it_fails(queue, "a bug")
        assert isinstance(waiting.exception(WAIT_S), QueueFailed)
    queue.close()


def test_a_refused_flush_of_a_block_that_is_unmapped_fails_the_queue(
    disk: LosingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_module, "OPEN_MAX", 2)

    def fail() -> None:
        queue = queue_on(disk)
        ids = [queue.put(b"%03d" % number + LONG) for number in range(24)]  # six blocks
        with pytest.raises(QueueFailed, match="input/output error"):
            refuse(disk, FailsAt(1), lambda: queue.cancel_many(ids[::4]))
        with pytest.raises(QueueFailed):
            queue.get()

    die_after(fail)
    seen = reopened(disk)
    assert after_power_failure(disk) == seen


def test_a_queue_is_not_opened_while_the_disk_refuses_what_the_last_process_left(disk: LosingDisk) -> None:
    def fail() -> None:
        queue = queue_on(disk)
        queue.put(b"first")
        with pytest.raises(QueueFailed):
            refuse(disk, FailsAt(1), lambda: queue.put(b"doubtful"))

    die_after(fail)
    for operation in ("rewrite", "flush", "flush_folder"):
        for first in (1, 2):
            with pytest.raises(QueueFailed, match="could not be flushed"):
                refuse(disk, FailsAt(first, None, operations=(operation,)), lambda: queue_on(disk).close())
    assert reopened(disk) == [b"first", b"doubtful"]
    assert after_power_failure(disk) == [b"first", b"doubtful"]


def test_a_queue_that_has_failed_says_so_in_its_folder_until_it_is_opened(disk: LosingDisk) -> None:
    queue = queue_on(disk)
    with pytest.raises(QueueFailed):
        refuse(disk, FailsAt(1), lambda: queue.put(b"doubtful"))
    queue.close()
    assert "Opening the queue writes again" in (disk.root / "queue" / FAILED_NAME).read_text()
    queue_on(disk).close()
    assert not (disk.root / "queue" / FAILED_NAME).exists()


# ---- what a dead process left ----


@pytest.mark.parametrize("name", ["log", "states"])
def test_what_a_process_was_flushing_when_it_was_killed_is_written_again(disk: LosingDisk, name: str) -> None:
    """It may have been killed because its disk hung, and the kernel reports a failed flush only once."""

    def flush_and_die() -> None:
        queue = queue_on(disk)
        for item in ITEMS:
            queue.put(item + LONG)
        deliver(queue)

        def fault(operation: str, path: Path) -> None:
            if name == "log" or path.name.endswith("-000000.tfj"):
                disk._forget_unflushed(path)  # the pages are clean, and lost
                os._exit(0)

        disk.fault = fault
        if name == "log":
            queue.put(b"doubtful" + LONG)
        else:
            queue.checkpoint()

    with pytest.raises(AssertionError, match="before it had a result"):
        die_after(flush_and_die)
    seen = reopened(disk)
    assert seen == [*ITEMS[1:], *([b"doubtful"] if name == "log" else [])]
    die_after(lambda: queue_on(disk).put(b"acknowledged" + LONG))
    assert after_power_failure(disk) == [*seen, b"acknowledged"]


def test_a_recovery_whose_flush_fails_is_made_again_from_the_start(disk: LosingDisk) -> None:
    def put_some() -> None:
        queue = queue_on(disk)
        for item in ITEMS:
            queue.put(item + LONG)

    die_after(put_some)
    fault = FailsAt(1)
    for first in range(1, 20):
        fault = FailsAt(first, matching=".tfj")
        with contextlib.suppress(QueueFailed):
            refuse(disk, fault, lambda: die_after(lambda: queue_on(disk).active_count))
        assert reopened(disk) == ITEMS
        if not fault.failed:
            break
    assert after_power_failure(disk) == ITEMS


def test_the_control_file_says_up_to_which_place_the_disk_has_the_log(disk: LosingDisk) -> None:
    queue = queue_on(disk)
    for item in ITEMS:
        queue.put(item + LONG)
        position = queue._log.position
        assert queue._control.durable_until() == (position.block.ordinal, position.end)
        assert [queue._control.word(word) for word in (FLUSHER, STATES_FLUSHER, IS_FAILED)] == [0, 0, 0]
    queue.close()


def test_what_a_killed_process_had_written_is_on_the_disk_before_it_is_handed_out(disk: LosingDisk) -> None:
    def write_and_die() -> None:
        queue = queue_on(disk)
        queue.put_many([b"first", b"second"])
        disk.fault = lambda operation, path: os._exit(0)
        queue.put(b"third")

    with pytest.raises(AssertionError, match="before it had a result"):
        die_after(write_and_die)
    die_after(lambda: queue_on(disk).active_count)  # it only opens the queue
    assert after_power_failure(disk) == [b"first", b"second", b"third"]


def test_deliveries_that_a_killed_process_had_not_noted_are_on_the_disk_once_the_queue_is_opened(
    disk: LosingDisk,
) -> None:
    def deliver_and_die() -> None:
        queue = queue_on(disk)
        queue.put_many([b"first", b"second"])
        queue._upkeep.close()  # no group notes the delivery
        entry = queue.get()
        assert entry is not None
        queue.done(entry[0])

    die_after(deliver_and_die)
    assert after_power_failure(disk) == [b"first", b"second"]  # as documented: a plain `done` is not durable at once
    assert reopened(disk) == [b"second"]
    assert after_power_failure(disk) == [b"second"]


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("operation", ["flush", "flush_folder", "rewrite"])
@pytest.mark.parametrize(("first", "count"), [(1, 1), (1, 2), (1, 3), (2, 2), (3, 2), (1, None)])
def test_a_flush_that_was_refused_while_the_queue_was_opened_is_not_trusted_by_the_next_opening(
    disk: LosingDisk, operation: str, first: int, count: int | None, learns: bool
) -> None:
    """Every flush of an opening in turn, with the attempts to repair it; the process may die of it."""

    def deliver_and_die() -> None:
        queue = queue_on(disk)
        for item in ITEMS:
            queue.put(item + LONG)
        queue._upkeep.close()  # no group notes the deliveries
        for _ in range(5):  # in two blocks
            item_id, _ = queue.get() or (0, b"")
            queue.done(item_id)

    def open_and_die() -> None:
        fault = FailsAt(first, count, operations=("flush",) if operation == "rewrite" else (operation,))

        def refusing(done: str, path: Path) -> None:
            fault(done, path)
            if done == operation == "rewrite":
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        disk.fault = refusing
        flush = disk.flush

        def flush_or_die(descriptor: int, path: Path) -> None:
            try:
                flush(descriptor, path)
            except OSError:
                os._exit(0)

        if not learns:
            disk.flush = flush_or_die  # type: ignore[method-assign]
        with contextlib.suppress(QueueFailed, JournalError):
            queue_on(disk)
        os._exit(0)

    die_after(deliver_and_die)
    with pytest.raises(AssertionError, match="before it had a result"):
        die_after(open_and_die)
    assert reopened(disk) == ITEMS[5:]
    assert after_power_failure(disk) == ITEMS[5:]


def test_every_put_is_on_the_disk_when_it_returns_also_over_rolls_to_new_blocks(disk: LosingDisk) -> None:
    queue = queue_on(disk)
    for number in range(12):
        queue.put(b"%03d" % number + LONG)
        assert after_power_failure(disk) == [b"%03d" % each for each in range(number + 1)]
    assert len(blocks_in(disk.root / "queue")) > 2
    queue.close()


def test_a_put_that_fills_several_blocks_is_on_the_disk_when_it_returns(disk: LosingDisk) -> None:
    queue = queue_on(disk, group_delay_s=0.0)
    futures = [queue.put_nowait(b"%03d" % number + LONG) for number in range(20)]
    assert [future.result(WAIT_S) for future in futures] == list(range(20))
    assert after_power_failure(disk) == [b"%03d" % number for number in range(20)]
    queue.close()


def test_folders_and_their_marks_are_on_the_disk_before_anything_is_in_them(disk: LosingDisk) -> None:
    more = [disk.root / "second", disk.root / "third"]
    queue = queue_on(disk, more_paths=more)
    queue.put(b"item")
    image = disk.image(disk.root.parent / "image")
    queue.close()
    with opened(image / "queue", more_paths=[image / "second", image / "third"]) as queue:
        assert pending(queue) == [b"item"]


def test_a_mark_that_a_killed_process_had_not_flushed_is_on_the_disk_before_the_list_of_folders(
    disk: LosingDisk,
) -> None:
    more = [disk.root / "second"]

    def mark_and_die() -> None:
        disk.fault = lambda operation, path: (
            os._exit(0) if operation == "flush_folder" and (more[0] / MARKER_NAME).exists() else None
        )
        queue_on(disk, more_paths=more)

    with pytest.raises(AssertionError, match="before it had a result"):
        die_after(mark_and_die)

    def list_and_die() -> None:
        disk.fault = lambda operation, path: (
            os._exit(0) if operation == "flush_folder" and (path / LIST_NAME).exists() else None
        )
        queue_on(disk, more_paths=more)

    with pytest.raises(AssertionError, match="before it had a result"):
        die_after(list_and_die)
    disk.flush_folder(disk.root / "queue")  # the list's name may reach the disk at any time
    image = disk.image(disk.root.parent / "image")
    with opened(image / "queue", more_paths=[image / "second"]) as queue:
        queue.put(b"item")


@pytest.mark.parametrize("first", range(1, 9))
@pytest.mark.parametrize("operation", ["flush", "flush_folder", "rename", "write"])
def test_a_queue_whose_creation_fails_is_created_by_the_next_attempt(
    disk: LosingDisk, operation: str, first: int
) -> None:
    more = [disk.root / "second"]
    disk.fault = FailsAt(first, operations=(operation,))
    for _ in range(4):
        with contextlib.suppress(JournalError):
            queue_on(disk, more_paths=more).close()
    disk.fault = never
    with queue_on(disk, more_paths=more) as queue:
        queue.put(b"item")
        image = disk.image(disk.root.parent / "image")
    with opened(image / "queue", more_paths=[image / "second"]) as queue:
        assert pending(queue) == [b"item"]


def test_what_a_queue_that_was_closed_contains_is_on_the_disk(disk: LosingDisk) -> None:
    with queue_on(disk) as queue:
        for item in ITEMS:
            queue.put(item + LONG)
        deliver(queue)
    assert reopened(disk) == ITEMS[1:]
    assert after_power_failure(disk) == ITEMS[1:]


def test_a_queue_that_was_closed_once_is_not_taken_for_closed_after_a_kill(disk: LosingDisk) -> None:
    with queue_on(disk) as queue:
        for item in ITEMS:
            queue.put(item + LONG)

    def deliver_and_die() -> None:
        queue = queue_on(disk)
        queue._upkeep.close()  # no group notes the delivery
        entry = queue.get()
        assert entry is not None
        queue.done(entry[0])

    for count in (1, 2):
        die_after(deliver_and_die)
        assert reopened(disk) == ITEMS[count:]


def test_states_in_a_block_that_was_unmapped_are_on_the_disk_after_a_checkpoint(
    disk: LosingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_module, "OPEN_MAX", 2)
    queue = queue_on(disk)
    ids = [queue.put(b"%d" % number + LONG) for number in range(24)]  # eight blocks
    queue.cancel_many(ids[::4])
    queue.checkpoint()
    assert after_power_failure(disk) == [b"%d" % number for number in range(24) if number % 4]
    queue.close()


def test_a_failure_is_remembered_even_if_its_mark_cannot_be_written(disk: LosingDisk) -> None:
    def fail() -> None:
        queue = queue_on(disk)
        for item in ITEMS:
            queue.put(item + LONG)
        refused = FailsAt(1, matching=".tfj")

        def fault(operation: str, path: Path) -> None:
            refused(operation, path)
            if operation == "rename":
                raise OSError(errno.EIO, "Input/output error")

        with pytest.raises(QueueFailed):
            refuse(disk, fault, lambda: deliver(queue))

    die_after(fail)
    assert not (disk.root / "queue" / FAILED_NAME).exists()
    seen = reopened(disk)
    die_after(lambda: queue_on(disk).put(b"acknowledged" + LONG))
    assert after_power_failure(disk) == [*seen, b"acknowledged"]


def test_a_roll_that_a_power_failure_interrupted_is_completed_on_the_disk(disk: LosingDisk, tmp_path: Path) -> None:
    def roll_and_die() -> None:
        queue = queue_on(disk)
        for item in ITEMS[:3]:
            queue.put(item + LONG)

        def fault(operation: str, path: Path) -> None:
            if operation == "flush" and path.name.endswith("-000000.tfj"):  # it has its end mark, and a successor
                disk._keep_content(path.with_name(path.name.replace("-000000", "-000001")))
                disk._keep_names(path.parent)
                os._exit(0)

        disk.fault = fault
        for item in ITEMS[3:]:
            queue.put(item + LONG)

    with pytest.raises(AssertionError, match="before it had a result"):
        die_after(roll_and_die)
    image = disk.image(tmp_path / "image")
    assert len(blocks_in(image / "queue")) == 2
    with losing_disk(image, tmp_path / "kept-of-image") as after:
        seen = reopened(after)
        assert seen[:3] == ITEMS[:3]
        die_after(lambda: queue_on(after).put(b"acknowledged" + LONG))
        assert after_power_failure(after) == [*seen, b"acknowledged"]


def test_remains_that_a_recovery_cleared_are_cleared_on_the_disk_although_its_flush_failed(
    disk: LosingDisk, tmp_path: Path
) -> None:
    """Pages of a group that was never acknowledged, after pages that did not reach the disk."""
    with queue_on(disk) as queue:
        for item in ITEMS[:3]:
            queue.put(item + LONG)
    path = blocks_in(disk.root / "queue")[0].path
    data = bytearray(path.read_bytes())
    data[512:DATA_OFFSET] = bytes(DATA_OFFSET - 512)  # no checkpoint
    second = data.index(ITEMS[1] + LONG) - SEGMENT_SIZE
    third = data.index(ITEMS[2] + LONG) - SEGMENT_SIZE
    data[second:third] = bytes(third - second)
    data[-4_096:] = bytes(4_096)  # no tail
    path.write_bytes(data)
    (disk.root / "queue" / CONTROL_NAME).write_bytes(_without_words(disk.root / "queue" / CONTROL_NAME))
    with losing_disk(disk.root, tmp_path / "kept-again") as again:
        fault = FailsAt(2, matching=".tfj")  # the first flush is of what the last process left
        with pytest.raises(AssertionError, match="QueueFailed"):
            refuse(again, fault, lambda: die_after(lambda: queue_on(again).active_count))
        assert reopened(again) == ITEMS[:1]


def _without_words(control: Path) -> bytes:
    """As after a crash: the queue was not closed."""
    data = bytearray(control.read_bytes())
    data[LOCK:PIDS] = bytes(PIDS - LOCK)
    return bytes(data)


# ---- who may read it ----


def test_a_new_queue_is_for_its_user_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with opened(tmp_path / "queue", more_paths=[tmp_path / "second"]) as queue:
            for number in range(12):
                queue.put(b"%d" % number + LONG)
            files = [each for folder in ("queue", "second") for each in (tmp_path / folder).iterdir()]
            assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
            assert {stat.S_IMODE((tmp_path / folder).stat().st_mode) for folder in ("queue", "second")} == {0o700}
    finally:
        os.umask(before)


def test_a_new_queue_can_be_shared_with_a_group(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    with opened(tmp_path / "queue", more_paths=[tmp_path / "second"], group=group) as queue:
        for number in range(12):
            queue.put(b"%d" % number + LONG)
        files = [each for folder in ("queue", "second") for each in (tmp_path / folder).iterdir()]
        assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o660}
        assert {stat.S_IMODE((tmp_path / folder).stat().st_mode) for folder in ("queue", "second")} == {0o2770}
    with pytest.raises(ValueError, match="group of this host"):
        opened(tmp_path / "other", group="no such group")
