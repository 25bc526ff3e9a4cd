"""What of a queue the disk has: words in the control file that outlive the process, and what they require at opening.

After a failed flush the kernel has marked the pages clean: the next flush succeeds although they are lost. So the words
say, while the log or the state areas are being flushed, that they are. A process that died meanwhile, or whose flush
failed, leaves the word set; the next one writes again what it concerned before it reads anything. After a power failure
the words mean nothing, and do no harm.

Invariant: what recovery reads, and the queue then hands out, is on the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tandemfeed.journal.format.block import Block, BlockName, blocks_in
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import (
    DATA_OFFSET,
    DURABLE,
    DURABLE_END,
    END,
    FAILED_NAME,
    FLUSHER,
    HEADER,
    IS_CLEAN,
    IS_FAILED,
    LINK_SIZE,
    ORDINAL,
    STATES_FLUSHER,
    Header,
)
from tandemfeed.runtime import durable

FAILED_TEXT = b"The disk refused a flush of this queue. Opening the queue writes again what may be lost.\n"
WORD_SIZE = 8


class Doubt(NamedTuple):
    """What the last process may have left in the page cache only.

    Attributes:
        log, log_end: ordinal and offset from which, and before which, the log must be written again; None: not at all,
            or to the end.
        has_states: the state areas of all blocks must be written again.
    """

    log: tuple[int, int] | None
    log_end: tuple[int, int] | None
    has_states: bool


class QueueDurability:
    """The words of one queue. The log's are written by the leader of a group, the states' by any thread."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._words = control.words()  # a group's flush is too short for compiled calls
        self._mark = control.path.with_name(FAILED_NAME)
        self._states, self._states_count = threading.Lock(), 0
        self._has_failed = False

    # ---- while the queue is open ----

    def begin_log(self, ordinal: int, end: int) -> None:
        """The log is about to be flushed up to this place."""
        words = self._words
        words[ORDINAL // WORD_SIZE] = ordinal
        words[END // WORD_SIZE] = end
        words[FLUSHER // WORD_SIZE] = self._control.slot

    def end_log(self, ordinal: int, end: int) -> None:
        """The disk has the log up to this place."""
        words = self._words
        if words[DURABLE // WORD_SIZE] != ordinal + 1:
            words[DURABLE_END // WORD_SIZE] = 0  # after a crash between the stores, less is known
            words[DURABLE // WORD_SIZE] = ordinal + 1
        words[DURABLE_END // WORD_SIZE] = end
        words[FLUSHER // WORD_SIZE] = 0

    @contextmanager
    def flushing_states(self) -> Iterator[None]:
        """State areas, or a checkpoint, are flushed within the `with`."""
        with self._states:
            self._states_count += 1
            self._words[STATES_FLUSHER // WORD_SIZE] = self._control.slot
        yield  # if it raises, the word stays
        with self._states:
            self._states_count -= 1
            if not self._states_count:
                self._words[STATES_FLUSHER // WORD_SIZE] = 0

    def flush_states(self, blocks: Iterable[Block]) -> None:
        """Flush the state areas of blocks.

        Through descriptors of their own: each reports a failed write once, and the log's must report its own.

        Raises:
            FlushFailed
        """
        with self.flushing_states():
            for block in blocks:
                durable.flush_file(block.path)

    def fail(self) -> None:
        """A flush failed, or an unknown error left it unclear what is on the disk. Lasts until the queue is opened."""
        if not self._has_failed:
            self._has_failed = True
            self._control.set_word(IS_FAILED, 1)
            with suppress(OSError):  # only in case that the kernel loses the word's page too
                durable.replace_file(self._mark, FAILED_TEXT)

    def mark_clean(self) -> None:
        """The disk has everything, and nothing more will be written."""
        self._control.set_word(IS_CLEAN, 1)

    def close(self) -> None:
        """Let go of the control file."""
        self._words.release()

    # ---- at opening ----

    def make_durable(self, folders: Sequence[Path], queue_id: UUID) -> None:
        """Make everything durable that the last process left, before anything is read. Call `end_recovery` when what
        recovery repairs is on the disk too.

        Until then a crash or a refused flush leaves all of it in doubt: what is flushed here may be lost as well, and
        this process may be the only one to learn of that.

        Raises:
            FlushFailed: the disk refuses; nothing was lost, and the next opening tries again.
            ForeignFile, NewerFormat, BlockCorrupt
        """
        doubt = self._doubt()
        self._control.set_word(IS_FAILED, 1)
        if not self._control.word(IS_CLEAN) or doubt != NO_DOUBT:
            try:
                for folder in folders:
                    for name in blocks_in(folder):
                        _make_block_durable(name, doubt, queue_id)
                    durable.sync_folder(folder)
                    durable.sync_name(folder)
            except durable.FlushFailed:
                self.fail()
                raise
        self._control.set_word(IS_CLEAN, 0)

    def end_recovery(self) -> None:
        """What recovery repaired is on the disk.

        Raises:
            FlushFailed
        """
        durable.remove_file(self._mark)
        self._words[STATES_FLUSHER // WORD_SIZE] = self._words[FLUSHER // WORD_SIZE] = 0
        self._control.set_word(IS_FAILED, 0)

    def _doubt(self) -> Doubt:
        control = self._control
        ordinal, end = control.durable_until()
        if control.word(IS_FAILED) or self._mark.exists():
            return Doubt((ordinal, end), None, has_states=True)
        has_states = control.word(STATES_FLUSHER) != 0
        if control.word(FLUSHER):
            return Doubt((ordinal, end), (control.word(ORDINAL), control.word(END)), has_states)
        return Doubt(None, None, has_states)


NO_DOUBT = Doubt(None, None, has_states=False)


def _make_block_durable(name: BlockName, doubt: Doubt, queue_id: UUID) -> None:
    """Flush a block, and before that write again what is in doubt."""
    try:
        if ranges := _ranges_in_doubt(name, doubt, queue_id):
            (start, end), *more = ranges
            durable.rewrite(name.path, start, *more, end=end)
        else:
            durable.flush_file(name.path)
    except durable.FlushFailed:  # perhaps of a write in the background, of which no process has learnt yet
        durable.rewrite(name.path)


def _ranges_in_doubt(name: BlockName, doubt: Doubt, queue_id: UUID) -> list[tuple[int, int]]:
    with name.path.open("rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size or (header := Header(*HEADER.unpack(head))).journal_id != queue_id.bytes:
        return []  # never begun, or not a block of this queue, which recovery refuses
    found: list[tuple[int, int]] = []
    if doubt.log is not None and doubt.log[0] <= name.ordinal:
        start = doubt.log[1] if doubt.log[0] == name.ordinal else DATA_OFFSET
        is_last = doubt.log_end is not None and doubt.log_end[0] == name.ordinal
        end = doubt.log_end[1] + LINK_SIZE if is_last and doubt.log_end is not None else header.data_end
        found += [(0, DATA_OFFSET), (start, end), (header.index_offset, header.block_size)]
    if doubt.has_states:
        found += [(0, DATA_OFFSET), (header.state_offset, header.block_size)]
    return found
