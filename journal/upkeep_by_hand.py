"""What somebody does to a journal from outside, beside its appenders: free a dead one's lock, release old files."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from journal.block import COMPRESSED_SUFFIX, BlockName
from journal.chain import BlockChain
from journal.control import Control
from journal.journal_files import JournalFiles, LockHolder, paths_of, size_on_disk
from journal.keeper import Keeper, Retention, Upkeep
from journal.kernels import take_lock
from journal.layout import CONTROL_NAME
from journal.roll_cycle import RollSchedule

LISTINGS_MAX = 10  # one is nearly always enough: an appender releases files once a roll

# --- the lock ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockWasFree:
    """There was nothing to do."""


@dataclass(frozen=True, slots=True)
class LockFreed:
    """It was taken from its holder, what that had begun was put right, and it is free."""

    holder: LockHolder


@dataclass(frozen=True, slots=True)
class HolderLives:
    """Nothing was changed."""

    holder: LockHolder


def free_lock(folder: Path, *, even_alive: bool = False) -> LockWasFree | LockFreed | HolderLives:
    """Free the appenders' lock as the next appender would: take it over and recover, so that nothing appended is lost.

    Args:
        even_alive: also from a holder that lives. Should that one ever go on, it appends without the lock, and what it
            and others append at the same moment is damaged.

    Raises:
        JournalLocked: another process opens the journal just now, and does not come to an end.
        ReadOnly, DiskFull, BlockCorrupt, ForeignFile, NewerFormat
    """
    with JournalFiles(folder) as files:
        holder = files.lock_holder()
    if holder is None:
        return LockWasFree()
    if holder.is_alive and not even_alive:
        return HolderLives(holder)
    with Control(folder / CONTROL_NAME, writable=True) as control, control.opening():
        # Nobody takes a slot while we are here; before, somebody may have taken the dead one's, and its lock.
        if not even_alive and not control.is_abandoned():
            return LockWasFree()
        control.take_slot(exclusive=False)
        keeper = Keeper(folder, Upkeep())
        try:
            # A slot that was the dead one's is this process's own now, and with it the lock.
            if control.inherited_lock() or take_lock(control.address, holder.slot, control.slot):
                try:
                    _chain(folder, control, keeper).recover()
                finally:
                    control.unlock()
                return LockFreed(holder)
        finally:
            keeper.close()
    return LockWasFree()  # an appender took it over in the meantime


def _chain(folder: Path, control: Control, keeper: Keeper) -> BlockChain:
    settings = control.settings
    schedule = RollSchedule.named(
        settings.roll_cycle, epoch_offset_s=settings.epoch_offset_s, time_zone=settings.time_zone
    )
    return BlockChain(folder, control, schedule, keeper, time.time_ns)


# --- old files --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pruning:
    """What of a journal may go, oldest first, and what holds the next one back."""

    files: list[BlockName]
    kept_for: dict[str, int | None]  # who has not read the file behind these, and where they are
    is_busy: bool = False  # the file behind these is being compressed just now


def plan_pruning(files: JournalFiles, retention: Retention, now_s: float, *, even_unread: bool = False) -> Pruning:
    """Which files a retention does not keep: never the one that is appended to.

    Args:
        even_unread: also what named tailers have not read, or followers not acknowledged.

    Raises:
        BlockCorrupt, ForeignFile, NewerFormat: a file cannot be read, so that nobody knows whether it was.
    """
    surplus = _surplus(files, retention, now_s)
    positions = {} if even_unread else {f"named tailer {name}": at for name, at in files.named_positions().items()}
    if not even_unread and (visible := files.words().visible):
        positions["replication"] = visible
    free: list[BlockName] = []
    for name in surplus:
        if any(files.folder.glob(f".{name.path.name}{COMPRESSED_SUFFIX}.*")):
            return Pruning(free, {}, is_busy=True)  # its compressed form would appear behind our back
        summary = files.summary(name) if positions else None
        if summary is not None:
            waiting = {each: at for each, at in positions.items() if at is None or at < summary.end_index}
            if waiting:
                return Pruning(free, waiting)
        free.append(name)
    return Pruning(free, {})


def _surplus(files: JournalFiles, retention: Retention, now_s: float) -> list[BlockName]:
    for _ in range(LISTINGS_MAX):
        try:
            return retention.surplus(files.names(), now_s)
        except FileNotFoundError:  # released, or compressed, since the folder was listed
            continue
    return []  # the appender releases files faster than they can be listed: nothing is left to do here


def prune(pruning: Pruning) -> int:
    """Release them; returns the bytes that became free."""
    freed = 0
    for name in pruning.files:
        freed += size_on_disk(name)  # 0 if the appender's own retention was faster
        for path in paths_of(name):
            path.unlink(missing_ok=True)
    return freed
