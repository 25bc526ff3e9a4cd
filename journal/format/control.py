"""The control file: a journal's permanent settings, and the words that its appenders share between processes.

The appenders' lock is a word in this file, taken by compare-and-swap, so that it costs almost nothing if uncontended.
Its holder is a slot. A slot's owner is alive as long as the slot's byte-range lock is held, which the kernel releases
when the process ends for any reason (fcntl(2), open file description locks). So the next appender can take over a dead
holder's lock, without checking process ids.
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
from typing import Any, Self
from uuid import UUID, uuid4

import google_crc32c
import numpy as np

from tandemfeed.journal.compiled.kernels import load_word, release_lock, store_word, take_lock
from tandemfeed.journal.errors import BlockCorrupt, ForeignFile, JournalLocked, NewerFormat, ReadOnly
from tandemfeed.journal.format.layout import (
    CONTROL_HEAD,
    CONTROL_MAGIC,
    CONTROL_NAME,
    CONTROL_SIZE,
    CRC,
    LOCK,
    OPENING_LOCK,
    PIDS,
    SLOT_COUNT,
    SLOT_LOCKS,
    VERSION,
)

FLOCK = struct.Struct("hhxxxxqqixxxx")  # struct flock of 64-bit Linux
SPIN_COUNT = 100  # attempts before the first pause: an append holds the lock for well under a microsecond
PAUSE_MIN_S = 0.000_02
PAUSE_MAX_S = 0.002
LIVENESS_INTERVAL_S = 0.002  # between checks whether a holder is alive; each is a system call
LOCK_TIMEOUT_S = 30.0
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
    def create(cls, folder: Path, settings: Settings) -> None:
        """Create a journal's control file, unless another process has already created it."""
        text = json.dumps(asdict(settings)).encode()
        head = CONTROL_HEAD.pack(CONTROL_MAGIC, VERSION, uuid4().bytes, len(text)) + text
        draft = folder / f".{CONTROL_NAME}.{os.getpid()}.{time.monotonic_ns()}"
        try:
            draft.write_bytes((head + CRC.pack(google_crc32c.value(head))).ljust(CONTROL_SIZE, b"\0"))
            draft.chmod(0o644)
            os.link(draft, folder / CONTROL_NAME)
        except FileExistsError:
            pass
        except OSError as refused:
            raise ReadOnly(f"{folder}: {refused.strerror}; give a writable folder with free space") from None
        finally:
            draft.unlink(missing_ok=True)

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

    def flush(self) -> None:
        """Flush the words to the disk."""
        self._map.flush()

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

    def lock(self, on_dead_holder: Callable[[], None]) -> None:
        """Take the appenders' lock; if its holder died, first repair what it left.

        Raises:
            JournalLocked: a living appender (such as a stopped process) has held it for half a minute.
        """
        began, looked_at, pause, tries = time.monotonic(), 0.0, PAUSE_MIN_S, 0
        while not take_lock(self.address, 0, self.slot):
            tries += 1
            if tries < SPIN_COUNT:
                continue
            now = time.monotonic()
            if now - looked_at >= LIVENESS_INTERVAL_S:
                looked_at, holder = now, self.word(LOCK)
                if self._is_dead(holder) and take_lock(self.address, holder, self.slot):
                    on_dead_holder()
                    return
            if now - began > LOCK_TIMEOUT_S:
                raise JournalLocked(
                    f"{self.path.parent}: process {self.holder_pid()} has held the appenders' lock for "
                    f"{LOCK_TIMEOUT_S:.0f} s and is alive: if it is stopped, continue or end it"
                )
            time.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX_S)

    def unlock(self) -> None:
        """Release the appenders' lock."""
        release_lock(self.address)

    def holder_pid(self) -> int:
        """The id of the process that holds the appenders' lock; 0 if none."""
        holder = self.word(LOCK)
        return int(struct.unpack_from("<Q", self._map, PIDS + 8 * holder)[0]) if 0 < holder <= SLOT_COUNT else 0

    def is_abandoned(self) -> bool:
        """True if the lock's holder is dead, so that the next appender takes it over."""
        return self._is_dead(self.word(LOCK))

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
