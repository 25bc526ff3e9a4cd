"""The layout of a journal's files: offsets, words, limits. docs/journal-format.md describes it.

There are two kinds of file: block files have the records; one control file per journal has its settings and the few
words that its appenders share. All integers are little-endian. Only definitions; nothing here reads or writes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

BLOCK_MAGIC, CONTROL_MAGIC, TAIL_MAGIC = b"TFJB", b"TFJC", b"TFJT"
VERSION = 2
CRC = struct.Struct("<I")

# -- block file --------------------------------------------------------------------------------------------------------
HEADER = struct.Struct("<4sI5Q16sQQ4I3Q")
HEADER_DATA_END, HEADER_INDEX_OFFSET, HEADER_INDEX_STRIDE = 24, 32, 40
HEADER_CYCLE, HEADER_PART, HEADER_SEQUENCE_BITS, HEADER_SALT = 64, 80, 84, 92
CHECKPOINT = struct.Struct("<5Q")
CHECKPOINT_OFFSETS = (512, 1_024)  # a disk sector each
DATA_OFFSET = 4_096
INDEX_ENTRY_SIZE = 24  # sequence, appended_at_ns, offset
INDEX_ENTRY_COUNT = 2_560
INDEX_SIZE = INDEX_ENTRY_SIZE * INDEX_ENTRY_COUNT
TAIL = struct.Struct("<4sIQQQQ")
TAIL_SIZE = 4_096
RESERVED_SIZE = INDEX_SIZE + TAIL_SIZE
BLOCK_SIZE_MIN = 256 << 10
BLOCK_SIZE_DEFAULT = 64 << 20
BLOCK_SIZE_MAX = (1 << 32) - 4_096  # a segment's length is 32 bits
SUFFIX = ".tfj"
IS_SEALED_JOURNAL = 1  # header flag: every segment is encrypted
assert HEADER.size == 120
assert RESERVED_SIZE == 65_536
assert DATA_OFFSET + RESERVED_SIZE < BLOCK_SIZE_MIN

# -- segment -----------------------------------------------------------------------------------------------------------
SEGMENT = struct.Struct("<IIQQII")
SEGMENT_SIZE = SEGMENT.size
CRC_FROM = 8  # the CRC covers everything in the segment after the CRC
END_MARK = 0xFFFF_FFFF
LINK = struct.Struct("<IIQ")  # end mark, 0, ordinal of the next block
LINK_SIZE = LINK.size
HAS_TABLE = 1 << 31  # records of several sizes: the body begins with the end of each, u32
IS_SEALED = 1 << 30
COUNT_MASK = (1 << 28) - 1
RECORD_SIZE_MAX = 1 << 30
assert SEGMENT_SIZE == 32

# -- control file ------------------------------------------------------------------------------------------------------
CONTROL_NAME = "journal.tfc"
FAILED_NAME = "journal.failed"  # exists with IS_FAILED, in case that page is lost too
CONTROL_HEAD = struct.Struct("<4sI16sI")  # magic, version, journal id, size of the settings that follow (JSON); CRC
CONTROL_SIZE = 16_384
LOCK = 4_096  # 0: free, else the slot of the appender that holds it
ORDINAL, END, NEXT_SEQUENCE, LAST_AT = 4_160, 4_168, 4_176, 4_184  # written under the lock
VISIBLE = 4_224  # tailers read below this index; 0: everything
IS_CLEAN = 4_288  # 1: the last appender closed cleanly
FLUSHER = 4_352  # 0, or the slot of the appender that flushes; if it died, the flush may have failed
STATES_FLUSHER = 4_360  # the same for a queue's state areas, which other threads flush
DURABLE, DURABLE_END = (
    4_416,
    4_424,
)  # 1 + a block's ordinal, and an offset in it: the disk has everything before
IS_FAILED = 4_480  # 1: a flush failed, and what it concerned was not written again yet
RELEASED = 4_544  # the index after the last record of a released file, if a named tailer existed then
PIDS = 8_192  # a process id per slot
SLOT_COUNT = 1_000
PARKED = SLOT_COUNT + 1  # holds the lock of a failed journal, so that no process appends
SLOT_LOCKS = 1 << 40  # byte ranges after the file's end, locked by living appenders
OPENING_LOCK = SLOT_LOCKS - 1
PART_BITS = 24
assert PIDS + 8 * (SLOT_COUNT + 1) <= CONTROL_SIZE


class Header(NamedTuple):
    """The fields of a block file's header, in order."""

    magic: bytes
    version: int
    block_size: int
    data_offset: int
    data_end: int
    index_offset: int
    index_stride: int
    journal_id: bytes
    cycle: int
    first_sequence: int
    part: int
    sequence_bits: int
    flags: int
    salt: int
    created_at_ns: int
    state_offset: int
    state_size: int

    @property
    def ordinal(self) -> int:
        """The block's place in the journal's order."""
        return ordinal_of(self.cycle, self.part)

    @property
    def first_index(self) -> int:
        """The index of its first record."""
        return self.cycle << self.sequence_bits | self.first_sequence

    @property
    def id(self) -> UUID:
        """The journal it belongs to."""
        return UUID(bytes=self.journal_id)


class Checkpoint(NamedTuple):
    """Everything before `end` is whole. The face uses `extra` (in a queue, the number of active items)."""

    generation: int
    end: int
    next_sequence: int
    last_at_ns: int
    extra: int


def ordinal_of(cycle: int, part: int) -> int:
    """The ordinal of a block: each cycle has one or more block files, its parts."""
    return cycle << PART_BITS | part


def block_name(cycle: int, part: int) -> str:
    """The name of a block file; names sort in the journal's order."""
    return f"{cycle:09x}-{part:06x}{SUFFIX}"


def aligned(offset: int) -> int:
    """The next multiple of 8."""
    return (offset + 7) & ~7


def block_size_for(body_size: int, state_size: int = 0) -> int:
    """The size of the smallest block, in whole pages, for a segment with a body of this size."""
    size = DATA_OFFSET + aligned(SEGMENT_SIZE + body_size) + LINK_SIZE + state_size + RESERVED_SIZE
    return (size + 4_095) & ~4_095


def index_stride(data_end: int) -> int:
    """Bytes of the data area per entry of the sparse index."""
    return aligned((data_end - DATA_OFFSET) // INDEX_ENTRY_COUNT + 1)
