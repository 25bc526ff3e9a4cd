"""The window of a queue's index: rows not yet read, and entries locked beyond the window."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemfeed.journal.transactional import TransactionalStore
from tandemfeed.journal.transactional.log.changes import Changes
from tandemfeed.journal.transactional.memory import queue_index as index_module
from tandemfeed.journal.transactional.memory import store_state as store_state_module
from tandemfeed.journal.transactional.memory.queue_index import QueueIndex
from tandemfeed.journal.transactional.transactions.contents import Entry
from tests.journal.transactional.store_copies import bodies, put_all


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store_state_module, index_module):
        monkeypatch.setattr(module, "WINDOW_COUNT_MAX", 2)


def test_rows_on_the_disk_are_hidden_until_they_are_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TransactionalStore.open(tmp_path / "store") as store, ThreadPoolExecutor(1) as pool:
        store.create_queue("orders")
        put_all(store, "orders", b"0", b"1", b"2", b"3", b"4")
        pages, seen = store._parts.pages, list[list[bytes]]()
        write = pages.write

        def write_and_look(changes: Changes) -> None:
            write(changes)
            seen.append(pool.submit(bodies, store, "orders").result(timeout=30))

        with monkeypatch.context() as patch:
            patch.setattr(pages, "write", write_and_look)
            put_all(store, "orders", b"5", b"6", b"7")
        assert seen[0] == [b"0", b"1", b"2", b"3", b"4"]
        assert bodies(store, "orders") == [b"%d" % number for number in range(8)]
        store._state.validate()


def stored(*positions: int) -> list[Entry]:
    return [Entry(position, position, persistent=True, shared=False) for position in positions]


def test_an_entry_locked_beyond_the_window_and_released_is_read_again_in_its_turn() -> None:
    index = QueueIndex(1, "orders", stored_count=4)
    index.load(stored(1, 2))
    (ahead,) = stored(4)
    index.lock_stored(ahead, "somebody")
    index.release(ahead)
    index.validate()
    assert index.lock_known(4, "another") is None
    assert [index.take("reader") for _ in range(2)] == stored_taken(1, 2)
    assert index.wants_rows()
    index.load(stored(3, 4))
    assert [index.take("reader") for _ in range(3)] == [*stored_taken(3, 4), None]


def test_an_entry_locked_beyond_the_window_is_skipped_in_its_turn() -> None:
    index = QueueIndex(1, "orders", stored_count=3)
    (ahead,) = stored(2)
    index.lock_stored(ahead, "somebody")
    index.load(stored(1, 2, 3))
    index.validate()
    assert [index.take("reader") for _ in range(3)] == [*stored_taken(1, 3), None]
    index.release(ahead)
    assert index.take("reader") is ahead
    index.remove(ahead)
    index.validate()
    assert index.count == 2


def stored_taken(*positions: int) -> list[Entry]:
    return [Entry(position, position, True, False, delivery_count=1, owner="reader") for position in positions]


def test_repeated_release_and_take_need_no_more_memory() -> None:
    index = QueueIndex(1, "orders", stored_count=2)
    index.load(stored(1, 2))
    for _ in range(1_000):
        taken = [entry for _ in range(2) if (entry := index.take("reader")) is not None]
        for entry in taken:
            index.release(entry)
        index.lock_known(2, "somebody")
        index.release(taken[1])
    assert len(index._ready) < 20
    index.validate()
