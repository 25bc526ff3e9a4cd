"""Transactions of the store: atomic, in order, each message delivered once and to the right receiver."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemfeed.journal.transactional import (
    CallFromLogWriter,
    IllegalTransactionMove,
    MessageLocked,
    NoSuchMessage,
    NoSuchQueue,
    NotHeld,
    QueueExists,
    QueueFull,
    QueueInUse,
    StoreClosed,
    StoreLimits,
    TransactionalStore,
    TransactionState,
    TransactionTooLarge,
    subscriber_queue,
)
from tests.journal.transactional.store_copies import bodies, crashed_copy, put_all


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TransactionalStore]:
    with TransactionalStore.open(tmp_path / "store") as opened:
        opened.create_queue("orders")
        opened.create_queue("audit")
        yield opened
        if opened._state.failure is None and not opened._state.closed:
            opened._state.validate()
            assert opened.problems() == []


def test_messages_are_delivered_in_commit_order_and_survive_a_restart(tmp_path: Path) -> None:
    put = [b"message %d" % number for number in range(1_200)]  # more than one window of the index
    with TransactionalStore.open(tmp_path / "store") as store:
        store.create_queue("orders")
        put_all(store, "orders", *put[:700])
        put_all(store, "orders", *put[700:])
    with TransactionalStore.open(tmp_path / "store") as store:
        assert bodies(store, "orders") == put
        assert store.queues()[0].count == len(put)


def test_a_block_that_raises_changes_nothing(store: TransactionalStore) -> None:
    put_all(store, "orders", b"first")

    def change_and_raise() -> None:
        with store.transaction() as transaction:
            message = transaction.get("orders")
            assert message is not None
            transaction.ack(message)
            transaction.put("audit", b"never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_raise()
    assert bodies(store, "orders") == [b"first"]
    assert bodies(store, "audit") == []


def test_changes_to_many_queues_are_atomic(store: TransactionalStore) -> None:
    put_all(store, "orders", b"taken", b"moved", b"deleted", b"kept")
    with store.transaction() as transaction:
        messages = [transaction.get("orders") for _ in range(4)]
        taken, moved, deleted, _ = (message for message in messages if message is not None)
        transaction.ack(taken)
        transaction.put("audit", b"before the moved one")
        transaction.move(moved, "audit")
        transaction.delete("orders", deleted.message_id)
        transaction.put("audit", b"behind it")
        assert bodies(store, "audit") == []  # invisible before commit
    assert bodies(store, "orders") == [b"kept"]
    assert bodies(store, "audit") == [b"before the moved one", b"moved", b"behind it"]


def test_a_locked_message_is_hidden_from_others_and_returns_to_its_place(store: TransactionalStore) -> None:
    put_all(store, "orders", b"a", b"b", b"c")
    one, other = store.transaction(), store.transaction()
    first = one.get("orders")
    assert first is not None
    assert (first.body, first.delivery_count) == (b"a", 1)
    assert bodies(store, "orders") == [b"b", b"c"]
    with pytest.raises(MessageLocked, match="transaction"):
        other.delete("orders", first.message_id)
    one.rollback()
    again = other.get("orders")
    assert again is not None
    assert (again.body, again.message_id, again.delivery_count) == (b"a", first.message_id, 2)
    other.rollback()


def test_delivery_counts_survive_a_crash(store: TransactionalStore, tmp_path: Path) -> None:
    put_all(store, "orders", b"a")
    for _ in range(2):
        transaction = store.transaction()
        transaction.get("orders")
        transaction.rollback()
    store.transaction().get("orders")  # still has the message at the crash
    store.flush()
    with (
        TransactionalStore.open(crashed_copy(store, tmp_path / "crashed")) as after,
        after.transaction() as transaction,
    ):
        message = transaction.get("orders")
        assert message is not None
        assert message.delivery_count == 4


def test_a_message_that_is_neither_settled_nor_rolled_back_is_available_after_commit(store: TransactionalStore) -> None:
    put_all(store, "orders", b"a")
    with store.transaction() as transaction:
        assert transaction.get("orders") is not None
    assert bodies(store, "orders") == [b"a"]


def test_a_message_is_settled_once_and_only_by_the_transaction_that_locked_it(store: TransactionalStore) -> None:
    put_all(store, "orders", b"a", b"b")
    one, other = store.transaction(), store.transaction()
    message = one.get("orders")
    assert message is not None
    with pytest.raises(NotHeld):
        other.ack(message)
    with pytest.raises(NotHeld):
        other.move(message, "audit")
    one.ack(message)
    for again in (lambda: one.ack(message), lambda: one.move(message, "audit"), lambda: one.delete("orders", 1)):
        with pytest.raises((NotHeld, NoSuchMessage)):
            again()
    one.commit()
    with pytest.raises(NoSuchMessage):
        other.delete("orders", message.message_id)
    other.rollback()


def test_a_message_far_beyond_the_window_can_be_deleted_by_its_number(store: TransactionalStore) -> None:
    put = [b"%d" % number for number in range(2_000)]
    put_all(store, "orders", *put)
    with store.transaction() as transaction:
        first = transaction.get("orders")
    assert first is not None
    given_up = store.transaction()
    given_up.delete("orders", first.message_id + 1_800 * 2)  # body and entry each have a number
    given_up.rollback()
    with store.transaction() as transaction:
        transaction.delete("orders", first.message_id + 1_900 * 2)
    assert bodies(store, "orders") == [body for body in put if body != b"1900"]


def test_a_reader_waits_for_a_message(store: TransactionalStore) -> None:
    transaction = store.transaction()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(transaction.get, "orders", wait_s=60)
        put_all(store, "orders", b"at last")
        message = waiting.result(timeout=30)
    assert message is not None
    assert message.body == b"at last"
    transaction.rollback()


def test_concurrent_readers_and_writers_consume_every_message_once(store: TransactionalStore) -> None:
    threads, each = 4, 150
    consumed: list[bytes] = []

    def write(place: int) -> None:
        for number in range(each):
            put_all(store, "orders", b"%d/%d" % (place, number), persistent=number % 3 > 0)

    def read(place: int) -> None:
        chance = random.Random(place)
        while len(consumed) < threads * each:
            transaction = store.transaction()
            message = transaction.get("orders", wait_s=0.01)
            if message is None or chance.random() < 0.2:
                transaction.rollback()
                continue
            transaction.ack(message)
            transaction.commit()
            consumed.append(message.body)

    with ThreadPoolExecutor(2 * threads) as pool:
        for future in [pool.submit(work, place) for place in range(threads) for work in (write, read)]:
            future.result(timeout=60)
    assert sorted(consumed) == sorted(b"%d/%d" % (place, number) for place in range(threads) for number in range(each))
    assert store.statistics().groups_committed < store.statistics().transactions_committed


def test_close_ends_waits_rolls_back_open_transactions_and_finishes_queued_work(tmp_path: Path) -> None:
    store = TransactionalStore.open(tmp_path / "store", limits=StoreLimits(group_delay_s=600.0))
    store.create_queue("orders")
    handed_over, left_open, waiter = store.transaction(), store.transaction(), store.transaction()
    handed_over.put("orders", b"handed over")
    future = handed_over.commit_async()
    left_open.put("orders", b"left open")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.get, "orders", wait_s=60)
        store.close()
        with pytest.raises(StoreClosed):
            waiting.result(timeout=30)
    assert future.result(timeout=30) is None
    assert (handed_over.state, left_open.state) == (TransactionState.COMMITTED, TransactionState.ROLLED_BACK)
    for late in (store.transaction, left_open.commit, store.flush, lambda: left_open.put("orders", b"")):
        with pytest.raises(StoreClosed):
            late()
    store.close()
    assert "transactional-log-writer" not in {thread.name for thread in threading.enumerate()}
    with TransactionalStore.open(tmp_path / "store") as again:
        assert bodies(again, "orders") == [b"handed over"]


def test_many_transactions_share_one_flush(tmp_path: Path) -> None:
    count = 8
    limits = StoreLimits(group_delay_s=600.0, group_transactions_max=count)  # a group ends by its size alone
    with TransactionalStore.open(tmp_path / "store", limits=limits) as store:
        store.create_queue("orders")
        before = store.statistics()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda number: put_all(store, "orders", b"%d" % number), range(count)))
        after = store.statistics()
        assert after.transactions_committed - before.transactions_committed == count
        assert after.groups_committed - before.groups_committed == 1
        assert sorted(bodies(store, "orders")) == [b"%d" % number for number in range(count)]


def test_a_group_ends_at_its_byte_limit(tmp_path: Path) -> None:
    limits = StoreLimits(group_delay_s=600.0, group_bytes_max=1_000)
    with TransactionalStore.open(tmp_path / "store", limits=limits) as store:
        store.create_queue("orders")
        transactions = [store.transaction() for _ in range(4)]
        for transaction in transactions:
            transaction.put("orders", bytes(500))
        for future in [transaction.commit_async() for transaction in transactions]:
            future.result(timeout=30)
        assert store.statistics().groups_committed == 2


def test_a_group_delay_does_not_hold_up_callers_that_wait_for_the_queue(tmp_path: Path) -> None:
    limits = StoreLimits(group_delay_s=600.0, pending_transactions_max=2)
    with TransactionalStore.open(tmp_path / "store", limits=limits) as store:
        store.create_queue("orders")
        transactions = [store.transaction() for _ in range(6)]
        for transaction in transactions:
            transaction.put("orders", b"a")
        for future in [transaction.commit_async() for transaction in transactions]:
            future.result(timeout=30)
        assert store.statistics().groups_committed == 3


def test_deleting_a_queue_raises_an_error_in_its_waiting_readers(store: TransactionalStore) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.transaction().get, "orders", wait_s=60)
        store.delete_queue("orders")
        with pytest.raises(NoSuchQueue):
            waiting.result(timeout=30)


def test_a_callback_that_would_wait_for_its_own_thread_is_refused(store: TransactionalStore) -> None:
    transaction, later = store.transaction(), store.transaction()
    transaction.put("orders", b"a")
    errors: list[BaseException] = []
    told = threading.Event()

    def call_back(_: object) -> None:
        try:
            later.commit()
        except CallFromLogWriter as error:
            errors.append(error)
        told.set()

    transaction.commit_async().add_done_callback(call_back)
    assert told.wait(30)
    # The commit may have been durable before the callback was added, which then ran here.
    assert errors or later.state is TransactionState.COMMITTED


def test_a_transaction_accepts_no_operations_after_it_was_handed_over(store: TransactionalStore) -> None:
    transaction = store.transaction()
    transaction.commit()
    for late in (lambda: transaction.put("orders", b""), transaction.commit, transaction.rollback, transaction.prepare):
        with pytest.raises(IllegalTransactionMove):
            late()


def test_an_operation_beyond_a_limit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    limits = StoreLimits(
        queue_messages_max=3,
        transaction_operations_max=2,
        message_bytes_max=100,
        transaction_bytes_max=150,
        locks_count_max=2,
        open_transactions_max=3,
    )
    with TransactionalStore.open(tmp_path / "store", limits=limits) as store:
        store.create_queue("orders")
        transaction = store.transaction()
        with pytest.raises(TransactionTooLarge, match="message_bytes_max"):
            transaction.put("orders", bytes(101))
        transaction.put("orders", bytes(100))
        with pytest.raises(TransactionTooLarge, match="200 bytes"):
            transaction.put("orders", bytes(100))
        transaction.put("orders", b"")
        with pytest.raises(TransactionTooLarge, match="2 operations"):
            transaction.put("orders", b"")
        transaction.commit()
        put_all(store, "orders", b"")
        with pytest.raises(QueueFull, match="orders has 3"):
            put_all(store, "orders", b"")
        taker, other = store.transaction(), store.transaction()
        messages = [taker.get("orders") for _ in range(2)]
        with pytest.raises(TransactionTooLarge, match="locked"):
            other.get("orders")
        for message in messages:
            assert message is not None
            taker.ack(message)  # it may always settle the messages that it has
        taker.commit()
        assert len(bodies(store, "orders")) == 1
        store.transaction()
        store.transaction()
        with pytest.raises(TransactionTooLarge, match="3 transactions"):
            store.transaction()


def test_queues_and_subscribers_are_created_listed_and_deleted(store: TransactionalStore, tmp_path: Path) -> None:
    store.create_subscriber("desk", "quotes.*")
    for again in (lambda: store.create_queue("orders"), lambda: store.create_subscriber("desk", "#")):
        with pytest.raises(QueueExists):
            again()
    put_all(store, "orders", b"deleted with its queue", b"so is this")
    put_all(store, "orders", b"and this", persistent=False)
    store.delete_queue("orders")
    with pytest.raises(NoSuchQueue):
        store.delete_queue("orders")
    assert store.statistics().volatile_message_count == 0
    with TransactionalStore.open(crashed_copy(store, tmp_path / "crashed")) as after:
        assert [queue.name for queue in after.queues()] == ["audit", "subscriber:desk"]
        assert [(each.name, each.pattern) for each in after.subscribers()] == [("desk", "quotes.*")]
        after.delete_subscriber("desk")
        assert after.subscribers() == []


def test_a_queue_in_use_cannot_be_deleted(store: TransactionalStore) -> None:
    putting = store.transaction()
    putting.put("orders", b"a")
    with pytest.raises(QueueInUse):
        store.delete_queue("orders")
    putting.commit()
    taking = store.transaction()
    assert taking.get("orders") is not None
    with pytest.raises(QueueInUse):
        store.delete_queue("orders")
    taking.rollback()
    store.delete_queue("orders")


def test_a_message_for_many_durable_subscribers_is_stored_once(store: TransactionalStore, tmp_path: Path) -> None:
    for number in range(10):
        store.create_subscriber(f"desk-{number}", "quotes.#")
    store.create_subscriber("other", "trades.#")
    with store.transaction() as transaction:
        assert transaction.publish("quotes.us.AAPL", b"stored once") == 10
        assert transaction.publish("news", b"for nobody") == 0
    pages = store._parts.pages
    assert pages.numbers("SELECT count(*), sum(reference_count) FROM message") == [(1, 10)]
    for number in range(9):
        with store.transaction() as transaction:
            message = transaction.get(subscriber_queue(f"desk-{number}"))
            assert message is not None
            if number % 2:
                transaction.ack(message)
            else:
                transaction.move(message, "audit")
    assert pages.numbers("SELECT count(*), sum(reference_count) FROM message") == [(1, 6)]
    assert bodies(store, "audit") == [b"stored once"] * 5
    store.delete_subscriber("desk-9")
    with TransactionalStore.open(crashed_copy(store, tmp_path / "crashed")) as after:
        after.delete_queue("audit")
        assert after._parts.pages.numbers("SELECT count(*) FROM message") == [(0,)]


def test_the_log_is_bounded_by_checkpoints(tmp_path: Path) -> None:
    limits = StoreLimits(log_bytes_max=100_000)
    with TransactionalStore.open(tmp_path / "store", limits=limits) as store:
        store.create_queue("orders")
        largest = 0
        for _ in range(50):
            put_all(store, "orders", bytes(10_000))
            largest = max(largest, store.statistics().log_bytes)
        assert store.statistics().checkpoints_made >= 3
        assert largest < 100_000 + 60_000  # the limit and one group
        store.checkpoint()
        assert store.statistics().log_bytes == 0
