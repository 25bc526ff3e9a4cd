"""Where a channel was in a session, at a time or before a message: what `OutputJournal.locate` finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tandemfeed.adapter.records.channel_marks import Where
from tandemfeed.adapter.records.provisional_index import ProvisionalIndex
from tandemfeed.feedcore.merge.history.place import Place, end_place, first_place, place_of_message
from tandemfeed.feedcore.wire.lineage import ENTRIES_MAX, ENTRY_SIZE, EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import HEARTBEAT_BIT, OutputPacket, decode_output_packet
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.journal import NoSuchRecord, Tailer
from tandemfeed.journal.read.sequence_marks import MARK_EVERY

READ_COUNT = 4 * MARK_EVERY  # packets that a lookup reads in one call


class LocatedSession(NamedTuple):
    """Where a channel was in a session, at a time or before a message.

    Attributes:
        epoch: that of the packet at the place.
        at_unix_ns: when the source sent the newest source message of that packet; 0: there is none, and the place is
            where the next packet begins.
        is_oldest: nothing before the place is here.
        heartbeat: the final one of the session; if it is not over here, or its end has not arrived, one without
            END_OF_STREAM that gives the end of what is here and the epochs as packets show them.
    """

    session: int
    epoch: int
    place: Place
    at_unix_ns: int
    is_oldest: bool
    heartbeat: OutputPacket


class Found(NamedTuple):
    """The place of a packet, or the end of the last one. Attributes: at_unix_ns: 0: the end."""

    epoch: int
    place: Place
    at_unix_ns: int


def find_packet(packets: Iterable[OutputPacket], at_unix_ns: int, message_seq: int) -> Found | None:
    """The first packet sent at this time or later, or, unless 0, the place of a message; None: there are no packets."""
    last: OutputPacket | None = None
    for packet in packets:
        if packet.end_message_seq > message_seq if message_seq else packet.source_sent_at_ns >= at_unix_ns:
            place = place_of_message(packet, message_seq) if message_seq else None
            return Found(packet.epoch, place or first_place(packet), packet.source_sent_at_ns)
        last = packet
    return None if last is None else Found(last.epoch, end_place(last), 0)


def heartbeat_at_end(last: OutputPacket, epochs: tuple[EpochStart, ...]) -> OutputPacket:
    """A heartbeat that gives the end of a session's last packet and the epochs that packets show."""
    lineage = Lineage(epochs[-ENTRIES_MAX:])
    return last._replace(
        flags=HEARTBEAT_BIT,
        epoch=lineage.epoch,
        first_input_seq=last.end_input_seq,
        first_message_seq=last.end_message_seq,
        message_count=0,
        runs=(),
        payload=lineage.encode(ENTRIES_MAX * ENTRY_SIZE),
    )


def packets_between(
    tailer: Tailer, begin_index: int, end_index: int, where: Where, provisional: ProvisionalIndex | None
) -> Iterator[OutputPacket]:
    """The channel's packets between two places in the journal. Provisional packets appear as committed."""
    try:
        tailer.to_index(begin_index)
    except NoSuchRecord:
        return  # released by retention meanwhile
    while batch := tailer.read_many(READ_COUNT):
        for index, record in batch:
            if index >= end_index:
                return
            try:
                packet = decode_output_packet(record)
            except PacketRefused:
                continue  # not a packet
            if (packet.session, packet.channel_id) != where or not packet.runs:
                continue
            counting = packet if provisional is None else provisional.as_committed(packet, index)
            if counting is not None:
                yield counting
