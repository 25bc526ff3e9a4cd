"""One block file: header, two alternating checkpoints, a data area of segments, reserved index and tail.

Layout (little-endian; docs/journal-format.md)::

    0      magic b"TFJB", version u32, block_size, cycle, created_at_ns, data_offset, data_end (u64 each), crc u32
    512    checkpoint A: generation u64, data_end u64, next_sequence u64, crc u32
    1024   checkpoint B: the same; the valid one with the higher generation counts
    4096   data area: segments
    ..     sparse index and tail, reserved: the last RESERVED_SIZE bytes

A segment is one group commit, 8-byte aligned: length u32 (of what follows its header; stored last), crc32c u32 (of the
rest of the header and the records), first_sequence u64, record_count u32, reserved u32; then each record as length u32
and bytes. Length 0: not written yet. Length 0xFFFFFFFF: the journal goes on in the next block.

Invariant: a segment is visible only after all its bytes are in the map, and served only if its CRC agrees.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from journal.errors import BlockCorrupt, DiskFull, ForeignFile, NewerFormat

MAGIC = b"TFJB"
VERSION = 1
HEADER = struct.Struct("<4sIQQQQQ")
CRC = struct.Struct("<I")
CHECKPOINT = struct.Struct("<QQQ")
CHECKPOINT_OFFSETS = (512, 1024)
DATA_OFFSET = 4_096
RESERVED_SIZE = 65_536  # sparse index (61,440 bytes) and tail (4,096)
SEGMENT = struct.Struct("<IIQII")
SEGMENT_SIZE = SEGMENT.size
RECORD_LENGTH = struct.Struct("<I")
LENGTH = struct.Struct("<I")
END_MARK = 0xFFFF_FFFF
BLOCK_SIZE_MIN = 256 << 10
SUFFIX = ".tfj"
ZEROS_SIZE = 256 << 10
assert SEGMENT_SIZE == 24


class Segment(NamedTuple):
    """A segment found in a block."""

    offset: int
    length: int
    first_sequence: int
    record_count: int

    @property
    def end(self) -> int:
        """Where the next segment begins."""
        return aligned(self.offset + SEGMENT_SIZE + self.length)


def aligned(offset: int) -> int:
    """The next multiple of 8."""
    return (offset + 7) & ~7


def block_path(folder: Path, cycle: int) -> Path:
    """Block files sort by cycle."""
    return folder / f"{cycle:08x}{SUFFIX}"


def cycles_in(folder: Path) -> list[int]:
    """The cycles of the block files in a folder, ascending.

    Raises:
        ForeignFile: a block file's name is no cycle.
    """
    cycles = []
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            cycles.append(int(path.stem, 16))
        except ValueError:
            raise ForeignFile(
                f"{path}: a block file is named by its cycle in hexadecimal; move this file away"
            ) from None
    return sorted(cycles)


class Block:
    """A mapped block file."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        flags = os.O_RDWR if writable else os.O_RDONLY
        self._fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            size = os.fstat(self._fd).st_size
            if size < DATA_OFFSET:
                raise ForeignFile(f"{path}: {size} bytes are no block file; move it away")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(self._fd, size, access=access)
            self.view = memoryview(self._map)
            self._check_header(size)
        except BaseException:
            os.close(self._fd)
            raise

    @classmethod
    def create(cls, folder: Path, cycle: int, block_size: int) -> Block:
        """Preallocate a block. It appears under its name only when complete.

        Not flushed: a forced flush makes the file system commit, and every writer's next page waits for that. What must
        survive a power loss is flushed by `Journal.sync`.

        Raises:
            DiskFull: nothing was created.
        """
        path = block_path(folder, cycle)
        draft = path.with_suffix(".new")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, block_size)
            _write_zeros(descriptor, block_size)
            fields = HEADER.pack(
                MAGIC, VERSION, block_size, cycle, time.time_ns(), DATA_OFFSET, block_size - RESERVED_SIZE
            )
            os.pwrite(descriptor, fields + CRC.pack(google_crc32c.value(fields)), 0)
        except OSError as full:
            draft.unlink(missing_ok=True)
            raise DiskFull(f"{path}: no room for a block of {block_size} bytes ({full.strerror}); free some") from full
        finally:
            os.close(descriptor)
        draft.rename(path)
        return cls(path, writable=True)

    def _check_header(self, size: int) -> None:
        magic, version, block_size, self.cycle, _created, self.data_offset, self.data_end = HEADER.unpack_from(
            self.view
        )
        (crc,) = CRC.unpack_from(self.view, HEADER.size)
        if magic != MAGIC:
            raise ForeignFile(f"{self.path}: no block file (it begins with {magic!r}); move it away")
        if version > VERSION:
            raise NewerFormat(f"{self.path}: format version {version}, this release reads up to {VERSION}")
        if crc != google_crc32c.value(bytes(self.view[: HEADER.size])) or block_size != size:
            raise BlockCorrupt(f"{self.path}: the header is damaged; restore the file from a copy or move it away")

    def checkpoint(self) -> tuple[int, int, int]:
        """(generation, data_end, next_sequence) of the newest valid checkpoint; zeros if there is none."""
        best = (0, 0, 0)
        for offset in CHECKPOINT_OFFSETS:
            fields = bytes(self.view[offset : offset + CHECKPOINT.size])
            (crc,) = CRC.unpack_from(self.view, offset + CHECKPOINT.size)
            if crc == google_crc32c.value(fields):
                best = max(best, CHECKPOINT.unpack(fields))
        return best

    def write_checkpoint(self, data_end: int, next_sequence: int) -> None:
        """Remember that everything before `data_end` is whole; the older of the two slots is overwritten."""
        generation = self.checkpoint()[0] + 1
        fields = CHECKPOINT.pack(generation, data_end, next_sequence)
        offset = CHECKPOINT_OFFSETS[generation % 2]
        self.view[offset : offset + CHECKPOINT.size] = fields
        CRC.pack_into(self.view, offset + CHECKPOINT.size, google_crc32c.value(fields))

    def segment_at(self, offset: int, *, verify: bool = True) -> Segment | None:
        """The segment at an offset; None if there is none (yet), or if it is torn."""
        if offset + SEGMENT_SIZE > self.data_end:
            return None
        length, crc, first_sequence, record_count, _ = SEGMENT.unpack_from(self.view, offset)
        if length in (0, END_MARK) or offset + SEGMENT_SIZE + length > self.data_end:
            return None
        if verify and crc != google_crc32c.value(bytes(self.view[offset + 8 : offset + SEGMENT_SIZE + length])):
            return None
        return Segment(offset, length, first_sequence, record_count)

    def is_ended_at(self, offset: int) -> bool:
        """True if the journal goes on in the next block."""
        return offset + LENGTH.size > self.data_end or bool(LENGTH.unpack_from(self.view, offset)[0] == END_MARK)

    def records(self, segment: Segment) -> list[bytes]:
        """The records of a segment whose CRC has been verified."""
        found, offset = [], segment.offset + SEGMENT_SIZE
        for _ in range(segment.record_count):
            (length,) = RECORD_LENGTH.unpack_from(self.view, offset)
            offset += RECORD_LENGTH.size
            found.append(bytes(self.view[offset : offset + length]))
            offset += length
        return found

    def flush(self) -> None:
        """Everything in the map is on the disk when this returns. Lets other threads run meanwhile."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Unmap."""
        self.view.release()
        self._map.close()
        os.close(self._fd)


def _write_zeros(descriptor: int, size: int) -> None:
    """Touch every page now: an append into a page that was only reserved would stop for the file system, some 2 µs."""
    zeros = bytes(ZEROS_SIZE)
    for offset in range(0, size, ZEROS_SIZE):
        os.pwrite(descriptor, zeros[: size - offset], offset)
