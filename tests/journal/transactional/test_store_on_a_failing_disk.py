"""A store whose disk fails, or whose process was killed: what it acknowledged and showed survives a power failure.

On a real file system that loses what was not written, because SQLite flushes its files itself.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemfeed.journal.transactional import StoreFailed, StoreFull, StoreLimits, TransactionalStore
from tandemfeed.journal.transactional.pages.recovery import pages_in, places_of
from tests.dying_process import die_after
from tests.failing_device import FailingDevice
from tests.journal.transactional.store_copies import bodies, put_all
from tests.losing_disk import FailsAt, losing_disk

LIMITS = StoreLimits(log_bytes_max=8 << 20)
LONG = bytes(300_000)  # many pages, which the file system then has to allocate


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FailingDevice]:
    with FailingDevice(tmp_path) as device:
        yield device


def opened(device: FailingDevice, attempts: int = 3) -> TransactionalStore:
    """The store; the first flush of a folder after the disk works again may still report what was refused before."""
    for _ in range(attempts - 1):
        with contextlib.suppress(StoreFailed):
            return TransactionalStore.open(device.folder / "store", limits=LIMITS)
    return TransactionalStore.open(device.folder / "store", limits=LIMITS)


def heads(store: TransactionalStore) -> list[bytes]:
    return [body.strip(b"\0") for body in bodies(store, "orders")]


def made(device: FailingDevice) -> TransactionalStore:
    store = opened(device)
    store.create_queue("orders")
    put_all(store, "orders", b"first")
    return store


def commit(store: TransactionalStore, number: int) -> None:
    put_all(store, "orders", b"doubtful" + LONG)


def prepare(store: TransactionalStore, number: int) -> None:
    transaction = store.begin(f"doubtful-{number}")
    transaction.put("orders", LONG)
    transaction.prepare()


def administer(store: TransactionalStore, number: int) -> None:
    store.create_subscriber(f"desk-{number}", "#")


def deliver(store: TransactionalStore, number: int) -> None:
    transaction = store.transaction()
    transaction.get("orders")
    store.flush()
    transaction.rollback()


def checkpoint(store: TransactionalStore, number: int) -> None:
    store.checkpoint()


def until_it_fails(store: TransactionalStore, operation: Callable[[TransactionalStore, int], None]) -> None:
    """Small writes may go where the disk has data already, which it does not refuse."""
    with pytest.raises(StoreFailed, match="open it again"):  # noqa: PT012
        for number in range(1_000):
            operation(store, number)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("operation", [commit, prepare, administer, deliver, checkpoint])
def test_after_a_failed_flush_a_store_has_failed_and_once_opened_again_it_loses_nothing(
    device: FailingDevice, operation: Callable[[TransactionalStore, int], None], is_closed: bool
) -> None:
    def fail() -> None:
        store = made(device)
        if operation is checkpoint:
            put_all(store, "orders", b"second" + LONG)
        with device.failing():
            until_it_fails(store, operation)
        for call in (store.transaction, store.flush, store.checkpoint, lambda: store.create_queue("other")):
            with pytest.raises(StoreFailed):  # the disk works again; the store does not
                call()
        if is_closed:
            store.close()
            del store
            gc.collect()  # no connection that is still open may make a checkpoint at its end

    def work() -> list[bytes]:
        store = opened(device)
        put_all(store, "orders", b"acknowledged")
        return heads(store)

    die_after(fail)
    seen = die_after(work)
    assert [body for body in seen if body not in (b"doubtful", b"second")] == [b"first", b"acknowledged"]
    assert (b"second" in seen) == (operation is checkpoint)
    device.lose_power()
    with opened(device) as store:
        assert heads(store) == seen
        assert store.problems() == []
        store.checkpoint()
        put_all(store, "orders", b"last")
    device.lose_power()
    with opened(device) as store:
        assert heads(store) == [*seen, b"last"]
        assert store.problems() == []


def test_a_checkpoint_that_failed_is_made_again_only_by_the_next_process_and_keeps_everything(
    device: FailingDevice,
) -> None:
    """Made again by the same process, it would write into cached pages that the kernel takes for written."""

    def fail() -> None:
        store = made(device)
        for number in range(5):
            put_all(store, "orders", b"%d" % number + LONG)
        with device.failing(), pytest.raises(StoreFailed):
            store.checkpoint()
        store.close()

    def work() -> list[bytes]:
        store = opened(device)
        store.checkpoint()
        put_all(store, "orders", b"acknowledged")
        return heads(store)

    die_after(fail)
    seen = die_after(work)
    assert seen == [b"first", *(b"%d" % number for number in range(5)), b"acknowledged"]
    device.lose_power()
    with opened(device) as store:
        assert heads(store) == seen
        assert store.problems() == []


def test_a_final_checkpoint_that_fails_leaves_the_log_to_the_next_process(device: FailingDevice) -> None:
    def fail() -> None:
        store = made(device)
        put_all(store, "orders", b"second" + LONG)
        with device.failing():
            store.close()

    die_after(fail)
    assert (device.folder / "store" / "store.db-wal").stat().st_size > len(LONG)
    assert die_after(lambda: heads(opened(device))) == [b"first", b"second"]
    device.lose_power()
    with opened(device) as store:
        assert heads(store) == [b"first", b"second"]
        assert store.problems() == []


def test_a_store_is_not_opened_while_the_disk_refuses_what_the_last_process_left(device: FailingDevice) -> None:
    def fail() -> None:
        store = made(device)
        with device.failing():
            until_it_fails(store, commit)

    die_after(fail)
    with device.failing():
        for _ in range(2):
            with pytest.raises(StoreFailed, match="cannot be made durable"):
                opened(device, attempts=1)
    assert die_after(lambda: heads(opened(device))) == [b"first", b"doubtful"]
    device.lose_power()
    with opened(device) as store:
        assert heads(store) == [b"first", b"doubtful"]


def test_what_an_opened_store_shows_of_a_killed_process_survives_a_power_failure(device: FailingDevice) -> None:
    def left_unflushed() -> None:  # as by a process that is killed between writing a commit and flushing it
        store = made(device)
        store._parts.pages._writer.execute("PRAGMA synchronous=OFF")
        commit(store, 0)
        store.begin("promised").prepare()

    die_after(left_unflushed)
    seen, promised = die_after(lambda: (heads(store := opened(device)), len(store.in_doubt())))
    assert (seen, promised) == ([b"first", b"doubtful"], 1)
    device.lose_power()
    with opened(device) as store:
        assert (heads(store), len(store.in_doubt())) == (seen, promised)


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_new_store_and_one_that_was_closed_acknowledge_first_survives_a_power_failure(
    device: FailingDevice, times: int
) -> None:
    def work(number: int) -> None:
        store = made(device) if number == 0 else opened(device)
        put_all(store, "orders", b"%d" % number)
        if number + 1 < times:
            store.close()

    for number in range(times):
        die_after(lambda: work(number))  # noqa: B023 - called here
    device.lose_power()
    with opened(device) as store:
        assert heads(store) == [b"first", *(b"%d" % number for number in range(times))]


def test_a_store_that_gave_up_changes_no_file_when_it_is_closed(tmp_path: Path) -> None:
    store = TransactionalStore.open(tmp_path / "store")
    store.create_queue("orders")
    put_all(store, "orders", b"in the log")
    store._parts.pages.give_up()
    before = {name: (tmp_path / "store" / name).read_bytes() for name in ("store.db", "store.db-wal")}
    store.close()
    assert {name: (tmp_path / "store" / name).read_bytes() for name in before} == before
    with TransactionalStore.open(tmp_path / "store") as again:
        assert bodies(again, "orders") == [b"in the log"]


@pytest.mark.parametrize("first", [1, 2, 3, 4])
@pytest.mark.parametrize("operation", ["flush_folder", "flush", "rename"])
def test_a_store_whose_creation_fails_is_created_or_opened_by_the_next_attempt(
    tmp_path: Path, operation: str, first: int
) -> None:
    (tmp_path / "disk").mkdir()
    fault = FailsAt(first, operations=(operation,))
    with losing_disk(tmp_path / "disk", tmp_path / "kept", fault) as disk:
        failures = 0
        for _ in range(5):
            try:
                TransactionalStore.open(tmp_path / "disk" / "store").close()
            except StoreFailed:
                failures += 1
        assert failures == fault.failed == (fault.calls >= first)
        with TransactionalStore.open(tmp_path / "disk" / "store") as store:
            durable_names = {each.name for each in (disk.image(tmp_path / "image") / "store").iterdir()}
            assert durable_names >= {"store.db", "store.db-wal"}  # before anything is acknowledged
            store.create_queue("orders")
            put_all(store, "orders", b"one")
        with TransactionalStore.open(tmp_path / "disk" / "store") as store:
            assert bodies(store, "orders") == [b"one"]


def test_a_checkpoint_that_fails_while_it_frees_space_fails_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = StoreLimits(log_bytes_max=1 << 20, store_bytes_max=400_000)
    with TransactionalStore.open(tmp_path / "store", limits=limits) as store:
        store.create_queue("orders")
        pages = store._parts.pages
        monkeypatch.setattr(pages._reserve, "is_disk_low", lambda: True)

        def broken() -> bool:
            raise StoreFailed("disk I/O error")

        with monkeypatch.context() as patched:
            patched.setattr(pages, "checkpoint", broken)
            with pytest.raises(StoreFailed, match="open it again"):
                put_all(store, "orders", bytes(1_000_000))
        with pytest.raises(StoreFailed):
            put_all(store, "orders", b"small")


def test_a_disk_that_is_full_refuses_a_transaction_but_does_not_fail_the_store(tmp_path: Path) -> None:
    limits = StoreLimits(log_bytes_max=1 << 20, store_bytes_max=400_000)
    with TransactionalStore.open(tmp_path / "store", limits=limits) as store:
        store.create_queue("orders")
        with pytest.raises(StoreFull):
            put_all(store, "orders", bytes(1_000_000))
        put_all(store, "orders", b"small")
        assert bodies(store, "orders") == [b"small"]


def test_the_places_of_a_logs_pages_are_found_and_joined(tmp_path: Path) -> None:
    with TransactionalStore.open(tmp_path / "store") as store:
        store.create_queue("orders")
        store.checkpoint()
        put_all(store, "orders", LONG)
        found = pages_in(tmp_path / "store" / "store.db-wal", 4_096)
        assert len(found) > len(LONG) // 4_096
        assert found == sorted(set(found))
        assert places_of([1, 2, 3, 7, 9, 10], 4_096) == [(0, 12_288), (24_576, 28_672), (32_768, 40_960)]
        assert sum(end - start for start, end in places_of(found, 4_096)) == len(found) * 4_096
    frames = [number.to_bytes(4, "big") + bytes(20 + 4_096) for number in (3, 1, 0, 2, 1)]  # 0: never written
    (tmp_path / "log").write_bytes(bytes(32) + b"".join(frames))
    assert pages_in(tmp_path / "log", 4_096) == [1, 2, 3]
    (tmp_path / "empty").touch()
    assert pages_in(tmp_path / "empty", 4_096) == []
