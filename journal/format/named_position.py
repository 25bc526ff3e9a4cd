"""A reader's position on disk: two slots, written alternately, each with a CRC, so that one is always valid."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import weakref
from pathlib import Path

import google_crc32c

from tandemfeed.journal.errors import JournalLocked
from tandemfeed.journal.format.access import PRIVATE, Access
from tandemfeed.runtime import durable

SLOT = struct.Struct("<QQ")
CRC = struct.Struct("<I")
SLOT_SIZE = 64  # a slot never straddles a disk sector
HOLDER = struct.Struct("<Q")  # the id of the process that has taken the position, for messages only
HOLDER_OFFSET = 2 * SLOT_SIZE


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TAILERS_FOLDER = "tailers"


def tailer_path(folder: Path, name: str) -> Path:
    """The file with the position of a named tailer.

    Raises:
        ValueError: a name with other characters than letters, digits, dot, hyphen, underscore.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a tailer's name has 1 to 100 letters, digits, dots, hyphens and underscores")
    return folder / TAILERS_FOLDER / f"{name}.position"


class NamedPosition:
    """A durable 64-bit position.

    Args:
        path: a small file, used only for this position.
        exclusive: refuse if another object, in any process, has opened the file exclusively.
        access: who may read and write a new file.

    Raises:
        JournalLocked: another reader uses this position.
    """

    def __init__(self, path: Path, *, exclusive: bool = False, access: Access = PRIVATE) -> None:
        self._fd = -1
        if not path.parent.is_dir():
            durable.make_folder(path.parent, access.folder_mode)
            access.give(path.parent, is_folder=True)
        is_new = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, access.file_mode)
        if is_new:
            access.give(self._fd)
        if exclusive:
            self._take(path)
        self._generation, self._value = self._newest()

    def _take(self, path: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, HOLDER.size, HOLDER_OFFSET)
            pid = HOLDER.unpack(holder)[0] if len(holder) == HOLDER.size else "unknown"
            self.close()
            raise JournalLocked(
                f"{path}: process {pid} reads under this name; two readers would overwrite each other's position: end "
                "that one, or give another name"
            ) from None
        os.pwrite(self._fd, HOLDER.pack(os.getpid()), HOLDER_OFFSET)
        _taken.add(self)

    def load(self) -> int | None:
        """The stored position; None if there is none."""
        return self._value if self._generation else None

    def store(self, value: int) -> None:
        """Replace the position. It survives a crash of the process."""
        self._generation += 1
        self._value = value
        fields = SLOT.pack(self._generation, value)
        os.pwrite(self._fd, fields + CRC.pack(google_crc32c.value(fields)), (self._generation % 2) * SLOT_SIZE)

    def close(self) -> None:
        """Close the file; another reader may use the position."""
        if self._fd >= 0:
            descriptor, self._fd = self._fd, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()  # so that a tailer that was dropped does not keep its name

    def _newest(self) -> tuple[int, int]:
        best = (0, 0)
        for slot in range(2):
            data = os.pread(self._fd, SLOT.size + CRC.size, slot * SLOT_SIZE)
            if len(data) == SLOT.size + CRC.size and CRC.unpack(data[SLOT.size :])[0] == google_crc32c.value(
                data[: SLOT.size]
            ):
                generation, value = SLOT.unpack(data[: SLOT.size])
                best = max(best, (generation, value))
        return best


_taken: weakref.WeakSet[NamedPosition] = weakref.WeakSet()


def _after_fork() -> None:
    """A forked child must not keep its parent's names after the parent has died."""
    for position in list(_taken):
        position.close()


os.register_at_fork(after_in_child=_after_fork)
