"""Spare blocks, made ahead of time or recycled. Each stays in its folder; new blocks go to the folders in turn."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from tandemfeed.journal.errors import DiskFull
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.block import SPARE_SUFFIX, Block, make_spare, recycle

LOG = logging.getLogger("tandemfeed.journal")
SPARES_MAX = 2  # per folder: one to begin next, one recycled meanwhile
_numbers = itertools.count()


class Spares:
    """The spare blocks of a queue. Thread-safe; a caller that needs a block while one is being made waits for it.

    Args:
        folders: in turn order.
        block_size: of every spare, in bytes.
        access: who may read and write them.
    """

    def __init__(self, folders: Sequence[Path], block_size: int, access: Access) -> None:
        self._folders = folders
        self._block_size = block_size
        self._access = access
        self._ready: dict[Path, list[Block]] = {folder: [] for folder in folders}
        self._lock = threading.Lock()
        self._next_turn = 0
        self.recycled_count = 0

    def prepare(self, turn: int) -> None:
        """Make a spare for this turn, or for the next one if this turn has passed. A full disk is reported only when
        the block is needed."""
        with self._lock:
            if not any(self._ready.values()):
                try:
                    folder = self._in_turn(max(turn, self._next_turn))[0]
                    self._ready[folder].append(self._make(folder, self._block_size))
                except DiskFull as full:
                    LOG.warning("could not make a block ahead of time: %s", full)

    def take_ready(self, turn: int) -> Block | None:
        """A spare, preferably from the folder of this turn."""
        with self._lock:
            self._next_turn = turn + 1
            for folder in self._in_turn(turn):
                if self._ready[folder]:
                    return self._ready[folder].pop()
        return None

    def make(self, turn: int, block_size: int) -> Block:
        """A new block, in the folder of this turn or the first one after it with enough space.

        Raises:
            DiskFull: no folder has enough space.
        """
        reasons = []
        for folder in self._in_turn(turn):
            try:
                return self._make(folder, block_size)
            except DiskFull as full:
                reasons.append(str(full))
        raise DiskFull("; ".join(reasons))

    def recycle(self, block: Block) -> None:
        """Keep a block as a spare; delete it if there are enough, or if its size differs."""
        folder = block.path.parent
        with self._lock:
            has_room = len(self._ready[folder]) < SPARES_MAX
            if has_room and block.header.block_size == self._block_size:
                self._ready[folder].append(recycle(block, _name(folder)))
                self.recycled_count += 1
            else:
                block.path.unlink()

    def close(self) -> None:
        """Delete the unused spares."""
        with self._lock:
            for ready in self._ready.values():
                for spare in ready:
                    spare.path.unlink(missing_ok=True)
                ready.clear()

    def _make(self, folder: Path, block_size: int) -> Block:
        # Flushed: otherwise the first group in it would wait for the whole block to reach the disk.
        return make_spare(_name(folder), block_size, access=self._access, flushed=True)

    def _in_turn(self, turn: int) -> list[Path]:
        start = turn % len(self._folders)
        return [*self._folders[start:], *self._folders[:start]]


def _name(folder: Path) -> Path:
    return folder / f".{os.getpid()}-{next(_numbers)}{SPARE_SUFFIX}"
