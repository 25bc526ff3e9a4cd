"""Finds a journal's blocks for readers: by index, by time, one after the other. Read-only, without a position.

The folder is listed again only when the control file names a newer block, or when a file is gone. An open block stays
mapped as long as it is referenced.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.journal.compiled.kernels import (
    AT_OFFSET,
    AT_SEQUENCE,
    AT_SKIP,
    AT_STATUS,
    BROKEN,
    ENDED,
    WAIT,
    new_state,
)
from tandemfeed.journal.compiled.reading import find_after_damage, seek, walk_to
from tandemfeed.journal.errors import ForeignFile
from tandemfeed.journal.format.block import COMPRESSED_SUFFIX, Block, BlockName, blocks_in, has_no_header
from tandemfeed.journal.format.compression import open_to_read
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import (
    CONTROL_NAME,
    COUNT_MASK,
    DATA_OFFSET,
    END,
    HAS_TABLE,
    NEXT_SEQUENCE,
    ORDINAL,
    PART_BITS,
    SEGMENT,
    SEGMENT_SIZE,
    VISIBLE,
)
from tandemfeed.journal.format.roll_cycle import RollSchedule
from tandemfeed.journal.format.sealing import BlockCipher, require_key
from tandemfeed.journal.read.continuity import NOTHING, Missing, link_of, missing_between, name_of

OPEN_MAX = 4  # blocks kept open; a compressed one is entirely in memory
UNLIMITED = (1 << 62) - 1
Lender = Callable[[int], Block | None] | None


class Library:
    """The blocks in a journal's folder. The folder need not exist yet.

    Args:
        key: of an encrypted journal.
        lend: returns the block of an ordinal if this process has already mapped it.
    """

    def __init__(self, folder: Path, key: bytes | None, lend: Lender = None) -> None:
        self.folder = folder
        self._lend = lend
        self.key = key
        self._control: Control | None = None
        self._names: list[BlockName] = []
        self._first_indices: list[int] = []
        self._listed_ordinal = -1
        self._is_unbegun = False  # the newest block has no header
        self._open: OrderedDict[int, Block] = OrderedDict()
        self._cipher: tuple[int, BlockCipher] | None = None
        self._opened: tuple[int, int, bytes] | None = None
        self.sequence_bits = 0

    @property
    def control(self) -> Control | None:
        """The control file; None until there is a journal."""
        if self._control is None:
            path = self.folder / CONTROL_NAME
            strangers = blocks_in(self.folder)  # listed first: a journal's control file is created before any block
            if not path.exists():
                if strangers:
                    raise ForeignFile(f"{strangers[0].path}: a block file without {CONTROL_NAME}; restore that file")
                return None
            control = Control(path, writable=False)
            require_key(self.key, control.settings.key_check, self.folder)
            self.schedule = RollSchedule.named(
                control.settings.roll_cycle,
                epoch_offset_s=control.settings.epoch_offset_s,
                time_zone=control.settings.time_zone,
            )
            self.sequence_bits = self.schedule.roll_cycle.sequence_bits
            self._control = control
        return self._control

    def index_of(self, block: Block, sequence: int) -> int:
        """The index of a record in a block."""
        return block.header.cycle << self.sequence_bits | sequence

    def sequence_of(self, index: int) -> int:
        """The sequence in an index."""
        return index & ((1 << self.sequence_bits) - 1)

    def may_contain(self, block: Block, index: int) -> bool:
        """False if the control file or the block's tail show that the block has no such index."""
        control, tail = self.control, block.tail()
        if control is not None and control.word(ORDINAL) == block.ordinal:
            return self.sequence_of(index) < control.word(NEXT_SEQUENCE)
        return tail is None or self.sequence_of(index) < tail[2]

    def names(self) -> list[BlockName]:
        """The block files, oldest first."""
        self._list()
        return self._names

    def first(self) -> Block | None:
        """The oldest block."""
        return self._at(0)

    def newest(self) -> Block | None:
        """The newest block."""
        return self._at(-1)

    def containing(self, index: int) -> Block | None:
        """The block whose range includes an index; None if there is none."""
        self._list()
        place = bisect_right(self._first_indices, index) - 1
        block = self._at(place, listed=True) if place >= 0 else None
        return block if block is not None and index >> self.sequence_bits == block.header.cycle else None

    def before_index(self, index: int) -> Block | None:
        """The newest block that begins before an index."""
        self._list()
        place = bisect_left(self._first_indices, index) - 1
        return self._at(place, listed=True) if place >= 0 else None

    def before(self, ordinal: int) -> Block | None:
        """The block before the one of this ordinal."""
        self._list()
        place = bisect_left(self._names, ordinal, key=lambda name: name.ordinal) - 1
        return self._at(place, listed=True) if place >= 0 else None

    def following(self, ordinal: int, link: int | None) -> Block | None:
        """The block that an end mark links to; if it is gone, or without a link, the oldest one after `ordinal`.

        The caller asks `missing_between` whether it is the next one.
        """
        self._list()
        place = bisect_left(self._names, link or ordinal + 1, key=lambda name: name.ordinal)
        if place == len(self._names) or (link and self._names[place].ordinal != link):
            self._list(again=True)
            place = bisect_left(self._names, link or ordinal + 1, key=lambda name: name.ordinal)
        if link and (place == len(self._names) or self._names[place].ordinal != link):
            for name in self._forms_of(link):  # a listing can miss a file that is renamed meanwhile
                if name.path.exists():
                    return self._block(name)
        return self._at(place, listed=True) if place < len(self._names) else None

    def _forms_of(self, ordinal: int) -> tuple[BlockName, BlockName]:
        plain = self.folder / name_of(ordinal)
        compressed = plain.with_name(plain.name + COMPRESSED_SUFFIX)
        return BlockName(ordinal, plain), BlockName(ordinal, compressed)

    def missing_between(self, former: Block, due: int, found: Block) -> Missing:
        """What is missing between a block and the one that was found after it.

        Args:
            due: the sequence that is expected after the last one of the former block that was read.
        """
        control = self.control
        if control is None or control.settings.face == "queue":  # a queue recycles blocks in the middle
            return NOTHING
        tail = former.tail()
        end = max(due, tail[2]) if tail is not None else due
        missing = missing_between(former.header, end, link_of(former), found.header)
        return replace(missing, count=missing.count + end - due)

    def missing_at_end(self, former: Block, due: int) -> Missing:
        """What is missing after the newest block that there is: the control file may name a later one."""
        control, link = self.control, link_of(former)
        if control is None or link is None or control.word(ORDINAL) < link:
            return NOTHING
        if any(name.path.exists() for name in self._forms_of(link)):
            return NOTHING  # it was just begun
        is_known = control.word(ORDINAL) == link
        first_due = due if link >> PART_BITS == former.header.cycle else 0
        count = max(control.word(NEXT_SEQUENCE) - first_due, 1) if is_known else 1
        return Missing(count, name_of(link), is_exact=is_known)

    def beginning_at(self, index: int) -> Block | None:
        """The block whose first record has this index, if it has any."""
        self._list()
        place = bisect_right(self._first_indices, index) - 1
        is_first = place >= 0 and self._first_indices[place] == index
        return self._at(place, listed=True) if is_first else None

    def at_time(self, at_ns: int) -> Block | None:
        """The last block whose first record was appended before a time; the first block if there is none."""
        names = self.names()  # one listing for the whole search: opening a released block replaces it
        low, high = 0, len(names)
        while high - low > 1:
            middle = (low + high) // 2
            block = self._block(names[middle])
            if block is None or _first_appended_at_ns(block) < at_ns:
                low = middle
            else:
                high = middle
        return self._block(names[low]) if names else None

    def go_to(self, block: Block, target: int, state: NDArray[np.int64], *, by_time: bool = False) -> bool:
        """Go to a sequence, or to the first record from a time on, in a block: by index, then lengths, skipping damage.

        Returns:
            False if it does not exist; the state is where it would be, or after the damage.
        """
        state[AT_OFFSET], state[AT_SKIP], state[AT_SEQUENCE] = DATA_OFFSET, 0, block.header.first_sequence
        seek(block.address, target, by_time, state)
        while not (found := walk_to(block.address, target, by_time, state)) and state[AT_STATUS] != ENDED:
            broken_at, due = int(state[AT_OFFSET]), int(state[AT_SEQUENCE])
            if state[AT_STATUS] == WAIT and not self.is_written(block, broken_at):
                break
            if not find_after_damage(block.address, broken_at, self.data_limit(block), due, state):
                break
        state[AT_SEQUENCE] += state[AT_SKIP]
        return bool(found)

    def walk_to_end(self, block: Block, state: NDArray[np.int64]) -> None:
        """After the last visible record of a block."""
        self.go_to(block, min(self.sequence_limit(block), UNLIMITED), state)

    def end_index(self, block: Block) -> int:
        """After the last visible record of a block."""
        state = new_state()
        self.walk_to_end(block, state)
        return self.index_of(block, int(state[AT_SEQUENCE]))

    def count_between(self, first_index: int, end_index: int) -> int:
        """How many records there are from one index to before another, over all cycles between."""
        count = 0
        block = self.before_index(first_index + 1) or self.first()
        while block is not None and block.header.first_index < end_index:
            begin, end = block.header.first_index, self.end_index(block)
            count += max(min(end, end_index) - max(begin, first_index), 0)
            block = self.following(block.ordinal, None)
        return count

    def sequence_limit(self, block: Block) -> int:
        """The first sequence of a block that is not visible yet."""
        control = self.control
        visible = control.word(VISIBLE) if control is not None else 0
        if not visible:
            return UNLIMITED
        base = self.index_of(block, 0)
        return min(max(visible - base, 0), UNLIMITED)

    def is_written(self, block: Block, offset: int) -> bool:
        """True if the control file shows that something was written here, or that a later block exists."""
        control = self.control
        if control is None:
            return False
        ordinal = control.word(ORDINAL)
        return block.ordinal < ordinal or (block.ordinal == ordinal and offset < control.word(END))

    def data_limit(self, block: Block) -> int:
        """The offset at which a block's data end."""
        control = self.control
        if control is not None and control.word(ORDINAL) == block.ordinal:
            return min(control.word(END), block.header.data_end)
        return block.header.data_end

    def open_sealed(self, block: Block, state: NDArray[np.int64], limit: int, columns: Any) -> tuple[int, bytes]:
        """Decrypt the segment at AT_OFFSET: its records from AT_SKIP on, and their bytes. 0 and BROKEN: damaged."""
        offset, skip = int(state[AT_OFFSET]), int(state[AT_SKIP])
        length, _, first, at_ns, flags, size = SEGMENT.unpack_from(block.view, offset)
        if self._opened is None or self._opened[:2] != (block.ordinal, offset):
            sealed = bytes(block.view[offset + SEGMENT_SIZE : offset + length])
            plain = self._cipher_of(block).open(sealed, first, flags, size)
            if plain is None:
                state[AT_STATUS] = BROKEN
                return 0, b""
            self._opened = block.ordinal, offset, plain
        data, total = self._opened[2], flags & COUNT_MASK
        if flags & HAS_TABLE:
            ends = np.frombuffer(data, "<u4", total).astype(np.int64) + 4 * total
        else:
            ends = size * np.arange(1, total + 1, dtype=np.int64)
        begins = np.concatenate([[4 * total if flags & HAS_TABLE else 0], ends[:-1]])
        count = max(min(total - skip, len(columns[0]), limit - first - skip), 0)
        columns[0][:count] = begins[skip : skip + count]
        columns[1][:count] = (ends - begins)[skip : skip + count]
        columns[2][:count] = at_ns
        state[AT_SEQUENCE] = first + skip
        if skip + count == total:
            state[AT_OFFSET], state[AT_SKIP] = (offset + length + 7) & ~7, 0
        else:
            state[AT_SKIP] = skip + count
        return count, data

    def _cipher_of(self, block: Block) -> BlockCipher:
        assert self.key is not None
        if self._cipher is None or self._cipher[0] != block.ordinal:
            self._cipher = block.ordinal, BlockCipher(self.key, block.header)
        return self._cipher[1]

    def close(self) -> None:
        """Close the control file and drop all blocks."""
        self._open.clear()
        self._opened = None
        if self._control is not None:
            self._control.close()
            self._control = None

    def _at(self, place: int, *, listed: bool = False) -> Block | None:
        if not listed:
            self._list()
        return self._block(self._names[place]) if self._names else None

    def _block(self, name: BlockName) -> Block | None:
        try:
            return self._opened_block(name)
        except FileNotFoundError:  # released, or compressed, since the folder was listed
            self._list(again=True)
            later = [each for each in self._names if each.ordinal >= name.ordinal]
            return self._block(later[0]) if later else None

    def _opened_block(self, name: BlockName) -> Block:
        block = self._open.get(name.ordinal)
        if block is not None:
            self._open.move_to_end(name.ordinal)
            return block
        assert self._control is not None
        lent = self._lend(name.ordinal) if self._lend is not None else None
        block = self._open[name.ordinal] = lent or open_to_read(name.path, self._control.journal_id)
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)
        return block

    def _list(self, *, again: bool = False) -> None:
        control = self.control
        if control is None:
            return
        ordinal = control.word(ORDINAL)
        if ordinal == self._listed_ordinal and not again:
            return
        known = dict(zip((name.ordinal for name in self._names), self._first_indices, strict=True))
        names, first_indices = self._look(known, ordinal)
        while first_indices is None:  # repeat if a block is released meanwhile
            names, first_indices = self._look(known, ordinal)
        self._names, self._first_indices = names, first_indices
        self._listed_ordinal = -1 if self._is_unbegun else ordinal

    def _look(self, known: dict[int, int], ordinal: int) -> tuple[list[BlockName], list[int] | None]:
        """The blocks in the folder and their first indices; None for the indices if a block was released meanwhile."""
        names = [name for name in blocks_in(self.folder) if name.ordinal <= ordinal]
        try:
            # A power failure may leave the newest block without its header, until an appender recovers the journal.
            newest = names[-1] if names and names[-1].ordinal not in known else None
            self._is_unbegun = (
                newest is not None and newest.path.suffix != COMPRESSED_SUFFIX and has_no_header(newest.path)
            )
            if self._is_unbegun:
                names.pop()
            for name in names:
                if name.ordinal not in known:
                    known[name.ordinal] = self._first_index(name)
        except FileNotFoundError:
            return names, None
        return names, [known[name.ordinal] for name in names]

    def _first_index(self, name: BlockName) -> int:
        if name.ordinal & ((1 << PART_BITS) - 1) == 0:
            return name.cycle << self.sequence_bits
        return self._opened_block(name).header.first_index


def _first_appended_at_ns(block: Block) -> int:
    length, _, _, at_ns, _, _ = SEGMENT.unpack_from(block.view, DATA_OFFSET)
    return int(at_ns) if length else UNLIMITED


def _has_no_header(path: Path) -> bool:
    return path.suffix != COMPRESSED_SUFFIX and has_no_header(path)
