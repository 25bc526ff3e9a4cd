"""The output journal: every output packet this adapter transmitted, in plaintext, found again by `message_seq`; and,
now and then, the state of its channels, from which a restart goes on.

The loop's thread appends; replay threads look up. The journal itself is the index: in memory are the places of some
packets, from which a lookup reads on (`SequenceMarks`). A newer epoch's numbering replaces an older one's from where it
begins, so a lookup never serves a packet that a newer epoch superseded here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from adapter.saved_state import MAGIC, SavedState, decode_saved_state, encode_saved_state
from feedcore.output_packet import (
    OUTPUT_HEADER_SIZE,
    OUTPUT_MAGIC,
    OutputFlag,
    OutputPacket,
    decode_output_packet,
    encode_output_packet,
)
from feedcore.position import ChannelSnapshot
from feedcore.refusal import PacketRefused
from journal import Batch, DiskFull, Journal, NoSuchRecord, Retention, Tailer, Upkeep
from journal.sequence_marks import MARK_EVERY, SequenceMarks, Stretch

LOG = logging.getLogger("adapter.output_journal")
BLOCK_SIZE = 32 << 20
RETAIN_BLOCKS = 64  # 2 GiB: at 20,000 messages of 74 bytes a second, more than twenty minutes
READ_COUNT = 4 * MARK_EVERY  # packets a lookup takes at once
SCAN_COUNT = 16_384
RETRY_WHEN_FULL_NS = 1_000_000_000  # finding out that a disk is still full takes too long to do it for every packet
# The fields of an output packet's header that the index needs (feedcore.output_packet has them all).
HEADER_FIELDS = np.dtype(
    {
        "names": ["magic", "channel_id", "message_count", "first_message_seq"],
        "formats": ["<u4", "<u2", "<u2", "<u8"],
        "offsets": [0, 8, 28, 40],
        "itemsize": OUTPUT_HEADER_SIZE,
    }
)


class OutputJournal:
    """Opened by one adapter process; refuses a second one.

    Raises:
        JournalError: the journal cannot be opened; the text says why and what to do.
    """

    def __init__(self, path: Path, *, block_size: int = BLOCK_SIZE, retain_blocks: int = RETAIN_BLOCKS) -> None:
        self.unkept_count = 0  # records that found the disk full; clients cannot ask for them again here
        self._full_until_ns = 0
        self._has_released = False
        upkeep = Upkeep(retention=Retention(files=retain_blocks), on_file_released=self._on_released)
        self._journal = Journal.open(path, block_size=block_size, exclusive=True, upkeep=upkeep)
        self._channels: dict[int, SequenceMarks] = {}
        self._states: dict[int, int] = {}  # channel_id -> place of its newest saved state
        self._lock = threading.Lock()
        with self._journal.tailer() as tailer:
            while (batch := tailer.read_batch(SCAN_COUNT)) is not None:
                self._scan(batch)

    def append(self, packet: OutputPacket) -> None:
        """Append; visible to replay when this returns. While the disk is full the stream goes on without being kept."""
        index = self._append(encode_output_packet(packet))
        if packet.message_count and index is not None:
            self._note(packet.channel_id, packet.first_message_seq, packet.end_message_seq, index)

    def save(self, feed_id: int, session: int, snapshot: ChannelSnapshot) -> None:
        """Append a channel's state."""
        index = self._append(encode_saved_state(SavedState(feed_id, session, snapshot)))
        if index is not None:
            self._states[snapshot.channel_id] = index

    def saved_states(self, feed_id: int, session: int) -> list[ChannelSnapshot]:
        """The newest state of each channel, if it is of this feed and session."""
        found = []
        for index in self._states.values():
            try:
                state = decode_saved_state(self._journal.read(index))
            except (NoSuchRecord, ValueError) as unreadable:
                LOG.warning("a saved state is of no use", extra={"index": f"{index:#x}", "why": str(unreadable)})
                continue
            if (state.feed_id, state.session) == (feed_id, session):
                found.append(state.snapshot)
        return found

    def replay(self, channel_id: int, first_seq: int, last_seq: int) -> Iterator[bytes]:
        """The packets that hold `message_seq` first…last, flagged as retransmissions; what is not here is left out."""
        with self._lock:
            marks = self._channels.get(channel_id)
            stretches = marks.stretches(first_seq, last_seq) if marks is not None else []
        if not stretches:
            return
        with self._journal.tailer() as tailer:
            for stretch in stretches:
                for packet in _packets(tailer, stretch, channel_id):
                    if packet.first_message_seq > last_seq:
                        break
                    if packet.end_message_seq > first_seq:
                        yield encode_output_packet(packet._replace(flags=packet.flags | OutputFlag.RETRANSMISSION))

    def close(self) -> None:
        """Sync and close."""
        self._journal.close()

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
        chosen = np.flatnonzero((headers["magic"] == OUTPUT_MAGIC) & (headers["message_count"] > 0))
        rows = headers[chosen]
        ends = rows["first_message_seq"] + rows["message_count"]
        columns = (rows["channel_id"], rows["first_message_seq"], ends, chosen + batch.first_index)
        for row in zip(*(column.tolist() for column in columns), strict=True):
            self._note(*row)

    def _on_released(self, _path: Path) -> None:
        self._has_released = True  # the keeper's thread: the marks are the loop's to change


def _packets(tailer: Tailer, stretch: Stretch, channel_id: int) -> Iterator[OutputPacket]:
    """The channel's packets in a stretch of the journal."""
    try:
        tailer.to_index(stretch.begin_index)
    except NoSuchRecord:
        return  # released by retention meanwhile
    while batch := tailer.read_many(READ_COUNT):
        for _, record in batch:
            try:
                packet = decode_output_packet(record)
            except PacketRefused:
                continue  # a saved state
            if packet.channel_id != channel_id or not packet.message_count:
                continue
            if packet.first_message_seq >= stretch.until_seq:
                return
            yield packet
