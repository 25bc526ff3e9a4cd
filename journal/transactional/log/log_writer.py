"""The log writer: one thread that merges the work of many transactions into one flush.

Its queue is bounded; callers wait while it is full. A group that fails is undone, and its items are retried one by one,
because transactions that consume succeed even on a full disk. After an I/O error nothing is tried again: the store has
failed. Invariant: the future of an operation is done only after its rows are durable and its effect is in the state.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Condition, Lock, current_thread

from tandemfeed.journal.transactional.errors import (
    CallFromLogWriter,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreLocked,
    TransactionalStoreError,
)
from tandemfeed.journal.transactional.limits import TAKEN_MARK_DELAY_S, StoreLimits
from tandemfeed.journal.transactional.log.changes import Changes
from tandemfeed.journal.transactional.log.log_operations import (
    AdministrationOperation,
    CheckpointOperation,
    LogOperation,
    TransactionOperation,
)
from tandemfeed.journal.transactional.memory.store_state import StoreState
from tandemfeed.journal.transactional.pages.page_store import PageStore
from tandemfeed.runtime.threads import start_thread


class LogWriter:
    """The thread and its queue. Its lock is never held together with the state's."""

    def __init__(self, pages: PageStore, state: StoreState, limits: StoreLimits) -> None:
        self._pages = pages
        self._state = state
        self._limits = limits
        lock = Lock()
        self._wake, self._room = Condition(lock), Condition(lock)
        self._waiting: deque[LogOperation] = deque()
        self._waiting_bytes = 0
        self._taken: dict[tuple[int, int], int] = {}  # delivery counts not yet on the disk, by queue and position
        self._asleep = False  # the thread waits without a time-out
        self._closing = False
        self.groups_committed = 0
        self.transactions_committed = 0  # durable steps: commits, prepares and decisions
        self.checkpoints_made = 0
        self.checkpoints_failed = 0
        self._thread = start_thread(self._run, "transactional-log-writer", lambda _, error: self._fail((), error))

    # --- called by clients ---

    def hand_over(self, operation: LogOperation) -> None:
        """Add an operation to the queue; wait while the queue is full.

        Raises:
            StoreClosed, StoreFailed, CallFromLogWriter: nothing was queued.
        """
        self.check_caller()
        with self._wake:
            while not self._closing and self._is_full():
                self._room.wait()
            if self._closing:
                raise self._state.failure or StoreClosed(f"{self._pages.path}: the store is closed")
            operation.future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
            self._waiting.append(operation)
            self._waiting_bytes += operation.size
            self._wake.notify()

    def note_delivery(self, queue_id: int, position: int, delivery_count: int) -> None:
        """A persistent message was delivered: write its count with a later group, if the message still exists."""
        with self._wake:
            self._taken[(queue_id, position)] = delivery_count
            if self._asleep:  # otherwise it checks soon anyway: a busy store pays nothing for this
                self._asleep = False
                self._wake.notify()

    def check_caller(self) -> None:
        """Refuse a call from the log writer's thread that would wait for that thread."""
        if current_thread() is self._thread:
            raise CallFromLogWriter("a callback of commit_async must not wait for the store: hand the call to a thread")

    def close(self) -> None:
        """Finish all queued work, and stop."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
            self._room.notify_all()
        self._thread.join()

    def _is_full(self) -> bool:
        return (
            self._waiting_bytes >= self._limits.pending_bytes_max
            or len(self._waiting) >= self._limits.pending_transactions_max
        )

    # --- the thread ---

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            try:
                self._do(group)
            except BaseException as error:  # noqa: BLE001 — whatever it is, no caller may wait forever
                self._fail(group, error)
                return

    def _next_group(self) -> list[LogOperation] | None:
        """The next group to flush; empty if only delivery counts are due; None at the end."""
        with self._wake:
            idle = False  # idle for as long as a delivery count may wait
            while not self._waiting:
                if self._closing:
                    return [] if self._taken else None
                self._asleep = idle
                idle = not self._wake.wait(None if idle else TAKEN_MARK_DELAY_S)
                self._asleep = False
                if idle and self._taken:
                    return []
            self._gather()
            group, size = [self._pop()], 0
            while self._waiting and not _alone(group[0]) and not _alone(self._waiting[0]):
                size += group[-1].size
                if len(group) >= self._limits.group_transactions_max:
                    break
                if size + self._waiting[0].size > self._limits.group_bytes_max:
                    break
                group.append(self._pop())
            self._room.notify_all()
            return group

    def _gather(self) -> None:
        """Wait for more work for the group, up to `group_delay_s`."""
        if self._limits.group_delay_s == 0 or _alone(self._waiting[0]):
            return
        until_s = time.monotonic() + self._limits.group_delay_s
        while (
            not self._closing
            and not self._is_full()  # otherwise callers would wait for space in the queue
            and len(self._waiting) < self._limits.group_transactions_max
            and self._waiting_bytes < self._limits.group_bytes_max
            and not _alone(self._waiting[-1])
            and (left_s := until_s - time.monotonic()) > 0
        ):
            self._wake.wait(left_s)

    def _pop(self) -> LogOperation:
        operation = self._waiting.popleft()
        self._waiting_bytes -= operation.size
        return operation

    def _do(self, group: Sequence[LogOperation]) -> None:
        if group and isinstance(group[0], AdministrationOperation):
            self._administer(group[0])
        elif group and isinstance(group[0], CheckpointOperation):
            self._checkpoint(group[0])
        else:
            self._commit(group)
            if self._pages.log_bytes() > self._limits.log_bytes_max:
                self._checkpoint(None)

    def _commit(self, group: Sequence[LogOperation], *, retried: bool = False) -> None:
        first_position = self._pages.positions.next
        changes = Changes(self._pages.positions)
        for operation in group:
            operation.plan(changes)
        self._add_delivery_counts(changes)
        try:
            if changes.touches_disk():
                self._pages.write(changes)
                self.groups_committed += 1
        except StoreFailed:
            raise
        except TransactionalStoreError as error:
            self._pages.positions.next = first_position  # none of these positions was visible
            if isinstance(error, StoreFull) and not retried and self._pages.free_space():
                self._commit(group, retried=True)
            else:
                self._refuse_or_repeat(group, error)
            return
        self.transactions_committed += sum(isinstance(operation, TransactionOperation) for operation in group)
        with self._state.changed:
            for operation in group:
                operation.apply(self._state)
            self._state.applied_position = changes.positions.next - 1
        for operation in group:
            operation.future.set_result(None)

    def _refuse_or_repeat(self, group: Sequence[LogOperation], error: TransactionalStoreError) -> None:
        if len(group) > 1:
            for operation in group:
                self._commit([operation])
            return
        for operation in group:
            with self._state.changed:
                operation.refuse(self._state)
            operation.future.set_exception(error)

    def _add_delivery_counts(self, changes: Changes) -> None:
        with self._wake:
            taken, self._taken = self._taken, {}
        if taken:
            removed = set(changes.removed)
            changes.delivery_counts += [(count, *key) for key, count in taken.items() if key not in removed]

    def _administer(self, operation: AdministrationOperation, *, retried: bool = False) -> None:
        try:
            with self._pages.transaction() as database:
                operation.run(database)
        except StoreFailed:
            raise
        except TransactionalStoreError as error:
            if isinstance(error, StoreFull) and not retried and self._pages.free_space():
                self._administer(operation, retried=True)
            else:
                operation.future.set_exception(error)
            return
        with self._state.changed:
            operation.apply(self._state)
        operation.future.set_result(None)

    def _checkpoint(self, operation: LogOperation | None) -> None:
        """Make a checkpoint. One that finds no space, or another reader, is retried after the next group: the log still
        has everything."""
        try:
            if self._pages.checkpoint():
                self.checkpoints_made += 1
            else:
                self.checkpoints_failed += 1
        except (StoreFull, StoreLocked) as error:
            self.checkpoints_failed += 1
            if operation is not None:
                operation.future.set_exception(error)
            return
        if operation is not None:
            operation.future.set_result(None)

    def _fail(self, group: Sequence[LogOperation], error: BaseException) -> None:
        """The log writer failed: refuse all further operations, and report the failure to all waiting callers."""
        failure = StoreFailed(
            f"{self._pages.path}: the log writer stopped ({error}): close the store and open it again"
        )
        failure.__cause__ = error
        with self._state.changed:
            self._state.failure = failure
            self._state.changed.notify_all()
        with suppress(sqlite3.Error):
            self._pages.give_up()
        with self._wake:
            self._closing = True
            waiting, self._waiting = list(self._waiting), deque()
            self._room.notify_all()
        for operation in (*group, *waiting):
            if not operation.future.done():
                operation.future.set_exception(failure)


def _alone(operation: LogOperation) -> bool:
    return isinstance(operation, AdministrationOperation | CheckpointOperation)
