"""Group commit: threads share a flush, each gets its own result, and items are delivered only once durable."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemfeed.journal import JournalClosed, RecordTooLong
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.persistent_queue import Cancelled, InFlight, PersistentQueue

BLOCK = BLOCK_SIZE_MIN
THREADS = 8


@pytest.mark.parametrize(("group_size_max", "group_delay_s"), [(1_024, 0.000_1), (1_024, 0.0), (3, 0.000_1), (1, 0.0)])
def test_each_of_many_threads_gets_the_id_of_its_item(
    tmp_path: Path, group_size_max: int, group_delay_s: float
) -> None:
    with PersistentQueue.open(
        tmp_path, block_size=BLOCK, group_size_max=group_size_max, group_delay_s=group_delay_s
    ) as queue:

        def work(number: int) -> dict[int, bytes]:
            return {queue.put(item): item for item in (b"%d of %d" % (place, number) for place in range(200))}

        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(work, range(THREADS)))
        merged = {item_id: item for each in found for item_id, item in each.items()}
        assert sorted(merged) == list(range(THREADS * 200))
        assert [list(each) == sorted(each) for each in found] == [True] * THREADS
        assert [queue.get() for _ in merged] == sorted(merged.items())
        groups = queue.statistics().group_count
        assert groups >= THREADS * 200 if group_size_max == 1 else groups < THREADS * 200


def hold_flushes(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Make flushes wait for the second event; the first event is set once a flush waits."""
    flush, began, may_go = os.fdatasync, threading.Event(), threading.Event()

    def held(descriptor: int) -> None:
        began.set()
        assert may_go.wait(30)
        flush(descriptor)

    monkeypatch.setattr(os, "fdatasync", held)
    return began, may_go


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_an_item_is_neither_delivered_nor_cancelled_before_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK, checkpoint_interval_s=60) as queue:
        began, may_go = hold_flushes(monkeypatch)
        thread = in_thread(lambda: queue.put(b"item"))
        assert began.wait(30)
        assert queue.get() is None
        assert queue.cancel_all() == 0
        assert queue.pending_count == 0
        may_go.set()
        assert queue.get(timeout_s=30) == (0, b"item")
        thread.join()


def test_puts_that_arrive_while_the_disk_is_busy_share_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK, checkpoint_interval_s=60) as queue:
        began, may_go = hold_flushes(monkeypatch)
        first = in_thread(lambda: queue.put(b"first"))
        assert began.wait(30)
        futures = [queue.put_nowait(b"%d" % number) for number in range(100)]
        may_go.set()
        assert [future.result(30) for future in futures] == list(range(1, 101))
        first.join()
        assert queue.statistics().group_count <= 3


def test_an_item_that_is_too_long_is_refused_and_the_rest_of_its_group_is_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemfeed.journal.persistent_queue.blocks.segments.RECORD_SIZE_MAX", 4 << 20)
    with PersistentQueue.open(tmp_path, block_size=BLOCK, checkpoint_interval_s=60) as queue:
        began, may_go = hold_flushes(monkeypatch)
        first = in_thread(lambda: queue.put(b"first"))
        assert began.wait(30)
        futures = [queue.put_nowait(item) for item in (b"before", bytes(5 << 20), b"after")]
        may_go.set()
        assert isinstance(futures[1].exception(30), RecordTooLong)
        assert [futures[0].result(), futures[2].result()] == [1, 2]
        first.join()


def test_a_waiting_get_returns_an_item_or_raises_when_the_queue_is_closed(tmp_path: Path) -> None:
    queue = PersistentQueue.open(tmp_path, block_size=BLOCK)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(queue.get, 30)
        assert queue.put(b"item") == 0
        assert waiting.result() == (0, b"item")
        waiting = pool.submit(queue.get, 30)
        queue.close()
        assert isinstance(waiting.exception(), JournalClosed)


def test_a_released_item_is_delivered_before_newer_ones(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        queue.put_many([b"a", b"b", b"c", b"d"])
        for _ in range(3):
            queue.get()
        assert queue.cancel(1) == InFlight(1)
        queue.release(2)
        queue.release(1)
        assert queue.cancel(1) == Cancelled(1)
        assert [queue.get(), queue.get(), queue.get()] == [(2, b"c"), (3, b"d"), None]


def test_a_forked_child_must_open_the_queue_itself(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        queue.put(b"item")
        child = os.fork()
        if child == 0:
            try:
                queue.put(b"from the child")
            except JournalClosed:
                os._exit(42)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert queue.put(b"from the parent") == 1


def test_concurrent_puts_of_every_kind_and_consumers_deliver_each_item_once(tmp_path: Path) -> None:
    count = 150
    with PersistentQueue.open(tmp_path, block_size=BLOCK, group_size_max=3, checkpoint_interval_items=100) as queue:
        is_all_put = threading.Event()

        def produce(_number: int) -> None:
            futures = []
            for place in range(count):
                futures.append(queue.put_nowait(b"future"))
                assert queue.put(b"one") >= 0
                assert len(queue.put_many([b"many"] * (place % 4))) == place % 4
            assert len({future.result(30) for future in futures}) == count

        def consume() -> list[int]:
            taken = []
            while not is_all_put.is_set() or queue.pending_count:
                if (entry := queue.get(0.05)) is not None:
                    taken.append(entry[0])
                    queue.done(entry[0])
            return taken

        with ThreadPoolExecutor(THREADS) as pool:
            consumers = [pool.submit(consume) for _ in range(2)]
            list(pool.map(produce, range(4)))
            is_all_put.set()
            taken = sorted(item_id for each in consumers for item_id in each.result())
        assert taken == list(range(queue.statistics().put_count))
        assert queue.active_count == 0


@pytest.mark.parametrize("is_wanted", [True, False])
def test_threads_that_put_get_the_batch_policy_unless_it_is_disabled(tmp_path: Path, is_wanted: bool) -> None:
    policies: list[int] = []

    def run(first_policy: int) -> None:
        os.sched_setscheduler(0, first_policy, os.sched_param(0))
        queue.put(b"item")
        policies.append(os.sched_getscheduler(0))

    with PersistentQueue.open(tmp_path, block_size=BLOCK_SIZE_MIN, batch_scheduling=is_wanted) as queue:
        for policy in (os.SCHED_OTHER, os.SCHED_IDLE):
            thread = threading.Thread(target=run, args=(policy,))
            thread.start()
            thread.join()
    assert policies == [os.SCHED_BATCH if is_wanted else os.SCHED_OTHER, os.SCHED_IDLE]
