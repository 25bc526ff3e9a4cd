"""Disk space kept in reserve for a full disk: consuming messages needs the log, and the log needs space.

A file of allocated, unused blocks. When the disk is full the file is deleted, which frees more space than a checkpoint
needs. From then on the database may not grow, so the store accepts only transactions that consume, or that fit into
freed pages. Once the disk has space again, the file is created again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tandemfeed.journal.format.access import Access
from tandemfeed.runtime.durable import PRIVATE_FILE

NAME = "store.reserve"


class DiskReserve:
    """The reserve file of `size` bytes."""

    def __init__(self, folder: Path, size: int, access: Access) -> None:
        self._folder, self._access = folder, access
        self._path = folder / NAME
        self._size = size

    @property
    def exists(self) -> bool:
        """Whether the reserve is still available."""
        return self._path.exists()

    def is_disk_low(self) -> bool:
        """Whether the disk has less free space than the reserve needs."""
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize < self._size

    def make(self) -> bool:
        """Allocate the file; False if the disk has too little space."""
        is_new = not self.exists
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError:
            return False
        try:
            if is_new:
                self._access.give(descriptor)
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
        """Delete the file, so that the log can use its space."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
