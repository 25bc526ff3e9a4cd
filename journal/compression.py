"""Ended blocks, compressed with Zstandard (RFC 8878) as `NAME.tfj.zst`, which `zstd -d` decompresses.

A tailer decompresses the whole block into memory when it enters it. The unused zeros after the last segment compress to
almost nothing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import UUID

import zstandard

from tandemfeed.journal.block import COMPRESSED_SUFFIX, Block
from tandemfeed.journal.errors import BlockCorrupt
from tandemfeed.journal.layout import BLOCK_SIZE_MAX

LEVEL = 3  # higher levels take many times as long and make recordings of ticks little smaller


def compress_block(path: Path) -> Path:
    """Replace an ended block by its compressed form; a crash leaves one of them, or both.

    If another process released the block meanwhile, no compressed form is left.
    """
    target = path.with_name(path.name + COMPRESSED_SUFFIX)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with path.open("rb") as source, draft.open("wb") as out:
            status = os.fstat(source.fileno())
            zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).copy_stream(source, out, size=status.st_size)
            out.flush()
            os.fsync(out.fileno())
        os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))  # retention uses the time of the last append
        draft.rename(target)
        try:
            path.unlink()
        except FileNotFoundError:
            target.unlink(missing_ok=True)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
    return target


class CompressedBlock(Block):
    """A compressed block, decompressed into memory; read-only.

    Raises:
        BlockCorrupt: the file cannot be decompressed.
    """

    def __init__(self, path: Path, journal_id: UUID | None = None) -> None:
        self.path = path
        self.was_truncated = False
        try:
            data = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=BLOCK_SIZE_MAX)
        except zstandard.ZstdError as damaged:
            raise BlockCorrupt(f"{path}: cannot be decompressed ({damaged}); restore it from a copy") from None
        self._adopt(data, journal_id)


def open_to_read(path: Path, journal_id: UUID | None = None) -> Block:
    """Open a block for reading: map it, or decompress it."""
    if path.suffix == COMPRESSED_SUFFIX:
        return CompressedBlock(path, journal_id)
    return Block(path, writable=False, journal_id=journal_id)
