"""The control file: a journal's permanent settings, and the words that its appenders share between processes.

The appenders' lock is a word in this file, taken by compare-and-swap, so that it costs almost nothing if uncontended.
Its holder is a slot. A slot's owner is alive as long as the slot's byte-range lock is held, which the kernel releases
when the process ends for any reason (fcntl(2), open file description locks). So the next appender can take over a dead
holder's lock, without checking process ids.

A second word is the flushers' lock: one appender flushes at a time. A process that died with it may have been the only
one to learn that its flush failed. The lock of a failed journal stays taken (PARKED), so that no process appends.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self
from uuid import UUID, uuid4

import google_crc32c
import numpy as np

from tandemfeed.journal.compiled.kernels import load_word, release_lock, store_word, take_lock
from tandemfeed.journal.errors import BlockCorrupt, ForeignFile, JournalFailed, JournalLocked, NewerFormat, ReadOnly
from tandemfeed.journal.format.access import PRIVATE, Access
from tandemfeed.journal.format.layout import (
    CONTROL_HEAD,
    CONTROL_MAGIC,
    CONTROL_NAME,
    CONTROL_SIZE,
    CRC,
    DURABLE,
    DURABLE_END,
    END,
    FLUSHER,
    IS_CLEAN,
    IS_FAILED,
    LOCK,
    OPENING_LOCK,
    ORDINAL,
    PARKED,
    PIDS,
    SLOT_COUNT,
    SLOT_LOCKS,
    VERSION,
)
from tandemfeed.runtime import durable

FLOCK = struct.Struct("hhxxxxqqixxxx")  # struct flock of 64-bit Linux
SPIN_COUNT = 100  # attempts before the first pause: an append holds the lock for well under a microsecond
PAUSE_MIN_S = 0.000_02
PAUSE_MAX_S = 0.002
LIVENESS_INTERVAL_S = 0.002  # between checks whether a holder is alive; each is a system call
LOCK_TIMEOUT_S = 30.0
FLUSH_TIMEOUT_S = 300.0  # a slow disk may take minutes for gigabytes
OPENING_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """A journal's permanent settings."""

    roll_cycle: str
    epoch_offset_s: int
    time_zone: str
    block_size: int
    state_size: int  # bytes in each block that are reserved for the face
    key_check: str  # check value of the encryption key; empty: not encrypted
    face: str  # "journal", "queue", "store"


class _Wait:
    """A wait for a lock: pauses that grow, and a limit."""

    def __init__(self, timeout_s: float) -> None:
        self._over_at = time.monotonic() + timeout_s
        self._looked_at, self._pause_s, self._tries = 0.0, PAUSE_MIN_S, 0
        self.is_over = False

    def looks(self) -> bool:
        """After a failed attempt: pauses, unless it was an early one. True if it is time to look at the holder."""
        self._tries += 1
        if self._tries < SPIN_COUNT:
            return False
        now = time.monotonic()
        if self._tries > SPIN_COUNT:
            time.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        self.is_over = now > self._over_at
        if now - self._looked_at < LIVENESS_INTERVAL_S and not self.is_over:
            return False
        self._looked_at = now
        return True


class Control:
    """An open control file.

    Args:
        path: the file.
        writable: False for readers, which take no slot and no lock.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        # The map keeps a duplicate of its descriptor. The locks belong to a separate file description, so that closing
        # its descriptor releases them, and a forked child can close its copy.
        try:
            self._fd, mapped = os.open(path, flags), os.open(path, flags)
        except PermissionError as refused:
            raise ReadOnly(f"{path}: {refused.strerror}; an appender must be able to write it") from None
        try:
            size = os.fstat(mapped).st_size
            if size != CONTROL_SIZE:
                raise ForeignFile(f"{path}: not a control file (it has {size} bytes, not {CONTROL_SIZE}); move it away")
            self._map = mmap.mmap(mapped, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
            self._array = np.frombuffer(self._map, np.uint8)
            self.address = int(self._array.ctypes.data)
            self.journal_id, self.settings = self._read_head()
        except BaseException:
            os.close(self._fd)
            raise
        finally:
            os.close(mapped)
        self.slot = 0

    @classmethod
    def create(cls, folder: Path, settings: Settings, access: Access = PRIVATE) -> None:
        """Create a journal's control file, durably, unless another process has already created it."""
        text = json.dumps(asdict(settings)).encode()
        head = CONTROL_HEAD.pack(CONTROL_MAGIC, VERSION, uuid4().bytes, len(text)) + text

        def write(file: BinaryIO) -> None:
            file.write((head + CRC.pack(google_crc32c.value(head))).ljust(CONTROL_SIZE, b"\0"))
            access.give(file.fileno())

        try:
            durable.create_file(folder / CONTROL_NAME, write)
        except FileExistsError:
            pass
        except durable.FlushFailed as failed:
            raise JournalFailed(f"{failed}; no journal was created") from failed
        except OSError as refused:
            raise ReadOnly(f"{folder}: {refused.strerror}; give a writable folder with free space") from None

    def _read_head(self) -> tuple[UUID, Settings]:
        magic, version, journal_id, size = CONTROL_HEAD.unpack_from(self._map)
        if magic != CONTROL_MAGIC:
            raise ForeignFile(f"{self.path}: not a control file (it begins with {magic!r}); move it away")
        if version != VERSION:
            raise NewerFormat(f"{self.path}: format version {version}; this release reads and writes {VERSION}")
        end = CONTROL_HEAD.size + size
        if end + CRC.size > LOCK or CRC.unpack_from(self._map, end)[0] != google_crc32c.value(self._map[:end]):
            raise BlockCorrupt(f"{self.path}: the settings are damaged; restore the file from a copy")
        return UUID(bytes=journal_id), Settings(**json.loads(self._map[CONTROL_HEAD.size : end]))

    def word(self, place: int) -> int:
        """The current value of a word."""
        return int(load_word(self.address + place))

    def set_word(self, place: int, value: int) -> None:
        """Change a word."""
        store_word(self.address + place, value)

    def words(self) -> memoryview:
        """All words, for code that changes them too often for compiled calls. Release it before the file is closed."""
        return memoryview(self._map).cast("Q")

    def flush(self) -> None:
        """Flush the words to the disk.

        Raises:
            FlushFailed
        """
        durable.flush(self._fd, self.path)

    def take_slot(self, *, exclusive: bool) -> None:
        """Become one of the appenders, or the exclusive one.

        Raises:
            JournalLocked: another appender is exclusive, there are too many, or others exist (for an exclusive one).
        """
        if exclusive:
            if self._byte_lock(SLOT_LOCKS + 1, SLOT_COUNT):
                self.slot = 1
        else:
            self.slot = next(
                (slot for slot in range(1, SLOT_COUNT + 1) if self._byte_lock(SLOT_LOCKS + slot, 1)), 0
            )  # fmt: skip
        if not self.slot:
            reason = f"{self._holders()} appends to it; end that process, or use a Tailer"
            raise JournalLocked(f"{self.path.parent}: {reason}")
        struct.pack_into("<Q", self._map, PIDS + 8 * self.slot, os.getpid())

    def has_others(self) -> bool:
        """True if there is another living appender."""
        return any(self._is_locked(SLOT_LOCKS + start, count) for start, count in self._other_slots())

    def _other_slots(self) -> Iterator[tuple[int, int]]:
        yield 1, self.slot - 1
        yield self.slot + 1, SLOT_COUNT - self.slot

    def _holders(self) -> str:
        for slot in range(1, SLOT_COUNT + 1):
            if self._is_locked(SLOT_LOCKS + slot, 1):
                return f"process {struct.unpack_from('<Q', self._map, PIDS + 8 * slot)[0] or 'unknown'}"
        return "another process"

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Allow only one process at a time to open or close.

        Raises:
            JournalLocked: another process has been opening or closing for a minute.
        """
        deadline = time.monotonic() + OPENING_TIMEOUT_S
        while not self._byte_lock(OPENING_LOCK, 1):
            if time.monotonic() > deadline:
                reason = "another process has been opening it for a minute; end that process"
                raise JournalLocked(f"{self.path.parent}: {reason}")
            time.sleep(PAUSE_MAX_S)  # waiting for such a lock in the kernel would block this thread without a time-out
        try:
            yield
        finally:
            self._fcntl(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, OPENING_LOCK, 1)

    def lock(self, on_dead_holder: Callable[[], None], *, even_failed: bool = False) -> None:
        """Take the appenders' lock; if its holder died, first repair what it left.

        Args:
            even_failed: also of a failed journal, to write again what may be lost.

        Raises:
            JournalLocked: a living appender (such as a stopped process) has held it for half a minute.
            JournalFailed
        """
        if not take_lock(self.address + LOCK, 0, self.slot):
            self._await_lock(on_dead_holder, even_failed=even_failed)

    def _await_lock(self, on_dead_holder: Callable[[], None], *, even_failed: bool) -> None:
        wait = _Wait(LOCK_TIMEOUT_S)
        while not take_lock(self.address + LOCK, 0, self.slot):
            if not wait.looks():
                continue
            holder = self.word(LOCK)
            if holder == PARKED and not even_failed:
                raise JournalFailed(
                    f"{self.path.parent}: the disk refused a flush, so records may be lost in a power failure; check "
                    "the disk, then close the journal and open it again, which writes them again"
                )
            if (holder == PARKED or self._is_dead(holder)) and take_lock(self.address + LOCK, holder, self.slot):
                if holder != PARKED:
                    on_dead_holder()
                return
            if wait.is_over:
                raise JournalLocked(
                    f"{self.path.parent}: process {self.pid_of(holder)} has held the appenders' lock for "
                    f"{LOCK_TIMEOUT_S:.0f} s and is alive: if it is stopped, continue or end it"
                )

    def unlock(self) -> None:
        """Release the appenders' lock."""
        release_lock(self.address)

    def park(self) -> None:
        """Keep the appenders' lock taken, for those who open the failed journal again."""
        self.set_word(LOCK, PARKED)

    def release(self) -> None:
        """Release the appenders' lock, but keep that of a failed journal taken."""
        if self.word(IS_FAILED):
            self.park()
        else:
            self.unlock()

    def begin_flush(self) -> bool:
        """Take the flushers' lock. True if its holder died: what it was flushing may be lost.

        Raises:
            JournalLocked: a living process has been flushing for minutes.
        """
        wait, was_interrupted = _Wait(FLUSH_TIMEOUT_S), self.word(FLUSHER) == self.slot
        while not was_interrupted and not take_lock(self.address + FLUSHER, 0, self.slot):
            if not wait.looks():
                continue
            holder = self.word(FLUSHER)
            was_interrupted = self._is_dead(holder) and take_lock(self.address + FLUSHER, holder, self.slot)
            if wait.is_over and not was_interrupted:
                raise JournalLocked(
                    f"{self.path.parent}: process {self.pid_of(holder)} has been flushing it for "
                    f"{FLUSH_TIMEOUT_S:.0f} s: if it is stopped, continue or end it; otherwise check the disk"
                )
        return was_interrupted

    def end_flush(self) -> None:
        """Release the flushers' lock."""
        self.set_word(FLUSHER, 0)

    def was_flush_interrupted(self) -> bool:
        """True if a process died while it flushed; asked by an appender that is not flushing."""
        holder = self.word(FLUSHER)
        return holder == self.slot or self._is_dead(holder)

    @property
    def clean_end(self) -> tuple[int, int] | None:
        """The current block's ordinal and end if the last appender closed the journal, after which the disk has
        everything; otherwise None."""
        return (self.word(ORDINAL), self.word(END)) if self.word(IS_CLEAN) else None

    def close_cleanly(self) -> None:
        """The last appender closes, and the disk has everything; which the durable place need not say any more."""
        self.set_word(IS_CLEAN, 1)
        self.set_word(DURABLE, 0)
        self.set_word(DURABLE_END, 0)

    def durable_until(self) -> tuple[int, int]:
        """A block's ordinal and an offset in it: the disk has everything before. Ordinal -1: nothing."""
        return self.word(DURABLE) - 1, self.word(DURABLE_END)

    def set_durable(self, ordinal: int, end: int) -> None:
        """The disk has everything before this place. After a crash between the two stores, less is known."""
        if ordinal + 1 != self.word(DURABLE):
            self.set_word(DURABLE_END, 0)
            self.set_word(DURABLE, ordinal + 1)
        self.set_word(DURABLE_END, end)

    def pid_of(self, slot: int) -> int:
        """The id of the process that has a slot; 0 if none."""
        return int(struct.unpack_from("<Q", self._map, PIDS + 8 * slot)[0]) if 0 < slot <= SLOT_COUNT else 0

    def is_abandoned(self) -> bool:
        """True if the lock's holder is dead, so that the next appender takes it over."""
        return self.word(LOCK) != PARKED and self._is_dead(self.word(LOCK))

    def _is_dead(self, holder: int) -> bool:
        if holder == 0 or holder == self.slot:
            return False
        return holder > SLOT_COUNT or not self._is_locked(SLOT_LOCKS + holder, 1)

    def inherited_lock(self) -> bool:
        """True if this slot's previous owner died with the lock: this appender now holds it and must recover."""
        return self.slot != 0 and self.word(LOCK) == self.slot

    def seize_lock(self) -> None:
        """Take the lock from any holder; only when there is no other living appender."""
        self.set_word(LOCK, self.slot)

    def _byte_lock(self, start: int, count: int) -> bool:
        try:
            self._fcntl(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, start, count)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _is_locked(self, start: int, count: int) -> bool:
        if count <= 0:
            return False
        found = self._fcntl(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, count)
        return bool(FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def _fcntl(self, command: int, kind: int, start: int, count: int) -> bytes:
        return fcntl.fcntl(self._fd, command, FLOCK.pack(kind, os.SEEK_SET, start, count, 0))

    def close(self, *, in_child: bool = False) -> None:
        """Release the slot and close the file. A forked child only closes it: the slot belongs to the parent."""
        if self._fd < 0:
            return
        if self.slot and not in_child:
            struct.pack_into("<Q", self._map, PIDS + 8 * self.slot, 0)
        os.close(self._fd)  # this releases every byte-range lock
        self._fd = -1
        self.slot = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
