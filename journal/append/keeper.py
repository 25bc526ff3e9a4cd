"""Background work of an appender, on a separate thread: makes blocks ahead of time, releases or compresses old ones.

An append must never wait for the file system. So the next block is created, filled with zeros and mapped while the
current one fills. The thread never changes the records of the current block.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from tandemfeed.journal.append.retention import KEEP_ALL, Pruning, Retention, plan_pruning, release
from tandemfeed.journal.check.journal_files import JournalFiles
from tandemfeed.journal.errors import DiskFull, JournalError
from tandemfeed.journal.format.access import PRIVATE, Access
from tandemfeed.journal.format.block import COMPRESSED_SUFFIX, SPARE_SUFFIX, Block, blocks_in, make_spare
from tandemfeed.journal.format.compression import compress_block
from tandemfeed.journal.format.named_position import TAILERS_FOLDER
from tandemfeed.runtime.durable import FlushFailed
from tandemfeed.runtime.threads import mark_unhealthy

LOG = logging.getLogger("tandemfeed.journal")
PAUSE_S = 0.001  # between pieces of a spare that no append waits for: writing it uses most of a processor
THREAD_NAME = "journal-keeper"
T = TypeVar("T")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Settings of the keeper, and its listeners.

    Args:
        retention: what to release after each roll. A file that a named tailer has not read, or a follower has not
            acknowledged, is kept, and so are all after it; a warning names the reader.
        even_unread: release such files too; the tailer then counts what it lost.
        compress: compress closed cycles after each roll.
        free_disk_min: bytes of the disk to leave free.
        mapped_ahead: bytes to keep mapped ahead of the appends, and little after them, so that the kernel has little to
            unmap when the process is killed. None: whole blocks, which is faster at very high append rates.
        on_file_added: called with a new file's path, on the appender's or the keeper's thread.
        on_file_released: the same with a file that is no longer needed.
    """

    retention: Retention = KEEP_ALL
    compress: bool = False
    free_disk_min: int = 0
    mapped_ahead: int | None = None
    on_file_added: Callable[[Path], None] | None = None
    on_file_released: Callable[[Path], None] | None = None
    even_unread: bool = False


class _Unneeded(Exception):
    """The appender closes, so the block being made is not needed."""


class Keeper:
    """The keeper of one appender.

    Args:
        access: who may read and write the blocks that it makes.

    Attributes:
        on_tidied: called after files were released or compressed.
        on_refusal: called when the disk refused to flush a change of the folder.
    """

    def __init__(self, folder: Path, upkeep: Upkeep, access: Access = PRIVATE) -> None:
        self._folder = folder
        self._upkeep = upkeep
        self._access = access
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=THREAD_NAME)
        self._next: Future[Block] | None = None
        self._is_awaited = threading.Event()
        self._is_closing = False
        self._left: Block | None = None
        self._mapped: tuple[int, int] = (-1, 0)  # block ordinal and offset from which to map pages again
        self._kept_for: str = ""  # readers for which files beyond the retention are kept
        self.on_tidied: Callable[[], object] = lambda: None
        self.on_refusal: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Start the thread now, with the calling thread's priority; otherwise the first work starts it."""
        self._pool.submit(threading.get_ident).result()

    def run(self, work: Callable[[], object] | None) -> None:
        """Run something on the thread. If it raises, this process is unhealthy; the appender continues."""
        if work is not None:
            self._submit(partial(_guarded, work))

    def _submit(self, work: Callable[[], T]) -> Future[T] | None:
        """None if there can be no thread, because the process ends or has too many: the record is appended already."""
        try:
            return self._pool.submit(work)
        except RuntimeError as refused:
            if not self._is_closing:
                LOG.warning("%s: no thread to work ahead (%s); appends do it themselves", self._folder, refused)
            return None

    def look_ahead(self, block: Block, end: int, block_size: int) -> None:
        """After an append: make the next block once this one is half full, and map pages ahead."""
        if end * 2 > block.header.data_end:
            self.prepare(block_size)
        ahead = self._upkeep.mapped_ahead
        if ahead is not None and (block.ordinal, end) >= self._mapped:
            self._mapped = block.ordinal, end + ahead // 2
            self.run(partial(block.map_around, end, ahead))

    def prepare(self, block_size: int) -> None:
        """Start to make the next block, unless already started."""
        if self._next is None:
            self._is_awaited.clear()
            self._next = self._submit(partial(self._make_spare, block_size))

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
            except (Exception, CancelledError):
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
            self.run(block.release_pages)
        if former is not None:
            self.run(partial(_forget, former))

    def after_roll(self, added: Path) -> None:
        """Report the new file to the listener; release and compress old ones."""
        self._report(self._upkeep.on_file_added, added)
        if self._upkeep.compress or self._upkeep.retention != KEEP_ALL:
            self.run(self._tidy)

    def _report(self, listener: Callable[[Path], None] | None, path: Path) -> None:
        if listener is not None:
            try:
                listener(path)
            except Exception:
                LOG.exception("%s: a listener failed; the journal continues", path)

    def close(self) -> None:
        """Finish the current work, and delete the spare or stop making it: filling it takes some milliseconds, which a
        journal that is opened and closed for each batch would spend on every batch."""
        spare, self._next, self._is_closing = self._next, None, True
        self._is_awaited.set()
        if spare is not None:
            spare.cancel()
        self._pool.shutdown(wait=True)
        self._left = None
        if spare is not None and not spare.cancelled() and spare.exception() is None:
            spare.result().path.unlink(missing_ok=True)

    def _make_spare(self, block_size: int) -> Block:
        least = self._upkeep.free_disk_min
        disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize
        if free - block_size < least:
            kept = f" (files beyond the retention are kept for {self._kept_for})" if self._kept_for else ""
            raise DiskFull(
                f"{self._folder}: {free} bytes are free; a block needs {block_size}, and {least} must stay free: "
                f"free disk space, or set a retention{kept}; appending then resumes, and no record is lost"
            )
        name = f".{os.getpid()}-{next(_numbers)}{SPARE_SUFFIX}"
        return make_spare(
            self._folder / name,
            block_size,
            access=self._access,
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
            self._release_and_compress()
        finally:
            self.on_tidied()

    def _release_and_compress(self) -> None:
        try:
            self.release()
            if self._upkeep.compress:
                self.compress()
        except (OSError, JournalError) as failed:
            LOG.exception("could not release or compress old files; the journal continues")
            if isinstance(failed, FlushFailed):  # names of new blocks may be lost too
                self.on_refusal()

    def release(self) -> list[Path]:
        """Release the files beyond retention, unless a reader needs them; return their paths."""
        gone: list[Path] = []
        with JournalFiles(self._folder) as files:
            pruning = plan_pruning(
                files,
                self._upkeep.retention,
                time.time(),
                blocks_in(self._folder),
                even_unread=self._upkeep.even_unread,
            )

        def on_released(path: Path) -> None:
            gone.append(path)
            self._report(self._upkeep.on_file_released, path)

        release(self._folder, pruning, on_released)
        self._say_what_is_kept(pruning)
        return gone

    def _say_what_is_kept(self, pruning: Pruning) -> None:
        readers = ", ".join(pruning.kept_for)
        if readers != self._kept_for and readers:
            LOG.warning(
                "%s: files beyond the retention are kept for %s; if a tailer is no longer used, delete its file in %s",
                *(self._folder, pruning.readers_text(), self._folder / TAILERS_FOLDER),
            )
        self._kept_for = readers

    def compress(self) -> None:
        """Compress the blocks of closed cycles."""
        blocks = blocks_in(self._folder)
        for each in blocks:
            if each.cycle < blocks[-1].cycle and each.path.suffix != COMPRESSED_SUFFIX:
                compress_block(each.path)


def _guarded(work: Callable[[], object]) -> None:
    try:
        work()
    except BaseException as failure:  # noqa: BLE001  # whatever it was, health must show it
        mark_unhealthy(THREAD_NAME, failure)


def _forget(_block: Block) -> None:
    """Drop the last reference to a block: unmaps it on the thread that runs this."""
