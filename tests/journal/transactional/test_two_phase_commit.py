"""Two-phase commit: prepared transactions survive crashes until a coordinator or an operator decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemfeed.journal.transactional import (
    BadName,
    DecidedByHand,
    DuplicateGlobalId,
    IllegalTransactionMove,
    MessageLocked,
    NoSuchPrepared,
    QueueInUse,
    TransactionalStore,
    TransactionState,
    subscriber_queue,
)
from tests.journal.transactional.store_copies import bodies, crashed_copy, put_all


def opened(folder: Path) -> TransactionalStore:
    store = TransactionalStore.open(folder)
    if not store.queues():
        store.create_queue("orders")
        store.create_queue("audit")
        store.create_subscriber("desk", "news.#")
        store.create_subscriber("tape", "news")
        put_all(store, "orders", b"taken", b"moved", b"kept", b"free")
    return store


def prepare_everything(store: TransactionalStore, global_id: str) -> None:
    transaction = store.begin(global_id)
    taken, moved, kept = (transaction.get("orders") for _ in range(3))
    assert taken is not None
    assert moved is not None
    assert kept is not None
    transaction.put("audit", b"put")
    transaction.move(moved, "audit")
    transaction.ack(taken)
    transaction.publish("news", b"published")
    transaction.put("orders", b"non-persistent", persistent=False)
    transaction.prepare()
    assert transaction.state is TransactionState.PREPARED


def check_outcome(store: TransactionalStore, *, committed: bool) -> None:
    assert store.prepared() == []
    if committed:
        assert bodies(store, "orders") == [b"kept", b"free"]
        assert bodies(store, "audit") == [b"put", b"moved"]
    else:
        assert bodies(store, "orders") == [b"taken", b"moved", b"kept", b"free"]
        assert bodies(store, "audit") == []
    for name in ("desk", "tape"):
        assert bodies(store, subscriber_queue(name)) == ([b"published"] if committed else [])
    assert store.problems() == []
    assert store.statistics().locked_count == 0
    store._state.validate()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("by_hand", [True, False])
def test_prepared_transactions_keep_their_locks_over_restarts_until_they_are_decided(
    tmp_path: Path, commit: bool, by_hand: bool
) -> None:
    with opened(tmp_path / "0") as store:
        prepare_everything(store, "trade-1")
        crashed_copy(store, tmp_path / "1")
    with opened(tmp_path / "1") as store:
        crashed_copy(store, tmp_path / "2")
    with opened(tmp_path / "2") as store:
        (found,) = store.in_doubt()
        assert (found.global_id, found.state) == ("trade-1", TransactionState.IN_DOUBT)
        assert (found.put_count, found.taken_count) == (2, 3)
        assert bodies(store, "orders") == [b"free"]
        assert bodies(store, "audit") == []
        assert bodies(store, subscriber_queue("desk")) == []
        with pytest.raises(QueueInUse):
            store.delete_queue("audit")
        with pytest.raises(DuplicateGlobalId):
            store.begin("trade-1")
        (store.decide_by_hand if by_hand else store.decide)("trade-1", commit=commit)
        check_outcome(store, committed=commit)
        crashed_copy(store, tmp_path / "3")
    with opened(tmp_path / "3") as store:
        check_outcome(store, committed=commit)
        assert store.decided_by_hand() == ({"trade-1": commit} if by_hand else {})


@pytest.mark.parametrize("commit", [True, False])
def test_both_phases_can_run_in_one_process(tmp_path: Path, commit: bool) -> None:
    with opened(tmp_path / "store") as store:
        transaction = store.begin("trade-1")
        message = transaction.get("orders")
        assert message is not None
        transaction.ack(message)
        transaction.put("audit", b"put")
        transaction.prepare()
        with pytest.raises(IllegalTransactionMove):
            transaction.put("audit", b"too late")
        with pytest.raises(MessageLocked, match="trade-1"):
            store.transaction().delete("orders", message.message_id)
        if commit:
            transaction.commit()
        else:
            transaction.rollback()
        assert transaction.state is (TransactionState.COMMITTED if commit else TransactionState.ROLLED_BACK)
        assert bodies(store, "audit") == ([b"put"] if commit else [])
        with pytest.raises(IllegalTransactionMove):
            transaction.commit()
        with pytest.raises(NoSuchPrepared):
            store.decide("trade-1", commit=True)
        store.begin("trade-1").rollback()  # the name is free again


def test_a_late_coordinator_gets_the_decision_by_hand(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        transaction = store.begin("trade-1")
        transaction.put("audit", b"put")
        transaction.prepare()
        store.decide_by_hand("trade-1", commit=False)
        with pytest.raises(DecidedByHand, match="rolled back by hand"):
            transaction.commit()
        with pytest.raises(DuplicateGlobalId):
            store.begin("trade-1")
    with opened(tmp_path / "store") as store:
        with pytest.raises(DecidedByHand):
            store.decide("trade-1", commit=True)
        assert store.decided_by_hand() == {"trade-1": False}
        store.forget("trade-1")
        assert store.decided_by_hand() == {}
        with pytest.raises(NoSuchPrepared):
            store.forget("trade-1")
        with pytest.raises(NoSuchPrepared):
            store.decide("trade-1", commit=True)


def test_a_clean_close_keeps_prepared_transactions_and_rolls_back_the_others(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        prepare_everything(store, "prepared")
        active = store.begin("active")
        assert active.get("orders") is not None
    with opened(tmp_path / "store") as store:
        assert [each.global_id for each in store.in_doubt()] == ["prepared"]
        assert bodies(store, "orders") == [b"free"]


def test_only_a_transaction_with_a_global_id_can_be_prepared(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        with pytest.raises(IllegalTransactionMove, match="global id"):
            store.transaction().prepare()
        for bad in ("", "with space", "new\nline", "x" * 201):
            with pytest.raises(BadName):
                store.begin(bad)


def test_a_global_transaction_may_commit_in_one_phase_and_an_empty_one_may_be_prepared(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        with store.begin("one-phase") as transaction:
            transaction.put("audit", b"put")
        assert bodies(store, "audit") == [b"put"]
        empty = store.begin("empty")
        empty.prepare()
        crashed_copy(store, tmp_path / "crashed")
    with opened(tmp_path / "crashed") as store:
        store.decide("empty", commit=True)
        assert store.prepared() == []
