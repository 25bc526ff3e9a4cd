"""A read-only reader of a journal, in any process: sees records in order, follows across blocks, changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from journal.block import DATA_OFFSET, Block, block_path, cycles_in
from journal.errors import NoSuchRecord
from journal.store import SEQUENCE_BITS

WAIT_MIN_S = 0.000_2
WAIT_MAX_S = 0.005


class Tailer:
    """A place in a journal. Not for several threads at once.

    Args:
        path: the journal's folder; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path
        self._block: Block | None = None
        self._cycle = 0
        self._offset = DATA_OFFSET
        self._next_index = 0
        self._pending: list[tuple[int, bytes]] = []  # of the segment being read, in reverse

    @property
    def position(self) -> int | None:
        """Index of the next record to read; None before the first read."""
        if self._pending:
            return self._pending[-1][0]
        return None if self._block is None else self._next_index

    def to_start(self) -> None:
        """Go to the oldest record."""
        self._leave()
        cycles = cycles_in(self.folder) if self.folder.is_dir() else []
        if cycles:
            self._enter(cycles[0])

    def to_end(self) -> None:
        """Go behind the newest record."""
        self._leave()
        cycles = cycles_in(self.folder) if self.folder.is_dir() else []
        if cycles:
            # The newest file may be a block made ahead of need; the one before it leads there when it is begun.
            self._enter(cycles[-2] if len(cycles) > 1 else cycles[-1])
            while self.read() is not None:
                pass

    def to_index(self, index: int) -> None:
        """Go to a record.

        Raises:
            NoSuchRecord: the index is not in the journal (one past the end is fine).
        """
        self._leave()
        if not block_path(self.folder, index >> SEQUENCE_BITS).exists():
            raise NoSuchRecord(f"{self.folder}: no block for index {index:#x}")
        self._enter(index >> SEQUENCE_BITS)
        while self._next_index < index:
            if not self._pending and not self._load():
                raise NoSuchRecord(f"{self.folder}: index {index:#x} is not written yet")
            self._next_index = self._pending.pop()[0] + 1

    def read(self) -> tuple[int, bytes] | None:
        """The next record with its index, or None if there is none yet."""
        if not self._pending and not self._load():
            return None
        index, record = self._pending.pop()
        self._next_index = index + 1
        return index, record

    def read_many(self, count_max: int) -> list[tuple[int, bytes]]:
        """Up to `count_max` records."""
        found: list[tuple[int, bytes]] = []
        while len(found) < count_max and (entry := self.read()) is not None:
            found.append(entry)
        return found

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is a record to read; False after the time-out.

        Looks at the mapped length word with growing pauses (0.2 to 5 ms): no event crosses processes for a plain file
        mapping in the standard library, and a look costs a memory read.
        """
        deadline = time.monotonic() + timeout_s
        pause = WAIT_MIN_S
        while not self._pending and not self._load():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 2, WAIT_MAX_S)
        return True

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """What is there now."""
        while (entry := self.read()) is not None:
            yield entry

    def close(self) -> None:
        """Unmap."""
        self._leave()

    def _load(self) -> bool:
        """Load the next segment, moving to the next block where one ends; False if there is none yet."""
        if self._block is None:
            self.to_start()
        while self._block is not None:
            segment = self._block.segment_at(self._offset)
            if segment is not None:
                base = self._cycle << SEQUENCE_BITS | segment.first_sequence
                records = self._block.records(segment)
                self._pending = [(base + place, record) for place, record in enumerate(records)][::-1]
                self._offset = segment.end
                return True
            if not self._block.is_ended_at(self._offset) or not block_path(self.folder, self._cycle + 1).exists():
                return False
            self._enter(self._cycle + 1)
        return False

    def _enter(self, cycle: int) -> None:
        self._leave()
        self._block = Block(block_path(self.folder, cycle), writable=False)
        self._cycle = cycle
        self._offset = DATA_OFFSET
        self._next_index = cycle << SEQUENCE_BITS

    def _leave(self) -> None:
        if self._block is not None:
            self._block.close()
        self._block = None
        self._pending = []
