"""A journal's blocks on the appender's side: the current block, the roll to the next one, and recovery.

Callers hold the appenders' lock. A roll has three steps, and a crash can happen after each: the next block gets its
name; the old one gets its end mark with a link; the words in the control file change. Recovery is part of opening and
of taking over a dead appender's lock: it rolls forward from the newest checkpoint, skips damage, clears what was never
acknowledged, and completes a roll. A follower's is cut at the first damage that a power failure left instead, because
its position must not claim what it lost: the leader sends the rest again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tandemfeed.journal.append.durability import Durability
from tandemfeed.journal.append.keeper import Keeper
from tandemfeed.journal.compiled.kernels import (
    AT_OFFSET,
    AT_SEQUENCE,
    AT_STATUS,
    AT_TIME,
    ENDED,
    new_state,
    roll_forward,
    store_word,
)
from tandemfeed.journal.compiled.reading import find_after_damage
from tandemfeed.journal.errors import BlockCorrupt, JournalFailed, RecordTooLong
from tandemfeed.journal.format.block import (
    COMPRESSED_SUFFIX,
    Block,
    BlockName,
    begin,
    blocks_in,
    has_no_header,
    remove_spares,
)
from tandemfeed.journal.format.compression import open_to_read
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import (
    BLOCK_SIZE_MAX,
    DATA_OFFSET,
    END,
    END_MARK,
    IS_CLEAN,
    IS_FAILED,
    IS_SEALED_JOURNAL,
    LAST_AT,
    LINK_SIZE,
    NEXT_SEQUENCE,
    ORDINAL,
    PART_BITS,
    block_size_for,
)
from tandemfeed.journal.format.roll_cycle import RollSchedule
from tandemfeed.journal.read.continuity import PART_MASK, link_of
from tandemfeed.runtime.durable import FlushFailed, remove_file, rename_file

LOG = logging.getLogger("tandemfeed.journal")
DAMAGED_SUFFIX = ".damaged"
Place = tuple[int, int, int]  # where a block's records end: offset, next sequence, time of the last


class BlockChain:
    """The blocks of one journal, for one appender.

    Args:
        clock_ns: wall-clock time.
        is_cut: recovery keeps nothing after the first damage since the durable place.
    """

    def __init__(
        self,
        folder: Path,
        control: Control,
        schedule: RollSchedule,
        keeper: Keeper,
        clock_ns: Callable[[], int],
        *,
        is_cut: bool = False,
    ) -> None:
        self._is_cut = is_cut
        self._folder = folder
        self._control = control
        self._settings = control.settings
        self.schedule = schedule
        self._keeper = keeper
        self._clock_ns = clock_ns
        self._current: Block | None = None
        self.cycle_end_ns = 0
        self.durability = Durability(folder, control)

    def enter(self) -> None:
        """Become one of the appenders: recover if no other process appends, or if a dead one left the lock; otherwise
        join. Write again what a failed flush concerned. The caller holds the opening lock.

        Raises:
            JournalFailed: the disk refuses that.
        """
        control, durability = self._control, self.durability
        is_doubtful = durability.is_doubtful()
        if is_doubtful:
            control.begin_flush()
        try:
            with self._entry_lock(is_doubtful):
                if is_doubtful:
                    durability.write_again(self.current)
                control.set_word(IS_CLEAN, 0)
                control.flush()  # before the first append: after a power loss it must not look clean
        except FlushFailed as refused:
            raise JournalFailed(
                f"{self._folder}: cannot be opened for appending, because the disk refuses a flush: {refused}. The "
                "records can be read meanwhile"
            ) from refused
        finally:
            if is_doubtful:
                control.end_flush()

    @contextmanager
    def _entry_lock(self, is_doubtful: bool) -> Iterator[None]:
        """Take the lock, recover if needed, and find the current block."""
        control, is_alone = self._control, not self._control.has_others()
        is_inherited = is_alone or control.inherited_lock()
        if is_inherited:
            control.seize_lock()
        else:
            control.lock(self.recover, even_failed=is_doubtful)
        try:
            if is_alone:
                remove_spares(self._folder)
                end = None if is_doubtful else control.clean_end
                self.recover(was_clean=end is not None)
                if end is not None and control.durable_until()[0] < 0:
                    control.set_durable(*end)
            elif is_inherited or is_doubtful:
                self.recover()
            self.catch_up()
            yield
        finally:
            control.release()

    def recover(self, *, was_clean: bool = False) -> None:
        """Find the journal's end, whatever happened to the last appender, and set the words in the control file.

        Args:
            was_clean: the last appender closed cleanly, so nothing can be after the end.
        """
        self.durability.restore_interrupted()
        names = blocks_in(self._folder)
        durable_ordinal, _ = self._control.durable_until()
        if not was_clean:
            for name in names:
                if name.ordinal >= durable_ordinal:
                    self._rename_if_no_header(name)
            names = blocks_in(self._folder)  # the compressed form of a renamed block may be there
            if self._is_cut:
                names = self._cut_at_damage(names)
        if not names:
            self._begin(self.schedule.cycle_at(self._clock_ns()), 0, 0, self._settings.block_size)
            self._set_words(DATA_OFFSET, 0, 0)
            return
        if names[-1].path.suffix == COMPRESSED_SUFFIX:
            self._begin_after(names[-1])
            return
        newest = self._open(names[-1])
        former_at_ns = 0
        # The disk has the end marks before the durable place.
        suspects = names[-2:] if was_clean else [name for name in names[:-2] if name.ordinal >= durable_ordinal]
        suspects += [] if was_clean else names[-2:]
        for name, following in pairwise(suspects):
            if name.path.suffix == COMPRESSED_SUFFIX and following is not names[-1]:
                continue  # only ended blocks are compressed, and decompressing takes long
            former_at_ns = self._complete_roll(name, following.ordinal)
        (end, sequence, at_ns), status = self._end_of(newest, searching=not was_clean)
        self._adopt(newest)
        self._set_words(end, sequence, max(at_ns, former_at_ns))
        if status == ENDED:  # the roll was interrupted after the end mark
            self.roll(max(self.schedule.cycle_at(self._clock_ns()), newest.header.cycle))
        elif not was_clean or newest.was_truncated:
            newest.clear_after(end)

    def _cut_at_damage(self, names: list[BlockName]) -> list[BlockName]:
        """Remove everything after the first damage, or the first missing block, since the durable place.

        Returns:
            The blocks that are left.
        """
        durable_ordinal, durable_end = self._control.durable_until()
        for place, name in enumerate(names):
            following = names[place + 1 :]
            if name.ordinal < durable_ordinal:
                continue
            if not self._is_whole(name, durable_end if name.ordinal == durable_ordinal else 0, following):
                self._remove(following)
                return names[: place + 1]
        return names

    def _is_whole(self, name: BlockName, trusted_end: int, following: list[BlockName]) -> bool:
        """Whether a block has its end mark, and the next block is there; otherwise cut it at its first damage.

        Its checkpoints prove nothing: that of a roll is not flushed, but can be on the disk without what is before it.
        """
        if name.path.suffix == COMPRESSED_SUFFIX:
            return not following or link_of(open_to_read(name.path, self._control.journal_id)) == following[0].ordinal
        block, state = self._open(name), new_state()
        state[AT_OFFSET], state[AT_SEQUENCE] = DATA_OFFSET, block.header.first_sequence
        roll_forward(block.address, state)
        while state[AT_STATUS] != ENDED and int(state[AT_OFFSET]) < trusted_end and _skip_damage(block, state):
            roll_forward(block.address, state)
        end, sequence, at_ns = (int(state[place]) for place in (AT_OFFSET, AT_SEQUENCE, AT_TIME))
        if state[AT_STATUS] == ENDED:
            is_whole = not following or link_of(block) == following[0].ordinal
        else:
            is_whole = not following and not _skip_damage(block, state)
            block.clear_after(end)
            if block.checkpoint().end > end:
                block.write_checkpoint(end, sequence, at_ns)
            if trusted_end > end:
                self._control.set_durable(name.ordinal, end)
        if not is_whole:
            LOG.warning("%s: cut after sequence %d, because what follows is damaged", block.path, sequence - 1)
        return is_whole

    def _remove(self, names: list[BlockName]) -> None:
        """Remove blocks, the newest first, so that none is left without those before it."""
        try:
            for name in reversed(names):
                remove_file(name.path)
        except FlushFailed as refused:
            self._control.set_word(IS_FAILED, 1)
            raise JournalFailed(str(refused)) from refused

    def _begin_after(self, name: BlockName) -> None:
        """Begin the block that a compressed one names as the next: a power failure can leave the former alone."""
        ended = open_to_read(name.path, self._control.journal_id)
        tail, link = ended.tail(), link_of(ended)
        if tail is None or link is None:
            raise BlockCorrupt(f"{name.path}: has no end mark; restore the file from a copy or move it away")
        cycle = link >> PART_BITS
        first_sequence = tail[2] if cycle == ended.header.cycle else 0
        self._begin(cycle, link & PART_MASK, first_sequence, self._settings.block_size)
        self._set_words(DATA_OFFSET, first_sequence, tail[3])

    @property
    def current(self) -> Block:
        """The block to append to."""
        assert self._current is not None
        return self._current

    def close(self) -> None:
        """Let go of the current block, which is unmapped once no reader uses it, and of all descriptors."""
        self._current = None
        self.durability.close()

    def flush(self) -> None:
        """Flush everything that any process appended. Raises: JournalFailed, JournalLocked."""
        self.durability.flush(self)

    def lend(self, ordinal: int) -> Block | None:
        """The current block if it has this ordinal, so that a reader in this process need not map it again."""
        block = self._current
        return block if block is not None and block.ordinal == ordinal else None

    def catch_up(self) -> None:
        """Continue in the newest block: another appender may have rolled."""
        ordinal = self._control.word(ORDINAL)
        if self._current is None or ordinal != self._current.ordinal:
            if self._current is not None:
                self._leave(self._current)
            name = next(name for name in blocks_in(self._folder) if name.ordinal == ordinal)
            self._adopt(self._open(name))

    def roll_to_time(self, now_ns: int) -> None:
        """Begin the cycle of this time. If the time went back, stay in the current cycle."""
        cycle = self.schedule.cycle_at(now_ns)
        if cycle > self.current.header.cycle:
            self.roll(cycle)
        else:
            self.cycle_end_ns = self.schedule.end_ns(self.current.header.cycle)

    def roll(self, cycle: int, body_size: int = 0, first_sequence: int = 0) -> None:
        """End the current block and begin the next one, with room for a segment.

        Args:
            first_sequence: skip the sequences before it; for a follower whose leader no longer has them.

        Raises:
            DiskFull, RecordTooLong: nothing was changed.
        """
        former, control = self.current, self._control
        end, sequence, at_ns = control.word(END), control.word(NEXT_SEQUENCE), control.word(LAST_AT)
        is_same = cycle == former.header.cycle
        size = max(self._settings.block_size, block_size_for(body_size, self._settings.state_size))
        if size > BLOCK_SIZE_MAX:
            raise RecordTooLong(f"the batch has {body_size} bytes; a block has at most {BLOCK_SIZE_MAX}: split it")
        part, first_sequence = (
            (former.header.part + 1, max(sequence, first_sequence)) if is_same else (0, first_sequence)
        )
        self._begin(cycle, part, first_sequence, size)
        _end(former, end, sequence, at_ns, self.current.ordinal)
        self._leave(former)
        self._set_words(DATA_OFFSET, first_sequence, at_ns)
        self._keeper.after_roll(self.current.path)

    def _begin(self, cycle: int, part: int, first_sequence: int, size: int) -> None:
        block = begin(
            self._keeper.take(size),
            self._folder,
            self._control.journal_id,
            cycle=cycle,
            part=part,
            first_sequence=first_sequence,
            sequence_bits=self.schedule.roll_cycle.sequence_bits,
            flags=IS_SEALED_JOURNAL if self._settings.key_check else 0,
            state_size=self._settings.state_size,
        )
        self._adopt(block)

    def caught_up(self) -> Block:
        """The block to append to, after other appenders may have rolled."""
        self.catch_up()
        return self.current

    def _leave(self, block: Block) -> None:
        self._keeper.run(self.durability.left(block, self))
        self._keeper.retire(block)

    def _adopt(self, block: Block) -> None:
        self._current = block
        self.cycle_end_ns = self.schedule.end_ns(block.header.cycle)

    def _set_words(self, end: int, next_sequence: int, last_at_ns: int) -> None:
        control = self._control
        control.set_word(END, end)
        control.set_word(NEXT_SEQUENCE, next_sequence)
        control.set_word(LAST_AT, last_at_ns)
        control.set_word(ORDINAL, self.current.ordinal)

    def _open(self, name: BlockName) -> Block:
        return Block(name.path, writable=True, journal_id=self._control.journal_id)

    def _rename_if_no_header(self, name: BlockName) -> None:
        """Rename a block without a header: its name reached the disk before its header, so it has no synced record."""
        if name.path.suffix == COMPRESSED_SUFFIX or not has_no_header(name.path):
            return
        aside = name.path.with_name(name.path.name + DAMAGED_SUFFIX)
        try:
            rename_file(name.path, aside)
        except FlushFailed as refused:
            self._control.set_word(IS_FAILED, 1)
            raise JournalFailed(str(refused)) from refused
        LOG.warning("%s has no header and no records; renamed to %s", name.path, aside.name)

    def _complete_roll(self, name: BlockName, next_ordinal: int) -> int:
        """Complete a block's end mark if a crash prevented it and another block follows; return its last time."""
        block = open_to_read(name.path, self._control.journal_id)
        tail = block.tail()
        if tail is not None and int.from_bytes(block.view[tail[0] : tail[0] + 4], "little") == END_MARK:
            return tail[3]
        block = self._open(name)
        (end, sequence, at_ns), status = self._end_of(block)
        if status != ENDED:
            block.clear_after(end)
            _end(block, end, sequence, at_ns, next_ordinal)
        return at_ns

    def _end_of(self, block: Block, *, searching: bool = True) -> tuple[Place, int]:
        """Roll forward to the end of the whole segments, skipping damage."""
        state, checkpoint = new_state(), block.checkpoint()
        if block.was_truncated:
            LOG.warning("%s was truncated; scanning all of it for whole records", block.path)
            state[AT_OFFSET], state[AT_SEQUENCE] = DATA_OFFSET, block.header.first_sequence
        else:
            state[AT_OFFSET], state[AT_SEQUENCE] = checkpoint.end, checkpoint.next_sequence
            state[AT_TIME] = checkpoint.last_at_ns
        while True:
            roll_forward(block.address, state)
            broken_at, sequence = int(state[AT_OFFSET]), int(state[AT_SEQUENCE])
            # Zeros mark the end, unless a segment follows: damage may have hit just a length.
            if (
                state[AT_STATUS] == ENDED
                or not searching
                or not find_after_damage(block.address, broken_at, block.header.data_end, sequence, state)
            ):
                break
            LOG.warning(
                "%s: damage at offset %d; lost the records with sequences %d to %d",
                *(block.path, broken_at, sequence, int(state[AT_SEQUENCE]) - 1),
            )
        status = ENDED if state[AT_STATUS] == ENDED else 0
        return (int(state[AT_OFFSET]), int(state[AT_SEQUENCE]), int(state[AT_TIME])), status


def _skip_damage(block: Block, state: NDArray[Any]) -> bool:
    """Go to the next whole segment; False if there is none."""
    offset, sequence = int(state[AT_OFFSET]), int(state[AT_SEQUENCE])
    return bool(find_after_damage(block.address, offset, block.header.data_end, sequence, state))


def _end(block: Block, end: int, next_sequence: int, last_at_ns: int, next_ordinal: int) -> None:
    """Mark a block's end; the link to the next block is written before the mark."""
    assert end + LINK_SIZE <= block.header.data_end
    block.write_tail(end, next_sequence, last_at_ns)
    block.write_checkpoint(end, next_sequence, last_at_ns, block.checkpoint().extra)
    store_word(block.address + end + 8, next_ordinal)
    store_word(block.address + end, END_MARK)
