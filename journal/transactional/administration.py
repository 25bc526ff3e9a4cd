"""Creates, deletes, lists and loads queues and durable subscribers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from tandemfeed.journal.transactional.errors import NoSuchPrepared, QueueExists, QueueInUse
from tandemfeed.journal.transactional.log.log_operations import AdministrationOperation
from tandemfeed.journal.transactional.log.log_writer import LogWriter
from tandemfeed.journal.transactional.memory.queue_index import QueueIndex
from tandemfeed.journal.transactional.memory.store_state import StoreState, Subscriber
from tandemfeed.journal.transactional.memory.volatile_cache import VolatileCache
from tandemfeed.journal.transactional.pages.page_store import PageStore
from tandemfeed.journal.transactional.topics import SUBSCRIBER_PREFIX


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue at one moment. Counts in messages."""

    name: str
    count: int
    """Messages committed and not consumed, including locked ones."""
    locked_count: int
    """Messages locked by open or prepared transactions."""


def load(pages: PageStore, state: StoreState) -> None:
    """Load the queues and subscribers of the page store into the state."""
    counted = pages.numbers("SELECT queue_id, count(*) FROM entry GROUP BY queue_id")
    counts = {queue_id: count for queue_id, count in counted}  # noqa: C416 — shows that rows are pairs
    for queue_id, name in pages.rows("SELECT id, name FROM queue"):
        assert isinstance(queue_id, int)
        state.add_queue(queue_id, str(name), counts.get(queue_id, 0))
    for name, pattern, queue_id in pages.rows("SELECT name, pattern, queue_id FROM subscriber"):
        assert isinstance(queue_id, int)
        state.subscribers[str(name)] = Subscriber(str(name), str(pattern), queue_id)


def create(state: StoreState, writer: LogWriter, name: str, *, pattern: str | None = None) -> None:
    """Create a queue, or, with a pattern, a durable subscriber of that name and its queue."""
    queue_name = name if pattern is None else SUBSCRIBER_PREFIX + name
    made: list[int] = []

    def run(database: sqlite3.Connection) -> None:
        if database.execute("SELECT 1 FROM queue WHERE name = ?", (queue_name,)).fetchone():
            raise QueueExists(f"{queue_name} exists: use it, or delete it first")
        row = database.execute("INSERT INTO queue (name) VALUES (?) RETURNING id", (queue_name,)).fetchone()
        made.append(row[0])
        if pattern is not None:
            database.execute("INSERT INTO subscriber VALUES (?, ?, ?)", (name, pattern, row[0]))

    def done() -> None:
        state.add_queue(made[-1], queue_name)
        if pattern is not None:
            state.subscribers[name] = Subscriber(name, pattern, made[-1])

    _administer(state, writer, run, done)


def delete(state: StoreState, cache: VolatileCache, writer: LogWriter, name: str, *, subscriber: bool) -> None:
    """Delete a queue, or a durable subscriber and its queue, with all messages that no other queue has."""
    queue_name = SUBSCRIBER_PREFIX + name if subscriber else name
    with state.changed:
        state.check_open()
        queue = state.queue(queue_name)
        if queue.locked_count or queue.reserved_count:
            raise QueueInUse(
                f"{queue_name}: {queue.locked_count} messages are locked and {queue.reserved_count} are being put "
                "by open or prepared transactions: end them first"
            )
        # Hide the queue first: from here on no transaction can get from it or put into it.
        del state.queue_ids[queue_name]
        definition = state.subscribers.pop(name, None) if subscriber else None

    def done() -> None:
        del state.queues[queue.queue_id]
        cache.release(queue.volatile_message_ids())

    try:
        _administer(state, writer, lambda database: _delete_rows(database, queue), done)
    except BaseException:
        with state.changed:
            state.queue_ids[queue_name] = queue.queue_id
            if definition is not None:
                state.subscribers[name] = definition
        raise


def forget(state: StoreState, writer: LogWriter, global_id: str) -> None:
    """Forget a decision by hand."""

    def run(database: sqlite3.Connection) -> None:
        gone = database.execute("DELETE FROM decided_by_hand WHERE global_id = ? RETURNING 1", (global_id,)).fetchall()
        if not gone:
            raise NoSuchPrepared(f"there is no decision by hand on {global_id!r}")

    def done() -> None:
        del state.decided_by_hand[global_id]

    _administer(state, writer, run, done)


def status(queue: QueueIndex) -> QueueStatus:
    """The status of a queue."""
    return QueueStatus(queue.name, queue.count, queue.locked_count)


def _administer(
    state: StoreState, writer: LogWriter, run: Callable[[sqlite3.Connection], None], done: Callable[[], None]
) -> None:
    with state.changed:
        state.check_open()
    operation = AdministrationOperation(run=run, done=done)
    writer.hand_over(operation)
    operation.future.result()


def _delete_rows(database: sqlite3.Connection, queue: QueueIndex) -> None:
    # A message can be in one queue more than once: moved there from the queues of several subscribers.
    counted = "SELECT count(*), message_id FROM entry WHERE queue_id = ? GROUP BY message_id"
    released = database.execute(counted, (queue.queue_id,)).fetchall()
    database.execute("DELETE FROM entry WHERE queue_id = ?", (queue.queue_id,))
    database.executemany("UPDATE message SET reference_count = reference_count - ? WHERE id = ?", released)
    gone = ((message_id,) for _, message_id in released)
    database.executemany("DELETE FROM message WHERE id = ? AND reference_count = 0", gone)
    database.execute("DELETE FROM subscriber WHERE queue_id = ?", (queue.queue_id,))
    database.execute("DELETE FROM queue WHERE id = ?", (queue.queue_id,))
