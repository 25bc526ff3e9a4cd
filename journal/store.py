"""An open journal, for appending. Once `append` returns, every tailer sees the record, all in the same order.

Several threads and processes may append; a lock word in the control file orders them (control.py). An append is one
compiled call (kernels.py). Rolls, waits and encryption take the slow path here. Invariant: appended records never
change, and indices grow.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from tandemfeed.journal.append.chain import BlockChain
from tandemfeed.journal.append.keeper import Keeper, Upkeep
from tandemfeed.journal.compiled.compile_report import journal_compilation_reported
from tandemfeed.journal.compiled.kernels import ROLL, STALE, append_one, append_pieces, append_several, load_appending
from tandemfeed.journal.errors import ForeignFile, JournalClosed, JournalError, JournalFailed, SettingsDiffer
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.arguments import check_records, whole_number
from tandemfeed.journal.format.block import Block, blocks_in
from tandemfeed.journal.format.body import NO_TABLE, Body, Record, as_bytes
from tandemfeed.journal.format.control import Control, Settings
from tandemfeed.journal.format.filesystem import make_folder
from tandemfeed.journal.format.layout import (
    BLOCK_SIZE_DEFAULT,
    BLOCK_SIZE_MAX,
    BLOCK_SIZE_MIN,
    CONTROL_NAME,
    END,
    IS_FAILED,
    IS_SEALED,
    NEXT_SEQUENCE,
    ORDINAL,
    PART_BITS,
    VISIBLE,
)
from tandemfeed.journal.format.roll_cycle import TIME_NS_END, RollSchedule
from tandemfeed.journal.format.sealing import BlockCipher, key_check, require_key
from tandemfeed.journal.tailer import Tailer
from tandemfeed.runtime.durable import FlushFailed

LOG = logging.getLogger("tandemfeed.journal")
LOOK_AHEAD_MASK = 63  # every 64th append checks whether to make the next block
QUICK_COUNT_MAX, QUICK_SIZE_MAX = 256, 1 << 20  # of a batch that one compiled call appends, holding Python's lock
assert array("I").itemsize == 4  # as a segment's table stores where records end
_open_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


class _Closed:
    """Takes the place of the block in a closed or failed journal."""

    def __init__(self, error: type[JournalError], text: str) -> None:
        self._error, self._text = error, text

    @property
    def address(self) -> NoReturn:
        raise self._error(self._text)


class Journal:
    """An open journal. Create it with `Journal.open`, preferably in a `with`. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        control: Control,
        key: bytes | None,
        upkeep: Upkeep,
        clock_ns: Callable[[], int],
        *,
        is_cut: bool = False,
    ) -> None:
        self.folder = folder
        self.settings = control.settings
        self._control = control
        self._key = key
        self._clock_ns = clock_ns
        self._keeper = Keeper(folder, upkeep, Access.of_journal(folder))
        schedule = RollSchedule.named(
            self.settings.roll_cycle,
            epoch_offset_s=self.settings.epoch_offset_s,
            time_zone=self.settings.time_zone,
        )
        self.chain = BlockChain(folder, control, schedule, self._keeper, clock_ns, is_cut=is_cut)
        self._keeper.on_tidied = self.chain.durability.forget_removed
        self._keeper.on_refusal = lambda: control.set_word(IS_FAILED, 1)  # the next sync writes it again
        self._reader: Tailer | None = None
        self._reading = threading.Lock()
        self._cipher: tuple[int, BlockCipher] | None = None
        self._quick_type = bytes if key is None else Body  # the record type that the compiled append accepts
        try:
            self._enter()
        except BaseException:
            self._keeper.close()
            self.chain.close()
            raise

    @classmethod
    @journal_compilation_reported()
    def open(
        cls,
        path: Path | str,
        *,
        roll_cycle: str = "DAILY",
        epoch_offset_s: int = 0,
        time_zone: str = "UTC",
        block_size: int = BLOCK_SIZE_DEFAULT,
        key: bytes | None = None,
        exclusive: bool = False,
        group: str | int | None = None,
        upkeep: Upkeep | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        face: str = "journal",
        state_size: int = 0,
        is_cut: bool = False,
    ) -> Self:
        """Open a journal for appending, creating it if needed, and recover.

        Args:
            path: the journal's folder, on a local file system.
            roll_cycle: name of a `RollCycle`. An existing journal keeps its own; a different one causes a warning.
            epoch_offset_s: how many seconds later cycles begin.
            time_zone: the zone that determines when daily and weekly cycles begin.
            block_size: bytes of each block file; a longer record gets a larger block.
            key: 32 bytes to encrypt with.
            exclusive: allow no other appender.
            group: name or id of a group whose members may read the new journal and append to it; otherwise only the
                owner may. An existing journal keeps its modes.
            upkeep: retention, compression, free disk space, listeners.
            clock_ns: wall-clock time.
            face: what the engine is used as; the other faces set it.
            state_size: bytes of the face's own state in the control file.
            is_cut: recover nothing after the first damage since the last `sync`; a follower sets it, whose leader sends
                that again.

        Raises:
            JournalLocked, SettingsDiffer, WrongKey, ForeignFile, NewerFormat, BlockCorrupt: nothing was changed.
            DiskFull, ReadOnly, NetworkFileSystem: nothing was changed.
            JournalFailed: the disk refuses to be flushed; the journal's records can be read.
            ValueError: an argument is invalid.
        """
        path = Path(path)
        if not BLOCK_SIZE_MIN <= whole_number(block_size, "block_size") <= BLOCK_SIZE_MAX or block_size % 4_096:
            raise ValueError(
                f"block_size is {block_size}; it must be whole pages, {BLOCK_SIZE_MIN} to {BLOCK_SIZE_MAX} bytes"
            )
        RollSchedule.named(roll_cycle, epoch_offset_s=epoch_offset_s, time_zone=time_zone)
        wanted = Settings(roll_cycle, epoch_offset_s, time_zone, block_size, state_size, key_check(key), face)
        access = Access.of_group(group)
        make_folder(path, access)
        strangers = blocks_in(path)  # listed first: a journal's control file is created before any block
        if not (path / CONTROL_NAME).exists():
            if strangers:
                raise ForeignFile(
                    f"{strangers[0].path}: a block file without {CONTROL_NAME}; restore that file, or move this one"
                )
            if group is not None:
                access.give(path, is_folder=True)
            Control.create(path, wanted, access)
        control = Control(path / CONTROL_NAME, writable=True)
        try:
            _check_settings(path, wanted, control.settings, key)
            with control.opening():
                control.take_slot(exclusive=exclusive)
                return cls(path, control, key, upkeep or Upkeep(), clock_ns, is_cut=is_cut)
        except BaseException:
            control.close()
            raise

    def _enter(self) -> None:
        self.chain.enter()
        self._block: Block | _Closed = self.chain.current
        refuse = weakref.WeakMethod(self._refuse)  # no cycle: a journal that is dropped unmaps its files
        self.chain.durability.on_failure = lambda failure: (found := refuse()) and found(failure)
        load_appending(self._control.address, self.chain.current.address, self._control.slot)
        _open_journals.add(self)

    def _refuse(self, failure: str) -> None:
        """Appends raise this from now on, even if another process opens the journal again and frees the lock."""
        self._block, self._quick_type = _Closed(JournalFailed, failure), bytes

    @property
    def next_index(self) -> int:
        """Index of the next record, unless it begins a new cycle."""
        cycle = self._control.word(ORDINAL) >> PART_BITS
        return cycle << self.sequence_bits | self._control.word(NEXT_SEQUENCE)

    @property
    def first_index(self) -> int:
        """Index of the oldest record; of the first record to come if there is none."""
        with Tailer(self.folder, key=self._key) as tailer:
            tailer.to_start()
            return tailer.position or 0

    @property
    def sequence_bits(self) -> int:
        """The number of low bits of an index that are the sequence."""
        return self.chain.schedule.roll_cycle.sequence_bits

    def append(self, record: Record) -> int:
        """Append one record; tailers see it when this returns.

        Args:
            record: up to 1 GiB.

        Returns:
            The record's index.

        Raises:
            RecordTooLong, DiskFull, JournalLocked: nothing was appended.
        """
        block = self._block  # a reference, so that a roll by another thread cannot unmap it
        if type(record) is self._quick_type:
            index = append_one(
                self._control.address, block.address, self._control.slot, self._clock_ns(), self.chain.cycle_end_ns,
                record,
            )  # fmt: skip
            if index >= 0:
                if not index & LOOK_AHEAD_MASK:
                    self._look_ahead()
                return int(index)
        return self._append(Body.of_record(record))

    def append_batch(self, records: Sequence[bytes]) -> int:
        """Append records as one segment: after a crash all or none exist.

        Returns:
            The first record's index; the others follow it.
        """
        check_records(records)
        block, count = self._block, len(records)
        if self._key is None and 0 < count <= QUICK_COUNT_MAX:
            data = b"".join(records)
            if len(data) <= QUICK_SIZE_MAX:
                ends = array("I", accumulate(map(len, records))).tobytes()
                index = append_several(
                    self._control.address, block.address, self._control.slot, self._clock_ns(),
                    self.chain.cycle_end_ns, ends, data, count,
                )  # fmt: skip
                if index >= 0:
                    if -index & LOOK_AHEAD_MASK < count:
                        self._look_ahead()
                    return int(index)
        return self._append(Body.of_records(records))

    def append_rows(self, rows: NDArray[Any]) -> int:
        """Append records of one size as one segment, copied once.

        Args:
            rows: C-contiguous; each element along the first axis is a record.

        Returns:
            The first record's index.
        """
        return self._append(Body.of_rows(rows))

    def append_columns(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> int:
        """Append records of several sizes as one segment, copied once.

        Args:
            data: the records' bytes, one after the other.
            ends: where each record ends in `data`, ascending.

        Returns:
            The first record's index; the others follow it.
        """
        return self._append(Body.of_columns(data, ends))

    def append_segment(
        self,
        body: bytes,
        count_and_flags: int,
        record_size: int,
        appended_at_ns: int,
        cycle: int,
        first_sequence: int = 0,
    ) -> int:
        """Append a leader's segment at a follower: with the same time and cycle, and at least the same sequence.

        Missing sequences before `first_sequence` are skipped: the leader has released or lost them.
        """
        whole = Body(NO_TABLE, as_bytes(body), count_and_flags, record_size)
        return self._append(whole, appended_at_ns, cycle, first_sequence)

    def sync(self) -> None:
        """Flush everything that any process appended before the call to the disk, and write a checkpoint.

        Includes what a killed process left. A call waits for that of another thread or process.

        Raises:
            JournalFailed: the disk refused. Records that were appended since the last successful `sync` are not
                acknowledged, and no process can append, until the journal is opened again.
            JournalLocked: another process holds a lock and does not continue.
        """
        self._require_open()
        self.chain.flush()

    def read(self, index: int) -> bytes:
        """The record at an index. To read many records, use a tailer.

        Raises:
            NoSuchRecord: the record was never written, or was released.
        """
        with self._reading:
            if self._reader is None:
                self._reader = self.tailer()
            return self._reader.read_at(index)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """All records with their indices, from the oldest."""
        with self.tailer() as tailer:
            yield from tailer

    def tailer(self, name: str | None = None) -> Tailer:
        """A tailer of this journal; with a name, it continues at its stored position."""
        return Tailer(self.folder, name=name, key=self._key, lend=self.chain.lend)

    def show_until(self, index: int | None) -> None:
        """Show tailers only records before this index; None: all. For replication."""
        self._control.set_word(VISIBLE, 0 if index is None else whole_number(index, "index"))

    def start_upkeep(self) -> None:
        """Start the thread that makes blocks ahead of time now, with the calling thread's priority. Otherwise the first
        append starts it."""
        self._keeper.start()

    def close(self) -> None:
        """Sync and close. Further calls do nothing.

        Raises:
            JournalFailed: not everything is on the disk; the journal is closed all the same.
        """
        if self._control.slot == 0:
            return
        try:
            self.chain.flush()
            self._mark_clean()
        finally:
            self._keeper.close()
            if self._reader is not None:
                self._reader.close()
            self._shut(f"{self.folder} was closed; open it again")

    def _mark_clean(self) -> None:
        control = self._control
        with control.opening():
            if not control.has_others() and not self.chain.durability.is_doubtful():
                control.close_cleanly()
                try:
                    control.flush()
                except FlushFailed:  # it is opened as after a crash
                    LOG.warning("%s: could not store that it was closed", self.folder, exc_info=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except JournalFailed:
            if not isinstance(raised, JournalFailed):  # otherwise the caller learns of it already
                raise

    def _append(self, body: Body, at_ns: int | None = None, cycle: int | None = None, first_sequence: int = 0) -> int:
        """The slow path: append under the lock, rolling if needed."""
        control, chain = self._control, self.chain
        self._require_open()
        control.lock(chain.recover)
        try:
            while True:
                here = chain.current.header.cycle, control.word(NEXT_SEQUENCE)
                if cycle is not None and (cycle, first_sequence) > here:
                    chain.roll(cycle, first_sequence=first_sequence)
                now_ns = self._clock_ns() if at_ns is None else at_ns
                cycle_end_ns = chain.cycle_end_ns if cycle is None else TIME_NS_END - 1  # in 64 bits
                stored = body if self._key is None else self._sealed(body)
                index = append_pieces(
                    control.address, chain.current.address, now_ns, cycle_end_ns,
                    stored.table.ctypes.data, stored.table.size, stored.data.ctypes.data, stored.data.size,
                    stored.count_and_flags, stored.record_size,
                )  # fmt: skip
                if index >= 0:
                    break
                if index == STALE:
                    chain.catch_up()
                elif index == ROLL:
                    chain.roll_to_time(now_ns)
                else:
                    chain.roll(chain.current.header.cycle, stored.size)
        finally:
            control.unlock()
            self._block = chain.current
            if chain.durability.failure:
                self._refuse(chain.durability.failure)
        self._look_ahead()
        return int(index)

    def _require_open(self) -> int:
        return self._block.address  # raises if closed or failed

    def _sealed(self, body: Body) -> Body:
        assert self._key is not None
        header = self.chain.current.header
        if self._cipher is None or self._cipher[0] != header.ordinal:
            self._cipher = header.ordinal, BlockCipher(self._key, header)
        flags = body.count_and_flags | IS_SEALED
        plain = body.table.tobytes() + body.data.tobytes()
        sealed = self._cipher[1].seal(plain, self._control.word(NEXT_SEQUENCE), flags, body.record_size)
        return Body(NO_TABLE, as_bytes(sealed), flags, body.record_size)

    def _look_ahead(self) -> None:
        self._keeper.look_ahead(self.chain.current, self._control.word(END), self.settings.block_size)

    def _shut(self, text: str, *, in_child: bool = False) -> None:
        self.chain.close()
        self._block = _Closed(JournalClosed, text)
        self._quick_type = bytes
        _open_journals.discard(self)
        self._control.close(in_child=in_child)


def _check_settings(path: Path, wanted: Settings, found: Settings, key: bytes | None) -> None:
    require_key(key, found.key_check, path)
    if wanted.face != found.face:
        raise SettingsDiffer(f"{path} is a {found.face}, not a {wanted.face}; open it as a {found.face}")
    for name in ("block_size", "state_size"):
        was, now = getattr(found, name), getattr(wanted, name)
        if was != now:
            raise SettingsDiffer(f"{path} was made with {name} {was}, not {now}; give {name} {was}, or another folder")
    rolls = [(each.roll_cycle, each.epoch_offset_s, each.time_zone) for each in (wanted, found)]
    if rolls[0] != rolls[1]:
        text = "{0} with an offset of {1} s in {2}"
        warnings.warn(
            f"{path} rolls {text.format(*rolls[1])}, as it was created, not {text.format(*rolls[0])}", stacklevel=4
        )


def _after_fork() -> None:
    """A forked child has its parent's maps, but must not append with its parent's slot."""
    for journal in list(_open_journals):
        journal._shut(f"{journal.folder} was opened before this process was forked; open it again", in_child=True)


os.register_at_fork(after_in_child=_after_fork)
