"""The store's state in memory, under one lock: queues, subscribers, locked messages, prepared transactions.

It changes only after the page store: the log writer calls `commit` and `roll_back` once the rows are on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Condition

from tandemfeed.journal.transactional.errors import (
    NoSuchMessage,
    NoSuchQueue,
    QueueFull,
    StoreClosed,
    StoreFailed,
    TransactionTooLarge,
)
from tandemfeed.journal.transactional.limits import WINDOW_COUNT_MAX, StoreLimits
from tandemfeed.journal.transactional.memory.queue_index import QueueIndex
from tandemfeed.journal.transactional.memory.volatile_cache import VolatileCache
from tandemfeed.journal.transactional.pages.page_store import PageStore
from tandemfeed.journal.transactional.topics import matches
from tandemfeed.journal.transactional.transactions.contents import Contents, Entry, Fate, LockedMessage
from tandemfeed.journal.transactional.transactions.transaction_state import TransactionMachine


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A durable subscriber: its queue receives every message of the topics that its pattern matches."""

    name: str
    pattern: str
    queue_id: int


@dataclass(slots=True)
class Prepared:
    """A prepared transaction."""

    prepared_id: int
    contents: Contents
    machine: TransactionMachine
    prepared_at_ns: int


class StoreState:
    """The state in memory. Callers must hold `changed`, which is also notified when messages arrive."""

    def __init__(self, pages: PageStore, cache: VolatileCache, limits: StoreLimits) -> None:
        self._pages = pages
        self._cache = cache
        self._limits = limits
        self.changed = Condition()
        self.closed = False
        self.failure: StoreFailed | None = None  # set by the log writer, permanently
        self.queues: dict[int, QueueIndex] = {}
        self.queue_ids: dict[str, int] = {}
        self.subscribers: dict[str, Subscriber] = {}
        self.prepared: dict[str, Prepared] = {}
        self.decided_by_hand: dict[str, bool] = {}
        self.open: dict[str, tuple[TransactionMachine, Contents]] = {}  # transactions that have not ended, by owner
        self.applied_position = pages.positions.next - 1  # rows up to this position are counted in the indexes
        self.locked_count = 0
        self.waiting_count = 0  # threads that wait for a message

    def check_open(self) -> None:
        """Refuse work on a store that is closed or failed."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise StoreClosed(f"{self._pages.path}: the store is closed; its open transactions were rolled back")

    def add_queue(self, queue_id: int, name: str, stored_count: int = 0) -> None:
        """Add a queue."""
        self.queues[queue_id] = QueueIndex(queue_id, name, stored_count)
        self.queue_ids[name] = queue_id

    def queue(self, name: str) -> QueueIndex:
        """The queue of that name."""
        queue_id = self.queue_ids.get(name)
        if queue_id is None:
            raise NoSuchQueue(f"there is no queue {name!r} in {self._pages.path.parent}: create it first")
        return self.queues[queue_id]

    def queue_ids_of_topic(self, topic: str) -> tuple[int, ...]:
        """The queues of the durable subscribers whose pattern matches the topic."""
        return tuple(each.queue_id for each in self.subscribers.values() if matches(each.pattern, topic))

    def reserve(self, queue_ids: Sequence[int]) -> None:
        """Reserve a place for one more message in each queue, or in none.

        Raises:
            QueueFull.
        """
        for queue_id in queue_ids:
            queue = self.queues[queue_id]
            if queue.count + queue.reserved_count >= self._limits.queue_messages_max:
                raise QueueFull(
                    f"queue {queue.name} has {queue.count} messages and {queue.reserved_count} are being put: "
                    f"consume some, or raise queue_messages_max ({self._limits.queue_messages_max})"
                )
        for queue_id in queue_ids:
            self.queues[queue_id].reserved_count += 1

    def cancel_reservation(self, queue_ids: Sequence[int]) -> None:
        """Undo `reserve`."""
        for queue_id in queue_ids:
            self.queues[queue_id].reserved_count -= 1

    def take(self, queue: QueueIndex, contents: Contents) -> Entry | None:
        """Lock the queue's next message for a transaction."""
        self._check_locks()
        while queue.wants_rows():
            queue.load(self._pages.entries_after(queue.queue_id, queue.cursor, self.applied_position, WINDOW_COUNT_MAX))
        entry = queue.take(contents.owner)
        if entry is not None:
            self.hold(queue, entry, contents)
        return entry

    def lock(self, queue: QueueIndex, position: int, contents: Contents) -> None:
        """Lock a message by its number, for a transaction that has not locked it.

        Raises:
            MessageLocked, NoSuchMessage.
        """
        self._check_locks()
        entry = queue.lock_known(position, contents.owner)
        if entry is None:
            last = min(position, self.applied_position)
            after = max(queue.cursor, position - 1)
            rows = self._pages.entries_after(queue.queue_id, after, last, 1)
            if not rows:
                raise NoSuchMessage(f"queue {queue.name} has no message {position}: it never existed, or was consumed")
            entry = rows[0]
            queue.lock_stored(entry, contents.owner)
        self.hold(queue, entry, contents)

    def hold(self, queue: QueueIndex, entry: Entry, contents: Contents) -> None:
        """Record that a transaction has locked a message."""
        contents.held[(queue.queue_id, entry.position)] = LockedMessage(queue.queue_id, entry)
        self.locked_count += 1

    def commit(self, contents: Contents, arrivals: Sequence[tuple[int, Entry]]) -> None:
        """Apply a transaction that is on the disk: its effects become visible."""
        self._cancel_reservations(contents)
        for queue_id, entry in arrivals:
            self.queues[queue_id].arrive(entry)
        gone: list[int] = []
        for held in contents.held.values():
            queue = self.queues[held.queue_id]
            if held.fate is Fate.KEEP:
                queue.release(held.entry)
                continue
            queue.remove(held.entry)
            if held.fate is Fate.REMOVE and not held.entry.persistent:
                gone.append(held.entry.message_id)
        self._end(contents, gone)

    def roll_back(self, contents: Contents) -> None:
        """Undo a transaction: the messages that it locked are available again."""
        self._cancel_reservations(contents)
        for held in contents.held.values():
            self.queues[held.queue_id].release(held.entry)
        gone = [put.message_id for put in contents.puts if not put.persistent for _ in put.queue_ids]
        self._end(contents, gone)

    def validate(self) -> None:
        """Check the invariants; for tests."""
        for queue in self.queues.values():
            queue.validate()
        assert self.locked_count == sum(queue.locked_count for queue in self.queues.values())

    def _cancel_reservations(self, contents: Contents) -> None:
        for queue_id, count in contents.reservations().items():
            self.queues[queue_id].reserved_count -= count

    def _end(self, contents: Contents, gone: Sequence[int]) -> None:
        if gone:
            self._cache.release(gone)
        self.locked_count -= len(contents.held)
        self.open.pop(contents.owner, None)
        if self.waiting_count:
            self.changed.notify_all()

    def _check_locks(self) -> None:
        if self.locked_count >= self._limits.locks_count_max:
            raise TransactionTooLarge(
                f"{self.locked_count} messages are locked by open and prepared transactions: "
                f"end some, or raise locks_count_max"
            )
