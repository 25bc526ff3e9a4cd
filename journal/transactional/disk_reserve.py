"""Room on the disk that is kept for the day the disk is full: consuming needs the log, and the log needs room.

A file of allocated, unused blocks. When the disk is full it is deleted, which gives the log room enough for a
checkpoint and more; from then on the database may not grow, so only what consumes, or fits into pages that were freed,
is taken. When the disk has room again the file is made again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NAME = "store.reserve"


class DiskReserve:
    """The file. `size` in bytes."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._path = folder / NAME
        self._size = size

    @property
    def is_there(self) -> bool:
        """Whether it has not been spent."""
        return self._path.exists()

    def disk_is_short(self) -> bool:
        """Whether the disk has less room than this would take."""
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize < self._size

    def make(self) -> bool:
        """Allocate it; False if the disk has no room for it."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_size != self._size:
                os.ftruncate(descriptor, 0)
                os.posix_fallocate(descriptor, 0, self._size)
        except OSError:
            self.spend()
            return False
        finally:
            os.close(descriptor)
        return True

    def spend(self) -> None:
        """Give its room to the log."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
