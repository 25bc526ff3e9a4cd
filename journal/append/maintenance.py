"""Maintenance by hand, beside running appenders: free a dead appender's lock, release old files."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tandemfeed.journal.append.chain import BlockChain
from tandemfeed.journal.append.keeper import Keeper, Upkeep
from tandemfeed.journal.append.retention import Pruning, Retention, plan_pruning, release
from tandemfeed.journal.check.journal_files import JournalFiles, LockHolder, size_on_disk
from tandemfeed.journal.compiled.kernels import take_lock
from tandemfeed.journal.errors import JournalFailed
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import CONTROL_NAME, IS_FAILED, LOCK
from tandemfeed.journal.format.roll_cycle import RollSchedule
from tandemfeed.runtime.durable import FlushFailed

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
            if control.inherited_lock() or take_lock(control.address + LOCK, holder.slot, control.slot):
                try:
                    _chain(folder, control, keeper).recover()
                finally:
                    control.release()  # that of a failed journal stays taken
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


def plan(folder: Path, retention: Retention, now_s: float, *, even_unread: bool = False) -> tuple[Pruning, int]:
    """What can be released, and how many files stay.

    Raises:
        BlockCorrupt, ForeignFile, NewerFormat: a file is unreadable, so it is unknown whether readers need it.
    """
    with JournalFiles(folder) as files:
        names = files.names()
        pruning = plan_pruning(files, retention, now_s, names, even_unread=even_unread)
        return pruning, len(names) - len(pruning.files)


def prune(folder: Path, pruning: Pruning) -> int:
    """Delete the files, durably; return the number of bytes freed.

    Raises:
        JournalFailed: the disk refused.
    """
    freed = sum(size_on_disk(name) for name in pruning.files)  # 0 if the appender's retention was faster
    try:
        release(folder, pruning, lambda path: None)
    except FlushFailed as refused:  # names of new blocks may be lost too: the next sync writes everything again
        with Control(folder / CONTROL_NAME, writable=True) as control:
            control.set_word(IS_FAILED, 1)
        raise JournalFailed(str(refused)) from refused
    return freed
