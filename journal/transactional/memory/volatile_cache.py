"""Non-persistent messages: in memory up to a limit, in swap files beyond it; each stored once for all its queues.

New messages are spilled, not old ones: queues are consumed from the oldest message on, so old ones are needed first. A
file is closed at a size limit and deleted with its last message. Invariant: memory_bytes <= memory_bytes_max.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from tandemfeed.journal.format.access import Access
from tandemfeed.journal.transactional.errors import StoreClosed, StoreFull
from tandemfeed.journal.transactional.memory.swap_file import SwapFile, delete_leftovers


@dataclass(slots=True)
class _Stored:
    references: int
    size: int
    body: bytes | None  # None: spilled
    file: SwapFile | None = None
    offset: int = 0


class VolatileCache:
    """Thread-safe. Lock order: acquired after all other locks."""

    def __init__(
        self, folder: Path, access: Access, *, memory_bytes_max: int, file_bytes_max: int, swap_bytes_max: int
    ) -> None:
        self._folder, self._access = folder, access
        self._memory_bytes_max = memory_bytes_max
        self._file_bytes_max = file_bytes_max
        self._swap_bytes_max = swap_bytes_max
        self._lock = Lock()
        self._messages: dict[int, _Stored] = {}
        self._next_number = 1
        self._next_file = 1
        self._files: list[SwapFile] = []  # the last one is appended to
        self.memory_bytes = 0
        self.spilled_count = 0  # messages written to a swap file since the start
        delete_leftovers(folder)

    def store(self, body: bytes, references: int) -> int:
        """Keep a body until it has been released `references` times.

        Returns:
            Its number.

        Raises:
            StoreFull: memory is full, and so are the swap files or the disk.
        """
        assert references > 0
        with self._lock:
            stored = _Stored(references, len(body), None)
            if self.memory_bytes + len(body) <= self._memory_bytes_max:
                stored.body = body
                self.memory_bytes += len(body)
            else:
                self._spill(stored, body)
            number = self._next_number
            self._next_number += 1
            self._messages[number] = stored
            return number

    def read(self, number: int) -> bytes:
        """The body of a stored message."""
        with self._lock:
            stored = self._messages.get(number)
            if stored is None:
                raise StoreClosed(f"{self._folder}: the store was closed, and non-persistent messages are gone")
            if stored.body is not None:
                return stored.body
            assert stored.file is not None
            return stored.file.read(stored.offset)

    def release(self, numbers: Sequence[int]) -> None:
        """Remove one reference from each message."""
        with self._lock:
            for number in numbers:
                stored = self._messages[number]
                stored.references -= 1
                if stored.references == 0:
                    del self._messages[number]
                    self._free(stored)

    def swap_files(self) -> tuple[int, int]:
        """(number of swap files, their bytes)."""
        with self._lock:
            return len(self._files), sum(file.size for file in self._files)

    def message_count(self) -> int:
        """Number of stored messages."""
        return len(self._messages)

    def close(self) -> None:
        """Drop all messages and delete the swap files."""
        with self._lock:
            self._messages.clear()
            for file in self._files:
                file.delete()
            self._files.clear()
            self.memory_bytes = 0

    def _spill(self, stored: _Stored, body: bytes) -> None:
        used = sum(file.size for file in self._files)
        if used + len(body) > self._swap_bytes_max:
            raise StoreFull(
                f"non-persistent messages use {self.memory_bytes} bytes of memory and {used} of swap files in "
                f"{self._folder}: consume some, or raise volatile_memory_bytes_max or swap_bytes_max"
            )
        try:
            if not self._files or self._files[-1].size >= self._file_bytes_max:
                self._files.append(SwapFile(self._folder, self._next_file, self._access))
                self._next_file += 1
            stored.file = self._files[-1]
            stored.offset = stored.file.append(body)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise StoreFull(f"no space for a swap file in {self._folder}: free disk space") from error
        self.spilled_count += 1

    def _free(self, stored: _Stored) -> None:
        if stored.file is None:
            self.memory_bytes -= stored.size
            return
        stored.file.live_count -= 1
        if stored.file.live_count == 0:
            self._files.remove(stored.file)
            stored.file.delete()
