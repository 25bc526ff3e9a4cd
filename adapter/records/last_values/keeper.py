"""Keeps an adapter's tables of last values up with its output journal, in a thread of its own.

The loop's thread does nothing for them: the tables read what it appended. They follow the history that counts: if a
newer epoch begins before a table's position, the table is made anew. A table is not served if the journal lacks a part
of the session before its position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from tandemfeed.adapter.records.last_values import kernel
from tandemfeed.adapter.records.last_values.table import Damaged, LastValueTable, TableFull, Values
from tandemfeed.adapter.records.output_journal import STRETCHES_MAX, OutputJournal
from tandemfeed.feedcore.documents.message_model import MessageModel
from tandemfeed.feedcore.documents.symbol_words import symbol_columns
from tandemfeed.feedcore.wire.lineage import EpochStart
from tandemfeed.feedcore.wire.output_packet import decode_output_packet
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.journal import JournalError, Tailer
from tandemfeed.journal.read.sequence_marks import UNBOUNDED, Stretch
from tandemfeed.runtime.threads import mark_unhealthy, start_thread

LOG = logging.getLogger("tandemfeed.adapter.records.last_values")
DEFAULT_KEY = "symbol"  # its tables are kept from the start, others from the first request
KEYS_MAX = 4  # of each channel
EVERY_S = 1.0
SHARE = 0.05  # of a processor, at most: during a burst the tables fall behind, unless a client asks
SHARE_WHEN_FAR = 0.5  # before the journal's retention takes what they lack
READ_COUNT = 1_024  # packets in one call of the kernel, which takes some milliseconds
BATCHES_OF_TURN = 4
COPY_AGE_MAX_NS = 100_000_000  # callers share a copy for so long


class HistoryMissing(Exception):
    """The journal does not have the session from its first message on."""


class LastValueKeeper:
    """All tables of an adapter, and the thread that keeps them up. Owner of which tables there are: `_lock`.

    Args:
        model: the feed's message model.
    """

    def __init__(self, journal: OutputJournal, feed_id: int, channel_ids: Iterable[int], model: MessageModel) -> None:
        self.feed_id = feed_id
        self._journal, self._model = journal, model
        self._tables: dict[int, dict[str, KeptTable]] = {channel_id: {} for channel_id in channel_ids}
        self._lock, self._is_closing = threading.Lock(), threading.Event()
        for channel_id in self._tables:
            self.table(channel_id, DEFAULT_KEY)
        # The adapter can serve without it: the tables then catch up only when a client asks.
        self._thread = start_thread(self._run, "last-values", mark_unhealthy)

    def table(self, channel_id: int, key: str) -> KeptTable | None:
        """The table of a channel by this field, which is made now if there is none; None: it cannot be kept."""
        with self._lock:
            tables = self._tables[channel_id]
            if key not in tables and len(tables) < KEYS_MAX and symbol_columns(self._model, key):
                is_over = self._is_closing.is_set
                tables[key] = KeptTable(self._journal, channel_id, self._model, key, is_over)
            return tables.get(key)

    def close(self) -> None:
        """End the thread."""
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        wait_s = EVERY_S
        while not self._is_closing.wait(wait_s):
            began_s = time.thread_time()
            tables = [table for tables in self._tables.values() for table in list(tables.values())]
            for table in tables:
                table.advance()
            spent_s = time.thread_time() - began_s
            share = SHARE_WHEN_FAR if any(table.is_far for table in tables) else SHARE
            rest_s = spent_s * (1 / share - 1)
            wait_s = rest_s if any(table.has_more for table in tables) else max(rest_s, EVERY_S)


class KeptTable:
    """One table, and the newest copy, which its callers share. Owner: `_lock`, which every caller takes.

    Attributes:
        has_more: the journal had more than `advance` took.
        is_far: it had much more.
    """

    def __init__(
        self,
        journal: OutputJournal,
        channel_id: int,
        model: MessageModel,
        key: str,
        is_over: Callable[[], bool],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._journal, self._channel_id, self._key, self._is_over = journal, channel_id, key, is_over
        self._clock_ns = clock_ns
        self._table = LastValueTable(channel_id, model, key)
        self._epochs: tuple[EpochStart, ...] = ()  # up to the table's position
        self._is_whole, self.has_more, self.is_far = True, False, False
        self._copy: tuple[Values, tuple[EpochStart, ...]] | None = None
        self._copied_at_ns = 0
        self._lock = threading.Lock()

    def newest(self, session: int) -> tuple[Values, EpochStart] | None:
        """What was last of a session, and the beginning of the epoch of the newest packet; None: not known here."""
        with self._lock:
            now_ns = self._clock_ns()
            if self._copy is None or now_ns - self._copied_at_ns > COPY_AGE_MAX_NS:
                self._advance()
                self._copied_at_ns = now_ns
                if self._copy is None or self._copy[0].next_input_seq != self._table.next_input_seq:
                    self._copy = self._table.copy(), self._epochs
            values, epochs = self._copy
            start = next((each for each in epochs if each.epoch == values.epoch), None)
            is_known = self._is_whole and values.session == session
            return (values, start) if is_known and start is not None else None

    def advance(self) -> None:
        """Take some of what the journal has."""
        with self._lock:
            self._advance(BATCHES_OF_TURN)
            self.has_more = not self._batches_left

    def _advance(self, batch_count_max: int = UNBOUNDED) -> None:
        self._batches_left, self.is_far = batch_count_max, True
        while self.is_far and self._batches_left and not self._is_over():
            self.is_far = self._read_on()

    def _read_on(self) -> bool:
        """Read as far as the journal says in one call, or until no batches are left; True if it has much more."""
        session = self._journal.newest_session
        if session != self._table.session:
            self._begin(session)
        stretches, epochs = self._journal.read_from(self._channel_id, session, self._table.next_input_seq)
        if _fork(self._epochs, epochs) < self._table.next_input_seq:
            self._begin(session)
            stretches, epochs = self._journal.read_from(self._channel_id, session, self._table.next_input_seq)
        self._epochs, before = epochs, self._table.next_input_seq
        if not self._is_whole:
            return False
        try:
            with self._journal.lent_tailer() as tailer:
                for stretch in _joined(stretches, epochs):
                    self._read(tailer, stretch)
        except (TableFull, Damaged, HistoryMissing, JournalError, PacketRefused) as failed:
            self._is_whole = False
            what = {"channel": self._channel_id, "key": self._key}
            LOG.warning("no table of last values; snapshots need the history", extra={**what, "why": repr(failed)})
        return self._is_whole and len(stretches) == STRETCHES_MAX and self._table.next_input_seq > before

    def _begin(self, session: int) -> None:
        self._table.begin(session)
        self._epochs, self._copy, self._is_whole = (), None, True

    def _read(self, tailer: Tailer, stretch: Stretch) -> None:
        tailer.to_index(stretch.begin_index)
        while self._batches_left and not self._is_over():
            if (batch := tailer.read_batch(READ_COUNT, mixed=True)) is None:
                return
            self._batches_left -= 1
            begin, why = 0, kernel.GAP
            while why == kernel.GAP:
                starts, sizes = batch.starts[begin:], batch.sizes[begin:]
                why, count = self._table.take(batch.data, starts, sizes, stretch.until_seq)
                begin += count
                if why == kernel.GAP:
                    self._close_gap(decode_output_packet(batch[begin].tobytes()).first_input_seq)
            if why == kernel.UNTIL_REACHED:
                return

    def _close_gap(self, end_input_seq: int) -> None:
        """Take what was sent without a lease and became decisions later."""
        first, session = self._table.next_input_seq, self._table.session
        self._table.take_packets(list(self._journal.replay(self._channel_id, first, end_input_seq, session)))
        if self._table.next_input_seq < end_input_seq:
            raise HistoryMissing(f"the journal lacks input_seq {self._table.next_input_seq} to {end_input_seq - 1}")


def _fork(former: Iterable[EpochStart], epochs: Iterable[EpochStart]) -> int:
    """Where two histories part."""
    return min((each.first_input_seq for each in {*former} ^ {*epochs}), default=UNBOUNDED)


def _joined(stretches: Iterable[Stretch], epochs: Iterable[EpochStart]) -> list[Stretch]:
    """The stretches between the beginnings of epochs: only there may the journal have packets that do not count."""
    begins = {each.first_input_seq for each in epochs}
    joined: list[Stretch] = []
    for each in stretches:
        if joined and joined[-1].until_seq not in begins:
            joined[-1] = Stretch(joined[-1].begin_index, each.until_seq)
        else:
            joined.append(each)
    return joined
