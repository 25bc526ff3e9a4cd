"""Opens files that may be compressed with gzip or zstd; their first bytes decide, not their names.

A compressed file that is damaged or cut off ends where the damage begins, so that what precedes it can be used.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import zstandard

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
SKIPPABLE = range(0x184D2A50, 0x184D2A60)  # magic numbers of zstd frames that readers pass over
ZSTD_READ_SIZE = 32 << 10  # compressed bytes at a time, so that what they become needs little memory
DECOMPRESSION_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)
BUFFER_SIZE = 1 << 20


def _is_zstd(magic: bytes) -> bool:
    return magic.startswith(ZSTD_MAGIC) or int.from_bytes(magic[: len(ZSTD_MAGIC)], "little") in SKIPPABLE


class _ZstdFrames:
    """What a file's zstd frames contain, one after another. zstandard's own stream takes a cut file for a whole one."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._packed, self._content = b"", memoryview(b"")

    def read1(self, size: int) -> memoryview:
        """The next bytes, at most `size`; none at the end.

        Raises:
            EOFError, ZstdError: the file is cut off or damaged.
        """
        while not self._content:
            self._packed = self._packed or self._file.read(ZSTD_READ_SIZE)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("a zstd frame is cut off")
                break
            self._frame = self._frame or self._decompressor.decompressobj()
            self._content = memoryview(self._frame.decompress(self._packed))
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        taken, self._content = self._content[:size], self._content[size:]
        return taken

    def close(self) -> None:
        """Nothing is open."""


class _Content(io.RawIOBase):
    """What a file contains, up to the first damage."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")
        magic = self._file.peek(len(ZSTD_MAGIC))
        self._source: Any = self._file
        if magic.startswith(GZIP_MAGIC):
            self._source = gzip.GzipFile(fileobj=self._file)
        elif _is_zstd(magic):
            self._source = _ZstdFrames(self._file)
        self.damage = ""

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; 0 at the end, and at damage."""
        if self._source is self._file:
            count: int = self._source.readinto(buffer)
            return count
        if self.damage:  # reading on would only find a later reason
            return 0
        try:
            data = self._source.read1(len(buffer))
        except DECOMPRESSION_ERRORS as reason:
            self.damage = str(reason)
            return 0
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file, too."""
        self._source.close()
        self._file.close()
        super().close()


class DecompressedFile(io.BufferedReader):
    """The content of a file as a stream."""

    def __init__(self, path: Path) -> None:
        self._content = _Content(path)
        super().__init__(self._content, BUFFER_SIZE)

    @property
    def damage(self) -> str:
        """Why the content ended before its end; empty if it did not."""
        return self._content.damage
