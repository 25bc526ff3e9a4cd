"""An order queue on the disk: what `put` returned for is there after any crash, until it is delivered or cancelled.

Items are kept in blocks, their states in place in the block's state area; each state change is also noted in the log,
so that one flush of the current block makes a whole group of puts and changes durable. See docs/persistent-queue.md.

Locks, in this order: checkpointing, states. A group's leader alone writes the log. Invariant: only items that are on
the disk are handed out, in the order of their ids.
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

from journal.block import remove_spares
from journal.control import Control
from journal.errors import JournalClosed, JournalError
from journal.layout import BLOCK_SIZE_DEFAULT, IS_CLEAN
from journal.persistent_queue.catalogue import Catalogue
from journal.persistent_queue.group_commit import GroupCommit, Seat, batches
from journal.persistent_queue.item_desk import ItemDesk
from journal.persistent_queue.item_state import AlreadyCancelled, Cancelled, CancelResult
from journal.persistent_queue.log import QueueLog
from journal.persistent_queue.members import join
from journal.persistent_queue.opening import open_control
from journal.persistent_queue.recovery import recover
from journal.persistent_queue.scheduling import leave_alone, prefer_batches
from journal.persistent_queue.spares import Spares
from journal.persistent_queue.statistics import QueueStatistics
from journal.persistent_queue.upkeep import Checkpointer, Upkeep

GROUP_SIZE_MAX = 1_024  # puts in a group: more would make the first of them wait for the copying of the last
GROUP_DELAY_S = 0.000_1  # about one flush: waiting longer for others would cost more than they bring
CHECKPOINT_INTERVAL_S = 1.0
CHECKPOINT_INTERVAL_ITEMS = 200_000  # what a recovery walks at most: some 20 MB of small items
IN_FLIGHT_MAX = 1 << 20  # some 100 bytes of memory each
WAITING_MAX = 10_000  # puts nobody waits for: then `put_nowait` waits
CHANGES_MAX = 65_536  # changes no group has taken: then `done` waits


class PersistentQueue:
    """An open queue. Use `PersistentQueue.open`, preferably in a `with`. Safe to use from several threads."""

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
        states = threading.Lock()
        self._catalogue = Catalogue(control.journal_id)
        for folder in folders:
            remove_spares(folder)
        found = recover(folders, self._catalogue, control.journal_id)
        self._spares = Spares(folders, control.settings.block_size)
        self._desk = ItemDesk(self._catalogue, states, in_flight_max)
        self._log = QueueLog(
            control, self._catalogue, states, self._spares,
            blocks_max=blocks_max, reclaim=self._reclaim, clock_ns=clock_ns,
        )  # fmt: skip
        self._checkpointer = Checkpointer(self._log, self._catalogue, self._desk, self._spares, states)
        prepare = prefer_batches if batch_scheduling else leave_alone
        self._groups = GroupCommit(self._write, group_size_max, group_delay_s, self._call_committer, prepare)
        self._upkeep = Upkeep(
            self._log, self._checkpointer, self._spares, self._commit_if_needed, self._groups.fail,
            interval_s=checkpoint_interval_s, interval_items=checkpoint_interval_items,
        )  # fmt: skip
        control.set_word(IS_CLEAN, 0)
        self._log.start(found.position, is_ended=found.is_ended, next_ordinal=found.next_ordinal)
        self._desk.advance(self._log.durable)
        self._checkpointer.checkpoint()
        self._first_id = self._desk.durable_id
        self._replayed_count = found.replayed_count
        self._recovery_s = time.perf_counter() - began
        self._upkeep.start()
        _open_queues.add(self)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        more_paths: Sequence[Path] = (),
        block_size: int = BLOCK_SIZE_DEFAULT,
        group_size_max: int = GROUP_SIZE_MAX,
        group_delay_s: float = GROUP_DELAY_S,
        checkpoint_interval_s: float = CHECKPOINT_INTERVAL_S,
        checkpoint_interval_items: int = CHECKPOINT_INTERVAL_ITEMS,
        blocks_max: int | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        batch_scheduling: bool = True,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> Self:
        """Open, making the queue if needed, and recover.

        Args:
            path: the queue's folder, on a local file system.
            more_paths: further folders, best on disks of their own, among which blocks take turns. Folders may be added
                at any opening, and none may be left out.
            block_size: bytes of each block file; a longer item gets a longer one.
            group_size_max: puts in one group.
            group_delay_s: how long a group waits, at most, for as many threads as were there around the last flush;
                0: not at all.
            checkpoint_interval_s, checkpoint_interval_items: a checkpoint is written when one of them is over.
            blocks_max: at least 2; None for no limit but the disk's.
            in_flight_max: items handed out at once.
            batch_scheduling: threads that put get the scheduler's batch policy, for good (scheduling.py says why: half
                as many puts again a second); False leaves them alone.
            clock_ns: wall-clock time, noted with each group.

        Raises:
            JournalLocked, SettingsDiffer, PathMissing, ForeignFile, NewerFormat, BlockCorrupt, DiskFull, ReadOnly,
            NetworkFileSystem: nothing was lost; the text says what to do.
            ValueError: an argument makes no sense.
        """
        if blocks_max is not None and blocks_max < 2:
            raise ValueError(f"blocks_max {blocks_max}: one block is written while others are recycled, so at least 2")
        if min(group_size_max, checkpoint_interval_items, in_flight_max) < 1:
            raise ValueError("group_size_max, checkpoint_interval_items and in_flight_max are at least 1")
        if group_delay_s < 0 or checkpoint_interval_s <= 0:
            raise ValueError("group_delay_s is not negative, and checkpoint_interval_s is positive")
        control = open_control(path, block_size)
        try:
            return cls(
                join(path, more_paths, control.journal_id), control, group_size_max=group_size_max,
                group_delay_s=group_delay_s, checkpoint_interval_s=checkpoint_interval_s,
                checkpoint_interval_items=checkpoint_interval_items, blocks_max=blocks_max,
                in_flight_max=in_flight_max, batch_scheduling=batch_scheduling, clock_ns=clock_ns,
            )  # fmt: skip
        except BaseException:
            control.unlock()
            control.close()
            raise

    def put(self, item: bytes) -> int:
        """Put an item; on the disk when this returns.

        Args:
            item: up to 1 GiB.

        Returns:
            Its id. Ids grow in the order of delivery.

        Raises:
            DiskFull, QueueFull, RecordTooLong: it was not put.
            QueueFailed: it may have been put; open the queue again.
        """
        if self._closed:
            raise JournalClosed(self._closed)
        return self._groups.commit((item if type(item) is bytes else _bytes(item),))

    def put_many(self, items: Iterable[bytes]) -> range:
        """Put items as one: after a crash all of them are there, or none; on the disk when this returns.

        Returns:
            Their ids.

        Raises:
            As `put`.
        """
        self._require_open()
        found = [item if type(item) is bytes else _bytes(item) for item in items]
        if not found:
            return range(0)
        first_id = self._groups.commit(found)
        return range(first_id, first_id + len(found))

    def put_nowait(self, item: bytes) -> Future[int]:
        """Put an item without waiting for the disk; its id comes by the future when it is there.

        Waits all the same while 10,000 others are under way. Later puts of this thread come behind it.

        Raises:
            QueueFailed; everything else comes by the future.
        """
        self._require_open()
        if self._groups.waiting_count >= WAITING_MAX:
            self._groups.commit()
        return self._groups.enqueue((item if type(item) is bytes else _bytes(item),))

    def get(self, timeout_s: float | None = None) -> tuple[int, bytes] | None:
        """Hand out the oldest pending item with its id; it is in flight until `done` or `release`.

        Args:
            timeout_s: how long to wait for one, in seconds; None: not at all.

        Returns:
            None if there was none.

        Raises:
            TooManyInFlight
        """
        self._require_open()
        return self._desk.get(timeout_s)

    def done(self, item_id: int, *, durable: bool = False) -> None:
        """An item in flight was delivered, and is never handed out again.

        Args:
            durable: return when that is on the disk. Else it is at once safe against the end of the process, and
                against a power loss with the next group, some milliseconds later.

        Raises:
            NotInFlight: nothing was changed.
        """
        self.done_many((item_id,), durable=durable)

    def done_many(self, item_ids: Iterable[int], *, durable: bool = False) -> None:
        """As `done`, for all of them or, if one is not in flight, for none."""
        self._require_open()
        self._desk.deliver(item_ids)
        if durable or self._desk.change_count >= CHANGES_MAX:
            self._groups.commit()
        else:
            self._upkeep.call_committer(is_urgent=False)

    def release(self, item_id: int) -> None:
        """Give an item in flight back: it is pending again, in its old place.

        Raises:
            NotInFlight
        """
        self._require_open()
        self._desk.release(item_id)

    def cancel(self, item_id: int) -> CancelResult:
        """Cancel a pending item.

        Returns:
            Cancelled: on the disk, it will never be handed out. Else what it is instead, and nothing was changed.

        Raises:
            QueueFailed: it may have been cancelled; open the queue again.
        """
        self._require_open()
        result = self._desk.cancel(item_id)
        if isinstance(result, Cancelled | AlreadyCancelled):  # who was faster may still be waiting for the disk
            self._groups.commit()
        return result

    def cancel_all(self) -> int:
        """Cancel every pending item; on the disk when this returns. Items in flight stay in flight.

        Returns:
            How many.
        """
        self._require_open()
        count = self._desk.cancel_all()
        if count:
            self._groups.commit()
        return count

    @property
    def pending_count(self) -> int:
        """Items that are durable and that nobody has."""
        active_count, in_flight_count, _ = self._desk.counts()
        return active_count - in_flight_count

    @property
    def in_flight_count(self) -> int:
        """Items handed out and not yet settled."""
        return self._desk.counts()[1]

    @property
    def active_count(self) -> int:
        """Items pending or in flight."""
        return self._desk.counts()[0]

    def block_active_counts(self) -> dict[int, int]:
        """Items pending or in flight of each block, by its ordinal, oldest first."""
        return dict(self._desk.counts()[2])

    def checkpoint(self) -> None:
        """Write a checkpoint now, and recycle what it allows to."""
        self._require_open()
        self._groups.commit()
        self._checkpointer.checkpoint()
        self._checkpointer.recycle()

    def statistics(self) -> QueueStatistics:
        """A frozen snapshot."""
        active_count, in_flight_count, blocks = self._desk.counts()
        desk = self._desk
        return QueueStatistics(
            pending_count=active_count - in_flight_count,
            in_flight_count=in_flight_count,
            active_count=active_count,
            block_count=len(blocks),
            put_count=desk.durable_id - self._first_id,
            delivered_count=desk.delivered_count,
            cancelled_count=desk.cancelled_count,
            lost_count=desk.lost_count,
            group_count=self._groups.group_count,
            checkpoint_count=self._checkpointer.count,
            recycled_count=self._spares.recycled_count,
            recovery_s=self._recovery_s,
            replayed_count=self._replayed_count,
        )

    def close(self) -> None:
        """Make everything durable, write a checkpoint, release everything; a second time does nothing."""
        if self._closed:
            return
        self._closed = f"{self.folder} was closed; open it again"
        try:
            self._upkeep.close()
            if self._groups.failure is None:
                self._groups.close(JournalClosed(self._closed))
                self._checkpointer.checkpoint()
                self._control.set_word(IS_CLEAN, 1)  # for who looks at it from outside; recovery is the same
        finally:
            self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise JournalClosed(self._closed)

    def _shut(self) -> None:
        self._desk.close(JournalClosed(self._closed))
        self._spares.close()
        self._catalogue.close()
        self._control.unlock()
        self._control.close()
        _open_queues.discard(self)

    def _after_fork(self) -> None:
        self._closed = f"{self.folder} was opened before this process was forked; open it again"
        self._control.close(in_child=True)

    def _write(self, seats: list[Seat]) -> None:
        """Make a group durable; only its leader is here."""
        changes = self._desk.take_changes()
        if len(changes) and not self._log.append_changes(changes):
            self._checkpointer.flush_states()  # on a full disk: no note is needed for what is in place
        for batch in batches(seats):
            try:
                first_id = self._log.append_items([item for seat in batch for item in seat.items])
            except JournalError as reason:
                for seat in batch:
                    seat.error = reason
                continue
            for seat in batch:
                seat.first_id = first_id
                first_id += len(seat.items)
        self._log.flush()
        self._desk.advance(self._log.durable)
        self._upkeep.after_group()

    def _commit_if_needed(self) -> None:
        if self._groups.failure is None and (self._desk.change_count or self._groups.waiting_count):
            self._groups.commit(at_once=True)

    def _call_committer(self) -> None:
        self._upkeep.call_committer()

    def _reclaim(self) -> None:
        self._checkpointer.reclaim()


def _bytes(item: object) -> bytes:
    return bytes(memoryview(item))  # type: ignore[arg-type]  # which refuses what holds no bytes


_open_queues: weakref.WeakSet[PersistentQueue] = weakref.WeakSet()


def _close_after_fork() -> None:
    """A child has its parent's maps and must not go on as its parent."""
    for queue in list(_open_queues):
        queue._after_fork()
    _open_queues.clear()


os.register_at_fork(after_in_child=_close_after_fork)
