"""Writes a queue's blocks: appends items and notes after the last segment of the current block.

Only the leader of a group calls it (group_commit.py). It writes segments with system calls, not through the map: after
a flush the next store through the map causes a page fault, which measurably costs a third of the throughput. To roll,
the next block gets its name, then the old one its end mark with a link. Invariant: `durable` never goes back, and
everything before it is on the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tandemfeed.journal.compiled.kernels import add_index_entry
from tandemfeed.journal.errors import DiskFull, RecordTooLong
from tandemfeed.journal.format.block import Block, begin
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import (
    BLOCK_SIZE_MAX,
    DATA_OFFSET,
    END,
    END_MARK,
    LAST_AT,
    LINK,
    LINK_SIZE,
    NEXT_SEQUENCE,
    ORDINAL,
    PART_BITS,
    SEGMENT_SIZE,
    aligned,
    block_size_for,
)
from tandemfeed.journal.persistent_queue.blocks.catalogue import Catalogue, QueueBlock
from tandemfeed.journal.persistent_queue.blocks.segments import Changes, items_body, segment, state_size_for
from tandemfeed.journal.persistent_queue.blocks.spares import Spares
from tandemfeed.journal.persistent_queue.durability import QueueDurability
from tandemfeed.journal.persistent_queue.errors import QueueFull
from tandemfeed.runtime.durable import sync_folder

SEQUENCE_BITS = 40  # of an index, if a Tailer reads the block: a cycle has room for 10 ** 12 items


class Position(NamedTuple):
    """The end of the log."""

    block: Block
    end: int
    next_id: int
    last_at_ns: int


class QueueLog:
    """The log of one queue.

    Args:
        states: the queue's lock for states.
        durability: learns what is flushed, and what is about to be.
        blocks_max: None for no limit.
        reclaim: recycles blocks without active items, if there are any.
        clock_ns: wall-clock time.
    """

    def __init__(
        self,
        control: Control,
        catalogue: Catalogue,
        states: threading.Lock,
        spares: Spares,
        durability: QueueDurability,
        *,
        blocks_max: int | None,
        reclaim: Callable[[], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._control = control
        self._settings = control.settings
        self._catalogue = catalogue
        self._states = states
        self._spares = spares
        self._durability = durability
        self._blocks_max = blocks_max
        self._reclaim = reclaim
        self._clock_ns = clock_ns
        self._unflushed: list[Block] = []  # blocks before the current one
        self._unflushed_folders: set[Path] = set()

    def start(self, position: Position | None, *, is_ended: bool = False, next_ordinal: int = 0) -> None:
        """Continue at the end that recovery found.

        Args:
            position: None if there is no block yet.
            is_ended: the block has its end mark already.
            next_ordinal: the first block's ordinal, if there is no block.
        """
        if position is None:
            self._begin(self._next_block(next_ordinal, 0), next_ordinal, 0, 0)
        else:
            self._go_to(position, self._catalogue.blocks[-1])
            if is_ended:
                ordinal = position.block.ordinal + 1
                self._begin(self._next_block(ordinal, 0), ordinal, position.next_id, position.last_at_ns)
        self.flush()

    @property
    def position(self) -> Position:
        """The end of everything written."""
        return self._position

    def append_items(self, items: Sequence[bytes]) -> int:
        """Write items; return the first item's id.

        Raises:
            DiskFull, QueueFull, RecordTooLong: nothing was written.
        """
        first_id = self._position.next_id
        body, flags, record_size = items_body(items)
        self._append(body, flags, record_size, len(items))
        return first_id

    def append_changes(self, changes: Changes) -> bool:
        """Write notes of state changes; False if the disk or the queue is too full for all of them."""
        try:
            for body in changes.bodies():
                self._append(body, 0, 0, 0)
        except (DiskFull, QueueFull):
            return False
        return True

    def flush(self) -> None:
        """Flush everything written to the disk.

        Raises:
            FlushFailed: do not call it again; the next flush would succeed although the data is lost.
        """
        position, blocks, folders = self._position, self._unflushed, self._unflushed_folders
        self._durability.begin_log(position.block.ordinal, position.end)
        for block in blocks:
            block.flush()
        position.block.flush()
        for folder in folders:
            sync_folder(folder)
        if blocks or folders:
            self._unflushed, self._unflushed_folders = [], set()
        self._durability.end_log(position.block.ordinal, position.end)
        self.durable = position

    @property
    def is_half_full(self) -> bool:
        """Whether the next block should be made."""
        return self._position.end * 2 > self._position.block.header.data_end

    def _append(self, body: bytes, flags: int, record_size: int, count: int) -> None:
        room = aligned(SEGMENT_SIZE + len(body)) + LINK_SIZE
        if self._position.end + room > self._position.block.header.data_end:
            self._roll(len(body))
        block, offset, sequence, last_at_ns = self._position
        at_ns = max(self._clock_ns(), last_at_ns)
        block.write(offset, segment(block.header.salt, sequence, at_ns, body, flags, record_size))
        add_index_entry(block.address, offset, sequence, at_ns)
        self._go_to(Position(block, aligned(offset + SEGMENT_SIZE + len(body)), sequence + count, at_ns), self._current)

    def set_words(self) -> None:
        """Store the log's end in the control file, for inspection only."""
        control, (block, end, next_id, last_at_ns) = self._control, self._position
        for place, value in ((END, end), (NEXT_SEQUENCE, next_id), (LAST_AT, last_at_ns), (ORDINAL, block.ordinal)):
            control.set_word(place, value)

    def _go_to(self, position: Position, current: QueueBlock) -> None:
        self._position, self._current = position, current
        current.end_id = position.next_id

    def _roll(self, body_size: int) -> None:
        former, end, next_id, at_ns = self._position
        ordinal = former.ordinal + 1
        block = self._next_block(ordinal, body_size)
        self._begin(block, ordinal, next_id, at_ns)
        end_block(former, end, next_id, at_ns, ordinal)
        self._unflushed.append(former)

    def _next_block(self, ordinal: int, body_size: int) -> Block:
        """A large enough spare; reclaims blocks first if the queue or the disk is full.

        Raises:
            QueueFull, DiskFull, RecordTooLong: nothing was changed.
        """
        size, limit = self._settings.block_size, self._blocks_max
        if block_size_for(body_size, self._settings.state_size) > size:
            size = block_size_for(body_size, state_size_for(2 * body_size))
        if size > BLOCK_SIZE_MAX:
            raise RecordTooLong(f"the items have {body_size} bytes; a block has at most {BLOCK_SIZE_MAX}: put fewer")
        is_usual = size == self._settings.block_size
        if limit is not None and len(self._catalogue.blocks) >= limit:
            self._reclaim()
            if len(self._catalogue.blocks) >= limit:
                raise QueueFull(f"{self._control.path.parent}: all {limit} blocks have active items: settle some")
        if is_usual and (spare := self._spares.take_ready(ordinal)):
            return spare
        try:
            return self._spares.make(ordinal, size)
        except DiskFull:
            self._reclaim()
            if is_usual and (spare := self._spares.take_ready(ordinal)):
                return spare
            raise

    def _begin(self, spare: Block, ordinal: int, first_id: int, last_at_ns: int) -> None:
        size = spare.header.block_size
        folder = spare.path.parent
        is_usual = size == self._settings.block_size
        block = begin(
            spare,
            folder,
            self._control.journal_id,
            cycle=ordinal >> PART_BITS,
            part=ordinal & ((1 << PART_BITS) - 1),
            first_sequence=first_id,
            sequence_bits=SEQUENCE_BITS,
            flags=0,
            state_size=self._settings.state_size if is_usual else state_size_for(size),
        )
        self._unflushed_folders.add(folder)
        current = QueueBlock(ordinal, block.path, first_id, first_id)
        with self._states:
            self._catalogue.add(current, block)
        self._go_to(Position(block, DATA_OFFSET, first_id, last_at_ns), current)
        self.set_words()


def end_block(block: Block, end: int, next_id: int, last_at_ns: int, next_ordinal: int) -> None:
    """Mark a block's end, with a link to the next. No checkpoint: in a queue that means that all states are flushed."""
    assert end + LINK_SIZE <= block.header.data_end
    block.write_tail(end, next_id, last_at_ns)
    block.write(end, LINK.pack(END_MARK, 0, next_ordinal))
