"""Operations of the log writer: rows to change, and the update in memory once they are on the disk.

`plan` may run twice: if a group fails, each of its operations is retried alone. `apply` runs under the store's lock,
and only after the rows are durable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from tandemfeed.journal.transactional.log.changes import Changes
from tandemfeed.journal.transactional.memory.store_state import Prepared, StoreState
from tandemfeed.journal.transactional.transactions.contents import Contents, Entry
from tandemfeed.journal.transactional.transactions.transaction_state import TransactionEvent, TransactionMachine


@dataclass(slots=True)
class LogOperation:
    """An operation; all are done in order. This base class changes nothing and only waits for all earlier ones."""

    future: Future[None] = field(default_factory=Future, kw_only=True)
    size: int = 0  # bytes

    def plan(self, changes: Changes) -> None:
        """Add its rows to the group's changes."""

    def apply(self, state: StoreState) -> None:
        """Update the state in memory."""

    def refuse(self, state: StoreState) -> None:
        """Handle a refusal: nothing of it was done."""


@dataclass(slots=True)
class TransactionOperation(LogOperation):
    """A durable step of one transaction."""

    machine: TransactionMachine = field(kw_only=True)
    contents: Contents = field(kw_only=True)

    def refuse(self, state: StoreState) -> None:
        """Return to a state in which it can be retried or rolled back."""
        self.machine.step(TransactionEvent.REFUSED)


@dataclass(slots=True)
class CommitOperation(TransactionOperation):
    """A commit in one phase."""

    arrivals: list[tuple[int, Entry]] = field(default_factory=list)

    def plan(self, changes: Changes) -> None:
        """Add its rows to the group's changes."""
        self.arrivals = changes.commit(self.contents)

    def apply(self, state: StoreState) -> None:
        """Make its effects visible."""
        self.machine.step(TransactionEvent.DURABLE)
        state.commit(self.contents, self.arrivals)


@dataclass(slots=True)
class PrepareOperation(TransactionOperation):
    """The first phase of a two-phase commit."""

    prepared_at_ns: int = field(kw_only=True)
    prepared_id: int = 0
    message_ids: list[int] = field(default_factory=list)

    def plan(self, changes: Changes) -> None:
        """Add its rows to the group's changes."""
        planned = changes.prepare(self.contents, self.contents.owner, self.prepared_at_ns)
        self.prepared_id, self.message_ids = planned

    def apply(self, state: StoreState) -> None:
        """Record it as prepared, and free the memory of its bodies."""
        self.machine.step(TransactionEvent.DURABLE)
        persistent = [put for put in self.contents.puts if put.persistent]
        for put, message_id in zip(persistent, self.message_ids, strict=True):
            put.message_id, put.body = message_id, b""
        prepared = Prepared(self.prepared_id, self.contents, self.machine, self.prepared_at_ns)
        state.prepared[self.contents.owner] = prepared


@dataclass(slots=True)
class DecisionOperation(TransactionOperation):
    """The second phase of a two-phase commit."""

    prepared_id: int = field(kw_only=True)
    commit: bool = field(kw_only=True)
    decided_at_ns: int | None = None  # if by hand
    arrivals: list[tuple[int, Entry]] = field(default_factory=list)

    def plan(self, changes: Changes) -> None:
        """Add its rows to the group's changes."""
        if self.commit:
            self.arrivals = changes.commit(self.contents)
        else:
            changes.roll_back_prepared(self.contents)
        changes.decided.append((self.prepared_id,))
        if self.decided_at_ns is not None:
            changes.by_hand.append((self.contents.owner, self.commit, self.decided_at_ns))

    def apply(self, state: StoreState) -> None:
        """Make its effects visible, or undo it."""
        self.machine.step(TransactionEvent.DURABLE)
        del state.prepared[self.contents.owner]
        if self.decided_at_ns is not None:
            state.decided_by_hand[self.contents.owner] = self.commit
        if self.commit:
            state.commit(self.contents, self.arrivals)
        else:
            state.roll_back(self.contents)


@dataclass(slots=True)
class AdministrationOperation(LogOperation):
    """Creates or deletes a queue or subscriber, or the like. Always a group by itself: rare, and may be refused."""

    run: Callable[[sqlite3.Connection], None] = field(kw_only=True)
    done: Callable[[], None] = field(kw_only=True)

    def apply(self, state: StoreState) -> None:
        """Update the state in memory, and wake the threads that wait for messages: their queue may be deleted."""
        self.done()
        state.changed.notify_all()


@dataclass(slots=True)
class CheckpointOperation(LogOperation):
    """Makes a checkpoint."""
