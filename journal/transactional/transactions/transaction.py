"""A client's transaction. Use each from one thread at a time; any number can run concurrently."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tandemfeed.journal.transactional.errors import IllegalTransactionMove, NotHeld, TransactionTooLarge
from tandemfeed.journal.transactional.limits import StoreLimits
from tandemfeed.journal.transactional.log.log_operations import CommitOperation, PrepareOperation, TransactionOperation
from tandemfeed.journal.transactional.log.log_writer import LogWriter
from tandemfeed.journal.transactional.memory.queue_index import QueueIndex
from tandemfeed.journal.transactional.memory.store_state import StoreState
from tandemfeed.journal.transactional.memory.volatile_cache import VolatileCache
from tandemfeed.journal.transactional.pages.page_store import PageStore
from tandemfeed.journal.transactional.topics import checked_topic
from tandemfeed.journal.transactional.transactions.contents import Contents, Entry, Fate, Put
from tandemfeed.journal.transactional.transactions.transaction_state import (
    TransactionEvent,
    TransactionMachine,
    TransactionState,
)
from tandemfeed.journal.transactional.transactions.two_phase import decide


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a transaction has locked."""

    queue: str
    message_id: int
    """Its number: unique in the store and never reused; a moved message gets a new one."""
    body: bytes
    delivery_count: int
    """1 at first; one more for each transaction that got the message without consuming it."""
    persistent: bool


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a store."""

    pages: PageStore
    cache: VolatileCache
    state: StoreState
    writer: LogWriter
    limits: StoreLimits


class Transaction:
    """Atomic changes to any number of queues.

    Create one with `TransactionalStore.transaction` or `begin`. In a `with` it commits at the end, and rolls back if
    the block raises. A transaction that is never ended keeps its messages locked until the store is closed.
    """

    def __init__(self, parts: Parts, contents: Contents, machine: TransactionMachine, *, two_phase: bool) -> None:
        self._parts = parts
        self._state = parts.state
        self._contents = contents
        self._machine = machine
        self._two_phase = two_phase

    @property
    def state(self) -> TransactionState:
        """The transaction's state."""
        return self._machine.state

    @property
    def name(self) -> str:
        """Its global id, or the number by which errors identify it."""
        return self._machine.name

    # --- operations: invisible to others until commit ---

    def put(self, queue: str, body: bytes, *, persistent: bool = True) -> None:
        """Add a message at the end of a queue.

        Args:
            queue: an existing queue.
            body: at most `message_bytes_max` bytes.
            persistent: False: faster, but lost when the process ends.

        Raises:
            NoSuchQueue, QueueFull, TransactionTooLarge: the transaction is unchanged.
            StoreFull: there is no space for a non-persistent message; the transaction is unchanged.
            StoreClosed, IllegalTransactionMove: the transaction has ended.
        """
        with self._state.changed:
            self._require("put")
            self._put((self._state.queue(queue).queue_id,), body, persistent)

    def publish(self, topic: str, body: bytes, *, persistent: bool = True) -> int:
        """Add a message, stored once, to the queue of every durable subscriber of the topic.

        Args:
            topic: words separated by dots.
            body: at most `message_bytes_max` bytes.
            persistent: as for `put`.

        Returns:
            The number of subscribers that receive it.

        Raises:
            BadName: `topic` is not a topic.
            QueueFull, TransactionTooLarge, StoreFull, StoreClosed, IllegalTransactionMove: as of `put`.
        """
        checked_topic(topic)
        with self._state.changed:
            self._require("publish")
            targets = self._state.queue_ids_of_topic(topic)
            if targets:
                self._put(targets, body, persistent)
            return len(targets)

    def get(self, queue: str, *, wait_s: float = 0.0) -> Message | None:
        """Take the first available message of a queue and lock it for this transaction.

        Unless it is acknowledged, moved or deleted, it is available again at its old place when the transaction ends.

        Args:
            queue: an existing queue, or `subscriber_queue(name)`.
            wait_s: seconds to wait for one.

        Returns:
            The message, or None.

        Raises:
            NoSuchQueue, TransactionTooLarge, StoreClosed, IllegalTransactionMove: no message was locked.
            StoreCorrupt: the message is damaged and stays locked; delete it to skip it.
        """
        until_s = time.monotonic() + wait_s
        with self._state.changed:
            while True:
                self._require("get")
                self._require_room()
                place = self._state.queue(queue)
                entry = self._state.take(place, self._contents)
                left_s = until_s - time.monotonic()
                if entry is not None or left_s <= 0:
                    break
                self._state.waiting_count += 1
                try:
                    self._state.changed.wait(left_s)
                finally:
                    self._state.waiting_count -= 1
        return None if entry is None else self._deliver(place, entry)

    def ack(self, message: Message) -> None:
        """Consume a message that this transaction has locked.

        Raises:
            NotHeld, NoSuchQueue: the transaction has not locked it, or its queue was deleted.
            StoreClosed, IllegalTransactionMove: the transaction has ended.
        """
        self._settle("ack", message, Fate.REMOVE)

    def move(self, message: Message, queue: str) -> None:
        """Move a message that this transaction has locked to the end of another queue, without copying its body.

        Raises:
            NotHeld: the transaction has not locked it.
            NoSuchQueue, QueueFull: the other queue cannot take it.
            StoreClosed, IllegalTransactionMove: the transaction has ended.
        """
        self._settle("move", message, Fate.MOVE, queue)

    def delete(self, queue: str, message_id: int) -> None:
        """Delete a message by its number, unless another transaction has locked it. Works on damaged messages too.

        Raises:
            NoSuchMessage, NoSuchQueue: there is none.
            MessageLocked: by another transaction.
            NotHeld: this transaction has already settled it.
            TransactionTooLarge, StoreClosed, IllegalTransactionMove: nothing was deleted.
        """
        with self._state.changed:
            self._require("delete")
            place = self._state.queue(queue)
            if (place.queue_id, message_id) not in self._contents.held:
                self._require_room()
                self._state.lock(place, message_id, self._contents)
            self._contents.settle(place.queue_id, message_id, Fate.REMOVE)

    # --- its end ---

    def commit(self) -> None:
        """Commit, in one phase if active, as the second phase if prepared. Durable on return.

        Raises:
            StoreFull, StoreLocked: nothing was committed; retry later, or roll back.
            StoreFailed: open the store again to find out whether it was committed.
            StoreClosed, DecidedByHand, IllegalTransactionMove: it has ended otherwise.
        """
        self.commit_async().result()

    def commit_async(self) -> Future[None]:
        """Like `commit`, without waiting for the disk; blocks only while the log writer's queue is full.

        Returns:
            Done when durable, or failed with the error. Callbacks run in the log writer's thread: keep them short.
        """
        if self._decided_elsewhere():
            return decide(self._state, self._parts.writer, self.name, commit=True, by_hand=False)
        with self._state.changed:
            self._state.check_open()
            self._machine.step(TransactionEvent.COMMIT)
        return self._hand_over(
            CommitOperation(machine=self._machine, contents=self._contents, size=self._contents.size)
        )

    def prepare(self) -> None:
        """The first phase: guarantee that a later `commit` will succeed. Durable on return, including all locks.

        Non-persistent messages that it put or locked are lost when the process ends, even if prepared.

        Raises:
            IllegalTransactionMove: it was not created with `begin`, or has ended.
            StoreFull, StoreLocked, StoreFailed, StoreClosed, DecidedByHand: as of `commit`.
        """
        if not self._two_phase:
            raise IllegalTransactionMove(f"{self.name} has no global id: create it with `begin` to prepare it")
        with self._state.changed:
            self._state.check_open()
            self._machine.step(TransactionEvent.PREPARE)
        operation = PrepareOperation(
            machine=self._machine, contents=self._contents, size=self._contents.size, prepared_at_ns=time.time_ns()
        )
        self._hand_over(operation).result()

    def rollback(self) -> None:
        """Undo everything; messages that it locked are available again.

        Raises:
            StoreClosed, DecidedByHand, IllegalTransactionMove: it has ended otherwise.
            StoreFull, StoreLocked, StoreFailed: as of `commit`, if it is prepared.
        """
        if self._decided_elsewhere():
            decide(self._state, self._parts.writer, self.name, commit=False, by_hand=False).result()
            return
        with self._state.changed:
            self._state.check_open()
            self._machine.step(TransactionEvent.ROLL_BACK)
            self._state.roll_back(self._contents)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._machine.state is TransactionState.ACTIVE:
                self.commit()
        finally:
            with self._state.changed:
                if self._machine.state is TransactionState.ACTIVE and not self._state.closed:
                    self._machine.step(TransactionEvent.ROLL_BACK)
                    self._state.roll_back(self._contents)

    # --- internals ---

    def _require(self, operation: str) -> None:
        """Refuse what this transaction's state does not allow. Here and below, the caller holds the state's lock."""
        self._state.check_open()
        self._machine.require_active(operation)

    def _require_room(self, added: int = 0) -> None:
        limits, contents = self._parts.limits, self._contents
        if contents.count >= limits.transaction_operations_max:
            raise TransactionTooLarge(f"{self.name} has {contents.count} operations: end it, or raise the limit")
        if contents.size + added > limits.transaction_bytes_max:
            raise TransactionTooLarge(
                f"{self.name} would put {contents.size + added} bytes: end it, or raise the limit"
            )

    def _put(self, targets: tuple[int, ...], body: bytes, persistent: bool) -> None:
        if len(body) > self._parts.limits.message_bytes_max:
            raise TransactionTooLarge(f"the message has {len(body)} bytes, more than message_bytes_max")
        self._require_room(len(body) if persistent else 0)
        put = Put(targets, persistent, len(body), body=bytes(body) if persistent else b"")
        self._state.reserve(targets)
        if not persistent:
            try:  # may write to a swap file under the state's lock, but without a flush
                put.message_id = self._parts.cache.store(bytes(body), len(targets))
            except BaseException:
                self._state.cancel_reservation(targets)
                raise
        self._contents.add(put)

    def _decided_elsewhere(self) -> bool:
        """Whether it ends, or ended, with a decision on a prepared transaction."""
        prepared = self._state.prepared.get(self.name)
        return self.name in self._state.decided_by_hand or (prepared is not None and prepared.machine is self._machine)

    def _deliver(self, queue: QueueIndex, entry: Entry) -> Message:
        if entry.persistent:
            self._parts.writer.note_delivery(queue.queue_id, entry.position, entry.delivery_count)
            body = self._parts.pages.body(entry.message_id, f"message {entry.position} of queue {queue.name}")
        else:
            body = self._parts.cache.read(entry.message_id)
        return Message(queue.name, entry.position, body, entry.delivery_count, entry.persistent)

    def _settle(self, operation: str, message: Message, fate: Fate, target: str | None = None) -> None:
        if not isinstance(message, Message):
            raise TypeError(f"{operation} got {message!r}; expected a Message that `get` of this transaction returned")
        with self._state.changed:
            self._require(operation)
            queue_id = self._state.queue(message.queue).queue_id
            if target is None:
                self._contents.settle(queue_id, message.message_id, fate)
                return
            target_id = self._state.queue(target).queue_id
            held = self._contents.held.get((queue_id, message.message_id))
            if held is None or held.fate is not Fate.KEEP:
                raise NotHeld(f"{self.name} has not locked message {message.message_id}, or has already settled it")
            self._state.reserve((target_id,))
            self._contents.settle(queue_id, message.message_id, fate, target_id)

    def _hand_over(self, operation: TransactionOperation) -> Future[None]:
        try:
            self._parts.writer.hand_over(operation)
        except BaseException:
            with self._state.changed:
                operation.refuse(self._state)
            raise
        return operation.future
