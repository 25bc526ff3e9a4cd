"""Tracks which items are pending and in flight: hands out the oldest pending one, and settles items in their blocks.

Settled items are collected as changes, which the next group writes to the log. Pending items need no memory; only items
in flight and released items are stored one by one. Every method takes the lock for states, on which `get` also waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from heapq import heappop, heappush

from tandemfeed.journal.format.arguments import whole_number
from tandemfeed.journal.persistent_queue.blocks.catalogue import Catalogue, QueueBlock
from tandemfeed.journal.persistent_queue.blocks.log import Position
from tandemfeed.journal.persistent_queue.blocks.segments import Changes
from tandemfeed.journal.persistent_queue.blocks.state_bits import next_pending
from tandemfeed.journal.persistent_queue.errors import NotInFlight, TooManyInFlight
from tandemfeed.journal.persistent_queue.items.item_reader import ItemReader
from tandemfeed.journal.persistent_queue.items.item_state import (
    CANCEL_ANSWERS,
    CANCELLED_BITS,
    DELIVERED_BITS,
    LOST_BITS,
    STORED,
    CancelResult,
    ItemState,
    Recycled,
    Unknown,
)

LOG = logging.getLogger("tandemfeed.journal")


class ItemRegistry:
    """The items of one queue.

    Args:
        states: the queue's lock for states.
        in_flight_max: the maximum number of items in flight.
    """

    def __init__(self, catalogue: Catalogue, states: threading.Lock, in_flight_max: int) -> None:
        self._catalogue = catalogue
        self._states = states
        self._in_flight_max = in_flight_max
        self._arrived = threading.Condition(states)
        self._waiting_count = 0
        self._closed: BaseException | None = None
        self._in_flight: set[int] = set()
        self._released: list[int] = []  # a heap
        self._cursor = 0  # pending items before it are in `_released`
        self._reader = ItemReader()
        self._changes = Changes()
        self._durable: Position | None = None
        self.durable_id = 0  # items before it are on the disk
        self.delivered_count = self.cancelled_count = self.lost_count = 0

    def advance(self, durable: Position) -> None:
        """Items before this position are on the disk."""
        with self._states:
            self._durable, self.durable_id = durable, durable.next_id
            if self._waiting_count:
                self._arrived.notify_all()

    def get(self, timeout_s: float | None) -> tuple[int, bytes] | None:
        """Hand out the oldest pending item; wait up to `timeout_s` for one."""
        with self._states:
            entry = self._take()
            if entry is not None or not timeout_s:
                return entry
            deadline = time.monotonic() + timeout_s
            self._waiting_count += 1
            try:
                while entry is None and (left := deadline - time.monotonic()) > 0:
                    self._arrived.wait(left)
                    if self._closed is not None:
                        raise self._closed
                    entry = self._take()
            finally:
                self._waiting_count -= 1
            return entry

    def deliver(self, item_ids: Iterable[int]) -> None:
        """Settle items in flight as delivered: all, or none if one is not in flight."""
        with self._states:
            ids = sorted(whole_number(item_id, "an item's id") for item_id in item_ids)
            self._require_in_flight(ids)
            self._in_flight.difference_update(ids)
            start = 0
            for place in range(1, len(ids) + 1):
                if place == len(ids) or ids[place] != ids[place - 1] + 1:
                    self.delivered_count += self._settle(ids[start], ids[place - 1] + 1, DELIVERED_BITS)
                    start = place

    def release(self, item_id: int) -> None:
        """Make an item in flight pending again."""
        with self._states:
            self._require_in_flight([whole_number(item_id, "an item's id")])
            self._in_flight.remove(item_id)
            heappush(self._released, item_id)
            if self._waiting_count:
                self._arrived.notify_all()

    def cancel(self, item_id: int) -> CancelResult:
        """Cancel an item if it is pending; otherwise return its state."""
        with self._states:
            if not 0 <= whole_number(item_id, "an item's id") < self.durable_id:
                return Unknown(item_id)
            block = self._catalogue.containing(item_id)
            if block is None:
                return Recycled(item_id)
            state = ItemState.IN_FLIGHT if item_id in self._in_flight else STORED[self._catalogue.bits(block, item_id)]
            if state is ItemState.PENDING:
                self.cancelled_count += self._settle(item_id, item_id + 1, CANCELLED_BITS)
            return CANCEL_ANSWERS[state](item_id)

    def cancel_all(self) -> int:
        """Cancel all pending items; return how many."""
        with self._states:
            count, start = 0, 0
            for stop in (*sorted(self._in_flight), self.durable_id):
                count += self._settle(start, stop, CANCELLED_BITS)
                start = stop + 1
            self._released.clear()
            self._cursor = self.durable_id
            self.cancelled_count += count
            return count

    def take_changes(self) -> Changes:
        """The changes since the last call."""
        with self._states:
            changes, self._changes = self._changes, Changes()
            return changes

    @property
    def change_count(self) -> int:
        """Number of changes that no group has taken."""
        return len(self._changes)

    def counts(self) -> tuple[int, int, list[tuple[int, int]]]:
        """(active, in flight, (ordinal, active) of each block)."""
        with self._states:
            blocks = [(block.ordinal, block.active_count) for block in self._catalogue.blocks]
            unflushed = max((block.end_id for block in self._catalogue.blocks), default=0) - self.durable_id
            return sum(count for _, count in blocks) - unflushed, len(self._in_flight), blocks

    def idle_blocks(self, before_ordinal: int) -> list[QueueBlock]:
        """The blocks before this one without active items; their items are not read again."""
        with self._states:
            idle = [each for each in self._catalogue.blocks if each.ordinal < before_ordinal and not each.active_count]
            if idle:
                self._reader.forget()
            return idle

    def close(self, reason: BaseException) -> None:
        """Raise this error in all threads that wait for an item."""
        with self._states:
            self._closed = reason
            self._reader.forget()
            self._arrived.notify_all()

    def _require_in_flight(self, ids: list[int]) -> None:
        for item_id in ids:
            if item_id not in self._in_flight:
                raise NotInFlight(f"item {item_id} is not in flight: `get` did not return it, or it is settled")
        if len(set(ids)) != len(ids):
            raise NotInFlight(f"the ids contain an item twice: {ids[:10]}")

    def _settle(self, first_id: int, end_id: int, bits: int) -> int:
        total = 0
        for block in self._catalogue.from_id(first_id):
            if block.first_id >= end_id:
                break
            if block.active_count:
                first, end = max(first_id, block.first_id), min(end_id, block.end_id)
                count = self._catalogue.settle(block, first, end, bits)
                if count:  # only after the block is marked as changed: see Catalogue.settle
                    self._changes.add(first, end, bits)
                    total += count
        return total

    def _take(self) -> tuple[int, bytes] | None:
        while (found := self._next()) is not None:
            block, item_id = found
            mapped, durable = self._catalogue.mapped(block), self._durable
            assert durable is not None
            end = durable.end if block.ordinal == durable.block.ordinal else mapped.header.data_end
            item = self._reader.read(mapped, item_id, end, self.durable_id)
            if item is not None:
                self._in_flight.add(item_id)
                return item_id, item
            self.lost_count += self._settle(item_id, item_id + 1, LOST_BITS)
            LOG.warning("%s: item %d is damaged and will not be delivered", block.path, item_id)
        return None

    def _next(self) -> tuple[QueueBlock, int] | None:
        """The oldest pending item; moves the cursor past it."""
        if len(self._in_flight) >= self._in_flight_max:
            raise TooManyInFlight(f"{len(self._in_flight)} items are in flight, the maximum: call done or release")
        while self._released:
            item_id = heappop(self._released)
            block = self._catalogue.containing(item_id)
            if block is not None and not self._catalogue.bits(block, item_id):
                return block, item_id
        for block in self._catalogue.from_id(self._cursor):
            first, end = max(self._cursor, block.first_id), min(block.end_id, self.durable_id)
            if first < end and block.active_count:
                mapped = self._catalogue.mapped(block)
                states, base = mapped.address + mapped.header.state_offset, block.first_id
                found = base + int(next_pending(states, first - base, end - base))
                if found < end:
                    self._cursor = found + 1
                    return block, found
        self._cursor = max(self._cursor, self.durable_id)
        return None
