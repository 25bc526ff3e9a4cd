"""A reader of a journal, in any process: forward, backward, from the start, the end, an index or a time. Read-only.

Every tailer sees the same records in the same order. Records are returned only if their segment's CRC matches. Damage
is skipped, counted and logged; it never stops a tailer. A named tailer continues at its stored position, which is
stored atomically, and only when its user commits it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from tandemfeed.journal.compiled.compile_report import journal_compilation_reported
from tandemfeed.journal.compiled.kernels import (
    AT_COUNT,
    AT_LINK,
    AT_OFFSET,
    AT_SEQUENCE,
    AT_SIZE,
    AT_SKIP,
    AT_STATUS,
    ENDED,
    SEALED,
    WAIT,
    new_state,
)
from tandemfeed.journal.compiled.reading import find_after_damage, load_reading, read_ahead, read_rows
from tandemfeed.journal.errors import NoSuchRecord
from tandemfeed.journal.format.access import PRIVATE, Access
from tandemfeed.journal.format.arguments import whole_number
from tandemfeed.journal.format.block import Block
from tandemfeed.journal.format.layout import CONTROL_NAME, DATA_OFFSET, RELEASED
from tandemfeed.journal.format.named_position import NamedPosition, tailer_path
from tandemfeed.journal.read.backward import READ_BACK, records_before
from tandemfeed.journal.read.batch import Batch, Rows
from tandemfeed.journal.read.continuity import Missing
from tandemfeed.journal.read.library import UNLIMITED, Lender, Library

LOG = logging.getLogger("tandemfeed.journal")
READ_AHEAD = 64  # records whose places are looked up together
ROWS_SEGMENTS_MAX = 4_096  # segments in one batch of rows
WAIT_MIN_S = 0.000_2
WAIT_MAX_S = 0.005


class Tailer:
    """A reader of a journal and its position. Not thread-safe.

    Attributes:
        lost_count: records that were not read because they were damaged, or because their file is missing. A missing
            file counts with as many records as are known to be missing, at least with one. Counted when the reader
            passes the place; so 0 after reading everything means that it was everything.

    Args:
        path: the journal's folder; it need not exist yet.
        name: continue at the stored position of the tailer of this name, if there is one.
        key: of an encrypted journal.
        lend: gives blocks that this process has already mapped; `Journal.tailer` passes the appender's.

    Raises:
        ValueError: the name has characters other than letters, digits, dot, hyphen, underscore.
        JournalLocked: another tailer has this name.
        WrongKey, ForeignFile, NewerFormat, BlockCorrupt: now, or later when the journal is created.
    """

    def __init__(
        self, path: Path | str, *, name: str | None = None, key: bytes | None = None, lend: Lender = None
    ) -> None:
        self.folder = path = Path(path)
        self.lost_count = 0
        self._missed_after = -1  # ordinal of the last block if what follows it is missing
        self._library = Library(path, key, lend)
        self._block: Block | None = None
        self._position: int | None = None
        with journal_compilation_reported():
            load_reading()
        self._state = new_state()
        self._columns = _columns(READ_AHEAD)
        self._entries: Iterator[tuple[int, int, int]] = iter(())
        self._buffer: Any = b""
        self._is_located = False  # AT_OFFSET and AT_SKIP correspond to the position
        self._backward: list[tuple[int, bytes]] = []
        self._named = None if name is None else self._open_name(name)

    @property
    def position(self) -> int | None:
        """Index of the next record to read; None before the journal has a block."""
        return self._position

    def to_start(self) -> Self:
        """Go to the oldest record."""
        self._reenter(self._library.first())
        return self

    def to_end(self) -> Self:
        """Go to the end, after the newest record."""
        newest = self._library.newest()
        if self._reenter(newest) and newest is not None:
            self._library.walk_to_end(newest, self._state)
            self._settle()
        return self

    def to_index(self, index: int) -> Self:
        """Go to a record.

        Raises:
            NoSuchRecord: the index is not in the journal. (The index after the last record is allowed.)
        """
        index = whole_number(index, "index")
        block = self._library.containing(index)
        if not self._reenter(block) or block is None:
            raise NoSuchRecord(f"{self.folder}: no block has index {index:#018x}; it is not written, or was released")
        self._library.go_to(block, self._library.sequence_of(index), self._state)
        self._settle()
        if self._position != index and self._library.may_contain(block, index):
            self._read_on_to(block, index)
        if self._position != index:
            raise NoSuchRecord(f"{self.folder}: index {index:#018x} is not written, or was damaged")
        return self

    def to_time(self, at_ns: int) -> Self:
        """Go to the first record appended at or after a time (nanoseconds since 1970), by binary search."""
        at_ns = whole_number(at_ns, "at_ns, the nanoseconds since 1970,")
        block = self._library.at_time(at_ns)
        if self._reenter(block) and block is not None:
            self._library.go_to(block, at_ns, self._state, by_time=True)
            self._settle()
        return self

    def read(self) -> tuple[int, bytes] | None:
        """The next record with its index, or None if there is none yet."""
        for index, start, end in self._entries:
            self._position = index + 1
            return index, self._buffer[start:end]
        return self.read() if self._fill() else None

    def read_back(self) -> tuple[int, bytes] | None:
        """The record before the position, with its index; moves the position to it. None at the start."""
        if self._is_located:
            self._drop_ahead()
            self._backward = []
        if not self._backward:
            self._backward, lost = records_before(self._library, self._position, self._read_from)
            self.lost_count += lost
        if not self._backward:
            return None
        entry = self._backward.pop()
        self._position = entry[0]
        self._is_located = False
        return entry

    def read_at(self, index: int) -> bytes:
        """The record at an index; moves the position after it.

        Raises:
            NoSuchRecord: the journal has no record there, or has released it.
        """
        if self._position != index:
            self.to_index(index)
        entry = self.read()
        if entry is None or entry[0] != index:
            raise NoSuchRecord(f"{self.folder}: no record at index {index:#018x}")
        return entry[1]

    def read_many(self, count_max: int) -> list[tuple[int, bytes]]:
        """Up to `count_max` records."""
        return list(islice(self, count_max))

    def read_batch(self, count_max: int, *, mixed: bool = False) -> Batch | None:
        """Up to `count_max` consecutive records of one block, without copying; None if there is none yet.

        Args:
            mixed: expect records of many sizes. Otherwise a batch of records of one size ends where the size changes.
        """
        if whole_number(count_max, "count_max") < 1:
            raise ValueError(f"count_max is {count_max}; it must be at least 1")
        self._drop_ahead()
        if not mixed and (batch := self._read_rows(count_max)) is not None:
            return batch
        columns = _columns(count_max)
        count = self._look(columns)
        if not count:
            return None
        assert self._position is not None
        first, self._position = self._position, self._position + count
        starts, sizes, times = (each[:count] for each in columns)
        return Batch(first, self._array, starts, sizes, times)

    def count_between(self, first_index: int, end_index: int) -> int:
        """The number of records from one index to before another, over all cycles between.

        Raises:
            ValueError: `end_index` is before `first_index`.
        """
        if end_index < first_index:
            raise ValueError(f"{end_index:#018x} is before {first_index:#018x}")
        return self._library.count_between(first_index, end_index)

    def wait(self, timeout_s: float, until: Callable[[], bool] | None = None) -> bool:
        """Wait until there is a record to read; False after the time-out, or when `until` returns True.

        Polls with growing pauses: mapped files signal no events to other processes, and a poll is only a memory read.
        """
        deadline, pause = time.monotonic() + timeout_s, WAIT_MIN_S
        while not self.is_ready():
            left = deadline - time.monotonic()
            if left <= 0 or (until is not None and until()):
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 2, WAIT_MAX_S)
        return True

    def is_ready(self) -> bool:
        """True if `read` would return a record."""
        if (entry := next(self._entries, None)) is not None:
            self._entries = iter([entry, *self._entries])
        return entry is not None or self._fill()

    def commit(self) -> None:
        """Store the position under the tailer's name: all records before it are handled.

        Raises:
            ValueError: the tailer has no name.
        """
        if self._named is None:
            raise ValueError("only a tailer with a name can store its position; give Tailer a name")
        if self._position is not None:
            self._named.store(self._position)

    @contextmanager
    def handling(self) -> Iterator[tuple[int, bytes] | None]:
        """Read a record in a `with`; the stored position advances only if the block raises no exception."""
        entry = self.read()
        try:
            yield entry
        except BaseException:
            if entry is not None:
                self.to_index(entry[0])
            raise
        if entry is not None:
            self.commit()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """The records up to the present end."""
        while (entry := self.read()) is not None:
            yield entry

    def close(self) -> None:
        """Close. Blocks are unmapped once no batch refers to them."""
        self._forget()
        self._library.close()
        if self._named is not None:
            self._named.close()
            self._named = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _open_name(self, name: str) -> NamedPosition:
        path = tailer_path(self.folder, name)
        has_journal = (self.folder / CONTROL_NAME).exists()
        access = Access.of_journal(self.folder) if has_journal else PRIVATE
        named = NamedPosition(path, exclusive=True, access=access)
        stored = named.load()
        if stored is not None:
            try:
                self.to_index(stored)
            except NoSuchRecord:
                self._position = stored
                self._relocate()
                LOG.warning(
                    "%s: tailer %s: there is no record at %#018x; continuing at %s",
                    *(self.folder, name, stored, self._position),
                )
        return named

    def _fill(self) -> bool:
        """Look up the next records; False if there is none yet."""
        count = self._look(self._columns)
        if not count or self._position is None:
            return False
        starts, sizes, _ = self._columns
        begin = starts[:count]
        self._entries = zip(
            range(self._position, self._position + count),
            begin.tolist(),
            (begin + sizes[:count]).tolist(),
            strict=True,
        )
        return True

    def _look(self, columns: Any) -> int:
        """Find the next records, across block ends, skipping damage; set the position to the first one."""
        if self._position is None:
            self.to_start()
        elif not self._is_located:
            self._relocate()
        state, library, was_passed = self._state, self._library, False
        while (block := self._block) is not None:
            limit = library.sequence_limit(block)
            due = int(state[AT_SEQUENCE])
            count = int(read_ahead(block.address, state[AT_OFFSET], state[AT_SKIP], limit, *columns, state))
            self._buffer, self._array = block.buffer, block.shared
            if not count and state[AT_STATUS] == SEALED:
                count, self._buffer = library.open_sealed(block, state, limit, columns)
                self._array = np.frombuffer(self._buffer, np.uint8)
            if count:
                self._position = library.index_of(block, int(state[AT_SEQUENCE]))
                state[AT_SEQUENCE] += count
                return count
            state[AT_SEQUENCE] = due
            if state[AT_STATUS] == WAIT:
                if due >= limit or not library.is_written(block, int(state[AT_OFFSET])):
                    return 0
                if not was_passed:  # a record may have arrived between the two checks
                    was_passed = True
                    continue
            was_passed = False
            if not self._advance(block, int(state[AT_STATUS]), due):
                return 0
        return 0

    def _read_on_to(self, block: Block, index: int) -> None:
        """Find a record by reading and checking the whole block, after damage misled the faster lookup."""
        self._reenter(block)
        while self._position is not None and self._position < index and self._block is block:
            if not self._look(_columns(min(READ_BACK, index - self._position))):
                return
            self._settle()

    def _read_rows(self, count_max: int) -> Batch | None:
        """The next records if they have one size; looked up by segment, not one by one."""
        block, state, library = self._block, self._state, self._library
        if block is None or not self._is_located:
            return None
        due, columns = int(state[AT_SEQUENCE]), _columns(min(count_max, ROWS_SEGMENTS_MAX))
        limit = library.sequence_limit(block)
        count = int(read_rows(block.address, state[AT_OFFSET], state[AT_SKIP], limit, count_max, *columns, state))
        if not count:
            state[AT_SEQUENCE] = due
            return None
        rows = Rows(int(state[AT_SIZE]), *(each[:count] for each in columns))
        first = library.index_of(block, int(state[AT_SEQUENCE]))
        state[AT_SEQUENCE] += state[AT_COUNT]
        self._position = first + int(state[AT_COUNT])
        return Batch.of_rows(first, block.shared, rows)

    def _advance(self, block: Block, status: int, due: int) -> bool:
        """Go to the next block at a block's end, or skip damage; False if there is nothing yet."""
        library, broken_at = self._library, int(self._state[AT_OFFSET])
        if status == ENDED:
            following = library.following(block.ordinal, int(self._state[AT_LINK]))
        elif find_after_damage(block.address, broken_at, library.data_limit(block), due, self._state):
            lost = int(self._state[AT_SEQUENCE]) - due
            self.lost_count += lost
            LOG.warning("%s: damage at offset %d; skipped %d records", block.path, broken_at, lost)
            return True
        else:
            following = library.following(block.ordinal, None)
            if following is not None:
                LOG.warning("%s: damage at offset %d; continuing in the next block", block.path, broken_at)
        if following is not None:
            self._count(block, library.missing_between(block, due, following))
            self._enter(following)
        elif status == ENDED and self._missed_after != block.ordinal:
            self._missed_after = block.ordinal
            self._count(block, library.missing_at_end(block, due))
        return following is not None

    def _count(self, after: Block, missing: Missing) -> None:
        """Count what is missing after a block, and log it."""
        if missing.count:
            self.lost_count += missing.count
            LOG.warning("%s: the next block: %s", after.path, missing)

    def _relocate(self) -> None:
        """Return to the position after a detour, or to the first record after it if it is gone."""
        assert self._position is not None
        wanted, library = self._position, self._library
        block = library.containing(wanted) or library.before_index(wanted) or library.first()
        if self._reenter(block) and block is not None:
            if wanted > block.header.first_index:
                is_same = library.index_of(block, 0) == wanted >> library.sequence_bits << library.sequence_bits
                sequence = wanted - library.index_of(block, 0) if is_same else UNLIMITED
                library.go_to(block, sequence, self._state)
            self._settle()
            self._count_gone(wanted)

    def _count_gone(self, wanted: int) -> None:
        """Count the records from an index to before the position, which are damaged or whose files were released."""
        position, library = self._position, self._library
        if position is None or position <= wanted:
            return
        if position >> library.sequence_bits == wanted >> library.sequence_bits:
            lost = position - wanted
        elif library.control is not None and library.control.word(RELEASED) == wanted:
            lost = 0  # all that was released had been read
        else:
            lost = max(library.sequence_of(position), 1)
        if lost:
            self.lost_count += lost
            LOG.warning("%s: at least %d records from %#018x on are gone", self.folder, lost, wanted)

    def _read_from(self, index: int, count: int) -> list[tuple[int, bytes]]:
        """Records from an index on, or from the first existing one after it, without moving this tailer."""
        with Tailer(self.folder, key=self._library.key) as beside:
            beside._position = index
            return beside.read_many(count)

    def _reenter(self, block: Block | None) -> bool:
        self._forget()
        if block is not None:
            self._enter(block)
        return block is not None

    def _enter(self, block: Block) -> None:
        self._block = block
        state = self._state
        state[AT_OFFSET], state[AT_SKIP], state[AT_SEQUENCE] = DATA_OFFSET, 0, block.header.first_sequence
        self._settle()

    def _settle(self) -> None:
        """Set the position from the state."""
        assert self._block is not None
        self._position = self._library.index_of(self._block, int(self._state[AT_SEQUENCE]))
        self._is_located = True

    def _drop_ahead(self) -> None:
        """Discard records that were looked up but not read."""
        if next(self._entries, None) is not None:
            self._entries = iter(())
            self._is_located = False

    def _forget(self) -> None:
        self._entries = iter(())
        self._backward = []
        self._block = None
        self._position = None
        self._is_located = False


def _columns(capacity: int) -> tuple[Any, Any, Any]:
    return np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
