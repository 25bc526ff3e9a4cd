"""Blocks ready to be begun: made ahead of need, or recycled. Each stays in the folder it is in; folders take turns."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from journal.block import SPARE_SUFFIX, Block, make_spare, recycle
from journal.errors import DiskFull

LOG = logging.getLogger("journal")
SPARES_MAX = 2  # a folder: one to begin next, one that came back meanwhile
_numbers = itertools.count()


class Spares:
    """The spare blocks of a queue. Thread-safe; who asks for a block while one is being made waits for that one.

    Args:
        folders: in the order of their turns.
        block_size: of every spare, in bytes.
    """

    def __init__(self, folders: Sequence[Path], block_size: int) -> None:
        self._folders = folders
        self._block_size = block_size
        self._ready: dict[Path, list[Block]] = {folder: [] for folder in folders}
        self._lock = threading.Lock()
        self._next_turn = 0
        self.recycled_count = 0

    def prepare(self, turn: int) -> None:
        """Have a block ready for this turn, or if that is over for the next; that there is no room is noticed when it
        is needed."""
        with self._lock:
            if not any(self._ready.values()):
                try:
                    folder = self._in_turn(max(turn, self._next_turn))[0]
                    self._ready[folder].append(_make(folder, self._block_size))
                except DiskFull as full:
                    LOG.warning("no block could be made ahead of need: %s", full)

    def take_ready(self, turn: int) -> Block | None:
        """A spare, in the folder whose turn it is if it has one."""
        with self._lock:
            self._next_turn = turn + 1
            for folder in self._in_turn(turn):
                if self._ready[folder]:
                    return self._ready[folder].pop()
        return None

    def make(self, turn: int, block_size: int) -> Block:
        """A new block, in the folder whose turn it is or in the first behind it that has room.

        Raises:
            DiskFull: none has.
        """
        reasons = []
        for folder in self._in_turn(turn):
            try:
                return _make(folder, block_size)
            except DiskFull as full:
                reasons.append(str(full))
        raise DiskFull("; ".join(reasons))

    def recycle(self, block: Block) -> None:
        """Take a block back; one too many, or of another size, is deleted."""
        folder = block.path.parent
        with self._lock:
            has_room = len(self._ready[folder]) < SPARES_MAX
            if has_room and block.header.block_size == self._block_size:
                self._ready[folder].append(recycle(block, _name(folder)))
                self.recycled_count += 1
            else:
                block.path.unlink()

    def close(self) -> None:
        """Delete what was not used."""
        with self._lock:
            for ready in self._ready.values():
                for spare in ready:
                    spare.path.unlink(missing_ok=True)
                ready.clear()

    def _in_turn(self, turn: int) -> list[Path]:
        start = turn % len(self._folders)
        return [*self._folders[start:], *self._folders[:start]]


def _name(folder: Path) -> Path:
    return folder / f".{os.getpid()}-{next(_numbers)}{SPARE_SUFFIX}"


def _make(folder: Path, block_size: int) -> Block:
    # Flushed: else the first group in it would wait until the whole block is on the disk.
    return make_spare(_name(folder), block_size, flushed=True)
