"""Opens a queue for exclusive use: its folder, its control file and its permanent settings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tandemfeed.journal.errors import ForeignFile, SettingsDiffer
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.control import Control, Settings
from tandemfeed.journal.format.filesystem import make_folder
from tandemfeed.journal.format.layout import BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, CONTROL_NAME
from tandemfeed.journal.persistent_queue.blocks.segments import state_size_for

FACE = "queue"


def open_control(path: Path, block_size: int, group: str | int | None) -> Control:
    """Create the queue's control file if needed, durably, check it, and lock the queue for this process.

    Raises:
        ValueError: the block size is out of range, or there is no such group.
        JournalLocked, SettingsDiffer, ForeignFile, NewerFormat, BlockCorrupt, ReadOnly, NetworkFileSystem: nothing was
            changed.
    """
    if not BLOCK_SIZE_MIN <= block_size <= BLOCK_SIZE_MAX or block_size % 4_096:
        raise ValueError(f"block_size is {block_size}; use whole pages, {BLOCK_SIZE_MIN} to {BLOCK_SIZE_MAX} bytes")
    # A queue never rolls by time; the roll cycle only lets a Tailer read the queue's blocks.
    wanted = Settings("DAILY", 0, "UTC", block_size, state_size_for(block_size), "", FACE)
    access = Access.of_group(group)
    make_folder(path, access)
    if not (path / CONTROL_NAME).exists():
        if strangers := blocks_in(path):
            hint = "restore that file, or move this one"
            raise ForeignFile(f"{strangers[0].path}: a block file without {CONTROL_NAME}; {hint}")
        if group is not None:
            access.give(path, is_folder=True)
        Control.create(path, wanted, access)  # durable before any block: a block without it has no owner
    control = Control(path / CONTROL_NAME, writable=True)
    try:
        _check_settings(path, wanted, control.settings)
        with control.opening():
            control.take_slot(exclusive=True)
            control.seize_lock()
    except BaseException:
        control.close()
        raise
    return control


def _check_settings(path: Path, wanted: Settings, found: Settings) -> None:
    if found.face != FACE:
        raise SettingsDiffer(f"{path} is a {found.face}, not a {FACE}; open it as a {found.face}")
    for (name, was), now in zip(asdict(found).items(), asdict(wanted).values(), strict=True):
        if was != now:
            raise SettingsDiffer(f"{path} was made with {name} {was}, not {now}; give {name} {was}, or another folder")
