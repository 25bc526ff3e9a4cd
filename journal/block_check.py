"""Checks a block file for consistency: segments, sparse index, checkpoints, tail. Yields findings; changes nothing.

Can run beside an appender: words and checkpoints are read before the walk over the segments, so they are never ahead of
it; the sparse index is read after it, so it is never older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tandemfeed.journal.block import Block
from tandemfeed.journal.findings import (
    BytesDamaged,
    CheckpointWrong,
    Finding,
    IndexEntryWrong,
    LengthsDiffer,
    SequenceJumps,
    TailWrong,
    TimeGoesBack,
)
from tandemfeed.journal.inspection import DamagedStretch, EndMark, OpenEnd, SegmentRows, stretches
from tandemfeed.journal.layout import (
    CHECKPOINT,
    CHECKPOINT_OFFSETS,
    COUNT_MASK,
    CRC,
    DATA_OFFSET,
    INDEX_ENTRY_SIZE,
    INDEX_SIZE,
    TAIL_SIZE,
    Checkpoint,
)
from tandemfeed.journal.segment_walk import APPENDED_AT, FIRST_SEQUENCE, FLAGS, IS_CONSISTENT, OFFSET

READS_MAX = 1_000  # reads of a checkpoint that an appender may be writing: it writes one per sync


@dataclass(slots=True)
class BlockCheck:
    """A check of one block.

    Args:
        block: to check.
        index_of: gives the index of a sequence.
        written_end: data certainly exist up to this offset.
        written_sequence: the sequence after the last record, if known from the control file.
        last_at_ns: time of the last record of the previous block.
        on_rows: called with each stretch of whole segments; may yield more findings.

    Attributes:
        end: where the walk ended.
        due: the sequence expected after the last segment.
    """

    block: Block
    index_of: Callable[[int], int]
    written_end: int
    written_sequence: int | None = None
    last_at_ns: int = 0
    on_rows: Callable[[Block, SegmentRows], Iterator[Finding]] = lambda _block, _rows: iter(())
    end: EndMark | OpenEnd | DamagedStretch | None = None
    due: int = 0
    segment_count: int = 0
    record_count: int = 0
    _offsets: list[NDArray[np.int64]] = field(default_factory=list)
    _firsts: list[NDArray[np.int64]] = field(default_factory=list)
    _times: list[NDArray[np.int64]] = field(default_factory=list)
    _damaged: list[tuple[int, int]] = field(default_factory=list)

    def findings(self) -> Iterator[Finding]:
        """All findings, in the order of the file, then those of its index, checkpoints and tail."""
        checkpoints = list(self._checkpoints())
        self.due = self.block.header.first_sequence
        for stretch in stretches(self.block, self.written_end):
            if isinstance(stretch, SegmentRows):
                yield from self._rows(stretch)
                yield from self.on_rows(self.block, stretch)
            else:
                self.end = stretch
                if isinstance(stretch, DamagedStretch):
                    yield self._damage(stretch)
        yield from self._index()
        for offset, checkpoint in checkpoints:
            if (reason := self._checkpoint_reason(checkpoint)) is not None:
                yield CheckpointWrong(self.block.path, offset, None, reason)
        if isinstance(self.end, EndMark) and (reason := self._tail_reason(self.end)) is not None:
            yield TailWrong(self.block.path, self.block.header.block_size - TAIL_SIZE, None, reason)

    def _rows(self, rows: SegmentRows) -> Iterator[Finding]:
        columns = rows.columns
        offsets, firsts, times = columns[OFFSET], columns[FIRST_SEQUENCE], columns[APPENDED_AT]
        ends = firsts + (columns[FLAGS] & COUNT_MASK)
        due = np.concatenate([[self.due], ends[:-1]])
        before = np.concatenate([[self.last_at_ns], times[:-1]])
        is_wrong = (firsts != due) | (times < before) | (columns[IS_CONSISTENT] == 0)
        for place in np.flatnonzero(is_wrong).tolist():
            where = self.block.path, int(offsets[place]), self.index_of(int(firsts[place]))
            if firsts[place] != due[place]:
                yield SequenceJumps(*where, self.index_of(int(due[place])))
            if times[place] < before[place]:
                yield TimeGoesBack(*where, int(times[place]), int(before[place]))
            if not columns[IS_CONSISTENT, place]:
                yield LengthsDiffer(*where)
        self.due, self.last_at_ns = int(ends[-1]), int(times[-1])
        self.segment_count += len(offsets)
        self.record_count += int((ends - firsts).sum())
        self._offsets.append(offsets)
        self._firsts.append(firsts)
        self._times.append(times)

    def _damage(self, stretch: DamagedStretch) -> Finding:
        block, lost = self.block, None
        if stretch.next_sequence is not None:
            lost = stretch.next_sequence - stretch.due_sequence
            self.due = stretch.next_sequence
        else:
            tail = block.tail()
            due = tail[2] if tail is not None else self.written_sequence
            if due is not None and due >= self.due:
                lost, self.due = due - self.due, due
        self._damaged.append((stretch.offset, stretch.end or block.header.data_end))
        return BytesDamaged(block.path, stretch.offset, self.index_of(stretch.due_sequence), stretch.end, lost)

    def _walked(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        none = [np.empty(0, np.int64)]
        offsets, firsts, times = (np.concatenate(each or none) for each in (self._offsets, self._firsts, self._times))
        return offsets, firsts, times

    def _is_damaged(self, offset: int) -> bool:
        return any(begin <= offset < end for begin, end in self._damaged)

    def _index(self) -> Iterator[Finding]:
        header = self.block.header
        found = self.block.array[header.index_offset : header.index_offset + INDEX_SIZE].view(np.int64).reshape(-1, 3)
        offsets, firsts, times = self._walked()
        entries, places = np.unique((offsets - DATA_OFFSET) // header.index_stride, return_index=True)
        expected = np.zeros_like(found)
        expected[entries] = np.stack([firsts[places], times[places], offsets[places]], axis=1)
        assert self.end is not None
        for entry in np.flatnonzero((found != expected).any(axis=1)).tolist():
            sequence, _, offset = found[entry].tolist()
            is_unwalked = not isinstance(self.end, EndMark) and offset >= self.end.offset
            if self._is_damaged(offset) or (is_unwalked and not expected[entry, 2]):
                continue
            place = header.index_offset + entry * INDEX_ENTRY_SIZE
            due_sequence, _, due_offset = expected[entry].tolist()
            due = f"the segment at offset {due_offset}" if due_offset else "nothing"
            reason = (
                f"has sequence {sequence}, offset {offset}; expected {due}" if offset else f"is empty; expected {due}"
            )
            yield IndexEntryWrong(
                self.block.path, place, self.index_of(due_sequence) if due_offset else None, entry, reason
            )

    def _checkpoints(self) -> Iterator[tuple[int, Checkpoint | None]]:
        """The checkpoints that were written; None for a damaged one."""
        view = self.block.view
        for offset in CHECKPOINT_OFFSETS:
            for _ in range(READS_MAX):
                data = bytes(view[offset : offset + CHECKPOINT.size + CRC.size])
                fields = data[: CHECKPOINT.size]
                if not any(data):
                    break
                if data[CHECKPOINT.size :] == CRC.pack(google_crc32c.value(fields)):
                    yield offset, Checkpoint(*CHECKPOINT.unpack(fields))
                    break
            else:
                yield offset, None

    def _checkpoint_reason(self, checkpoint: Checkpoint | None) -> str | None:
        if checkpoint is None:
            return "its CRC does not match"
        assert self.end is not None
        if self._is_damaged(checkpoint.end):
            return None
        offsets, firsts, _ = self._walked()
        if checkpoint.end == self.end.offset:
            due = self.due
        else:
            place = int(np.searchsorted(offsets, checkpoint.end))
            if place == len(offsets) or offsets[place] != checkpoint.end:
                return f"ends at offset {checkpoint.end}, where no segment begins"
            due = int(firsts[place])
        if checkpoint.next_sequence != due:
            return f"the next sequence at offset {checkpoint.end} is {checkpoint.next_sequence}; expected {due}"
        return None

    def _tail_reason(self, mark: EndMark) -> str | None:
        tail = self.block.tail()
        if tail is None:
            return "missing, or its CRC does not match"
        end, count, next_sequence, last_at_ns = tail
        if end != mark.offset:
            return f"the data end at offset {end}; the end mark is at {mark.offset}"
        if next_sequence != self.due or count != next_sequence - self.block.header.first_sequence:
            return f"has {count} records and next sequence {next_sequence}; expected next sequence {self.due}"
        if self.segment_count and not self._damaged and last_at_ns != self.last_at_ns:
            return f"the last record is from {last_at_ns} ns; expected {self.last_at_ns} ns"
        return None
