"""Non-persistent messages: bounded in memory, moved to swap files when memory is full, and lost at a restart."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tandemfeed.journal.transactional import (
    ForeignStore,
    StoreCorrupt,
    StoreFull,
    StoreLimits,
    TransactionalStore,
    subscriber_queue,
)
from tests.journal.transactional.store_copies import bodies, crashed_copy, put_all

LIMITS = StoreLimits(
    volatile_memory_bytes_max=10_000, swap_file_bytes_max=20_000, swap_bytes_max=100_000, message_bytes_max=50_000
)


def swap_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("swap-*"))


def opened(folder: Path) -> TransactionalStore:
    store = TransactionalStore.open(folder, limits=LIMITS)
    if not store.queues():
        store.create_queue("ticks")
    return store


def consume(store: TransactionalStore, queue: str, count: int) -> list[bytes]:
    found = []
    with store.transaction() as transaction:
        for _ in range(count):
            message = transaction.get(queue)
            assert message is not None
            assert not message.persistent
            transaction.ack(message)
            found.append(message.body)
    return found


def test_memory_is_bounded_and_swap_files_roll_over_and_are_deleted_when_empty(tmp_path: Path) -> None:
    put = [b"%04d" % number + bytes(996) for number in range(60)]
    with opened(tmp_path / "store") as store:
        for body in put:
            put_all(store, "ticks", body, persistent=False)
            assert store.statistics().volatile_memory_bytes <= 10_000
        assert store.statistics().volatile_spilled_count == 50
        assert swap_files(store.folder) == [f"swap-{number:08}.tfs" for number in (1, 2, 3)]
        assert all(path.stat().st_size < 21_500 for path in store.folder.glob("swap-*"))
        assert consume(store, "ticks", 30) == put[:30]
        assert swap_files(store.folder) == [f"swap-{number:08}.tfs" for number in (2, 3)]
        put_all(store, "ticks", b"fits in memory again", persistent=False)
        assert consume(store, "ticks", 31) == [*put[30:], b"fits in memory again"]
        assert swap_files(store.folder) == []
        statistics = store.statistics()
        assert (statistics.volatile_memory_bytes, statistics.swap_bytes, statistics.volatile_message_count) == (0, 0, 0)


def test_non_persistent_messages_keep_their_place_among_persistent_ones(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        expected = []
        for number in range(1_500):
            put_all(store, "ticks", b"%d" % number, persistent=number % 3 != 0)
            expected.append(b"%d" % number)
        assert bodies(store, "ticks") == expected
        crashed_copy(store, tmp_path / "crashed")
    with opened(tmp_path / "crashed") as store:
        assert bodies(store, "ticks") == [body for number, body in enumerate(expected) if number % 3]


def test_a_transaction_with_only_non_persistent_messages_needs_no_flush(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        put_all(store, "ticks", b"takes the first positions")
        before = store.statistics().groups_committed
        put_all(store, "ticks", b"volatile", persistent=False)
        assert store.statistics().groups_committed == before


def test_a_restart_finds_no_non_persistent_messages_and_deletes_swap_files_of_a_crash(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for _ in range(3):
            put_all(store, "ticks", bytes(9_000), persistent=False)
        crashed_copy(store, tmp_path / "crashed")
    assert swap_files(tmp_path / "store") == []
    assert swap_files(tmp_path / "crashed") == ["swap-00000001.tfs"]
    with opened(tmp_path / "crashed") as store:
        assert bodies(store, "ticks") == []
        assert swap_files(store.folder) == []


def test_one_message_for_many_subscribers_is_in_memory_once(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for number in range(5):
            store.create_subscriber(f"desk-{number}", "quotes.*")
        with store.transaction() as transaction:
            assert transaction.publish("quotes.AAPL", bytes(1_000), persistent=False) == 5
        assert store.statistics().volatile_memory_bytes == 1_000
        for number in range(4):
            consume(store, subscriber_queue(f"desk-{number}"), 1)
            assert store.statistics().volatile_memory_bytes == 1_000
        store.delete_subscriber("desk-4")
        assert store.statistics().volatile_memory_bytes == 0


def test_a_rollback_frees_the_messages_that_were_put(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        transaction = store.transaction()
        for _ in range(5):
            transaction.put("ticks", bytes(9_000), persistent=False)
        assert store.statistics().swap_file_count == 2
        transaction.rollback()
        assert store.statistics().volatile_message_count == 0
        assert swap_files(store.folder) == []


def test_full_swap_files_refuse_messages_until_there_is_space(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for _ in range(3):
            put_all(store, "ticks", bytes(40_000), persistent=False)
            if store.statistics().swap_bytes > 50_000:
                break
        with pytest.raises(StoreFull, match="swap_bytes_max"):
            put_all(store, "ticks", bytes(40_000), persistent=False)
        consume(store, "ticks", 1)
        put_all(store, "ticks", bytes(40_000), persistent=False)


def test_a_full_disk_under_a_swap_file_is_reported_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_for_lack_of_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path / "store") as store:
        put_all(store, "ticks", b"first" + bytes(9_990), persistent=False)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fail_for_lack_of_space)
            with pytest.raises(StoreFull, match="disk space"):
                put_all(store, "ticks", bytes(100), persistent=False)
        put_all(store, "ticks", b"after", persistent=False)
        assert [body[:5] for body in bodies(store, "ticks")] == [b"first", b"after"]


def test_damaged_swapped_messages_are_never_delivered_and_foreign_files_never_deleted(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        put_all(store, "ticks", bytes(10_000), b"spilled", b"behind", persistent=False)
        path = store.folder / "swap-00000001.tfs"
        path.write_bytes(path.read_bytes().replace(b"spilled", b"sp1lled"))
        transaction = store.transaction()
        assert transaction.get("ticks") is not None
        with pytest.raises(StoreCorrupt, match="swap-00000001"):
            transaction.get("ticks")
        transaction.rollback()
    foreign = tmp_path / "store" / "swap-00000009.tfs"
    foreign.write_bytes(b"somebody's data")
    with pytest.raises(ForeignStore, match="swap-00000009"):
        opened(tmp_path / "store")
    assert foreign.read_bytes() == b"somebody's data"
