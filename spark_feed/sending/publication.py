"""When the source journal's records were sent in real time, and which of them a delayed feed may send.

The gateway of a real-time feed notes in a file of the journal how far it has sent, and when. The gateway of a delayed
feed reads the journal no further than the real-time gateway had sent `delay_ns` ago. The time is the kernel's clock
since boot, which cannot be set, and counts on while the machine is suspended. An entry of another boot does not say how
long ago it was written, so its delay begins when this gateway first sees it.

Invariant: a record is released no earlier than `delay_ns` after it was sent in real time. Every doubt (a torn entry, a
full disk, another boot) makes it later.

Entry layout (little-endian): boot u64, position u64, noted_at_ns u64, CRC-32C of these u32, pad[4].
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import google_crc32c

from tandemfeed.spark_feed.journaling.committed_records import CommittedRecord, CommittedRecords
from tandemfeed.spark_feed.journaling.records import Commit, RecordKind, packet_place
from tandemfeed.spark_feed.sharing import access_in

LOG = logging.getLogger(__name__)
PUBLICATION_NAME = "published.log"  # a file in the journal's folder
ENTRY = struct.Struct("<QQQ")
CRC = struct.Struct("<I4x")
ENTRY_SIZE = ENTRY.size + CRC.size
READ_COUNT = 128  # entries read at once
Clock = Callable[[], int]
Entry = tuple[int, int, int]  # boot, position, noted_at_ns
Known = tuple[int, int]  # position, and the time by this boot's clock at which its records had been sent


def since_boot_ns() -> int:
    """The clock that no step of the wall clock changes. The same in every process of the machine."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def this_boot() -> int:
    """A number that is different after each start of the machine."""
    return int(Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:16], 16)


class PublicationLog:
    """Notes how far a real-time gateway has sent. One process writes it.

    Args:
        journal: the folder of the source journal.
        is_resumed: whether the gateway has sent from this journal before. If not, entries that are there are about a
            journal that was removed; its positions would release this one's records too early.
    """

    def __init__(
        self, journal: Path, clock: Clock = since_boot_ns, boot: int | None = None, *, is_resumed: bool = True
    ) -> None:
        self._path, self._clock = journal / PUBLICATION_NAME, clock
        self._boot = this_boot() if boot is None else boot
        is_new, access = not self._path.exists(), access_in(journal)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, access.file_mode)
        if is_new:
            access.give(self._fd)
        if not is_resumed:
            os.ftruncate(self._fd, 0)
        self._end, self._position = self._recover()
        self._is_failing = False

    def note(self, position: int) -> None:
        """Note that every record before this position has been sent.

        A failure delays the delayed feed, and must not disturb this one: it is logged once, and the next call repeats
        the attempt.
        """
        if position <= self._position:
            return
        fields = ENTRY.pack(self._boot, position, self._clock())
        try:
            written = os.pwrite(self._fd, fields + CRC.pack(google_crc32c.value(fields)), self._end)
        except OSError as failed:
            if not self._is_failing:
                LOG.warning("cannot write %s (%s); delayed feeds wait until it succeeds", self._path, failed.strerror)
            self._is_failing = True
            return
        if written == ENTRY_SIZE:  # a part of an entry is written again
            self._end += ENTRY_SIZE
            self._position, self._is_failing = position, False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _recover(self) -> tuple[int, int]:
        """The end of the last whole entry, and its position. What follows it is written over."""
        count = os.fstat(self._fd).st_size // ENTRY_SIZE
        while count:
            if (last := _entry_at(self._fd, count - 1)) is not None:
                return count * ENTRY_SIZE, last[1]
            count -= 1
        return 0, 0


class Delay:
    """How far a delayed gateway may read the source journal. Safe to use from several threads.

    Args:
        from_position: of the records before it, all were released; entries about them are not read.
    """

    def __init__(
        self,
        journal: Path,
        delay_ns: int,
        from_position: int = 0,
        clock: Clock = since_boot_ns,
        boot: int | None = None,
    ) -> None:
        self._path, self._delay_ns, self._clock = journal / PUBLICATION_NAME, delay_ns, clock
        self._boot = this_boot() if boot is None else boot
        self._fd: int | None = None
        self._opened_at_ns = self._count_at_open = 0
        self._read_count = 0  # entries of the file that were read or skipped
        self._waiting: list[Known] = []  # the last of these that are not released, in reverse order
        self._from_position = self._released = from_position
        self._lock = threading.Lock()

    @property
    def released_position(self) -> int:
        """Records before this position may be sent now."""
        with self._lock:
            now_ns = self._clock()
            while (known := self._peek()) is not None:
                position, at_ns = known
                if now_ns - at_ns < self._delay_ns:
                    break
                self._waiting.pop()
                self._released = max(self._released, position)
            return self._released

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)

    def _peek(self) -> Known | None:
        if not self._waiting and self._is_open():
            assert self._fd is not None
            data = os.pread(self._fd, READ_COUNT * ENTRY_SIZE, self._read_count * ENTRY_SIZE)
            for at in range(0, len(data), ENTRY_SIZE):
                if (entry := _decode(data[at : at + ENTRY_SIZE])) is None:
                    break
                self._waiting.append((entry[1], self._sent_at_ns(entry)))
                self._read_count += 1
            self._waiting.reverse()
        return self._waiting[-1] if self._waiting else None

    def _sent_at_ns(self, entry: Entry) -> int:
        boot, _, noted_at_ns = entry
        if boot == self._boot:
            return noted_at_ns
        return self._opened_at_ns if self._read_count < self._count_at_open else self._clock()

    def _is_open(self) -> bool:
        """Open the file once it exists, at the first entry after `from_position`."""
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            self._opened_at_ns = self._clock()
            low, high = 0, os.fstat(self._fd).st_size // ENTRY_SIZE
            self._count_at_open = high
            while low < high:  # positions only grow
                middle = (low + high) // 2
                entry = _entry_at(self._fd, middle)
                if entry is not None and entry[1] <= self._from_position:
                    low = middle + 1
                else:
                    high = middle
            self._read_count = low
        return True


class DelayedRecords:
    """Reads a source journal as far as the delay allows. The caller closes the journal's reader.

    Invariant: `read` never returns a record that is not released.
    """

    def __init__(self, records: CommittedRecords, delay: Delay) -> None:
        self._records, self._delay = records, delay
        self._held: CommittedRecord | None = None
        self._committed_end = 0

    def read(self) -> CommittedRecord | None:
        """The next record with its index; None if there is none, or none that is old enough."""
        if self._held is None:
            self._held = self._records.read()
        if self._held is None or self._delay.released_position < self._due_position(self._held.record):
            return None
        entry, self._held = self._held, None
        return entry

    def _due_position(self, record: bytes) -> int:
        """Where the real-time gateway is when it has sent a record."""
        kind = record[0]
        if kind == RecordKind.PACKET:
            return packet_place(record) + 1
        if kind == RecordKind.COMMIT:
            self._committed_end = Commit.decode(record).next_record_index
            return self._committed_end
        return self._committed_end + 1 if kind == RecordKind.END else 0


def _entry_at(fd: int, number: int) -> Entry | None:
    return _decode(os.pread(fd, ENTRY_SIZE, number * ENTRY_SIZE))


def _decode(data: bytes) -> Entry | None:
    """An entry; None if it is torn."""
    if len(data) < ENTRY_SIZE or CRC.unpack_from(data, ENTRY.size)[0] != google_crc32c.value(data[: ENTRY.size]):
        return None
    return ENTRY.unpack_from(data)
