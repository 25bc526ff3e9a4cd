"""A transaction as its client has it. For one thread at a time; any number of them run beside each other."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from journal.transactional.book import Book
from journal.transactional.contents import Contents, Entry, Fate, Put
from journal.transactional.errors import IllegalTransactionMove, NotHeld, TransactionTooLarge
from journal.transactional.limits import StoreLimits
from journal.transactional.log_writer import LogWriter
from journal.transactional.page_store import PageStore
from journal.transactional.queue_index import QueueIndex
from journal.transactional.topics import checked_topic
from journal.transactional.transaction_state import TransactionEvent, TransactionMachine, TransactionState
from journal.transactional.two_phase import decide
from journal.transactional.volatile_cache import VolatileCache
from journal.transactional.works import CommitWork, PrepareWork, TransactionWork


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a transaction has taken."""

    queue: str
    message_id: int
    """Its number: unique in the store, never given to another, a new one when it is moved."""
    body: bytes
    delivery_count: int
    """1 at first; more after it was taken by transactions that did not consume it."""
    persistent: bool


@dataclass(frozen=True, slots=True)
class Parts:
    """What a store is made of."""

    pages: PageStore
    cache: VolatileCache
    book: Book
    writer: LogWriter
    limits: StoreLimits


class Transaction:
    """Changes to any number of queues that happen all together or not at all.

    Made by `TransactionalStore.transaction` or `begin`. In a `with` it commits at the end, and rolls back if the block
    raises. One that is dropped without either keeps its messages locked until the store is closed.
    """

    def __init__(self, parts: Parts, contents: Contents, machine: TransactionMachine, *, two_phase: bool) -> None:
        self._parts = parts
        self._book = parts.book
        self._contents = contents
        self._machine = machine
        self._two_phase = two_phase

    @property
    def state(self) -> TransactionState:
        """Where it is."""
        return self._machine.state

    @property
    def name(self) -> str:
        """Its global id, or the number that errors call it by."""
        return self._machine.name

    # --- operations: nobody else sees them before commit ---

    def put(self, queue: str, body: bytes, *, persistent: bool = True) -> None:
        """Add a message at the end of a queue.

        Args:
            queue: an existing queue.
            body: at most `message_bytes_max` bytes.
            persistent: False: faster, and gone when the process ends.

        Raises:
            NoSuchQueue, QueueFull, TransactionTooLarge, StoreFull (no room for a non-persistent message), StoreClosed,
            IllegalTransactionMove: the transaction is as before.
        """
        with self._book.changed:
            self._require("put")
            self._put((self._book.queue(queue).queue_id,), body, persistent)

    def publish(self, topic: str, body: bytes, *, persistent: bool = True) -> int:
        """Add a message, stored once, to the queue of every durable subscriber of the topic.

        Args:
            topic: words with dots between.
            body: at most `message_bytes_max` bytes.
            persistent: as for `put`.

        Returns:
            how many subscribers get it: those that are there now.

        Raises:
            BadName, and those of `put`.
        """
        checked_topic(topic)
        with self._book.changed:
            self._require("publish")
            targets = self._book.queue_ids_of_topic(topic)
            if targets:
                self._put(targets, body, persistent)
            return len(targets)

    def get(self, queue: str, *, wait_s: float = 0.0) -> Message | None:
        """Take the first available message of a queue and lock it for this transaction.

        Unless it is acknowledged, moved or deleted it is available again, in its old place, when the transaction ends.

        Args:
            queue: an existing queue, or `subscriber_queue(name)`.
            wait_s: seconds to wait for one.

        Returns:
            the message, or None.

        Raises:
            NoSuchQueue, TransactionTooLarge, StoreClosed, IllegalTransactionMove: nothing was taken.
            StoreCorrupt: the message is damaged and stays locked; delete it to pass over it.
        """
        until_s = time.monotonic() + wait_s
        with self._book.changed:
            while True:
                self._require("get")
                self._require_room()
                place = self._book.queue(queue)
                entry = self._book.take(place, self._contents)
                left_s = until_s - time.monotonic()
                if entry is not None or left_s <= 0:
                    break
                self._book.waiting_count += 1
                try:
                    self._book.changed.wait(left_s)
                finally:
                    self._book.waiting_count -= 1
        return None if entry is None else self._deliver(place, entry)

    def ack(self, message: Message) -> None:
        """Consume a message that this transaction has.

        Raises:
            NotHeld, NoSuchQueue, StoreClosed, IllegalTransactionMove.
        """
        self._settle("ack", message, Fate.REMOVE)

    def move(self, message: Message, queue: str) -> None:
        """Move a message that this transaction has to the end of another queue; its body is not copied.

        Raises:
            NotHeld, NoSuchQueue, QueueFull, StoreClosed, IllegalTransactionMove.
        """
        self._settle("move", message, Fate.MOVE, queue)

    def delete(self, queue: str, message_id: int) -> None:
        """Delete a message by its number, whether this transaction has it or nobody; damaged ones too.

        Raises:
            NoSuchMessage, MessageLocked (by another transaction), NotHeld (settled before), NoSuchQueue,
            TransactionTooLarge, StoreClosed, IllegalTransactionMove.
        """
        with self._book.changed:
            self._require("delete")
            place = self._book.queue(queue)
            if (place.queue_id, message_id) not in self._contents.held:
                self._require_room()
                self._book.lock(place, message_id, self._contents)
            self._contents.settle(place.queue_id, message_id, Fate.REMOVE)

    # --- its end ---

    def commit(self) -> None:
        """Make it happen: one phase if it is active, the second if it is prepared. Durable on return.

        Raises:
            StoreFull, StoreLocked: nothing happened; commit again later, or roll back.
            StoreFailed: open the store again to learn whether it happened.
            StoreClosed, DecidedByHand, IllegalTransactionMove.
        """
        self.commit_async().result()

    def commit_async(self) -> Future[None]:
        """Like `commit`, without waiting for the disk; waits only while too much waits for it already.

        Returns:
            done when it is durable; has the error if it failed. Callbacks run in the log writer's thread: be short.
        """
        if self._decided_elsewhere():
            return decide(self._book, self._parts.writer, self.name, commit=True, by_hand=False)
        with self._book.changed:
            self._book.check_open()
            self._machine.step(TransactionEvent.COMMIT)
        return self._hand_over(CommitWork(machine=self._machine, contents=self._contents, size=self._contents.size))

    def prepare(self) -> None:
        """First phase: promise that a later `commit` will succeed. Durable on return, with every lock.

        Non-persistent messages that it puts or has do not survive the process, prepared or not.

        Raises:
            as for `commit`; IllegalTransactionMove also if it was not made by `begin`.
        """
        if not self._two_phase:
            raise IllegalTransactionMove(f"{self.name} has no global id: make it with `begin` to prepare it")
        with self._book.changed:
            self._book.check_open()
            self._machine.step(TransactionEvent.PREPARE)
        work = PrepareWork(
            machine=self._machine, contents=self._contents, size=self._contents.size, prepared_at_ns=time.time_ns()
        )
        self._hand_over(work).result()

    def rollback(self) -> None:
        """Let nothing happen; what it had taken is available again.

        Raises:
            StoreClosed, DecidedByHand, IllegalTransactionMove; if it is prepared, those of `commit`.
        """
        if self._decided_elsewhere():
            decide(self._book, self._parts.writer, self.name, commit=False, by_hand=False).result()
            return
        with self._book.changed:
            self._book.check_open()
            self._machine.step(TransactionEvent.ROLL_BACK)
            self._book.roll_back(self._contents)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._machine.state is TransactionState.ACTIVE:
                self.commit()
        finally:
            with self._book.changed:
                if self._machine.state is TransactionState.ACTIVE and not self._book.closed:
                    self._machine.step(TransactionEvent.ROLL_BACK)
                    self._book.roll_back(self._contents)

    # --- inside ---

    def _require(self, operation: str) -> None:
        """Refuse what this transaction's state does not allow; the book's lock is held, here and below."""
        self._book.check_open()
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
            raise TransactionTooLarge(f"a message of {len(body)} bytes exceeds message_bytes_max")
        self._require_room(len(body) if persistent else 0)
        put = Put(targets, persistent, len(body), body=bytes(body) if persistent else b"")
        self._book.reserve(targets)
        if not persistent:
            try:  # may write to a swap file under the book's lock: a write into the system's memory, no flush
                put.message_id = self._parts.cache.store(bytes(body), len(targets))
            except BaseException:
                self._book.give_back_room(targets)
                raise
        self._contents.add(put)

    def _decided_elsewhere(self) -> bool:
        """Whether its end is a decision on a prepared transaction, or was."""
        prepared = self._book.prepared.get(self.name)
        return self.name in self._book.decided_by_hand or (prepared is not None and prepared.machine is self._machine)

    def _deliver(self, queue: QueueIndex, entry: Entry) -> Message:
        if entry.persistent:
            self._parts.writer.note_delivery(queue.queue_id, entry.position, entry.delivery_count)
            body = self._parts.pages.body(entry.message_id, f"message {entry.position} of queue {queue.name}")
        else:
            body = self._parts.cache.read(entry.message_id)
        return Message(queue.name, entry.position, body, entry.delivery_count, entry.persistent)

    def _settle(self, operation: str, message: Message, fate: Fate, target: str | None = None) -> None:
        with self._book.changed:
            self._require(operation)
            queue_id = self._book.queue(message.queue).queue_id
            if target is None:
                self._contents.settle(queue_id, message.message_id, fate)
                return
            target_id = self._book.queue(target).queue_id
            held = self._contents.held.get((queue_id, message.message_id))
            if held is None or held.fate is not Fate.KEEP:
                raise NotHeld(f"{self.name} does not have message {message.message_id}, or settled it before")
            self._book.reserve((target_id,))
            self._contents.settle(queue_id, message.message_id, fate, target_id)

    def _hand_over(self, work: TransactionWork) -> Future[None]:
        try:
            self._parts.writer.hand_over(work)
        except BaseException:
            with self._book.changed:
                work.refuse(self._book)
            raise
        return work.future
