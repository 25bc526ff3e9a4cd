"""Reads items by id: consecutive ones without a search, others through the block's sparse index. Checks every CRC."""

from __future__ import annotations

import numpy as np

from tandemfeed.journal.compiled.kernels import AT_OFFSET, AT_SEQUENCE, AT_SKIP, AT_STATUS, BROKEN, new_state
from tandemfeed.journal.compiled.reading import find_after_damage, read_ahead, seek, walk_to
from tandemfeed.journal.format.block import Block
from tandemfeed.journal.format.layout import DATA_OFFSET

READ_AHEAD = 64  # items whose places are looked up together


class ItemReader:
    """Reads items. Not thread-safe."""

    def __init__(self) -> None:
        self._block: Block | None = None
        self._state = new_state()
        self._columns = [np.empty(READ_AHEAD, np.int64) for _ in range(3)]
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._first_id = 0

    def read(self, block: Block, item_id: int, end: int, id_end: int) -> bytes | None:
        """The item's bytes; None if it is damaged.

        Args:
            end: the offset after the block's last durable segment.
            id_end: ids from here on must not be read yet.
        """
        place = item_id - self._first_id
        if block is not self._block or not 0 <= place < len(self._starts):
            if not self._look_up(block, item_id, end, id_end):
                return None
            place = 0
        return block.buffer[self._starts[place] : self._ends[place]]

    def forget(self) -> None:
        """Drop the reference to the block."""
        self._block, self._starts = None, []

    def _look_up(self, block: Block, item_id: int, end: int, id_end: int) -> bool:
        state = self._state
        is_next = block is self._block and item_id == self._first_id + len(self._starts)
        if not (is_next and self._read_ahead(block, item_id, id_end)):
            self.forget()
            if not self._go_to(block, item_id, end) or not self._read_ahead(block, item_id, id_end):
                return False
        self._block, self._first_id = block, item_id
        state[AT_SEQUENCE] = item_id + len(self._starts)
        return True

    def _read_ahead(self, block: Block, item_id: int, id_end: int) -> bool:
        state = self._state
        starts, sizes, _ = self._columns
        count = int(read_ahead(block.address, state[AT_OFFSET], state[AT_SKIP], id_end, *self._columns, state))
        if not count or state[AT_SEQUENCE] != item_id:
            return False
        self._starts = starts[:count].tolist()
        self._ends = (starts[:count] + sizes[:count]).tolist()
        return True

    def _go_to(self, block: Block, item_id: int, end: int) -> bool:
        """Go to the segment with the item: by the index, then by lengths, skipping damage."""
        state = self._state
        state[AT_OFFSET], state[AT_SKIP], state[AT_SEQUENCE] = DATA_OFFSET, 0, block.header.first_sequence
        seek(block.address, item_id, False, state)
        while not (found := walk_to(block.address, item_id, False, state)) and state[AT_STATUS] == BROKEN:
            if not find_after_damage(block.address, int(state[AT_OFFSET]), end, int(state[AT_SEQUENCE]), state):
                break
        return bool(found)
