"""The store compared to dicts and lists, through transactions, decisions, crashes and restarts."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandemfeed.journal.transactional import Message, StoreLimits, Transaction, TransactionalStore, TransactionState
from tandemfeed.journal.transactional.memory import queue_index as index_module
from tandemfeed.journal.transactional.memory import store_state as store_state_module
from tests.journal.transactional.store_copies import crashed_copy

WINDOW = 3  # small, so that queues are read in many parts
SUBSCRIBERS = {"subscriber:all": "#", "subscriber:us": "quotes.us", "subscriber:any": "quotes.*"}
TOPICS = {
    "quotes.us": ("subscriber:all", "subscriber:any", "subscriber:us"),
    "quotes.eu": ("subscriber:all", "subscriber:any"),
    "news": ("subscriber:all",),
}
QUEUES = ("a", "b", *SUBSCRIBERS)
LIMITS = StoreLimits(volatile_memory_bytes_max=20, swap_file_bytes_max=60, log_bytes_max=60_000)


@dataclass(eq=False)
class Item:
    """A message in a queue of the model."""

    body: bytes
    persistent: bool
    delivery_count: int = 0
    owner: OpenTransaction | None = None


@dataclass(eq=False)
class OpenTransaction:
    """A transaction of the model."""

    transaction: Transaction | None  # None after a crash
    global_id: str | None
    taken: list[tuple[str, Item, Message]] = field(default_factory=list)  # not settled
    kept: list[tuple[str, Item]] = field(default_factory=list)
    removed: list[tuple[str, Item]] = field(default_factory=list)
    arrivals: list[tuple[str, bytes, bool]] = field(default_factory=list)
    prepared: bool = False


class StoreAgainstModel(RuleBasedStateMachine):
    """A state machine that drives one store and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="tandemfeed-model-"))
        self.numbers = itertools.count(1)
        self.queues: dict[str, list[Item]] = {name: [] for name in QUEUES}
        self.transactions: list[OpenTransaction] = []
        self.patch = pytest.MonkeyPatch()
        for module in (store_state_module, index_module):
            self.patch.setattr(module, "WINDOW_COUNT_MAX", WINDOW)

    @initialize()
    def open(self) -> None:
        self.store = TransactionalStore.open(self.root / "0", limits=LIMITS)
        self.store.create_queue("a")
        self.store.create_queue("b")
        for name, pattern in SUBSCRIBERS.items():
            self.store.create_subscriber(name.removeprefix("subscriber:"), pattern)

    def active(self) -> list[OpenTransaction]:
        return [current for current in self.transactions if not current.prepared]

    @precondition(lambda self: len(self.transactions) < 4)
    @rule(two_phase=st.booleans())
    def begin(self, two_phase: bool) -> None:
        global_id = f"global-{next(self.numbers)}" if two_phase else None
        self.transactions.append(
            OpenTransaction(self.store.begin(global_id) if global_id else self.store.transaction(), global_id)
        )

    @precondition(lambda self: self.active())
    @rule(data=st.data(), queue=st.sampled_from(("a", "b")), persistent=st.booleans(), count=st.integers(1, 5))
    def put(self, data: st.DataObject, queue: str, persistent: bool, count: int) -> None:
        current = data.draw(st.sampled_from(self.active()))
        assert current.transaction is not None
        for _ in range(count):
            body = b"%d" % next(self.numbers)
            current.transaction.put(queue, body, persistent=persistent)
            current.arrivals.append((queue, body, persistent))

    @precondition(lambda self: self.active())
    @rule(data=st.data(), topic=st.sampled_from(sorted(TOPICS)), persistent=st.booleans())
    def publish(self, data: st.DataObject, topic: str, persistent: bool) -> None:
        current = data.draw(st.sampled_from(self.active()))
        assert current.transaction is not None
        body = b"%d" % next(self.numbers)
        assert current.transaction.publish(topic, body, persistent=persistent) == len(TOPICS[topic])
        by_creation = [queue for queue in SUBSCRIBERS if queue in TOPICS[topic]]
        current.arrivals += [(queue, body, persistent) for queue in by_creation]

    @precondition(lambda self: self.active())
    @rule(data=st.data(), queue=st.sampled_from(QUEUES), count=st.integers(1, 6))
    def get(self, data: st.DataObject, queue: str, count: int) -> None:
        current = data.draw(st.sampled_from(self.active()))
        assert current.transaction is not None
        for _ in range(count):
            expected = next((item for item in self.queues[queue] if item.owner is None), None)
            message = current.transaction.get(queue)
            assert (expected is None) == (message is None)
            if expected is None or message is None:
                return
            expected.owner = current
            expected.delivery_count += 1
            assert message.body == expected.body
            assert message.persistent == expected.persistent
            assert message.delivery_count == expected.delivery_count
            current.taken.append((queue, expected, message))

    @precondition(lambda self: any(current.taken for current in self.active()))
    @rule(data=st.data(), fate=st.sampled_from(["ack", "delete", "move"]), to_queue=st.sampled_from(QUEUES))
    def settle(self, data: st.DataObject, fate: str, to_queue: str) -> None:
        current = data.draw(st.sampled_from([current for current in self.active() if current.taken]))
        assert current.transaction is not None
        queue, item, message = current.taken.pop(data.draw(st.integers(0, len(current.taken) - 1)))
        current.removed.append((queue, item))
        if fate == "ack":
            current.transaction.ack(message)
        elif fate == "delete":
            current.transaction.delete(queue, message.message_id)
        else:
            current.transaction.move(message, to_queue)
            current.arrivals.append((to_queue, item.body, item.persistent))

    @precondition(lambda self: self.active())
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: st.DataObject, commit: bool) -> None:
        current = data.draw(st.sampled_from(self.active()))
        assert current.transaction is not None
        if commit:
            current.transaction.commit()
        else:
            current.transaction.rollback()
        self.ended(current, commit)

    @precondition(lambda self: any(current.global_id for current in self.active()))
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        current = data.draw(st.sampled_from([current for current in self.active() if current.global_id]))
        assert current.transaction is not None
        current.transaction.prepare()
        current.prepared = True

    @precondition(lambda self: any(current.prepared for current in self.transactions))
    @rule(data=st.data(), commit=st.booleans(), by_hand=st.booleans())
    def decide(self, data: st.DataObject, commit: bool, by_hand: bool) -> None:
        current = data.draw(st.sampled_from([current for current in self.transactions if current.prepared]))
        assert current.global_id is not None
        if by_hand:
            self.store.decide_by_hand(current.global_id, commit=commit)
            assert self.store.decided_by_hand() == {current.global_id: commit}
            self.store.forget(current.global_id)
        else:
            self.store.decide(current.global_id, commit=commit)
        self.ended(current, commit)

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()
        assert self.store.statistics().log_bytes == 0

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        folder = self.store.folder
        if crash:
            self.store.flush()  # delivery counts are written a moment later; this waits for them
            folder = crashed_copy(self.store, self.root / str(next(self.numbers)))
        self.store.close()
        for current in self.transactions:
            current.transaction = None
            current.arrivals = [arrival for arrival in current.arrivals if arrival[2]]
            if not current.prepared:
                self.release(current, [(queue, item) for queue, item, _ in current.taken] + current.removed)
        self.transactions = [current for current in self.transactions if current.prepared]
        for items in self.queues.values():
            items[:] = [item for item in items if item.persistent]
        self.store = TransactionalStore.open(folder, limits=LIMITS)
        assert [(each.name, each.pattern) for each in self.store.subscribers()] == sorted(
            (name.removeprefix("subscriber:"), pattern) for name, pattern in SUBSCRIBERS.items()
        )
        assert {each.global_id for each in self.store.in_doubt()} == {
            current.global_id for current in self.transactions
        }

    def ended(self, current: OpenTransaction, commit: bool) -> None:
        self.transactions.remove(current)
        if current.transaction is not None:
            states = (TransactionState.COMMITTED,) if commit else (TransactionState.ROLLED_BACK,)
            assert current.transaction.state in states
        self.release(current, [(queue, item) for queue, item, _ in current.taken])
        if not commit:
            self.release(current, current.removed)
            return
        for queue, item in current.removed:
            if item in self.queues[queue]:  # a crash may have lost a non-persistent one
                self.queues[queue].remove(item)
        for queue, body, persistent in current.arrivals:
            self.queues[queue].append(Item(body, persistent))

    def release(self, current: OpenTransaction, items: list[tuple[str, Item]]) -> None:
        for _, item in items:
            assert item.owner is current
            item.owner = None

    @invariant()
    def every_queue_has_as_many_messages_and_locks_as_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        self.store._state.validate()
        for status in self.store.queues():
            items = self.queues[status.name]
            assert status.count == len(items), status
            assert status.locked_count == sum(item.owner is not None for item in items), status
        assert self.store.statistics().volatile_memory_bytes <= LIMITS.volatile_memory_bytes_max
        assert {each.global_id for each in self.store.prepared()} == {
            current.global_id for current in self.transactions if current.prepared
        }

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for current in self.active():
                self.release(current, [(queue, item) for queue, item, _ in current.taken] + current.removed)
                assert current.transaction is not None
                current.transaction.rollback()
            for queue, items in self.queues.items():
                transaction = self.store.transaction()
                found = []
                while (message := transaction.get(queue)) is not None:
                    found.append(message.body)
                transaction.rollback()
                assert found == [item.body for item in items if item.owner is None]
            assert self.store.problems() == []
            self.store.close()
        self.patch.undo()
        shutil.rmtree(self.root)


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=60, stateful_step_count=40)
