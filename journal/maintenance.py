"""Maintenance by hand, beside running appenders: free a dead appender's lock, release old files."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tandemfeed.journal.block import COMPRESSED_SUFFIX, BlockName
from tandemfeed.journal.chain import BlockChain
from tandemfeed.journal.control import Control
from tandemfeed.journal.journal_files import JournalFiles, LockHolder, paths_of, size_on_disk
from tandemfeed.journal.keeper import Keeper, Retention, Upkeep
from tandemfeed.journal.kernels import take_lock
from tandemfeed.journal.layout import CONTROL_NAME
from tandemfeed.journal.roll_cycle import RollSchedule

LISTINGS_MAX = 10  # one is nearly always enough: an appender releases files once per roll

# --- the lock ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockWasFree:
    """The lock was free already."""


@dataclass(frozen=True, slots=True)
class LockFreed:
    """The lock was taken from its holder, the journal recovered, and the lock freed."""

    holder: LockHolder


@dataclass(frozen=True, slots=True)
class HolderIsAlive:
    """The holder is alive; nothing was changed."""

    holder: LockHolder


def free_lock(folder: Path, *, even_alive: bool = False) -> LockWasFree | LockFreed | HolderIsAlive:
    """Free the appenders' lock as the next appender would: take it over and recover, so that no record is lost.

    Args:
        even_alive: also from a living holder. If that process continues, it appends without the lock, and it and others
            damage each other's records.

    Raises:
        JournalLocked: another process is opening the journal and does not finish.
        ReadOnly, DiskFull, BlockCorrupt, ForeignFile, NewerFormat
    """
    with JournalFiles(folder) as files:
        holder = files.lock_holder()
    if holder is None:
        return LockWasFree()
    if holder.is_alive and not even_alive:
        return HolderIsAlive(holder)
    with Control(folder / CONTROL_NAME, writable=True) as control, control.opening():
        # No process can take a slot now, but one may have taken the dead holder's slot, and its lock, before.
        if not even_alive and not control.is_abandoned():
            return LockWasFree()
        control.take_slot(exclusive=False)
        keeper = Keeper(folder, Upkeep())
        try:
            # If this process got the dead holder's slot, it holds the lock already.
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
    """The files that can be released, oldest first, and the reason why the next one cannot."""

    files: list[BlockName]
    kept_for: dict[str, int | None]  # readers that still need the next file, and their positions
    is_busy: bool = False  # the next file is being compressed


def plan_pruning(files: JournalFiles, retention: Retention, now_s: float, *, even_unread: bool = False) -> Pruning:
    """The files beyond a retention; never the newest.

    Args:
        even_unread: also files that named tailers have not read or followers have not acknowledged.

    Raises:
        BlockCorrupt, ForeignFile, NewerFormat: a file is unreadable, so it is unknown whether readers need it.
    """
    surplus = _surplus(files, retention, now_s)
    positions = {} if even_unread else {f"named tailer {name}": at for name, at in files.named_positions().items()}
    if not even_unread and (visible := files.words().visible):
        positions["replication"] = visible
    free: list[BlockName] = []
    for name in surplus:
        if any(files.folder.glob(f".{name.path.name}{COMPRESSED_SUFFIX}.*")):
            return Pruning(free, {}, is_busy=True)  # its compressed form would appear later
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
    return []  # the appender releases files faster than they can be listed: nothing to do


def prune(pruning: Pruning) -> int:
    """Delete the files; return the number of bytes freed."""
    freed = 0
    for name in pruning.files:
        freed += size_on_disk(name)  # 0 if the appender's retention was faster
        for path in paths_of(name):
            path.unlink(missing_ok=True)
    return freed
