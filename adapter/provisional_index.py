"""Where in the output journal provisional packets lie, and which of them were numbered for good.

A provisional packet's `message_seq` is its sender's own count and means nothing to others, so it is found by its source
messages. When the sender is granted a lease its provisional packets become the first decisions of the new epoch
(`feedcore.replica.effects.NumberForGood`); the journal keeps them as they were sent, beside a record that says so.

Record, little-endian::

    0  magic              "TFN1"
    4  channel_id         u32
    8  epoch              u32
    12 reserved           u32   0
    16 first_message_seq  u64   of the epoch
    24 begin_index        u64   place in the journal of the first packet
    32 end_index          u64   behind the last
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from feedcore.wire.output_packet import PROVISIONAL_BIT, OutputFlag, OutputPacket

MAGIC = b"TFN1"
RECORD = struct.Struct("<4sIIIQQQ")
PLACES_MAX = 65_536  # what is older is found by nobody: some tens of seconds, and an outage is seldom longer


class Numbering(NamedTuple):
    """Provisional packets in a stretch of the journal that are now decisions of an epoch."""

    channel_id: int
    epoch: int
    first_message_seq: int
    begin_index: int
    end_index: int

    def encode(self) -> bytes:
        """As a record."""
        return RECORD.pack(MAGIC, self.channel_id, self.epoch, 0, *self[2:])


def decode_numbering(record: bytes) -> Numbering:
    """From a record; ValueError if it is none."""
    if len(record) != RECORD.size or record[:4] != MAGIC:
        raise ValueError(f"no numbering: {record[:4]!r}, {len(record)} bytes")
    _, channel_id, epoch, _, first, begin, end = RECORD.unpack(record)
    return Numbering(channel_id, epoch, first, begin, end)


class Place(NamedTuple):
    """One provisional packet."""

    journal_index: int
    first_message_seq: int
    end_message_seq: int
    spans: tuple[tuple[int, int, int], ...]  # source_stream_id, first source_seq, its end


class ProvisionalIndex:
    """One channel's provisional packets. Not for several threads at once."""

    def __init__(self) -> None:
        self.places: deque[Place] = deque(maxlen=PLACES_MAX)
        self.numberings: list[Numbering] = []

    def note(self, packet: OutputPacket, index: int) -> None:
        """A packet was appended."""
        spans = tuple((run.source_stream_id, run.first_source_seq, run.end_source_seq) for run in packet.runs)
        self.places.append(Place(index, packet.first_message_seq, packet.end_message_seq, spans))

    def numbered(
        self, channel_id: int, epoch: int, first_seq: int, end_seq: int
    ) -> tuple[Numbering, list[Place]] | None:
        """The newest packets are the epoch's first decisions; None if none of them is known."""
        chosen = [place for place in self.places if place.first_message_seq >= first_seq]
        chosen = [place for place in chosen if place.end_message_seq <= end_seq]
        while chosen and chosen[0].first_message_seq != first_seq:
            del chosen[0]  # of an earlier stretch, or the first ones are forgotten: then what is known is numbered
            if chosen and chosen[0].first_message_seq > first_seq:
                break
        self.places.clear()
        if not chosen:
            return None
        return Numbering(channel_id, epoch, first_seq, chosen[0].journal_index, chosen[-1].journal_index + 1), chosen

    def for_good(self, packet: OutputPacket, index: int) -> OutputPacket | None:
        """A packet as it counts: a provisional one under the epoch that numbered it, or None if none did."""
        if not packet.flags & PROVISIONAL_BIT:
            return packet
        for numbering in self.numberings:
            if numbering.begin_index <= index < numbering.end_index:
                runs = tuple(run._replace(epoch=numbering.epoch) for run in packet.runs)
                return packet._replace(
                    flags=packet.flags & ~PROVISIONAL_BIT | OutputFlag.FROM_ACTIVE,
                    epoch=numbering.epoch,
                    epoch_first_message_seq=numbering.first_message_seq,
                    runs=runs,
                )
        return None

    def holding(self, stream: int, first_source_seq: int, last_source_seq: int) -> list[int]:
        """Places of packets with source messages first…last of a stream, ascending."""
        return [
            place.journal_index
            for place in list(self.places)
            if any(
                span[0] == stream and span[1] <= last_source_seq and span[2] > first_source_seq for span in place.spans
            )
        ]
