"""The output journal: every output packet this adapter transmitted, in plaintext, found again by `message_seq`.

The loop's thread appends; replay threads look up. A newer epoch's numbering replaces an older one's from where it
begins, so a lookup never serves a packet that a newer epoch superseded here.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from feedcore.output_packet import OutputFlag, OutputPacket, decode_output_packet, encode_output_packet
from feedcore.refusal import PacketRefused
from journal import Journal, NoSuchRecord, Retention, Upkeep

LOG = logging.getLogger("adapter.output_journal")
BLOCK_SIZE = 32 << 20
RETAIN_BLOCKS = 64  # 2 GiB: at 20,000 messages of 74 bytes a second, more than twenty minutes


@dataclass(slots=True)
class _ChannelIndex:
    """Ascending first `message_seq` of the packets, and where each is."""

    firsts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)

    def add(self, packet: OutputPacket, index: int) -> None:
        place = len(self.firsts)
        if place and self.firsts[-1] >= packet.first_message_seq:
            place = bisect_left(self.firsts, packet.first_message_seq)
            for column in (self.firsts, self.ends, self.indices):
                del column[place:]
        self.firsts.append(packet.first_message_seq)
        self.ends.append(packet.end_message_seq)
        self.indices.append(index)

    def find(self, first_seq: int, last_seq: int) -> list[int]:
        begin = max(0, bisect_right(self.firsts, first_seq) - 1)
        if begin < len(self.ends) and self.ends[begin] <= first_seq:
            begin += 1
        return self.indices[begin : bisect_right(self.firsts, last_seq)]


class OutputJournal:
    """Opened by one adapter process; refuses a second one."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal.open(
            path, block_size=BLOCK_SIZE, exclusive=True, upkeep=Upkeep(retention=Retention(files=RETAIN_BLOCKS))
        )
        self._channels: dict[int, _ChannelIndex] = {}
        self._lock = threading.Lock()
        for index, record in self._journal.records():
            try:
                self._note(decode_output_packet(record), index)
            except PacketRefused as foreign:
                LOG.warning("a record is no output packet", extra={"index": f"{index:#x}", "why": str(foreign)})

    def append(self, packet: OutputPacket) -> None:
        """Append; visible to replay when this returns."""
        index = self._journal.append(encode_output_packet(packet))
        if packet.message_count:
            self._note(packet, index)

    def replay(self, channel_id: int, first_seq: int, last_seq: int) -> Iterator[bytes]:
        """The packets that hold `message_seq` first…last, flagged as retransmissions; what is not here is left out."""
        with self._lock:
            channel = self._channels.get(channel_id)
            indices = channel.find(first_seq, last_seq) if channel is not None else []
        for index in indices:
            try:
                packet = decode_output_packet(self._journal.read(index))
            except (NoSuchRecord, ValueError):
                continue  # released by retention meanwhile
            yield encode_output_packet(packet._replace(flags=packet.flags | OutputFlag.RETRANSMISSION))

    def close(self) -> None:
        """Sync and close."""
        self._journal.close()

    def _note(self, packet: OutputPacket, index: int) -> None:
        with self._lock:
            self._channels.setdefault(packet.channel_id, _ChannelIndex()).add(packet, index)
