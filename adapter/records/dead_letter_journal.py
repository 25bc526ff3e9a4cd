"""The dead-letter journal: samples of the source messages that the converters refused, to find out why.

Once a turn, the loop checks for refused messages. At most ten times a second, it hands their packets to a second
thread, which extracts the messages and appends them. The journal must never delay or end a stream: if it cannot be
opened or written, the log says so once, and a counter counts the messages that it drops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from tandemfeed.adapter.conversion.dead_letters import SAMPLES_KEPT_MAX, DeadLetter, RefusedPacket
from tandemfeed.adapter.records.dead_letter_record import DeadLetterRecord, encode_dead_letter
from tandemfeed.journal import Journal, JournalError, JournalFailed, Retention, Upkeep
from tandemfeed.runtime.threads import mark_unhealthy, start_thread

LOG = logging.getLogger("tandemfeed.adapter.dead_letters")
BLOCK_SIZE = 4 << 20
MAPPED_AHEAD = 256 << 10
RETAIN_SIZE = 64 << 20  # about 400,000 messages of 100 bytes; at a few a day, the last 16 days that had any
COLLECT_INTERVAL_NS = 100_000_000  # a broken source costs at most 2,560 messages a second per channel
WAITING_MAX = 16  # handed over and not appended yet: more than a second's, of 256 packets each
RETRY_INTERVAL_NS = 1_000_000_000  # the same as the output journal's
CLOSE_TIMEOUT_S = 2.0  # a hanging disk must not prevent the adapter from ending


class Refusing(Protocol):
    """The part of a converter that this journal uses."""

    @property
    def refused(self) -> Sequence[RefusedPacket]:
        """Packets with refused messages."""

    def take_refused(self) -> list[RefusedPacket]:
        """Return the packets in `refused` and empty it."""

    def dead_letters_in(self, packets: Sequence[RefusedPacket]) -> list[DeadLetter]:
        """The refused messages in these packets. May be called from any thread."""


class Refused(NamedTuple):
    """The packets that one channel's converter refused since the last hand-over."""

    channel_id: int
    refused_at_ns: int
    packets: list[RefusedPacket]


class DeadLetterJournal:
    """One adapter process appends to it, from a dedicated thread.

    Args:
        path: the journal's folder, created if missing.
        converters: by channel_id.
        clock_ns: the monotonic clock.

    Owner: the loop's thread for what is collected and skipped, the journal's thread for the rest.

    Attributes:
        appended_count: messages appended.
    """

    def __init__(
        self,
        path: Path,
        feed_id: int,
        converters: Mapping[int, Refusing],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.appended_count = 0
        self._failed_count = 0  # changed by the journal's thread only
        self._skipped_count = 0  # changed by the loop only
        self._path, self._feed_id, self._converters = path, feed_id, tuple(converters.items())
        self._clock_ns = clock_ns
        self._collect_at_ns = 0
        self._waiting: SimpleQueue[Refused | None] = SimpleQueue()
        self._journal: Journal | None = None
        self._retry_at_ns = 0
        self._is_failing = self._is_behind = False
        self._thread = start_thread(self._run, "dead-letters", mark_unhealthy)  # the adapter can serve without it

    @property
    def dropped_count(self) -> int:
        """Messages that were sampled but not appended."""
        return self._failed_count + self._skipped_count

    def collect(self, now_ns: int) -> None:
        """Hand over what was refused since the last time, if the interval has passed. The loop calls it each turn."""
        if now_ns < self._collect_at_ns:
            return
        for channel_id, converter in self._converters:
            if converter.refused:
                self._collect_at_ns = now_ns + COLLECT_INTERVAL_NS
                self._hand_over(Refused(channel_id, time.time_ns(), converter.take_refused()))

    def close(self) -> None:
        """Append what is left, and close. Call it after the loop has ended."""
        self.collect(self._collect_at_ns)
        self._waiting.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            LOG.error("the dead-letter journal did not close in time; abandoned", extra={"path": str(self._path)})

    # ---- the loop's thread ----

    def _hand_over(self, refused: Refused) -> None:
        is_behind, self._is_behind = self._is_behind, self._waiting.qsize() >= WAITING_MAX
        if not self._is_behind:
            self._waiting.put(refused)
            return
        self._skipped_count += min(SAMPLES_KEPT_MAX, sum(packet.sample_count for packet in refused.packets))
        if not is_behind:
            LOG.error("the dead-letter journal is too slow; dropping dead letters")

    # ---- the journal's thread ----

    def _run(self) -> None:
        self._append([])  # opens the journal now: a failure shows at start, and readers find an empty journal
        converters = dict(self._converters)
        while (refused := self._waiting.get()) is not None:
            channel_id, at_ns, packets = refused
            letters = converters[channel_id].dead_letters_in(packets)
            records = [DeadLetterRecord.of(letter, self._feed_id, channel_id, at_ns) for letter in letters]
            self._append([encode_dead_letter(record) for record in records])
        self._close()

    def _close(self) -> None:
        journal, self._journal = self._journal, None
        try:
            if journal is not None:
                journal.close()
        except (JournalError, OSError) as failed:
            self._log_failure(failed)

    def _append(self, records: list[bytes]) -> None:
        if self._clock_ns() < self._retry_at_ns:
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
            self._retry_at_ns = self._clock_ns() + RETRY_INTERVAL_NS
            self._log_failure(failed)
            if isinstance(failed, JournalFailed):
                self._close()  # the next attempt opens it again, which writes again what the disk may have lost
            return
        self.appended_count += len(records)
        if self._is_failing and records:
            self._is_failing = False
            LOG.info("dead letters are being stored again", extra={"dropped": self.dropped_count})

    def _log_failure(self, failed: Exception) -> None:
        """Log once until an append succeeds again."""
        if not self._is_failing:
            self._is_failing = True
            LOG.error("cannot store dead letters; the stream continues", extra={"why": str(failed)})
