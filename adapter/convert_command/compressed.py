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
DECOMPRESSION_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)
BUFFER_SIZE = 1 << 20


class _Content(io.RawIOBase):
    """What a file contains, up to the first damage."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")
        magic = self._file.peek(len(ZSTD_MAGIC))
        self._source: Any = self._file
        if magic.startswith(GZIP_MAGIC):
            self._source = gzip.GzipFile(fileobj=self._file)
        elif magic.startswith(ZSTD_MAGIC):
            self._source = zstandard.ZstdDecompressor().stream_reader(self._file, read_across_frames=True)
        self.damage = ""

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; 0 at the end, and at damage."""
        if self._source is self._file:
            count: int = self._source.readinto(buffer)
            return count
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
