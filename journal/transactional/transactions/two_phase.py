"""Two-phase commit: the decision on a prepared transaction, by its coordinator or by hand, and what a restart finds.

A decision by hand is kept until it is forgotten, so that a coordinator that comes back late learns of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from tandemfeed.journal.transactional.errors import DecidedByHand, NoSuchPrepared, StoreCorrupt
from tandemfeed.journal.transactional.log.log_operations import DecisionOperation
from tandemfeed.journal.transactional.log.log_writer import LogWriter
from tandemfeed.journal.transactional.memory.store_state import Prepared, StoreState
from tandemfeed.journal.transactional.pages.page_store import PageStore
from tandemfeed.journal.transactional.transactions.contents import Contents, Fate, LockedMessage, Put
from tandemfeed.journal.transactional.transactions.transaction_state import (
    TransactionEvent,
    TransactionMachine,
    TransactionState,
)


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that waits for a decision. `state` is `IN_DOUBT` once its client is gone."""

    global_id: str
    state: TransactionState
    prepared_at_ns: int
    put_count: int
    taken_count: int


def describe(prepared: Prepared) -> PreparedTransaction:
    """A prepared transaction, for listings."""
    contents = prepared.contents
    return PreparedTransaction(
        contents.owner, prepared.machine.state, prepared.prepared_at_ns, len(contents.puts), len(contents.held)
    )


def decide(state: StoreState, writer: LogWriter, global_id: str, *, commit: bool, by_hand: bool) -> Future[None]:
    """Hand a decision to the log writer.

    Raises:
        DecidedByHand, NoSuchPrepared, IllegalTransactionMove (another decision is in progress).
    """
    with state.changed:
        state.check_open()
        if global_id in state.decided_by_hand:
            outcome = "committed" if state.decided_by_hand[global_id] else "rolled back"
            raise DecidedByHand(f"{global_id} was {outcome} by hand: reconcile the other parties, then forget it")
        prepared = state.prepared.get(global_id)
        if prepared is None:
            raise NoSuchPrepared(f"no prepared transaction {global_id!r}: it was never prepared here, or is decided")
        prepared.machine.step(TransactionEvent.COMMIT if commit else TransactionEvent.ROLL_BACK)
    operation = DecisionOperation(
        machine=prepared.machine,
        contents=prepared.contents,
        prepared_id=prepared.prepared_id,
        commit=commit,
        decided_at_ns=time.time_ns() if by_hand else None,
    )
    try:
        writer.hand_over(operation)
    except BaseException:
        with state.changed:
            operation.refuse(state)
        raise
    return operation.future


def restore(pages: PageStore, state: StoreState) -> None:
    """Load prepared transactions, their locks, and decisions by hand from the page store into the state."""
    for prepared_id, global_id, prepared_at_ns in pages.rows("SELECT id, global_id, prepared_at_ns FROM prepared"):
        assert isinstance(prepared_id, int)
        assert isinstance(global_id, str)
        assert isinstance(prepared_at_ns, int)
        machine = TransactionMachine(global_id, TransactionState.PREPARED)
        machine.step(TransactionEvent.CRASH)
        contents = Contents(global_id)
        arrivals: dict[int, Put | LockedMessage] = dict(_puts(pages, prepared_id))
        arrivals.update(_holds(pages, state, prepared_id, contents))
        contents.arrivals = [arrivals[place] for place in sorted(arrivals)]
        for queue_id, count in contents.reservations().items():
            state.queues[queue_id].reserved_count += count
        state.prepared[global_id] = Prepared(prepared_id, contents, machine, prepared_at_ns)
    for name, committed in pages.rows("SELECT global_id, committed FROM decided_by_hand"):
        state.decided_by_hand[str(name)] = bool(committed)


def _puts(pages: PageStore, prepared_id: int) -> Iterator[tuple[int, Put]]:
    targets: dict[tuple[int, int, int], list[int]] = {}
    for place, message_id, size, queue_id in pages.numbers(
        "SELECT place, message_id, size, queue_id FROM prepared_put WHERE prepared_id = ? ORDER BY place, queue_id",
        (prepared_id,),
    ):
        targets.setdefault((place, message_id, size), []).append(queue_id)
    for (place, message_id, size), queue_ids in targets.items():
        yield place, Put(tuple(queue_ids), True, size, message_id=message_id)


def _holds(
    pages: PageStore, state: StoreState, prepared_id: int, contents: Contents
) -> Iterator[tuple[int, LockedMessage]]:
    for queue_id, position, fate, place, target_id in pages.numbers(
        "SELECT queue_id, position, fate, place, target_id FROM prepared_hold WHERE prepared_id = ?", (prepared_id,)
    ):
        rows = pages.entries_after(queue_id, position - 1, position, 1)
        if not rows:
            raise StoreCorrupt(
                f"{pages.path}: message {position}, locked by {contents.owner}, is missing: restore a backup"
            )
        state.queues[queue_id].lock_stored(rows[0], contents.owner)
        state.hold(state.queues[queue_id], rows[0], contents)
        held = contents.held[(queue_id, position)]
        held.fate, held.target_id = Fate(fate), target_id
        if held.fate is Fate.MOVE:
            yield place, held
