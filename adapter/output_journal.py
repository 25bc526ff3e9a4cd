"""The output journal: every output packet this adapter transmitted, in plaintext, found again by `message_seq`; and,
now and then, the state of its channels, from which a restart goes on.

The loop's thread appends; replay threads look up. The journal itself is the index: in memory are the places of some
packets, from which a lookup reads on (`SequenceMarks`). A newer epoch's numbering replaces an older one's from where it
begins, so a lookup never serves a packet that a newer epoch superseded here.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from adapter.provisional_index import MAGIC as NUMBERING_MAGIC
from adapter.provisional_index import ProvisionalIndex, decode_numbering
from adapter.saved_state import MAGIC, SavedState, decode_saved_state, encode_saved_state
from feedcore.replica.channel_state import ChannelSnapshot
from feedcore.replica.own_past import STATE_SIZE_MAX
from feedcore.wire.output_packet import (
    OUTPUT_HEADER_SIZE,
    OUTPUT_MAGIC,
    PROVISIONAL_BIT,
    OutputFlag,
    OutputPacket,
    decode_output_packet,
    encode_output_packet,
)
from feedcore.wire.position import Run
from feedcore.wire.refusal import PacketRefused
from journal import Batch, DiskFull, Journal, NoSuchRecord, Retention, Tailer, Upkeep
from journal.sequence_marks import MARK_EVERY, SequenceMarks, Stretch

LOG = logging.getLogger("adapter.output_journal")
BLOCK_SIZE = 32 << 20
RETAIN_BLOCKS = 64  # 2 GiB: at 20,000 messages of 74 bytes a second, more than twenty minutes
assert BLOCK_SIZE >= 2 * STATE_SIZE_MAX  # saving a state takes no block of its own
MAPPED_AHEAD = 1 << 20  # what a killed adapter has mapped is let go beside those that take over
TAILERS_KEPT = 4  # for replays to come: a new one first looks at every block, some milliseconds in all
READ_COUNT = 4 * MARK_EVERY  # packets a lookup takes at once
SCAN_COUNT = 16_384
RETRY_WHEN_FULL_NS = 1_000_000_000  # finding out that a disk is still full takes too long to do it for every packet
# The fields of an output packet's header that the index needs (feedcore.wire.output_packet has them all).
HEADER_FIELDS = np.dtype(
    {
        "names": ["magic", "flags", "channel_id", "message_count", "first_message_seq"],
        "formats": ["<u4", "u1", "<u2", "<u2", "<u8"],
        "offsets": [0, 5, 8, 28, 40],
        "itemsize": OUTPUT_HEADER_SIZE,
    }
)


class OutputJournal:
    """Opened by one adapter process; refuses a second one.

    Attributes:
        held_since_ns: since then, by the monotonic clock, no other process has had it.
        unkept_count: records that found the disk full; clients cannot ask for them again here.

    Raises:
        JournalError: the journal cannot be opened; the text says why and what to do.
    """

    def __init__(self, path: Path, *, block_size: int = BLOCK_SIZE, retain_blocks: int = RETAIN_BLOCKS) -> None:
        self.unkept_count = 0
        self._full_until_ns = 0
        self._has_released = False
        upkeep = Upkeep(
            retention=Retention(files=retain_blocks), mapped_ahead=MAPPED_AHEAD, on_file_released=self._on_released
        )
        self._journal = Journal.open(path, block_size=block_size, exclusive=True, upkeep=upkeep)
        self.held_since_ns = time.monotonic_ns()
        self._channels: dict[int, SequenceMarks] = {}
        self._states: dict[int, int] = {}  # channel_id -> place of its newest saved state
        self._provisional: dict[int, ProvisionalIndex] = {}
        self._lock = threading.Lock()
        self._tailers: list[Tailer] = []
        with self._journal.tailer() as tailer:
            while (batch := tailer.read_batch(SCAN_COUNT)) is not None:
                self._scan(batch)

    def append(self, packet: OutputPacket) -> None:
        """Append; visible to replay when this returns. While the disk is full the stream goes on without being kept."""
        index = self._append(encode_output_packet(packet))
        if index is None:
            return
        if packet.flags & PROVISIONAL_BIT:
            with self._lock:
                self._provisional_of(packet.channel_id).note(packet, index)
        elif packet.message_count:
            self._note(packet.channel_id, packet.first_message_seq, packet.end_message_seq, index)

    def number_for_good(self, channel_id: int, epoch: int, first_seq: int, end_seq: int) -> None:
        """The newest provisional packets, `message_seq` first…end - 1, are now decisions of an epoch."""
        with self._lock:
            provisional = self._provisional_of(channel_id)
            found = provisional.numbered(channel_id, epoch, first_seq, end_seq)
            if found is None:
                return
            provisional.numberings.append(found[0])
        self._append(found[0].encode())
        for place in found[1]:
            if place.end_message_seq > place.first_message_seq:
                self._note(channel_id, place.first_message_seq, place.end_message_seq, place.journal_index)

    def save(self, feed_id: int, session: int, snapshot: ChannelSnapshot) -> None:
        """Append a channel's state."""
        index = self._append(encode_saved_state(SavedState(feed_id, session, snapshot)))
        if index is not None:
            self._states[snapshot.channel_id] = index

    def resumable(self, feed_id: int, session: int) -> list[tuple[ChannelSnapshot, list[Run]]]:
        """The newest state of each channel, if it is of this feed and session, and the decisions behind it."""
        found = []
        for index in self._states.values():
            try:
                state = decode_saved_state(self._journal.read(index))
            except (NoSuchRecord, ValueError) as unreadable:
                LOG.warning("a saved state is of no use", extra={"index": f"{index:#x}", "why": str(unreadable)})
                continue
            if (state.feed_id, state.session) == (feed_id, session):
                found.append((state.snapshot, self._runs_behind(index, state.snapshot.channel_id, session)))
        return found

    def _runs_behind(self, index: int, channel_id: int, session: int) -> list[Run]:
        runs: list[Run] = []
        provisional = self._provisional_of(channel_id)
        with self._journal.tailer() as tailer:
            tailer.to_index(index)
            while batch := tailer.read_many(READ_COUNT):
                for place, record in batch:
                    try:
                        packet = provisional.for_good(decode_output_packet(record), place)
                    except PacketRefused:
                        continue  # no packet
                    if packet is not None and (packet.channel_id, packet.session) == (channel_id, session):
                        runs += packet.runs
        return runs

    def replay(self, channel_id: int, first_seq: int, last_seq: int) -> Iterator[bytes]:
        """The packets that hold `message_seq` first…last, flagged as retransmissions; what is not here is left out."""
        with self._lock:
            marks = self._channels.get(channel_id)
            stretches = marks.stretches(first_seq, last_seq) if marks is not None else []
        if not stretches:
            return
        with self._lent_tailer() as tailer:
            for stretch in stretches:
                for packet in _packets(tailer, stretch, channel_id, self._provisional.get(channel_id)):
                    if packet.first_message_seq > last_seq:
                        break
                    if packet.end_message_seq > first_seq:
                        yield encode_output_packet(packet._replace(flags=packet.flags | OutputFlag.RETRANSMISSION))

    def replay_provisional(self, channel_id: int, stream: int, first_seq: int, last_seq: int) -> Iterator[bytes]:
        """The provisional packets that hold `source_seq` first…last of a source stream, as retransmissions."""
        with self._lock:
            provisional = self._provisional.get(channel_id)
            places = provisional.holding(stream, first_seq, last_seq) if provisional is not None else []
        for index in places:
            try:
                packet = decode_output_packet(self._journal.read(index))
            except (NoSuchRecord, PacketRefused):
                continue  # released by retention meanwhile
            yield encode_output_packet(packet._replace(flags=packet.flags | OutputFlag.RETRANSMISSION))

    def close(self) -> None:
        """Sync and close."""
        with self._lock:
            tailers, self._tailers = self._tailers, []
        for tailer in tailers:
            tailer.close()
        self._journal.close()

    @contextlib.contextmanager
    def _lent_tailer(self) -> Iterator[Tailer]:
        """One of those kept for replays, or a new one."""
        with self._lock:
            tailer = self._tailers.pop() if self._tailers else None
        tailer = tailer or self._journal.tailer()
        try:
            yield tailer
        finally:
            with self._lock:
                is_kept = len(self._tailers) < TAILERS_KEPT
                if is_kept:
                    self._tailers.append(tailer)
            if not is_kept:
                tailer.close()

    def _append(self, record: bytes) -> int | None:
        if self._full_until_ns:
            if time.monotonic_ns() < self._full_until_ns:
                self.unkept_count += 1
                return None
            self._full_until_ns = 0  # try again, and say so only if it is still full
        try:
            return self._journal.append(record)
        except DiskFull as full:
            self.unkept_count += 1
            self._full_until_ns = time.monotonic_ns() + RETRY_WHEN_FULL_NS
            LOG.error("packets go out without being kept", extra={"why": str(full), "unkept": self.unkept_count})
            return None

    def _note(self, channel_id: int, first_seq: int, end_seq: int, index: int) -> None:
        with self._lock:
            marks = self._channels.get(channel_id)
            if marks is None:
                marks = self._channels[channel_id] = SequenceMarks()
            marks.note(first_seq, end_seq, index)
            if self._has_released:
                self._has_released = False
                first_index = self._journal.first_index
                for each in self._channels.values():
                    each.release(first_index)

    def _scan(self, batch: Batch) -> None:
        """Note what a former life appended."""
        headers = batch.heads(OUTPUT_HEADER_SIZE).view(HEADER_FIELDS).reshape(-1)
        for place in np.flatnonzero(headers["magic"] == int.from_bytes(MAGIC, "little")).tolist():
            self._states[int.from_bytes(batch[place][6:8].tobytes(), "little")] = batch.first_index + place
        is_packet = headers["magic"] == OUTPUT_MAGIC
        is_provisional = headers["flags"] & PROVISIONAL_BIT != 0
        chosen = np.flatnonzero(is_packet & ~is_provisional & (headers["message_count"] > 0))
        rare = is_packet & is_provisional | (headers["magic"] == int.from_bytes(NUMBERING_MAGIC, "little"))
        rows = headers[chosen]
        ends = rows["first_message_seq"] + rows["message_count"]
        columns = (rows["channel_id"], rows["first_message_seq"], ends, chosen + batch.first_index)
        found = [*zip(*(column.tolist() for column in columns), strict=True)]
        if not rare.any():
            for row in found:
                self._note(*row)
            return
        by_place = {row[3]: row for row in found}
        for place in np.flatnonzero(rare | (is_packet & ~is_provisional)).tolist():
            index = batch.first_index + place
            if index in by_place:
                self._note(*by_place[index])
            elif rare[place]:
                self._scan_rare(batch[place].tobytes(), index)

    def _scan_rare(self, record: bytes, index: int) -> None:
        """A provisional packet, or what numbered some."""
        try:
            if record[:4] != NUMBERING_MAGIC:
                packet = decode_output_packet(record)
                self._provisional_of(packet.channel_id).note(packet, index)
                return
            numbering = decode_numbering(record)
        except (PacketRefused, ValueError):
            return
        provisional = self._provisional_of(numbering.channel_id)
        provisional.numberings.append(numbering)
        for place in list(provisional.places):
            if numbering.begin_index <= place.journal_index < numbering.end_index and place.spans:
                self._note(numbering.channel_id, place.first_message_seq, place.end_message_seq, place.journal_index)
        provisional.places.clear()

    def _provisional_of(self, channel_id: int) -> ProvisionalIndex:
        return self._provisional.setdefault(channel_id, ProvisionalIndex())

    def _on_released(self, _path: Path) -> None:
        self._has_released = True  # the keeper's thread: the marks are the loop's to change


def _packets(
    tailer: Tailer, stretch: Stretch, channel_id: int, provisional: ProvisionalIndex | None
) -> Iterator[OutputPacket]:
    """The channel's packets in a stretch of the journal, those that were provisional as they were numbered for good."""
    try:
        tailer.to_index(stretch.begin_index)
    except NoSuchRecord:
        return  # released by retention meanwhile
    while batch := tailer.read_many(READ_COUNT):
        for index, record in batch:
            try:
                packet = decode_output_packet(record)
            except PacketRefused:
                continue  # a saved state
            if packet.channel_id != channel_id or not packet.message_count:
                continue
            if provisional is not None:
                counting = provisional.for_good(packet, index)
                if counting is None:
                    continue
                packet = counting
            if packet.first_message_seq >= stretch.until_seq:
                return
            yield packet
