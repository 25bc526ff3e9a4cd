"""The blocks of a queue: the ids in each, how many of their items are settled, and which blocks are mapped.

A queue may have thousands of blocks; only some are mapped at a time. A block whose state area changed since the last
checkpoint is marked as changed; if it must be unmapped earlier, its states are flushed first (which is never too early:
see item_state).

Callers must hold the queue's lock for states.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from uuid import UUID

from tandemfeed.journal.format.block import Block
from tandemfeed.journal.persistent_queue.blocks.state_bits import bits_of, settle

OPEN_MAX = 64  # mapped blocks; each needs a file descriptor, and a process may have only 1,024


class QueueBlock:
    """A block's figures, known without mapping it. Its items have the ids from `first_id` to before `end_id`."""

    __slots__ = ("end_id", "first_id", "ordinal", "path", "settled_count")

    def __init__(self, ordinal: int, path: Path, first_id: int, end_id: int, settled_count: int = 0) -> None:
        self.ordinal = ordinal
        self.path = path
        self.first_id = first_id
        self.end_id = end_id
        self.settled_count = settled_count

    @property
    def active_count(self) -> int:
        """Items that are pending or in flight."""
        return self.end_id - self.first_id - self.settled_count


class Catalogue:
    """The blocks of a queue, oldest first.

    Args:
        queue_id: the queue to which every block must belong.
        flush: flushes the states of a block that is unmapped; raises if that fails.
    """

    def __init__(self, queue_id: UUID, flush: Callable[[Block], None]) -> None:
        self._queue_id = queue_id
        self._flush = flush
        self.blocks: list[QueueBlock] = []
        self._mapped: OrderedDict[int, Block] = OrderedDict()
        self._changed: dict[int, Block] = {}

    def add(self, block: QueueBlock, mapped: Block | None = None) -> None:
        """Add a block."""
        insort(self.blocks, block, key=lambda each: each.ordinal)
        if mapped is not None:
            self._keep(block.ordinal, mapped)

    def containing(self, item_id: int) -> QueueBlock | None:
        """The block that contains an id; None if no block does, or none any longer."""
        place = bisect_right(self.blocks, item_id, key=lambda each: each.first_id) - 1
        if place < 0 or item_id >= self.blocks[place].end_id:
            return None
        return self.blocks[place]

    def from_id(self, item_id: int) -> Iterator[QueueBlock]:
        """The blocks with ids from this one on, oldest first."""
        place = max(bisect_right(self.blocks, item_id, key=lambda each: each.first_id) - 1, 0)
        return islice(self.blocks, place, None)

    def mapped(self, block: QueueBlock) -> Block:
        """The block, mapped."""
        found = self._mapped.get(block.ordinal)
        if found is None:
            found = Block(block.path, writable=True, journal_id=self._queue_id)
            self._keep(block.ordinal, found)
        return found

    def settle(self, block: QueueBlock, first_id: int, end_id: int, bits: int) -> int:
        """Settle the pending items in a range of ids; return how many."""
        first, end = max(first_id, block.first_id), min(end_id, block.end_id)
        if first >= end:
            return 0
        mapped = self.mapped(block)
        address = mapped.address + mapped.header.state_offset
        count = int(settle(address, first - block.first_id, end - block.first_id, bits))
        if count:
            block.settled_count += count
            # Only now: a checkpoint that takes the changed blocks before this line ends before this change.
            self._changed[block.ordinal] = mapped
        return count

    def bits(self, block: QueueBlock, item_id: int) -> int:
        """An item's two bits."""
        mapped = self.mapped(block)
        return int(bits_of(mapped.address + mapped.header.state_offset, item_id - block.first_id))

    def mark_changed(self, block: QueueBlock, mapped: Block) -> None:
        """Have a block flushed with the next checkpoint, which recovery has repaired."""
        self._changed[block.ordinal] = mapped

    def take_changed(self) -> list[Block]:
        """The blocks whose states changed since the last call; the caller must flush them."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    def remove(self, block: QueueBlock) -> Block:
        """Remove a block and return it, mapped."""
        mapped = self.mapped(block)
        self.blocks.remove(block)
        self._mapped.pop(block.ordinal, None)
        self._changed.pop(block.ordinal, None)
        return mapped

    def close(self) -> None:
        """Unmap all blocks."""
        self._mapped.clear()
        self._changed.clear()

    def _keep(self, ordinal: int, mapped: Block) -> None:
        self._mapped[ordinal] = mapped
        if len(self._mapped) > OPEN_MAX:
            other, gone = self._mapped.popitem(last=False)
            if self._changed.pop(other, None) is not None:
                self._flush(gone)
