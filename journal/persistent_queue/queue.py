"""A queue on the disk: after `put` returns, an item survives any crash until it is delivered or cancelled.

Blocks contain the items, and their states in a state area. Each state change is also written to the log, so that one
flush of the current block makes a group of puts and changes durable. See docs/persistent-queue.md.

Lock order: checkpointing, states. Only a group's leader writes the log. Invariant: only items that are on the disk are
handed out, in the order of their ids.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from tandemfeed.journal.compiled.compile_report import journal_compilation_reported
from tandemfeed.journal.errors import JournalClosed, JournalError
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.block import Block, remove_spares
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import BLOCK_SIZE_DEFAULT
from tandemfeed.journal.persistent_queue.blocks.catalogue import Catalogue
from tandemfeed.journal.persistent_queue.blocks.log import QueueLog
from tandemfeed.journal.persistent_queue.blocks.members import join
from tandemfeed.journal.persistent_queue.blocks.spares import Spares
from tandemfeed.journal.persistent_queue.durability import QueueDurability
from tandemfeed.journal.persistent_queue.errors import QueueFailed
from tandemfeed.journal.persistent_queue.group_commit import CommitRequest, GroupCommit, batches
from tandemfeed.journal.persistent_queue.items.item_registry import ItemRegistry
from tandemfeed.journal.persistent_queue.items.item_state import AlreadyCancelled, Cancelled, CancelResult
from tandemfeed.journal.persistent_queue.opening import open_control
from tandemfeed.journal.persistent_queue.recovery import recover
from tandemfeed.journal.persistent_queue.scheduling import keep_policy, use_batch_policy
from tandemfeed.journal.persistent_queue.statistics import QueueStatistics
from tandemfeed.journal.persistent_queue.upkeep import Checkpointer, Upkeep
from tandemfeed.runtime.durable import FlushFailed

GROUP_SIZE_MAX = 1_024  # puts in a group: with more, the first would wait for the last to be copied
GROUP_DELAY_S = 0.000_1  # about one flush: waiting longer costs more than larger groups gain
CHECKPOINT_INTERVAL_S = 1.0
CHECKPOINT_INTERVAL_ITEMS = 200_000  # the most that recovery replays: about 20 MB of small items
IN_FLIGHT_MAX = 1 << 20  # about 100 bytes of memory each
WAITING_MAX = 10_000  # puts in progress: from then on `put_nowait` waits
CHANGES_MAX = 65_536  # changes not in a group: from then on `done` waits


class PersistentQueue:
    """An open queue. Create it with `PersistentQueue.open`, preferably in a `with`. Thread-safe."""

    def __init__(
        self,
        folders: Sequence[Path],
        control: Control,
        *,
        group_size_max: int,
        group_delay_s: float,
        checkpoint_interval_s: float,
        checkpoint_interval_items: int,
        blocks_max: int | None,
        in_flight_max: int,
        batch_scheduling: bool,
        clock_ns: Callable[[], int],
    ) -> None:
        began = time.perf_counter()
        self.folder = folders[0]
        self._control = control
        self._closed = ""
        self._is_recovered = False
        self._durability = QueueDurability(control)
        states = threading.Lock()
        self._catalogue = Catalogue(control.journal_id, self._flush_unmapped)
        for folder in folders:
            remove_spares(folder)
        self._durability.make_durable(folders, control.journal_id)
        found = recover(folders, self._catalogue, control.journal_id)
        self._spares = Spares(folders, control.settings.block_size, Access.of_journal(self.folder))
        self._registry = ItemRegistry(self._catalogue, states, in_flight_max)
        self._log = QueueLog(
            control, self._catalogue, states, self._spares, self._durability,
            blocks_max=blocks_max, reclaim=self._reclaim, clock_ns=clock_ns,
        )  # fmt: skip
        self._checkpointer = Checkpointer(
            self._log, self._catalogue, self._registry, self._spares, self._durability, states
        )
        prepare = use_batch_policy if batch_scheduling else keep_policy
        self._groups = GroupCommit(
            self._write, group_size_max, group_delay_s, self._call_committer, self._fail, prepare
        )
        self._upkeep = Upkeep(
            self._log, self._checkpointer, self._spares, self._commit_if_needed, self._fail,
            lambda: self._groups.failure is not None, self._release_waiting,
            interval_s=checkpoint_interval_s, interval_items=checkpoint_interval_items,
        )  # fmt: skip
        self._log.start(found.position, is_ended=found.is_ended, next_ordinal=found.next_ordinal)
        self._registry.advance(self._log.durable)
        self._checkpointer.checkpoint()
        self._durability.end_recovery()
        self._first_id = self._registry.durable_id
        self._replayed_count = found.replayed_count
        self._recovery_s = time.perf_counter() - began
        self._is_recovered = True
        self._upkeep.start()
        _open_queues.add(self)

    @classmethod
    @journal_compilation_reported()
    def open(
        cls,
        path: Path | str,
        *,
        more_paths: Sequence[Path | str] = (),
        block_size: int = BLOCK_SIZE_DEFAULT,
        group_size_max: int = GROUP_SIZE_MAX,
        group_delay_s: float = GROUP_DELAY_S,
        checkpoint_interval_s: float = CHECKPOINT_INTERVAL_S,
        checkpoint_interval_items: int = CHECKPOINT_INTERVAL_ITEMS,
        blocks_max: int | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        batch_scheduling: bool = True,
        group: str | int | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> Self:
        """Open a queue, creating it if needed, and recover.

        Args:
            path: the queue's folder, on a local file system.
            more_paths: further folders, preferably on other disks; new blocks go to the folders in turn. Folders can be
                added at any opening, but none may be left out.
            block_size: bytes of each block file; a longer item gets a longer one.
            group_size_max: puts in one group.
            group_delay_s: how long a group waits for the number of threads seen around the last flush; 0: no wait.
            checkpoint_interval_s: a checkpoint is written after this many seconds,
            checkpoint_interval_items: or after this many items.
            blocks_max: at least 2; None: limited only by the disk.
            in_flight_max: the maximum number of items in flight.
            batch_scheduling: give threads that put the scheduler's batch policy permanently, which allows 50 % more
                puts per second (see scheduling.py); False keeps their policy.
            group: name or id of a group whose members may use the new queue too; otherwise only the owner may. An
                existing queue keeps its modes.
            clock_ns: wall-clock time, stored with each group.

        Raises:
            JournalLocked, SettingsDiffer, PathMissing, ForeignFile, NewerFormat, BlockCorrupt: nothing was lost; the
                text says what to do.
            DiskFull, ReadOnly, NetworkFileSystem: the same.
            QueueFailed, JournalFailed: the disk refuses a flush; nothing was lost.
            ValueError: an argument is invalid.
        """
        if blocks_max is not None and blocks_max < 2:
            raise ValueError(f"blocks_max is {blocks_max}; it must be at least 2, because one is always being written")
        if min(group_size_max, checkpoint_interval_items, in_flight_max) < 1:
            raise ValueError("group_size_max, checkpoint_interval_items and in_flight_max must be at least 1")
        if group_delay_s < 0 or checkpoint_interval_s <= 0:
            raise ValueError("group_delay_s must not be negative, and checkpoint_interval_s must be positive")
        folder, more_folders = Path(path), [Path(each) for each in more_paths]
        control = open_control(folder, block_size, group)
        try:
            return cls(
                join(folder, more_folders, control.journal_id), control, group_size_max=group_size_max,
                group_delay_s=group_delay_s, checkpoint_interval_s=checkpoint_interval_s,
                checkpoint_interval_items=checkpoint_interval_items, blocks_max=blocks_max,
                in_flight_max=in_flight_max, batch_scheduling=batch_scheduling, clock_ns=clock_ns,
            )  # fmt: skip
        except BaseException as refused:
            control.unlock()
            control.close()
            if isinstance(refused, OSError):
                raise QueueFailed(f"{folder}: cannot be opened: {refused}") from refused
            raise

    def put(self, item: bytes) -> int:
        """Put an item; it is on the disk when this returns.

        Args:
            item: up to 1 GiB.

        Returns:
            Its id. Items are delivered in the order of their ids.

        Raises:
            DiskFull, QueueFull, RecordTooLong: the item was not put.
            QueueFailed: the item may have been put; open the queue again.
        """
        if self._closed:
            raise JournalClosed(self._closed)
        return self._groups.commit((item if type(item) is bytes else _bytes(item),))

    def put_many(self, items: Iterable[bytes]) -> range:
        """Put items atomically: after a crash all or none exist. They are on the disk when this returns.

        Returns:
            Their ids.

        Raises:
            DiskFull, QueueFull, RecordTooLong, QueueFailed: as of `put`.
        """
        self._require_open()
        found = [item if type(item) is bytes else _bytes(item) for item in items]
        if not found:
            return range(0)
        first_id = self._groups.commit(found)
        return range(first_id, first_id + len(found))

    def put_nowait(self, item: bytes) -> Future[int]:
        """Put an item without waiting for the disk; the future gets its id once it is on the disk.

        Blocks while 10,000 others are in progress. Later puts of this thread come after it.

        Raises:
            QueueFailed: the disk failed before; the future gets all other errors.
        """
        self._require_open()
        if self._groups.waiting_count >= WAITING_MAX:
            self._groups.commit()
        return self._groups.enqueue((item if type(item) is bytes else _bytes(item),))

    def get(self, timeout_s: float | None = None) -> tuple[int, bytes] | None:
        """Hand out the oldest pending item with its id; it is in flight until `done` or `release`.

        Args:
            timeout_s: how long to wait for one, in seconds; None: do not wait.

        Returns:
            The item, or None if there is none.

        Raises:
            TooManyInFlight: `in_flight_max` items are in flight.
        """
        self._require_open()
        return self._registry.get(timeout_s)

    def done(self, item_id: int, *, durable: bool = False) -> None:
        """Mark an item in flight as delivered; it is never handed out again.

        Args:
            durable: return once this is on the disk. Otherwise it survives the end of the process immediately, and a
                power loss with the next group, some milliseconds later.

        Raises:
            NotInFlight: nothing was changed.
        """
        self.done_many((item_id,), durable=durable)

    def done_many(self, item_ids: Iterable[int], *, durable: bool = False) -> None:
        """As `done`, for all items, or for none if one is not in flight."""
        self._require_open()
        self._registry.deliver(item_ids)
        if durable or self._registry.change_count >= CHANGES_MAX:
            self._groups.commit()
        else:
            self._upkeep.call_committer(is_urgent=False)

    def release(self, item_id: int) -> None:
        """Return an item in flight: it is pending again, at its old place.

        Raises:
            NotInFlight: nothing was changed.
        """
        self._require_open()
        self._registry.release(item_id)

    def cancel(self, item_id: int) -> CancelResult:
        """Cancel a pending item.

        Returns:
            Cancelled: durable; the item will never be handed out. Any other result: the item's state, unchanged.

        Raises:
            QueueFailed: the item may have been cancelled; open the queue again.
        """
        return self.cancel_many((item_id,))[0]

    def cancel_many(self, item_ids: Iterable[int]) -> list[CancelResult]:
        """As `cancel`, for each of the items, with one flush for all."""
        self._require_open()
        results = [self._registry.cancel(item_id) for item_id in item_ids]
        if any(isinstance(each, Cancelled | AlreadyCancelled) for each in results):
            self._groups.commit()  # an earlier cancel may not be on the disk yet
        return results

    def cancel_all(self) -> int:
        """Cancel all pending items, durably. Items in flight stay in flight.

        Returns:
            How many were cancelled.
        """
        self._require_open()
        count = self._registry.cancel_all()
        if count:
            self._groups.commit()
        return count

    @property
    def pending_count(self) -> int:
        """Durable items that can be handed out."""
        active_count, in_flight_count, _ = self._registry.counts()
        return active_count - in_flight_count

    @property
    def in_flight_count(self) -> int:
        """Items handed out and not yet settled."""
        return self._registry.counts()[1]

    @property
    def active_count(self) -> int:
        """Items pending or in flight."""
        return self._registry.counts()[0]

    def block_active_counts(self) -> dict[int, int]:
        """Items pending or in flight, per block ordinal, oldest first."""
        return dict(self._registry.counts()[2])

    def checkpoint(self) -> None:
        """Write a checkpoint, and recycle the blocks that this allows."""
        self._require_open()
        self._groups.commit()
        try:
            self._checkpointer.checkpoint()
            self._checkpointer.recycle()
        except OSError as reason:
            raise self._fail(reason) from reason

    def statistics(self) -> QueueStatistics:
        """A snapshot of the queue's statistics."""
        active_count, in_flight_count, blocks = self._registry.counts()
        registry = self._registry
        return QueueStatistics(
            pending_count=active_count - in_flight_count,
            in_flight_count=in_flight_count,
            active_count=active_count,
            block_count=len(blocks),
            put_count=registry.durable_id - self._first_id,
            delivered_count=registry.delivered_count,
            cancelled_count=registry.cancelled_count,
            lost_count=registry.lost_count,
            group_count=self._groups.group_count,
            checkpoint_count=self._checkpointer.count,
            recycled_count=self._spares.recycled_count,
            recovery_s=self._recovery_s,
            replayed_count=self._replayed_count,
        )

    def close(self) -> None:
        """Make everything durable, write a checkpoint and close. Further calls do nothing."""
        if self._closed:
            return
        self._closed = f"{self.folder} was closed; open it again"
        try:
            self._upkeep.close()
            if self._groups.failure is None:
                self._groups.close(JournalClosed(self._closed))
                self._checkpointer.checkpoint()
                self._durability.mark_clean()
        except OSError as reason:
            raise self._fail(reason) from reason
        finally:
            self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise JournalClosed(self._closed)
        self._groups.require_whole()

    def _fail(self, reason: BaseException) -> QueueFailed:
        """Fail, whichever thread saw the reason; returns the error. The caller may hold locks."""
        failure = QueueFailed(
            f"{self.folder}: the disk refused a write or a flush ({reason}); close the queue, check the disk, and open "
            "the queue again, which writes again what may be lost"
        )
        failure.__cause__ = reason
        self._groups.fail(failure)
        self._durability.fail()
        self._upkeep.wake()
        return failure

    def _release_waiting(self) -> None:
        assert self._groups.failure is not None
        self._registry.close(self._groups.failure)
        self._groups.refuse_waiting()

    def _flush_unmapped(self, block: Block) -> None:
        try:
            self._durability.flush_states([block])
        except FlushFailed as reason:
            if not self._is_recovered:
                raise
            raise self._fail(reason) from reason

    def _shut(self) -> None:
        self._registry.close(JournalClosed(self._closed))
        self._spares.close()
        self._catalogue.close()
        self._durability.close()
        self._control.unlock()
        self._control.close()
        _open_queues.discard(self)

    def _after_fork(self) -> None:
        self._closed = f"{self.folder} was opened before this process was forked; open it again"
        self._control.close(in_child=True)

    def _write(self, requests: list[CommitRequest]) -> None:
        """Make a group durable. Only its leader calls this."""
        changes = self._registry.take_changes()
        if len(changes) and not self._log.append_changes(changes):
            self._checkpointer.flush_states()  # on a full disk: states flushed in place need no notes
        for batch in batches(requests):
            try:
                first_id = self._log.append_items([item for request in batch for item in request.items])
            except JournalError as reason:
                for request in batch:
                    request.error = reason
                continue
            for request in batch:
                request.first_id = first_id
                first_id += len(request.items)
        self._log.flush()
        self._registry.advance(self._log.durable)
        self._upkeep.after_group()

    def _commit_if_needed(self) -> None:
        if self._groups.failure is None and (self._registry.change_count or self._groups.waiting_count):
            self._groups.commit(lead_now=True)

    def _call_committer(self) -> None:
        self._upkeep.call_committer()

    def _reclaim(self) -> None:
        self._checkpointer.reclaim()


def _bytes(item: object) -> bytes:
    return bytes(memoryview(item))  # type: ignore[arg-type]  # refuses objects that are not buffers


_open_queues: weakref.WeakSet[PersistentQueue] = weakref.WeakSet()


def _close_after_fork() -> None:
    """A forked child has its parent's maps, but must not use them."""
    for queue in list(_open_queues):
        queue._after_fork()
    _open_queues.clear()


os.register_at_fork(after_in_child=_close_after_fork)
