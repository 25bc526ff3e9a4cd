"""Background work of an appender, on a separate thread: makes blocks ahead of time, releases or compresses old ones.

An append must never wait for the file system. So the next block is created, filled with zeros and mapped while the
current one fills. The thread never changes the records of the current block.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tandemfeed.journal.errors import DiskFull, JournalError
from tandemfeed.journal.format.block import COMPRESSED_SUFFIX, SPARE_SUFFIX, Block, BlockName, blocks_in, make_spare
from tandemfeed.journal.format.compression import compress_block

LOG = logging.getLogger("tandemfeed.journal")
PAUSE_S = 0.001  # between pieces of a spare that no append waits for: writing it uses most of a processor
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of what a journal keeps. Whole files are released, oldest first, never the newest. None: no limit.

    Args:
        age_s: maximum seconds since a file was last appended to.
        size: maximum bytes of all files.
        files: maximum number of files.
    """

    age_s: float | None = None
    size: int | None = None
    files: int | None = None

    def __post_init__(self) -> None:
        if self.files is not None and self.files < 1:
            raise ValueError(f"files is {self.files}; it must be at least 1, because the newest file is always kept")

    def surplus(self, blocks: list[BlockName], now_s: float) -> list[BlockName]:
        """The blocks to release.

        Args:
            blocks: all blocks, oldest first. Those that were released since they were listed are ignored.
        """
        stats = {}
        for each in blocks:
            with contextlib.suppress(FileNotFoundError):
                stats[each] = each.path.stat()
        blocks = list(stats)
        ages = [now_s - status.st_mtime for status in stats.values()]
        sizes = [status.st_size for status in stats.values()]
        drop = 0
        while drop < len(blocks) - 1 and (
            (self.files is not None and len(blocks) - drop > self.files)
            or (self.size is not None and sum(sizes[drop:]) > self.size)
            or (self.age_s is not None and ages[drop] > self.age_s)
        ):
            drop += 1
        return blocks[:drop]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Settings of the keeper, and its listeners.

    Args:
        retention: what to release after each roll.
        compress: compress closed cycles after each roll.
        free_disk_min: bytes of the disk to leave free.
        mapped_ahead: bytes to keep mapped ahead of the appends, and little after them, so that the kernel has little to
            unmap when the process is killed. None: whole blocks, which is faster at very high append rates.
        on_file_added: called with a new file's path, on the appender's or the keeper's thread.
        on_file_released: the same with a file that is no longer needed.
    """

    retention: Retention = Retention()
    compress: bool = False
    free_disk_min: int = 0
    mapped_ahead: int | None = None
    on_file_added: Callable[[Path], None] | None = None
    on_file_released: Callable[[Path], None] | None = None


class _Unneeded(Exception):
    """The appender closes, so the block being made is not needed."""


class Keeper:
    """The keeper of one appender."""

    def __init__(self, folder: Path, upkeep: Upkeep) -> None:
        self._folder = folder
        self._upkeep = upkeep
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="journal-keeper")
        self._next: Future[Block] | None = None
        self._is_awaited = threading.Event()
        self._is_closing = False
        self._left: Block | None = None
        self._mapped: tuple[int, int] = (-1, 0)  # block ordinal and offset from which to map pages again

    def start(self) -> None:
        """Start the thread now, with the calling thread's priority; otherwise the first work starts it."""
        self._pool.submit(threading.get_ident).result()

    def look_ahead(self, block: Block, end: int, block_size: int) -> None:
        """After an append: make the next block once this one is half full, and map pages ahead."""
        if end * 2 > block.header.data_end:
            self.prepare(block_size)
        ahead = self._upkeep.mapped_ahead
        if ahead is not None and (block.ordinal, end) >= self._mapped:
            self._mapped = block.ordinal, end + ahead // 2
            self._pool.submit(block.map_around, end, ahead)

    def prepare(self, block_size: int) -> None:
        """Start to make the next block, unless already started."""
        if self._next is None:
            self._is_awaited.clear()
            self._next = self._pool.submit(self._make_spare, block_size)

    def take(self, block_size: int) -> Block:
        """A spare of at least this size, made now if there is none.

        Raises:
            DiskFull: nothing was changed; the next call tries again.
        """
        prepared, self._next = self._next, None
        self._is_awaited.set()
        if prepared is not None:
            try:
                spare = prepared.result()
            except DiskFull:
                LOG.warning("could not make a block ahead of time; retrying", exc_info=True)
            else:
                if spare.header.block_size >= block_size:
                    return spare
                spare.path.unlink(missing_ok=True)
        return self._make_spare(block_size)

    def retire(self, block: Block) -> None:
        """Unmap a block on this thread, because it takes long: at the next roll, when no append uses it any more."""
        former, self._left = self._left, block
        if self._upkeep.mapped_ahead is not None:
            self._pool.submit(block.release_pages)
        if former is not None:
            self._pool.submit(_forget, former)

    def after_roll(self, added: Path) -> None:
        """Report the new file to the listener; release and compress old ones."""
        if self._upkeep.on_file_added is not None:
            self._upkeep.on_file_added(added)
        if self._upkeep.compress or self._upkeep.retention != Retention():
            self._pool.submit(self._tidy)

    def close(self) -> None:
        """Finish the current work, and delete the spare or stop making it: filling it takes some milliseconds, which a
        journal that is opened and closed for each batch would spend on every batch."""
        spare, self._next, self._is_closing = self._next, None, True
        self._is_awaited.set()
        if spare is not None:
            spare.cancel()
        self._pool.shutdown(wait=True)
        if spare is not None and not spare.cancelled() and spare.exception() is None:
            spare.result().path.unlink(missing_ok=True)

    def _make_spare(self, block_size: int) -> Block:
        least = self._upkeep.free_disk_min
        disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize
        if free - block_size < least:
            raise DiskFull(
                f"{self._folder}: {free} bytes are free; a block needs {block_size}, and {least} must stay free: "
                "free disk space, or set a retention; appending then resumes, and no record is lost"
            )
        name = f".{os.getpid()}-{next(_numbers)}{SPARE_SUFFIX}"
        return make_spare(
            self._folder / name,
            block_size,
            mapped_ahead=self._upkeep.mapped_ahead,
            pause=self._pause,
        )

    def _pause(self) -> None:
        """Between two pieces of a spare. Raises: _Unneeded."""
        if self._is_closing:
            raise _Unneeded
        self._is_awaited.wait(PAUSE_S)

    def _tidy(self) -> None:
        try:
            self.release()
            if self._upkeep.compress:
                self.compress()
        except (OSError, JournalError):
            LOG.exception("could not release or compress old files; the journal continues")

    def release(self) -> list[Path]:
        """Release the files beyond retention; return their paths."""
        gone = []
        for each in self._upkeep.retention.surplus(blocks_in(self._folder), time.time()):
            each.path.unlink(missing_ok=True)
            gone.append(each.path)
            if self._upkeep.on_file_released is not None:
                self._upkeep.on_file_released(each.path)
        return gone

    def compress(self) -> None:
        """Compress the blocks of closed cycles."""
        blocks = blocks_in(self._folder)
        for each in blocks:
            if each.cycle < blocks[-1].cycle and each.path.suffix != COMPRESSED_SUFFIX:
                compress_block(each.path)


def _forget(_block: Block) -> None:
    """Drop the last reference to a block: unmaps it on the thread that runs this."""
