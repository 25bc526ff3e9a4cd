"""A swap file: non-persistent messages that did not fit in memory; appended, read by offset, never rewritten.

It does not outlive the process: opening the store deletes swap files that a crash left.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from pathlib import Path

from tandemfeed.journal.format.access import Access
from tandemfeed.journal.transactional.errors import ForeignStore, StoreCorrupt
from tandemfeed.runtime.durable import PRIVATE_FILE

MAGIC = b"TFSW\x01\0\0\0"
_RECORD = struct.Struct("<II")  # length, CRC-32 of the body
_NAME = re.compile(r"swap-\d{8}\.tfs")


def delete_leftovers(folder: Path) -> int:
    """Delete the swap files of a crashed process, and return their number.

    Raises:
        ForeignStore: a file of such a name is not a swap file; nothing was deleted.
    """
    left = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    for path in left:
        with path.open("rb") as file:
            if not MAGIC.startswith(file.read(len(MAGIC))):
                raise ForeignStore(f"{path} is not a swap file of a transactional store: move it away")
    for path in left:
        path.unlink()
    return len(left)


class SwapFile:
    """An open swap file. Guarded by its owner's lock."""

    def __init__(self, folder: Path, number: int, access: Access) -> None:
        self.path = folder / f"swap-{number:08}.tfs"
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        self.size = 0
        self.live_count = 0
        try:
            access.give(self._descriptor)
            self._append(MAGIC)
        except OSError:
            self.delete()
            raise

    def append(self, body: bytes) -> int:
        """Store one body.

        Returns:
            Its offset.

        Raises:
            OSError: not enough space; the file is unchanged.
        """
        offset = self.size
        self._append(_RECORD.pack(len(body), zlib.crc32(body)) + body)
        self.live_count += 1
        return offset

    def read(self, offset: int) -> bytes:
        """The body at an offset that `append` returned."""
        length, crc = _RECORD.unpack(os.pread(self._descriptor, _RECORD.size, offset))
        body = os.pread(self._descriptor, length, offset + _RECORD.size)
        if len(body) != length or zlib.crc32(body) != crc:
            raise StoreCorrupt(
                f"{self.path}: the message at offset {offset} is damaged; another program wrote to the file"
            )
        return body

    def delete(self) -> None:
        """Close and delete the file."""
        os.close(self._descriptor)
        self.path.unlink(missing_ok=True)

    def _append(self, data: bytes) -> None:
        view, at = memoryview(data), self.size
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view, at = view[written:], at + written
        self.size = at
