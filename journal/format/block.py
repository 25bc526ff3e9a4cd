"""A mapped block file: creating, opening, checking, flushing. docs/journal-format.md defines every byte.

Handles headers, checkpoints and the tail; kernels.py handles segments.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import google_crc32c
import numpy as np

from tandemfeed.journal.errors import BlockCorrupt, DiskFull, ForeignFile, NewerFormat, ReadOnly
from tandemfeed.journal.format import mapping
from tandemfeed.journal.format.access import PRIVATE, Access
from tandemfeed.journal.format.filesystem import reserve
from tandemfeed.journal.format.layout import (
    BLOCK_MAGIC,
    CHECKPOINT,
    CHECKPOINT_OFFSETS,
    CRC,
    DATA_OFFSET,
    HEADER,
    INDEX_SIZE,
    LINK_SIZE,
    PART_BITS,
    RESERVED_SIZE,
    SUFFIX,
    TAIL,
    TAIL_MAGIC,
    TAIL_SIZE,
    VERSION,
    Checkpoint,
    Header,
    block_name,
    index_stride,
    ordinal_of,
)
from tandemfeed.runtime import durable
from tandemfeed.runtime.durable import PRIVATE_FILE

SPARE_SUFFIX = ".spare"
COMPRESSED_SUFFIX = ".zst"
ZERO_CHUNK = 1 << 20


class BlockName(NamedTuple):
    """A block file in a folder."""

    ordinal: int
    path: Path

    @property
    def cycle(self) -> int:
        """Its roll cycle."""
        return self.ordinal >> PART_BITS


def blocks_in(folder: Path) -> list[BlockName]:
    """The block files in a folder, oldest first, including compressed ones.

    Raises:
        ForeignFile: a file's name is not the name of a block file.
    """
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        name = path.name.removesuffix(COMPRESSED_SUFFIX)
        if not name.endswith(SUFFIX) or path.name.startswith("."):
            continue
        cycle, _, part = name.removesuffix(SUFFIX).partition("-")
        try:
            ordinal = ordinal_of(int(cycle, 16), int(part, 16))
        except ValueError:
            raise ForeignFile(f"{path}: not the name of a block file (CYCLE-PART{SUFFIX}); move it away") from None
        # While a block is being compressed both files exist; the plain one is certainly complete.
        if ordinal not in found or path.name == name:
            found[ordinal] = path
    return [BlockName(ordinal, found[ordinal]) for ordinal in sorted(found)]


class Block:
    """A mapped block file. `address` is for the kernels, `view` and `array` for other code."""

    def __init__(self, path: Path, *, writable: bool, journal_id: UUID | None = None) -> None:
        self.path = path
        self.was_truncated = False  # the file was truncated; the missing bytes are zeros now
        flags = os.O_RDWR if writable else os.O_RDONLY
        try:
            self._fd = os.open(path, flags | os.O_CLOEXEC)
        except PermissionError as refused:
            raise ReadOnly(f"{path}: {refused.strerror}") from None
        try:
            size = os.fstat(self._fd).st_size
            if size < DATA_OFFSET:
                raise ForeignFile(f"{path}: too short for a block file ({size} bytes); move it away")
            if writable and (whole := self._whole_size(size)) > size:
                self.was_truncated = True
                os.ftruncate(self._fd, whole)
                size = whole
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(self._fd, size, access=access)
            self._adopt(self._map, journal_id)
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    def _whole_size(self, size: int) -> int:
        head = os.pread(self._fd, HEADER.size + CRC.size, 0)
        header = Header(*HEADER.unpack_from(head))
        is_ours = header.magic == BLOCK_MAGIC and header.version == VERSION
        return header.block_size if is_ours and head[HEADER.size :] == _crc(head[: HEADER.size]) else size

    def _adopt(self, buffer: mmap.mmap | bytes, journal_id: UUID | None) -> None:
        self.buffer = buffer  # a slice of it is bytes
        self.view = memoryview(buffer)
        self.array = np.frombuffer(buffer, np.uint8)
        self.shared = self.array.view()  # for readers
        self.shared.flags.writeable = False
        self.address = int(self.array.ctypes.data)
        self.header = read_header(self.view, self.path)
        if journal_id is not None and self.header.id != journal_id:
            raise ForeignFile(f"{self.path}: belongs to another journal ({self.header.id}); move it away")

    @property
    def ordinal(self) -> int:
        """The block's place among the journal's blocks."""
        return self.header.ordinal

    def checkpoint(self) -> Checkpoint:
        """The newest valid checkpoint; with generation 0 if there is none."""
        best = Checkpoint(0, self.header.data_offset, self.header.first_sequence, 0, 0)
        for offset in CHECKPOINT_OFFSETS:
            fields = bytes(self.view[offset : offset + CHECKPOINT.size])
            (crc,) = CRC.unpack_from(self.view, offset + CHECKPOINT.size)
            if crc == google_crc32c.value(fields):
                found = Checkpoint(*CHECKPOINT.unpack(fields))
                if found.generation > best.generation and DATA_OFFSET <= found.end <= self.header.data_end:
                    best = found
        return best

    def write_checkpoint(self, end: int, next_sequence: int, last_at_ns: int, extra: int = 0) -> None:
        """Record that everything before `end` is whole; overwrites the older of two slots."""
        generation = self.checkpoint().generation + 1
        fields = CHECKPOINT.pack(generation, end, next_sequence, last_at_ns, extra)
        offset = CHECKPOINT_OFFSETS[generation % 2]
        self.view[offset : offset + CHECKPOINT.size] = fields
        CRC.pack_into(self.view, offset + CHECKPOINT.size, google_crc32c.value(fields))

    def write_tail(self, end: int, next_sequence: int, last_at_ns: int) -> None:
        """Write the summary of an ended block."""
        count = next_sequence - self.header.first_sequence
        fields = TAIL.pack(TAIL_MAGIC, VERSION, end, count, next_sequence, last_at_ns)
        offset = self.header.block_size - TAIL_SIZE
        self.view[offset : offset + TAIL.size] = fields
        CRC.pack_into(self.view, offset + TAIL.size, google_crc32c.value(fields))

    def tail(self) -> tuple[int, int, int, int] | None:
        """(end, record count, next sequence, time of the last record) of an ended block."""
        offset = self.header.block_size - TAIL_SIZE
        fields = bytes(self.view[offset : offset + TAIL.size])
        (crc,) = CRC.unpack_from(self.view, offset + TAIL.size)
        magic, _, end, count, next_sequence, last_at_ns = TAIL.unpack(fields)
        if magic != TAIL_MAGIC or crc != google_crc32c.value(fields):
            return None
        return end, count, next_sequence, last_at_ns

    @property
    def state(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The area reserved for the face, such as a queue's item states."""
        header = self.header
        return self.array[header.state_offset : header.state_offset + header.state_size]

    def clear_after(self, end: int) -> None:
        """Clear what follows the last whole segment, with its sparse index entries and the tail: it was never
        acknowledged. A tail can be on the disk without the end mark that was written after it."""
        data_end = self.header.data_end
        for start in range(end, data_end, ZERO_CHUNK):
            chunk = self.array[start : min(start + ZERO_CHUNK, data_end)]
            if chunk.any():
                chunk[:] = 0
        entries = self.array[self.header.index_offset : self.header.index_offset + INDEX_SIZE].view(np.uint64)
        entries = entries.reshape(-1, 3)
        entries[entries[:, 2] >= end] = 0
        self.array[self.header.block_size - TAIL_SIZE :] = 0

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Store bytes with a system call, not through the map: for callers that flush often, because the first store
        through the map after a flush causes a page fault."""
        if os.pwrite(self._fd, data, offset) != len(data):
            raise OSError(errno.EIO, f"{self.path}: the file system wrote only part of {len(data)} bytes")

    def flush(self) -> None:
        """Flush the map to the disk. Other threads can run meanwhile.

        Raises:
            FlushFailed
        """
        durable.flush(self._fd, self.path)

    def duplicate(self) -> int:
        """Another descriptor of the file, which learns of the same failed writes."""
        return os.dup(self._fd)

    def map_around(self, end: int, ahead: int) -> None:
        """Keep mapped only the pages that appends from `end` on need for the next `ahead` bytes."""
        header = self.header
        mapping.populate(self.address, end, min(end + ahead, header.data_end))
        mapping.release(self.address, DATA_OFFSET, end - LINK_SIZE)

    def release_pages(self) -> None:
        """Release all pages; for a block that is full but may still be in use."""
        mapping.release(self.address, 0, self.header.block_size)

    def __del__(self) -> None:
        # The map is freed with its last reference, which a running append or an array may have.
        if (descriptor := getattr(self, "_fd", -1)) >= 0:
            self._fd = -1
            os.close(descriptor)


def _crc(data: bytes) -> bytes:
    return CRC.pack(google_crc32c.value(data))


def read_header(view: memoryview, path: Path) -> Header:
    """Read and check a block's header.

    Raises:
        ForeignFile, NewerFormat, BlockCorrupt.
    """
    header = Header(*HEADER.unpack_from(view))
    if header.magic != BLOCK_MAGIC:
        raise ForeignFile(f"{path}: not a block file (it begins with {header.magic!r}); move it away")
    if header.version != VERSION:
        raise NewerFormat(f"{path}: format version {header.version}; this release reads and writes {VERSION}")
    (crc,) = CRC.unpack_from(view, HEADER.size)
    if crc != google_crc32c.value(bytes(view[: HEADER.size])) or header.block_size != len(view):
        raise BlockCorrupt(f"{path}: the header is damaged; restore the file from a copy or move it away")
    return header


def has_no_header(path: Path) -> bool:
    """True if a file with a block's name has no block header: it is empty, or a spare that was never begun."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size or not head.strip(b"\0"):
        return not head.strip(b"\0")
    header = Header(*HEADER.unpack(head))
    return header.magic == BLOCK_MAGIC and header.version == VERSION and not any(header.journal_id)


def make_spare(
    path: Path,
    block_size: int,
    *,
    access: Access = PRIVATE,
    flushed: bool = False,
    mapped_ahead: int | None = None,
    pause: Callable[[], object] = lambda: None,
) -> Block:
    """Create a mapped spare file of a block's size; `begin` turns it into a block.

    Args:
        access: who may read and write it.
        flushed: flush it now, for callers that flush often: otherwise their first flush would write the whole block.
            If False, its pages are mapped for writing, so that no append causes a page fault.
        mapped_ahead: bytes of the data area to map; None: all.
        pause: called between pieces while the file is written, to slow it down; or it raises, and no file is left.

    Raises:
        DiskFull: no file is left.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as full:
        raise DiskFull(f"{path}: {full.strerror}; free disk space or inodes") from full
    try:
        access.give(descriptor)
        reserve(descriptor, block_size, path, pause)
        os.pwrite(descriptor, _header(block_size, UUID(int=0), 0, 0, 0, 0, 0, 0), 0)
        if flushed:
            durable.flush(descriptor, path)
    except BaseException:  # also of `pause`
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    spare = Block(path, writable=True)
    if mapped_ahead is not None:
        mapping.populate(spare.address, 0, DATA_OFFSET + mapped_ahead)
        mapping.populate(spare.address, spare.header.data_end, block_size)
    elif not flushed:
        mapping.populate(spare.address, 0, block_size)
    return spare


def begin(
    spare: Block,
    folder: Path,
    journal_id: UUID,
    *,
    cycle: int,
    part: int,
    first_sequence: int,
    sequence_bits: int,
    flags: int,
    state_size: int,
) -> Block:
    """Turn a spare into a block; it gets its name only when complete."""
    size = spare.header.block_size
    head = _header(size, journal_id, cycle, part, first_sequence, sequence_bits, flags, state_size)
    spare.view[: len(head)] = head
    path = folder / block_name(cycle, part)
    durable.rename_unsynced(spare.path, path)
    spare.path = path
    spare.header = read_header(spare.view, path)
    return spare


def recycle(block: Block, path: Path) -> Block:
    """Turn an unneeded block into a spare again; durable on return.

    The old segments are not cleared: with the salt of the next header, their CRCs no longer match.
    """
    durable.rename_unsynced(block.path, path)
    block.path = path
    header = block.header
    head = _header(header.block_size, UUID(int=0), 0, 0, 0, 0, 0, 0)
    block.view[: len(head)] = head
    block.flush()  # first, because with the old header the cleared states would look valid
    block.array[len(head) : DATA_OFFSET + LINK_SIZE] = 0
    block.array[header.state_offset :] = 0  # and the index and the tail, which follow it
    block.header = read_header(block.view, path)
    block.flush()
    return block


def _header(
    block_size: int,
    journal_id: UUID,
    cycle: int,
    part: int,
    first_sequence: int,
    sequence_bits: int,
    flags: int,
    state_size: int,
) -> bytes:
    state_offset = block_size - RESERVED_SIZE - state_size
    data_end = state_offset
    assert data_end >= DATA_OFFSET + LINK_SIZE
    fields = HEADER.pack(
        *(BLOCK_MAGIC, VERSION, block_size, DATA_OFFSET, data_end, block_size - RESERVED_SIZE),
        *(index_stride(data_end), journal_id.bytes, cycle, first_sequence, part, sequence_bits, flags),
        *(secrets.randbits(32), time.time_ns(), state_offset, state_size),
    )
    return fields + _crc(fields)


def remove_spares(folder: Path) -> None:
    """Delete spares that killed appenders left. Call it only when there is no appender."""
    for path in folder.glob(f".*{SPARE_SUFFIX}"):
        path.unlink(missing_ok=True)
