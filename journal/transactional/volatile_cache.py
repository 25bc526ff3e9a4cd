"""Non-persistent messages: in memory up to a bound, in swap files beyond it; each once, however many queues have it.

Newcomers are spilled, not the oldest: queues are read from their old end, so what came first is needed first. Files
roll over at a size and are deleted when the last message in them is gone. Invariant: memory_bytes <= memory_bytes_max.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from journal.transactional.errors import StoreClosed, StoreFull
from journal.transactional.swap_file import SwapFile, delete_leftovers


@dataclass(slots=True)
class _Stored:
    references: int
    size: int
    body: bytes | None  # None: spilled
    file: SwapFile | None = None
    offset: int = 0


class VolatileCache:
    """Safe to use from any thread; its lock is held last."""

    def __init__(self, folder: Path, *, memory_bytes_max: int, file_bytes_max: int, swap_bytes_max: int) -> None:
        self._folder = folder
        self._memory_bytes_max = memory_bytes_max
        self._file_bytes_max = file_bytes_max
        self._swap_bytes_max = swap_bytes_max
        self._lock = Lock()
        self._messages: dict[int, _Stored] = {}
        self._next_number = 1
        self._next_file = 1
        self._files: list[SwapFile] = []  # the last one is appended to
        self.memory_bytes = 0
        self.spilled_count = 0  # messages that went to a file, ever
        delete_leftovers(folder)

    def store(self, body: bytes, references: int) -> int:
        """Keep a body until it was released so many times.

        Returns:
            its number.

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
        """The body of a message that is stored."""
        with self._lock:
            stored = self._messages.get(number)
            if stored is None:
                raise StoreClosed(f"{self._folder}: the store was closed, and non-persistent messages are gone")
            if stored.body is not None:
                return stored.body
            assert stored.file is not None
            return stored.file.read(stored.offset)

    def release(self, numbers: Sequence[int]) -> None:
        """One reference less to each."""
        with self._lock:
            for number in numbers:
                stored = self._messages[number]
                stored.references -= 1
                if stored.references == 0:
                    del self._messages[number]
                    self._free(stored)

    def swap_files(self) -> tuple[int, int]:
        """(files, bytes in them)."""
        with self._lock:
            return len(self._files), sum(file.size for file in self._files)

    def message_count(self) -> int:
        """Messages stored."""
        return len(self._messages)

    def close(self) -> None:
        """Forget everything."""
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
                self._files.append(SwapFile(self._folder, self._next_file))
                self._next_file += 1
            stored.file = self._files[-1]
            stored.offset = stored.file.append(body)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise StoreFull(f"no room for a swap file in {self._folder}: free some disk space") from error
        self.spilled_count += 1

    def _free(self, stored: _Stored) -> None:
        if stored.file is None:
            self.memory_bytes -= stored.size
            return
        stored.file.live_count -= 1
        if stored.file.live_count == 0:
            self._files.remove(stored.file)
            stored.file.delete()
