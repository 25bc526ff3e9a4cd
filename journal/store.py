"""The appender's side of a journal: one process appends; whatever `append` returned an index for, tailers see.

Never changes a byte behind its end. Recovery is part of opening: it rolls forward from the newest checkpoint and cuts a
torn segment off. Invariant: indices grow by one within a cycle; what `read` returns is what was appended.
"""

from __future__ import annotations

import fcntl
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import google_crc32c

from journal.block import (
    BLOCK_SIZE_MIN,
    DATA_OFFSET,
    END_MARK,
    LENGTH,
    RECORD_LENGTH,
    RESERVED_SIZE,
    SEGMENT,
    SEGMENT_SIZE,
    Block,
    aligned,
    block_path,
    cycles_in,
)
from journal.errors import JournalLocked, NoSuchRecord, RecordTooLong

SEQUENCE_BITS = 32
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
BLOCK_SIZE_DEFAULT = 64 << 20


class _MappedBlock:
    """A block with the places of its segments."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.sequences = array("Q")  # first sequence of each segment
        self.offsets = array("Q")
        self.next_sequence = 0
        self.end = DATA_OFFSET

    def roll_forward(self) -> None:
        """Find the segments; those before the checkpoint are known to be whole."""
        _, checked_end, _ = self.block.checkpoint()
        while (segment := self.block.segment_at(self.end, verify=self.end >= checked_end)) is not None:
            self.add(segment.offset, segment.first_sequence, segment.record_count, segment.end)

    def add(self, offset: int, first_sequence: int, record_count: int, end: int) -> None:
        self.sequences.append(first_sequence)
        self.offsets.append(offset)
        self.next_sequence = first_sequence + record_count
        self.end = end

    def read(self, sequence: int) -> bytes | None:
        if sequence >= self.next_sequence:
            return None
        place = bisect_right(self.sequences, sequence) - 1
        segment = self.block.segment_at(self.offsets[place], verify=True)
        return None if segment is None else self.block.records(segment)[sequence - segment.first_sequence]


class Journal:
    """An open journal. Use `Journal.open`, preferably in a `with`.

    Index: `cycle << 32 | sequence`; a cycle is a block file.
    """

    def __init__(self, folder: Path, block_size: int, retain_blocks: int | None, lock_fd: int) -> None:
        self.folder = folder
        self._block_size = block_size
        self._retain_blocks = retain_blocks
        self._lock_fd = lock_fd
        self._blocks: dict[int, _MappedBlock] = {}
        for cycle in cycles_in(folder):
            mapped = _MappedBlock(Block(block_path(folder, cycle), writable=True))
            mapped.roll_forward()
            self._blocks[cycle] = mapped
        self._drop_prepared()
        if not self._blocks:
            self._blocks[1] = _MappedBlock(Block.create(folder, 1, block_size))
        self._cycle = max(self._blocks)
        self._current = self._blocks[self._cycle]
        self._cut_torn_tail()
        self._unflushed: list[Block] = []  # full, and not on the disk for certain
        # Blocks are made beside the appender: a roll must not make an append wait for the disk.
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="journal-keeper")
        self._next: Future[Block] | None = None
        self._prepare_at = self._current.block.data_end // 2

    @classmethod
    def open(cls, path: Path, *, block_size: int = BLOCK_SIZE_DEFAULT, retain_blocks: int | None = None) -> Journal:
        """Open for appending, making the folder if needed, and recover.

        Args:
            path: the journal's folder.
            block_size: bytes of each new block file.
            retain_blocks: keep only so many newest blocks; None keeps all.

        Raises:
            JournalLocked, ForeignFile, NewerFormat, BlockCorrupt, DiskFull: nothing was changed.
            OSError: the folder cannot be made or written.
        """
        if block_size < BLOCK_SIZE_MIN:
            raise ValueError(f"block_size {block_size}: at least {BLOCK_SIZE_MIN} bytes")
        path.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(path / "appender.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock_fd)
            raise JournalLocked(f"{path}: process {holder} appends to it; stop that one, or open a Tailer") from None
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
        try:
            return cls(path, block_size, retain_blocks, lock_fd)
        except BaseException:
            os.close(lock_fd)
            raise

    @property
    def first_index(self) -> int:
        """Index of the oldest record kept (or of the first to come)."""
        return min(self._blocks) << SEQUENCE_BITS

    @property
    def next_index(self) -> int:
        """Index of the next record, unless it begins a new block."""
        return self._cycle << SEQUENCE_BITS | self._current.next_sequence

    def append(self, record: bytes | memoryview) -> int:
        """Append one record as a segment of its own; visible to tailers when this returns.

        Returns:
            The record's index.

        Raises:
            RecordTooLong, DiskFull: nothing was appended.
        """
        length = len(record)
        body = RECORD_LENGTH.size + length
        offset = self._room_for(body)
        view = self._current.block.view
        start = offset + SEGMENT_SIZE + RECORD_LENGTH.size
        RECORD_LENGTH.pack_into(view, start - RECORD_LENGTH.size, length)
        view[start : start + length] = record
        return self._publish(offset, body, 1)

    def append_batch(self, records: Sequence[bytes]) -> int:
        """Append records as one segment: after a crash all of them are there, or none.

        Returns:
            The first record's index.
        """
        if not records:
            raise ValueError("a batch has at least one record")
        body = sum(map(len, records)) + RECORD_LENGTH.size * len(records)
        offset = self._room_for(body)
        view = self._current.block.view
        start = offset + SEGMENT_SIZE
        view[start : start + body] = b"".join(
            part for record in records for part in (RECORD_LENGTH.pack(len(record)), record)
        )
        return self._publish(offset, body, len(records))

    def sync(self) -> None:
        """Everything appended is on the disk when this returns, and the checkpoint says so."""
        for block in self._unflushed:
            block.flush()
        self._unflushed.clear()
        self._current.block.flush()
        self._current.block.write_checkpoint(self._current.end, self._current.next_sequence)
        self._current.block.flush()

    def read(self, index: int) -> bytes:
        """The record at an index.

        Raises:
            NoSuchRecord: never written, or released.
        """
        mapped = self._blocks.get(index >> SEQUENCE_BITS)
        record = mapped.read(index & SEQUENCE_MASK) if mapped is not None else None
        if record is None:
            raise NoSuchRecord(f"{self.folder}: no record at index {index:#x}")
        return record

    def records(self) -> Iterator[tuple[int, bytes]]:
        """All records with their indices, from the oldest."""
        for cycle in sorted(self._blocks):
            mapped = self._blocks[cycle]
            for offset in mapped.offsets:
                segment = mapped.block.segment_at(offset)
                if segment is None:
                    continue
                for place, record in enumerate(mapped.block.records(segment)):
                    yield cycle << SEQUENCE_BITS | (segment.first_sequence + place), record

    def close(self) -> None:
        """Sync and release everything."""
        if self._lock_fd < 0:
            return
        self.sync()
        self._keeper.shutdown(wait=True)
        if self._next is not None and self._next.exception() is None:
            _release(self._next.result())
        for mapped in self._blocks.values():
            mapped.block.close()
        self._blocks.clear()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _room_for(self, body: int) -> int:
        """Where the next segment goes; opens the next block if this one is full."""
        offset = self._current.end
        needed = SEGMENT_SIZE + body
        # Behind every segment the word that says "not yet" or "next block" must fit as well.
        if aligned(offset + needed) + LENGTH.size <= self._current.block.data_end:
            return offset
        if aligned(DATA_OFFSET + needed) + LENGTH.size > self._block_size - RESERVED_SIZE:
            raise RecordTooLong(f"{body} bytes do not fit in a block of {self._block_size}: choose larger blocks")
        self._roll()
        return self._current.end

    def _roll(self) -> None:
        prepared, self._next = self._next, None
        fresh = (prepared or self._prepare()).result()
        former = self._current
        LENGTH.pack_into(former.block.view, former.end, END_MARK)
        former.block.write_checkpoint(former.end, former.next_sequence)
        self._unflushed.append(former.block)
        self._cycle += 1
        self._current = self._blocks[self._cycle] = _MappedBlock(fresh)
        while self._retain_blocks is not None and len(self._blocks) > self._retain_blocks:
            oldest = self._blocks.pop(min(self._blocks))
            if oldest.block in self._unflushed:
                self._unflushed.remove(oldest.block)
            self._keeper.submit(_release, oldest.block)

    def _prepare(self) -> Future[Block]:
        return self._keeper.submit(Block.create, self.folder, self._cycle + 1, self._block_size)

    def _publish(self, offset: int, body: int, record_count: int) -> int:
        """Seal the segment: everything else first, the length word last."""
        current = self._current
        view = current.block.view
        first_sequence = current.next_sequence
        end = aligned(offset + SEGMENT_SIZE + body)
        LENGTH.pack_into(view, end, 0)  # a torn segment may have left bytes there
        SEGMENT.pack_into(view, offset, 0, 0, first_sequence, record_count, 0)
        crc = google_crc32c.value(bytes(view[offset + 8 : offset + SEGMENT_SIZE + body]))
        LENGTH.pack_into(view, offset + 4, crc)
        LENGTH.pack_into(view, offset, body)
        current.add(offset, first_sequence, record_count, end)
        if end > self._prepare_at and self._next is None:
            self._next = self._prepare()
        return self._cycle << SEQUENCE_BITS | first_sequence

    def _drop_prepared(self) -> None:
        """A former life made the next block ahead of need and never began it."""
        while len(self._blocks) > 1:
            newest = self._blocks[max(self._blocks)]
            before = self._blocks[max(self._blocks) - 1]
            if newest.sequences or before.block.is_ended_at(before.end):
                return
            del self._blocks[max(self._blocks)]
            _release(newest.block)

    def _cut_torn_tail(self) -> None:
        """What follows the last whole segment was never acknowledged: make it unreadable for good."""
        view, end = self._current.block.view, self._current.end
        if end + LENGTH.size <= self._current.block.data_end and LENGTH.unpack_from(view, end)[0] not in (0, END_MARK):
            LENGTH.pack_into(view, end, 0)


def _release(block: Block) -> None:
    """Retention: beside the appender, because unmapping a large block takes a while."""
    block.path.unlink()
    block.close()
