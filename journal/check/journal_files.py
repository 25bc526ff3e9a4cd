"""Inspects a journal: its files, appenders, lock and named tailers. Read-only; can run beside appenders.

Needs no key, takes no slot or lock, creates no file.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import google_crc32c

from tandemfeed.journal.check.inspection import SegmentView, segments
from tandemfeed.journal.errors import ForeignFile
from tandemfeed.journal.format.block import COMPRESSED_SUFFIX, Block, BlockName, blocks_in
from tandemfeed.journal.format.compression import open_to_read
from tandemfeed.journal.format.control import FLOCK, Control
from tandemfeed.journal.format.layout import (
    CONTROL_NAME,
    CRC,
    END,
    FAILED_NAME,
    IS_FAILED,
    LAST_AT,
    LOCK,
    NEXT_SEQUENCE,
    ORDINAL,
    PARKED,
    PART_BITS,
    PIDS,
    SLOT_COUNT,
    SLOT_LOCKS,
    VISIBLE,
)
from tandemfeed.journal.format.named_position import SLOT, SLOT_SIZE, TAILERS_FOLDER
from tandemfeed.journal.format.roll_cycle import RollSchedule
from tandemfeed.journal.read.continuity import link_of, name_of

POSITION_SUFFIX = ".position"


@dataclass(frozen=True, slots=True)
class Words:
    """The appenders' shared words, each read at one moment."""

    ordinal: int
    end: int
    next_sequence: int
    last_at_ns: int
    visible: int  # tailers read below this index; 0: everything


@dataclass(frozen=True, slots=True)
class Appender:
    """A living process that has the journal open for appending."""

    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The holder of the appenders' lock. The next appender takes the lock over if the holder is dead."""

    slot: int
    pid: int
    is_alive: bool


@dataclass(frozen=True, slots=True)
class FileSummary:
    """A summary of a block file. Times are 0 if it has no record."""

    name: BlockName
    size: int
    first_index: int
    end_index: int
    first_at_ns: int
    last_at_ns: int
    is_ended: bool
    link: int | None = None  # the ordinal of the block that its end mark names

    @property
    def record_count(self) -> int:
        """Number of records, including damaged ones."""
        return self.end_index - self.first_index

    @property
    def is_compressed(self) -> bool:
        """True for a `.zst` file."""
        return self.name.path.suffix == COMPRESSED_SUFFIX


class JournalFiles:
    """The files of a journal, for inspection.

    Raises:
        ForeignFile: the folder is not a journal.
        NewerFormat, BlockCorrupt: of the control file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / CONTROL_NAME).exists():
            what = f"it has no {CONTROL_NAME}" if folder.is_dir() else "no such folder"
            raise ForeignFile(f"{folder} is not a journal: {what}; give the folder of a journal")
        self.control = Control(folder / CONTROL_NAME, writable=False)
        self.settings = self.control.settings
        self.schedule = RollSchedule.named(
            self.settings.roll_cycle, epoch_offset_s=self.settings.epoch_offset_s, time_zone=self.settings.time_zone
        )
        self.sequence_bits = self.schedule.roll_cycle.sequence_bits

    def words(self) -> Words:
        """The words in the control file, all of the same block."""
        word = self.control.word
        while True:
            ordinal = word(ORDINAL)
            words = Words(ordinal, word(END), word(NEXT_SEQUENCE), word(LAST_AT), word(VISIBLE))
            if word(ORDINAL) == ordinal:  # otherwise it rolled meanwhile, and the words are of two blocks
                return words

    def names(self) -> list[BlockName]:
        """The block files, oldest first, without one that an appender is just beginning."""
        ordinal, is_appended = self.words().ordinal, bool(self.appenders())
        return [name for name in blocks_in(self.folder) if name.ordinal <= ordinal or not is_appended]

    def open(self, name: BlockName) -> Block | None:
        """Open a block for reading; None if it was released meanwhile.

        Raises:
            BlockCorrupt, ForeignFile, NewerFormat: the block is unusable.
        """
        for path in paths_of(name):
            try:
                return open_to_read(path, self.control.journal_id)
            except FileNotFoundError:
                continue
        return None

    def index_of(self, block: Block, sequence: int) -> int:
        """The index of a record in a block."""
        return block.header.cycle << self.sequence_bits | sequence

    def label(self, name: BlockName) -> str:
        """A readable cycle and part: "20261121" or "20261121/2"."""
        part = name.ordinal & ((1 << PART_BITS) - 1)
        return self.schedule.label(name.cycle) + (f"/{part}" if part else "")

    def written_end(self, block: Block, words: Words) -> int:
        """The offset up to which data certainly exist."""
        if block.ordinal == words.ordinal:
            return words.end
        tail = block.tail()
        return tail[0] if tail is not None else block.header.data_end if block.ordinal < words.ordinal else 0

    def summary(self, name: BlockName) -> FileSummary | None:
        """A file's summary; None if it was released meanwhile.

        Raises:
            BlockCorrupt, ForeignFile, NewerFormat
        """
        block, words = self.open(name), self.words()
        if block is None:
            return None
        tail = block.tail()
        if tail is not None:  # first: in the middle of a roll the tail exists before the words change
            _, _, sequence, last_at_ns = tail
        elif block.ordinal == words.ordinal:
            sequence, last_at_ns = words.next_sequence, words.last_at_ns
        else:
            sequence, last_at_ns = _walked_end(block)
        header = block.header
        first_at_ns = next((each.appended_at_ns for each in segments(block) if isinstance(each, SegmentView)), 0)
        has_records = sequence > header.first_sequence
        return FileSummary(
            name=name,
            size=size_on_disk(name),
            first_index=header.first_index,
            end_index=self.index_of(block, sequence),
            first_at_ns=first_at_ns,
            last_at_ns=last_at_ns if has_records else 0,
            is_ended=tail is not None,
            link=link_of(block),
        )

    def missing_files(self, summaries: list[FileSummary]) -> list[str]:
        """The names of files that the end marks of others name, and that are missing; of each gap the first one."""
        if self.settings.face == "queue":  # it recycles blocks in the middle
            return []
        pairs = [(each, following.name.ordinal) for each, following in pairwise(summaries) if size_on_disk(each.name)]
        missing = [name_of(each.link) for each, ordinal in pairs if each.link is not None and each.link < ordinal]
        last = summaries[-1].link if summaries else None
        is_gone = last is not None and not any(path.exists() for path in paths_of(self._name_at(last)))
        return [*missing, name_of(last)] if last is not None and is_gone else missing

    def _name_at(self, ordinal: int) -> BlockName:
        return BlockName(ordinal, self.folder / name_of(ordinal))

    @property
    def has_failed(self) -> bool:
        """True if the disk refused a flush, and no appender has written again what it concerned."""
        return self.control.word(IS_FAILED) == 1 or (self.folder / FAILED_NAME).exists()

    def appenders(self) -> list[Appender]:
        """The living appenders: slots with a process id whose byte-range lock is held."""
        word = self.control.word
        taken = [(slot, pid) for slot in range(1, SLOT_COUNT + 1) if (pid := word(PIDS + 8 * slot))]
        return [Appender(slot, pid) for slot, pid in taken if self._is_locked(slot)]

    def lock_holder(self) -> LockHolder | None:
        """The holder of the appenders' lock; None if it is free."""
        slot = self.control.word(LOCK)
        if slot in (0, PARKED):
            return None
        pid = self.control.word(PIDS + 8 * slot) if slot <= SLOT_COUNT else 0
        return LockHolder(slot, pid, slot <= SLOT_COUNT and self._is_locked(slot))

    def named_positions(self) -> dict[str, int | None]:
        """The named tailers with the index that each reads next; None if it has committed none."""
        folder = self.folder / TAILERS_FOLDER
        paths = sorted(folder.glob(f"*{POSITION_SUFFIX}")) if folder.is_dir() else []
        return {path.name.removesuffix(POSITION_SUFFIX): read_position(path) for path in paths}

    def close(self) -> None:
        """Close the control file."""
        self.control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _is_locked(self, slot: int) -> bool:
        descriptor = os.open(self.control.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, SLOT_LOCKS + slot, 1, 0)
            return bool(FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
        finally:
            os.close(descriptor)


def paths_of(name: BlockName) -> tuple[Path, Path]:
    """A block's path, and its path if it was compressed since the folder was listed."""
    plain = name.path.name.removesuffix(COMPRESSED_SUFFIX)
    return name.path, name.path.with_name(plain + COMPRESSED_SUFFIX)


def size_on_disk(name: BlockName) -> int:
    """Size of a block's file in bytes; 0 if it was released."""
    for path in paths_of(name):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            continue
    return 0


def read_position(path: Path) -> int | None:
    """The position in a NamedPosition's file, without opening it for writing."""
    data, best = path.read_bytes(), (0, 0)
    for begin in (0, SLOT_SIZE):
        fields, crc = data[begin : begin + SLOT.size], data[begin + SLOT.size : begin + SLOT.size + CRC.size]
        if crc == CRC.pack(google_crc32c.value(fields)) and len(fields) == SLOT.size:
            best = max(best, SLOT.unpack(fields))
    return int(best[1]) if best[0] else None


def _walked_end(block: Block) -> tuple[int, int]:
    """Next sequence and last time of a block without a tail."""
    sequence, at_ns = block.header.first_sequence, 0
    for stretch in segments(block):
        if isinstance(stretch, SegmentView):
            sequence, at_ns = stretch.first_sequence + stretch.record_count, stretch.appended_at_ns
    return sequence, at_ns
