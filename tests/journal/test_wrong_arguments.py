"""A wrong argument raises an error that names it, shows what was found and says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.journal import Journal, Tailer
from tandemfeed.journal.persistent_queue import PersistentQueue
from tandemfeed.journal.transactional import TransactionalStore

BLOCK = 1 << 20


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda journal: journal.append_batch(None), "records is None; expected a sequence of bytes"),
        (lambda journal: journal.append_batch(b"abc"), "records is b'abc'; expected a sequence of bytes"),
        (lambda journal: journal.append("text"), "bytes-like object is required, not 'str'"),
        (lambda journal: journal.show_until("end"), "index is 'end'; expected an integer"),
        (lambda journal: journal.tailer().to_index(None), "index is None; expected an integer"),
        (lambda journal: journal.tailer().to_index(1.5), "index is 1.5; expected an integer"),
        (lambda journal: journal.tailer().to_time(None), "at_ns.* is None; expected an integer"),
        (lambda journal: journal.tailer().read_batch(None), "count_max is None; expected an integer"),
        (lambda journal: journal.tailer().read_batch(0), "count_max is 0; it must be at least 1"),
        (lambda journal: Tailer(journal.folder, name=5), "5: a tailer's name has"),
        (lambda journal: Journal.open(journal.folder, roll_cycle=5), "unknown roll cycle 5; choose one of"),
        (lambda journal: Journal.open(journal.folder, block_size="1"), "block_size is '1'; expected an integer"),
    ],
)
def test_a_wrong_argument_of_a_journal(call: Callable[[Any], object], text: str, tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        journal.append(b"record")
        with pytest.raises((TypeError, ValueError), match=text):
            call(journal)


@pytest.mark.parametrize("wrong", [None, "1", 1.5, [1]])
def test_a_wrong_item_id_of_a_queue(wrong: Any, tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path) as queue:
        queue.put(b"item")
        for call in (queue.done, queue.release, queue.cancel, lambda item: queue.done_many([item])):
            with pytest.raises(TypeError, match=r"an item's id is .*; expected an integer"):
                call(wrong)


@pytest.mark.parametrize("wrong", [None, 1, b"body"])
def test_a_wrong_message_of_a_transaction(wrong: Any, tmp_path: Path) -> None:
    with TransactionalStore.open(tmp_path) as store:
        store.create_queue("orders")
        with store.transaction() as transaction:
            with pytest.raises(TypeError, match=r"ack got .*; expected a Message that `get`"):
                transaction.ack(wrong)
            with pytest.raises(TypeError, match=r"move got .*; expected a Message that `get`"):
                transaction.move(wrong, "orders")
