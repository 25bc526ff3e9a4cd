"""Ended blocks, compressed with Zstandard (RFC 8878) as `NAME.tfj.zst`, which `zstd -d` decompresses.

A tailer decompresses the whole block into memory when it enters it. The unused zeros after the last segment compress to
almost nothing.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import zstandard

from tandemfeed.journal.errors import BlockCorrupt
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.block import COMPRESSED_SUFFIX, Block
from tandemfeed.journal.format.layout import BLOCK_SIZE_MAX
from tandemfeed.runtime import durable

LEVEL = 3  # higher levels take many times as long and make recordings of ticks little smaller


def compress_block(path: Path) -> Path | None:
    """Replace an ended block by its compressed form; after a crash there is one of them, or both.

    If another process released the block meanwhile, no compressed form is left. Does nothing, and returns None, if
    another process is compressing it: of two, the second one would find the block gone, as if it had been released.

    Raises:
        OSError, FlushFailed: the block is still there.
    """
    with path.open("rb") as source:
        try:
            fcntl.flock(source.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.path.samestat(os.fstat(source.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            return None
        return _replace_by_compressed(path, source) if is_there else None


def _replace_by_compressed(path: Path, source: BinaryIO) -> Path:
    target = path.with_name(path.name + COMPRESSED_SUFFIX)
    status = os.fstat(source.fileno())

    def write(file: BinaryIO) -> None:
        zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).copy_stream(source, file, size=status.st_size)
        file.flush()
        Access(stat.S_IMODE(status.st_mode), group_id=status.st_gid).give(file.fileno())
        os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))  # retention uses the last append's time

    durable.replace_file(target, write)  # its name is durable before the block is removed
    try:
        durable.DISK.remove(path)
    except FileNotFoundError:
        target.unlink(missing_ok=True)
    durable.sync_folder(path.parent)
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
