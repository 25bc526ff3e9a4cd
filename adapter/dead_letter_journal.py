"""The dead-letter journal: samples of the source messages that the converters refused, for whoever must find out why.

The loop looks once a turn whether there are any, and hands over, ten times a second at most, the packets that they are
in; a thread beside it reads the messages out of them and appends. It must never hold up a stream, or end one: a journal
that cannot be opened or written is told once in the log, and what it does not take is counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from adapter.conversion.dead_letters import SAMPLES_KEPT_MAX, DeadLetter, RefusedPacket
from adapter.dead_letter_record import DeadLetterRecord, encode_dead_letter
from journal import Journal, JournalError, Retention, Upkeep

LOG = logging.getLogger("adapter.dead_letters")
BLOCK_SIZE = 4 << 20
MAPPED_AHEAD = 256 << 10
RETAIN_SIZE = 64 << 20  # some 400,000 messages of 100 bytes; at a few a day, the last 16 days that had any
COLLECT_INTERVAL_NS = 100_000_000  # so a source gone wrong costs 2,560 messages a second and channel, and no more
WAITING_MAX = 16  # handed over and not appended: more than a second's, of 256 packets each
RETRY_INTERVAL_NS = 1_000_000_000  # as the output journal's
CLOSE_TIMEOUT_S = 2.0  # a disk that hangs must not keep the adapter from ending


class Refusing(Protocol):
    """What is asked of a converter."""

    @property
    def refused(self) -> Sequence[RefusedPacket]:
        """Packets with refused messages."""

    def take_refused(self) -> list[RefusedPacket]:
        """The packets in `refused`, which is empty then."""

    def dead_letters_in(self, packets: Sequence[RefusedPacket]) -> list[DeadLetter]:
        """The refused messages in them; any thread may ask."""


class Refused(NamedTuple):
    """What one channel's converter refused since it was last asked."""

    channel_id: int
    refused_at_ns: int
    packets: list[RefusedPacket]


class DeadLetterJournal:
    """Appended to by one adapter process, from a thread of its own.

    Args:
        path: the journal's folder, made if missing.
        converters: by channel_id.

    Attributes:
        kept_count: messages appended.
    """

    def __init__(self, path: Path, feed_id: int, converters: Mapping[int, Refusing]) -> None:
        self.kept_count = 0
        self._failed_count = 0  # the thread's to change
        self._left_count = 0  # the loop's
        self._path, self._feed_id, self._converters = path, feed_id, tuple(converters.items())
        self._collect_at_ns = 0
        self._waiting: SimpleQueue[Refused | None] = SimpleQueue()
        self._journal: Journal | None = None
        self._retry_at_ns = 0
        self._is_failing = self._is_behind = False
        self._thread = threading.Thread(target=self._run, name="dead-letters", daemon=True)
        self._thread.start()

    @property
    def unkept_count(self) -> int:
        """Messages that were sampled and not appended."""
        return self._failed_count + self._left_count

    def collect(self, now_ns: int) -> None:
        """Hand over what was refused since the last time, if it is time; for the loop, once a turn."""
        if now_ns < self._collect_at_ns:
            return
        for channel_id, converter in self._converters:
            if converter.refused:
                self._collect_at_ns = now_ns + COLLECT_INTERVAL_NS
                self._hand_over(Refused(channel_id, time.time_ns(), converter.take_refused()))

    def close(self) -> None:
        """Append what is left and close; the loop has ended."""
        self.collect(self._collect_at_ns)
        self._waiting.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            LOG.error("the dead-letter journal does not come to an end; left behind", extra={"path": str(self._path)})

    # ---- the loop's thread ----

    def _hand_over(self, refused: Refused) -> None:
        is_behind, self._is_behind = self._is_behind, self._waiting.qsize() >= WAITING_MAX
        if not self._is_behind:
            self._waiting.put(refused)
            return
        self._left_count += min(SAMPLES_KEPT_MAX, sum(packet.sample_count for packet in refused.packets))
        if not is_behind:
            LOG.error("the dead-letter journal does not keep pace; dead letters are left out")

    # ---- the thread beside it ----

    def _run(self) -> None:
        self._append([])  # so that a journal that cannot be opened is told at the start, and an empty one can be read
        converters = dict(self._converters)
        while (refused := self._waiting.get()) is not None:
            channel_id, at_ns, packets = refused
            letters = converters[channel_id].dead_letters_in(packets)
            records = [DeadLetterRecord.of(letter, self._feed_id, channel_id, at_ns) for letter in letters]
            self._append([encode_dead_letter(record) for record in records])
        try:
            if self._journal is not None:
                self._journal.close()
        except (JournalError, OSError) as failed:
            self._tell(failed)

    def _append(self, records: list[bytes]) -> None:
        if time.monotonic_ns() < self._retry_at_ns:
            self._failed_count += len(records)
            return
        try:
            if self._journal is None:
                upkeep = Upkeep(retention=Retention(size=RETAIN_SIZE), mapped_ahead=MAPPED_AHEAD)
                self._journal = Journal.open(self._path, block_size=BLOCK_SIZE, exclusive=True, upkeep=upkeep)
            if records:
                self._journal.append_batch(records)
        except (JournalError, OSError) as failed:
            self._failed_count += len(records)
            self._retry_at_ns = time.monotonic_ns() + RETRY_INTERVAL_NS
            self._tell(failed)
            return
        self.kept_count += len(records)
        if self._is_failing and records:
            self._is_failing = False
            LOG.info("dead letters are kept again", extra={"unkept": self.unkept_count})

    def _tell(self, failed: Exception) -> None:
        """Once, until something is kept again."""
        if not self._is_failing:
            self._is_failing = True
            LOG.error("dead letters are not kept; the stream goes on", extra={"why": str(failed)})
