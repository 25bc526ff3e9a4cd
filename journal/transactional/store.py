"""The transactional store: opening, which includes recovery, and all public operations. Delegates the work."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tandemfeed.journal.errors import ReadOnly
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.transactional import administration
from tandemfeed.journal.transactional.administration import QueueStatus
from tandemfeed.journal.transactional.errors import (
    DuplicateGlobalId,
    ForeignStore,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    TransactionTooLarge,
)
from tandemfeed.journal.transactional.limits import StoreLimits
from tandemfeed.journal.transactional.log.log_operations import CheckpointOperation, LogOperation
from tandemfeed.journal.transactional.log.log_writer import LogWriter
from tandemfeed.journal.transactional.memory.store_state import StoreState, Subscriber
from tandemfeed.journal.transactional.memory.volatile_cache import VolatileCache
from tandemfeed.journal.transactional.pages.page_store import PageStore
from tandemfeed.journal.transactional.pages.schema import FILE_NAME, check_file
from tandemfeed.journal.transactional.pages.verification import problems_of
from tandemfeed.journal.transactional.topics import (
    SUBSCRIBER_PREFIX,
    checked_global_id,
    checked_name,
    checked_pattern,
)
from tandemfeed.journal.transactional.transactions.contents import Contents
from tandemfeed.journal.transactional.transactions.transaction import Parts, Transaction
from tandemfeed.journal.transactional.transactions.transaction_state import (
    TransactionEvent,
    TransactionMachine,
    TransactionState,
)
from tandemfeed.journal.transactional.transactions.two_phase import PreparedTransaction, decide, describe, restore
from tandemfeed.runtime import durable

LOCK_NAME = "store.lock"


@dataclass(frozen=True, slots=True)
class Statistics:
    """A store's statistics; counts begin when it is opened."""

    transactions_committed: int
    """Durable steps of transactions: commits, prepares and decisions."""
    groups_committed: int
    """Groups flushed to the disk."""
    checkpoints_made: int
    """Checkpoints: the log was copied into the database and emptied."""
    checkpoints_failed: int
    """Checkpoints prevented by another program's read or by the disk; they are retried."""
    log_bytes: int
    """Current size of the log."""
    locked_count: int
    """Messages now locked by open and prepared transactions."""
    volatile_message_count: int
    """Current number of non-persistent messages."""
    volatile_memory_bytes: int
    """Memory that their bodies now use."""
    volatile_spilled_count: int
    """Non-persistent messages written to a swap file."""
    swap_file_count: int
    """Current number of swap files."""
    swap_bytes: int
    """Current size of all swap files."""


def subscriber_queue(name: str) -> str:
    """The name of a durable subscriber's queue, for `get`, `move` and `delete`."""
    return SUBSCRIBER_PREFIX + name


class TransactionalStore:
    """Queues in one folder, changed by transactions. Create it with `open`, preferably in a `with`. Thread-safe."""

    def __init__(self, folder: Path, access: Access, limits: StoreLimits, lock_descriptor: int) -> None:
        self.folder = folder
        self.limits = limits
        self._lock_descriptor = lock_descriptor
        cache = VolatileCache(
            folder,
            access,
            memory_bytes_max=limits.volatile_memory_bytes_max,
            file_bytes_max=limits.swap_file_bytes_max,
            swap_bytes_max=limits.swap_bytes_max,
        )
        pages = PageStore(folder, access, limits)
        try:
            self._state = StoreState(pages, cache, limits)
            administration.load(pages, self._state)
            restore(pages, self._state)
        except BaseException:
            pages.close()
            raise
        self._parts = Parts(pages, cache, self._state, LogWriter(pages, self._state, limits), limits)
        self._numbers = itertools.count(1)

    @classmethod
    def open(
        cls, folder: Path | str, *, limits: StoreLimits | None = None, group: str | int | None = None
    ) -> TransactionalStore:
        """Open a store, creating it if needed, and recover.

        Args:
            folder: used by this store only. It is created if missing, but its parent is not.
            limits: what the store may use.
            group: name or id of a group whose members may use the new store too; otherwise only the owner may. An
                existing store keeps its modes.

        Raises:
            ValueError: this host does not know the group.
            StoreLocked, ForeignStore, NewerStore, StoreReadOnly, StoreCorrupt, StoreFull: nothing was changed.
            StoreFailed: the disk refuses what the last process left; nothing was lost.
        """
        folder, access = Path(folder), Access.of_group(group)
        try:
            is_new_folder = not folder.exists()
            if is_new_folder:
                folder.mkdir(mode=durable.PRIVATE_FOLDER)
            durable.sync_name(folder)
            is_new_lock = not (folder / LOCK_NAME).exists()
            if is_new_lock:
                # Leave no lock in a foreign folder. But never open the file of a store that this process may have open:
                # closing any descriptor of its file would drop the locks that SQLite has on it.
                check_file(folder / FILE_NAME)
            descriptor = _locked(folder / LOCK_NAME)
            try:
                if (folder / FILE_NAME).exists():
                    access = Access.of_journal(folder, FILE_NAME)
                elif is_new_folder or group is not None:
                    access.give(folder, is_folder=True)
                if is_new_lock or not (folder / FILE_NAME).exists():
                    access.give(descriptor)
                return cls(folder, access, limits or StoreLimits(), descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except ReadOnly as error:
            raise StoreReadOnly(str(error)) from error
        except durable.FlushFailed as error:
            raise StoreFailed(f"{folder}: what the last process left cannot be made durable: {error}") from error
        except (FileExistsError, NotADirectoryError) as error:
            raise ForeignStore(f"{folder} is not a folder: choose another place for the store") from error
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise ForeignStore(f"{folder.parent} does not exist: create it first") from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(f"{folder}: {error.strerror}. Free disk space") from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StoreReadOnly(
                    f"{folder}: {error.strerror}. Make the folder and its files writable for this user"
                ) from error
            raise StoreFailed(f"{folder}: {error.strerror}. See the system log for disk errors") from error

    # --- transactions ---

    def transaction(self) -> Transaction:
        """A transaction that commits in one phase.

        Raises:
            TransactionTooLarge: too many are open.
            StoreClosed, StoreFailed: the store must be opened again.
        """
        return self._begin(f"transaction {next(self._numbers)}", two_phase=False)

    def begin(self, global_id: str) -> Transaction:
        """A transaction in two phases, driven by a coordinator: `prepare`, then `commit` or `rollback`.

        Args:
            global_id: the coordinator's name for it: 1 to 200 printable ASCII characters without spaces.

        Raises:
            DuplicateGlobalId, BadName: `global_id` is in use, or is not a name.
            TransactionTooLarge: too many are open.
            StoreClosed, StoreFailed: the store must be opened again.
        """
        return self._begin(checked_global_id(global_id), two_phase=True)

    def prepared(self) -> list[PreparedTransaction]:
        """The prepared transactions without a decision, oldest first."""
        with self._state.changed:
            found = [describe(each) for each in self._state.prepared.values()]
        return sorted(found, key=lambda each: (each.prepared_at_ns, each.global_id))

    def in_doubt(self) -> list[PreparedTransaction]:
        """The prepared transactions whose client is gone: the coordinator, or an operator by hand, must decide."""
        return [each for each in self.prepared() if each.state is TransactionState.IN_DOUBT]

    def decide(self, global_id: str, *, commit: bool) -> None:
        """The coordinator's decision on a prepared transaction, also after a restart. Durable on return.

        Raises:
            NoSuchPrepared, DecidedByHand: there is none, or it is already decided.
            IllegalTransactionMove: a decision is in progress.
            StoreFull: nothing was decided; try again.
            StoreClosed, StoreFailed: the store must be opened again.
        """
        decide(self._state, self._parts.writer, global_id, commit=commit, by_hand=False).result()

    def decide_by_hand(self, global_id: str, *, commit: bool) -> None:
        """Decide instead of the coordinator, which may decide otherwise and then gets `DecidedByHand`.

        Raises:
            NoSuchPrepared, DecidedByHand: there is none, or it is already decided.
            IllegalTransactionMove, StoreFull, StoreClosed, StoreFailed: as for `decide`.
        """
        decide(self._state, self._parts.writer, global_id, commit=commit, by_hand=True).result()

    def decided_by_hand(self) -> dict[str, bool]:
        """Decisions by hand that are not forgotten: for each global id, whether it was committed."""
        with self._state.changed:
            return dict(self._state.decided_by_hand)

    def forget(self, global_id: str) -> None:
        """Forget a decision by hand, once the coordinator knows about it.

        Raises:
            NoSuchPrepared: there is no such decision.
            StoreFull, StoreClosed, StoreFailed: nothing was forgotten.
        """
        administration.forget(self._state, self._parts.writer, global_id)

    # --- queues and subscribers: durable on return ---

    def create_queue(self, name: str) -> None:
        """Create a queue.

        Raises:
            QueueExists, BadName: the name is in use, or is not a name.
            StoreFull, StoreClosed, StoreFailed: nothing was created.
        """
        administration.create(self._state, self._parts.writer, checked_name(name, "queue"))

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages.

        Raises:
            NoSuchQueue, QueueInUse, BadName: there is none of this name, or a transaction uses it.
            StoreFull, StoreClosed, StoreFailed: nothing was deleted.
        """
        name = checked_name(name, "queue")
        administration.delete(self._state, self._parts.cache, self._parts.writer, name, subscriber=False)

    def queues(self) -> list[QueueStatus]:
        """All queues by name, those of durable subscribers included."""
        with self._state.changed:
            return [administration.status(self._state.queue(name)) for name in sorted(self._state.queue_ids)]

    def create_subscriber(self, name: str, pattern: str) -> None:
        """Create a durable subscriber; it receives all messages published from now on.

        Args:
            name: of the subscriber.
            pattern: words separated by dots; `*` matches one word, `#` at the end any number of words.

        Raises:
            QueueExists, BadName: the name is in use, or is not a name.
            StoreFull, StoreClosed, StoreFailed: nothing was created.
        """
        checked_name(name, "subscriber")
        administration.create(self._state, self._parts.writer, name, pattern=checked_pattern(pattern))

    def delete_subscriber(self, name: str) -> None:
        """Delete a durable subscriber; messages that other subscribers still need stay.

        Raises:
            NoSuchQueue, QueueInUse, BadName: there is none of this name, or a transaction uses it.
            StoreFull, StoreClosed, StoreFailed: nothing was deleted.
        """
        checked_name(name, "subscriber")
        administration.delete(self._state, self._parts.cache, self._parts.writer, name, subscriber=True)

    def subscribers(self) -> list[Subscriber]:
        """All durable subscribers, by name."""
        with self._state.changed:
            return sorted(self._state.subscribers.values(), key=lambda each: each.name)

    # --- the whole ---

    def flush(self) -> None:
        """Wait until everything handed over before is on the disk, including delivery counts."""
        self._wait(LogOperation())

    def checkpoint(self) -> None:
        """Make a checkpoint: copy the log into the database and empty it.

        Raises:
            StoreFull: nothing is lost; the log still has everything.
        """
        self._wait(CheckpointOperation())

    def problems(self) -> list[str]:
        """Check the whole page store, and describe each problem in a sentence; empty if there is none."""
        with self._state.changed:
            self._state.check_open()
        return problems_of(self.folder / FILE_NAME)

    def statistics(self) -> Statistics:
        """The store's statistics."""
        writer, cache = self._parts.writer, self._parts.cache
        swap_file_count, swap_bytes = cache.swap_files()
        return Statistics(
            transactions_committed=writer.transactions_committed,
            groups_committed=writer.groups_committed,
            checkpoints_made=writer.checkpoints_made,
            checkpoints_failed=writer.checkpoints_failed,
            log_bytes=self._parts.pages.log_bytes(),
            locked_count=self._state.locked_count,
            volatile_message_count=cache.message_count(),
            volatile_memory_bytes=cache.memory_bytes,
            volatile_spilled_count=cache.spilled_count,
            swap_file_count=swap_file_count,
            swap_bytes=swap_bytes,
        )

    def close(self) -> None:
        """Finish the handed-over operations, roll back open transactions, stop the thread and close the files."""
        self._parts.writer.check_caller()
        with self._state.changed:
            if self._state.closed:
                return
            for machine, contents in list(self._state.open.values()):
                if machine.state is TransactionState.ACTIVE:
                    machine.step(TransactionEvent.ROLL_BACK)
                    self._state.roll_back(contents)
            self._state.closed = True
            self._state.changed.notify_all()
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
        state = self._state
        with state.changed:
            state.check_open()
            if name in state.open or name in state.prepared or name in state.decided_by_hand:
                raise DuplicateGlobalId(
                    f"{name} is open, prepared or decided by hand: end or forget it, or use another id"
                )
            if len(state.open) >= self.limits.open_transactions_max:
                raise TransactionTooLarge(f"{len(state.open)} transactions are open: end some, or raise the limit")
            state.open[name] = (machine, contents)
        return Transaction(self._parts, contents, machine, two_phase=two_phase)

    def _wait(self, operation: LogOperation) -> None:
        with self._state.changed:
            self._state.check_open()
        self._parts.writer.hand_over(operation)
        operation.future.result()


def _locked(path: Path) -> int:
    """Lock the folder; the lock ends with this process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, durable.PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StoreLocked(f"{path.parent} is open in process {holder}: end that process first") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
