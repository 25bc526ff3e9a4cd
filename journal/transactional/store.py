"""The store: opening, which is recovery, and every way in. It hands work to its parts and decides nothing itself."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from journal.transactional import administration
from journal.transactional.administration import QueueStatus
from journal.transactional.book import Book, Subscriber
from journal.transactional.contents import Contents
from journal.transactional.errors import (
    DuplicateGlobalId,
    ForeignStore,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    TransactionTooLarge,
)
from journal.transactional.limits import StoreLimits
from journal.transactional.log_writer import LogWriter
from journal.transactional.page_store import PageStore
from journal.transactional.schema import FILE_NAME, check_file
from journal.transactional.topics import (
    SUBSCRIBER_PREFIX,
    checked_global_id,
    checked_name,
    checked_pattern,
)
from journal.transactional.transaction import Parts, Transaction
from journal.transactional.transaction_state import TransactionEvent, TransactionMachine, TransactionState
from journal.transactional.two_phase import PreparedTransaction, decide, describe, restore
from journal.transactional.verification import problems_of
from journal.transactional.volatile_cache import VolatileCache
from journal.transactional.works import CheckpointWork, Work

LOCK_NAME = "store.lock"


@dataclass(frozen=True, slots=True)
class Statistics:
    """The store at one moment; counts are since it was opened."""

    transactions_committed: int
    """Durable steps of transactions: commits, prepares and decisions."""
    groups_committed: int
    """Flushes that made them durable."""
    checkpoints_made: int
    """Times the log was brought into the database and emptied."""
    checkpoints_failed: int
    """Times that another program's read, or the disk, kept that from happening; it is tried again."""
    log_bytes: int
    """Size of the log now."""
    locked_count: int
    """Messages that open and prepared transactions have now."""
    volatile_message_count: int
    """Non-persistent messages stored now."""
    volatile_memory_bytes: int
    """Memory that their bodies use now."""
    volatile_spilled_count: int
    """Non-persistent messages that went to a swap file."""
    swap_file_count: int
    """Swap files now."""
    swap_bytes: int
    """Size of them now."""


def subscriber_queue(name: str) -> str:
    """The name of a durable subscriber's queue, for `get`, `move` and `delete`."""
    return SUBSCRIBER_PREFIX + name


class TransactionalStore:
    """Queues in one folder, changed by transactions. Use `open`, preferably in a `with`; safe from any thread."""

    def __init__(self, folder: Path, limits: StoreLimits, lock_descriptor: int) -> None:
        self.folder = folder
        self.limits = limits
        self._lock_descriptor = lock_descriptor
        cache = VolatileCache(
            folder,
            memory_bytes_max=limits.volatile_memory_bytes_max,
            file_bytes_max=limits.swap_file_bytes_max,
            swap_bytes_max=limits.swap_bytes_max,
        )
        pages = PageStore(folder, limits)
        try:
            self._book = Book(pages, cache, limits)
            administration.load(pages, self._book)
            restore(pages, self._book)
        except BaseException:
            pages.close()
            raise
        self._parts = Parts(pages, cache, self._book, LogWriter(pages, self._book, limits), limits)
        self._numbers = itertools.count(1)

    @classmethod
    def open(cls, folder: Path, *, limits: StoreLimits | None = None) -> TransactionalStore:
        """Open a store, making it if the folder has none, and recover.

        Args:
            folder: one store's own; it is made if it is not there, its parent is not.
            limits: what the store may use.

        Raises:
            StoreLocked, ForeignStore, NewerStore, StoreReadOnly, StoreCorrupt, StoreFull: nothing was changed.
        """
        try:
            folder.mkdir(exist_ok=True)
            if not (folder / LOCK_NAME).exists():
                # Leave no lock in somebody else's folder. But never look into a store that may be open in this process:
                # closing any descriptor of its file would drop the locks that SQLite has on it.
                check_file(folder / FILE_NAME)
            descriptor = _locked(folder / LOCK_NAME)
            try:
                return cls(folder, limits or StoreLimits(), descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except (FileExistsError, NotADirectoryError) as error:
            raise ForeignStore(f"{folder} is no folder: choose another place for the store") from error
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise ForeignStore(f"{folder.parent} is not there: make it first") from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(f"{folder}: {error.strerror}. Free disk space") from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StoreReadOnly(
                    f"{folder}: {error.strerror}. Let this user write it and the files in it"
                ) from error
            raise

    # --- transactions ---

    def transaction(self) -> Transaction:
        """A transaction that commits in one phase.

        Raises:
            StoreClosed, StoreFailed, TransactionTooLarge (too many are open).
        """
        return self._begin(f"transaction {next(self._numbers)}", two_phase=False)

    def begin(self, global_id: str) -> Transaction:
        """A transaction that a coordinator ends in two phases: `prepare`, then `commit` or `rollback`.

        Args:
            global_id: the coordinator's name for it: 1 to 200 printable ASCII characters without spaces.

        Raises:
            DuplicateGlobalId, BadName, StoreClosed, StoreFailed, TransactionTooLarge (too many are open).
        """
        return self._begin(checked_global_id(global_id), two_phase=True)

    def prepared(self) -> list[PreparedTransaction]:
        """The transactions that are prepared and not decided, oldest first."""
        with self._book.changed:
            found = [describe(each) for each in self._book.prepared.values()]
        return sorted(found, key=lambda each: (each.prepared_at_ns, each.global_id))

    def in_doubt(self) -> list[PreparedTransaction]:
        """Of these, the ones whose client is gone: the coordinator, or a hand, must decide."""
        return [each for each in self.prepared() if each.state is TransactionState.IN_DOUBT]

    def decide(self, global_id: str, *, commit: bool) -> None:
        """The coordinator's decision on a prepared transaction, also after a restart. Durable on return.

        Raises:
            NoSuchPrepared (also if it was decided before), DecidedByHand, IllegalTransactionMove (a decision is under
            way), StoreFull (try again), StoreClosed, StoreFailed.
        """
        decide(self._book, self._parts.writer, global_id, commit=commit, by_hand=False).result()

    def decide_by_hand(self, global_id: str, *, commit: bool) -> None:
        """Decide in the coordinator's place, at the risk that it decides otherwise; it is told so when it comes back.

        Raises:
            as for `decide`.
        """
        decide(self._book, self._parts.writer, global_id, commit=commit, by_hand=True).result()

    def decided_by_hand(self) -> dict[str, bool]:
        """Decisions by hand that are not forgotten: whether each global id was committed."""
        with self._book.changed:
            return dict(self._book.decided_by_hand)

    def forget(self, global_id: str) -> None:
        """Drop the memory of a decision by hand, once the coordinator has taken note.

        Raises:
            NoSuchPrepared, StoreFull, StoreClosed, StoreFailed.
        """
        administration.forget(self._book, self._parts.writer, global_id)

    # --- queues and subscribers: durable on return ---

    def create_queue(self, name: str) -> None:
        """Make a queue.

        Raises:
            QueueExists, BadName, StoreFull, StoreClosed, StoreFailed.
        """
        administration.create(self._book, self._parts.writer, checked_name(name, "queue"))

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages.

        Raises:
            NoSuchQueue, QueueInUse, BadName, StoreFull, StoreClosed, StoreFailed.
        """
        name = checked_name(name, "queue")
        administration.delete(self._book, self._parts.cache, self._parts.writer, name, subscriber=False)

    def queues(self) -> list[QueueStatus]:
        """All queues by name, those of durable subscribers included."""
        with self._book.changed:
            return [administration.status(self._book.queue(name)) for name in sorted(self._book.queue_ids)]

    def create_subscriber(self, name: str, pattern: str) -> None:
        """Define a durable subscriber; it gets what is published from now on.

        Args:
            name: of the subscriber.
            pattern: words of a topic with dots between; `*` is one word, `#` at the end any number of words.

        Raises:
            QueueExists, BadName, StoreFull, StoreClosed, StoreFailed.
        """
        checked_name(name, "subscriber")
        administration.create(self._book, self._parts.writer, name, pattern=checked_pattern(pattern))

    def delete_subscriber(self, name: str) -> None:
        """Delete a durable subscriber; messages that others wait for stay.

        Raises:
            NoSuchQueue, QueueInUse, BadName, StoreFull, StoreClosed, StoreFailed.
        """
        checked_name(name, "subscriber")
        administration.delete(self._book, self._parts.cache, self._parts.writer, name, subscriber=True)

    def subscribers(self) -> list[Subscriber]:
        """All durable subscribers, by name."""
        with self._book.changed:
            return sorted(self._book.subscribers.values(), key=lambda each: each.name)

    # --- the whole ---

    def flush(self) -> None:
        """Wait until all that was handed over before is on the disk, delivery counts included."""
        self._wait(Work())

    def checkpoint(self) -> None:
        """Bring the log into the database now.

        Raises:
            StoreFull: the log still has everything.
        """
        self._wait(CheckpointWork())

    def problems(self) -> list[str]:
        """Read the whole page store and check it: what is wrong, in sentences; empty if nothing is."""
        with self._book.changed:
            self._book.check_open()
        return problems_of(self.folder / FILE_NAME)

    def statistics(self) -> Statistics:
        """How it is doing."""
        writer, cache = self._parts.writer, self._parts.cache
        swap_file_count, swap_bytes = cache.swap_files()
        return Statistics(
            transactions_committed=writer.transactions_committed,
            groups_committed=writer.groups_committed,
            checkpoints_made=writer.checkpoints_made,
            checkpoints_failed=writer.checkpoints_failed,
            log_bytes=self._parts.pages.log_bytes(),
            locked_count=self._book.locked_count,
            volatile_message_count=cache.message_count(),
            volatile_memory_bytes=cache.memory_bytes,
            volatile_spilled_count=cache.spilled_count,
            swap_file_count=swap_file_count,
            swap_bytes=swap_bytes,
        )

    def close(self) -> None:
        """Finish what was handed over, roll back what is open, stop the thread, let go of the files."""
        self._parts.writer.check_caller()
        with self._book.changed:
            if self._book.closed:
                return
            for machine, contents in list(self._book.open.values()):
                if machine.state is TransactionState.ACTIVE:
                    machine.step(TransactionEvent.ROLL_BACK)
                    self._book.roll_back(contents)
            self._book.closed = True
            self._book.changed.notify_all()
        self._parts.writer.close()
        self._parts.pages.close()
        self._parts.cache.close()
        os.close(self._lock_descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, name: str, *, two_phase: bool) -> Transaction:
        machine, contents = TransactionMachine(name), Contents(name)
        book = self._book
        with book.changed:
            book.check_open()
            if name in book.open or name in book.prepared or name in book.decided_by_hand:
                raise DuplicateGlobalId(
                    f"{name} is open, prepared or decided by hand: end or forget it, or take another"
                )
            if len(book.open) >= self.limits.open_transactions_max:
                raise TransactionTooLarge(f"{len(book.open)} transactions are open: end some, or raise the limit")
            book.open[name] = (machine, contents)
        return Transaction(self._parts, contents, machine, two_phase=two_phase)

    def _wait(self, work: Work) -> None:
        with self._book.changed:
            self._book.check_open()
        self._parts.writer.hand_over(work)
        work.future.result()


def _locked(path: Path) -> int:
    """The lock on the folder; it dies with this process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StoreLocked(f"{path.parent} is open in process {holder}: end that process, or use its store") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
