"""The numbers of messages of venues that number packets, not messages.

Each packet number stands for a fixed count of message numbers (`messages_max` of the packet header): the messages of
packet n have the numbers from (n - 1) * messages_max + 1 on. What a packet has fewer is filled with empty frames of a
type that the venue does not use, so that numbers stay consecutive. A message's number so follows from its packet alone,
and a lost packet is a gap of known size, at every adapter.
"""

from __future__ import annotations

from tandemfeed.feedcore.documents.source_layout import Framing, SourceFormat


def first_number(packet_number: int, messages_max: int) -> int:
    """The number of the first message of a packet."""
    return (packet_number - 1) * messages_max + 1


def packets_of(first: int, last: int, messages_max: int) -> tuple[int, int]:
    """(first packet, number of packets) that have these message numbers."""
    first_packet = (first - 1) // messages_max + 1
    return first_packet, (last - 1) // messages_max + 2 - first_packet


def filler_type(source_format: SourceFormat) -> int | None:
    """The message type of the frames that fill up a packet's numbers; None if the venue numbers messages."""
    if source_format.packet is None or not source_format.packet.counts_packets:
        return None
    used = {message.type_id for message in source_format.messages.values()}
    return next(kind for kind in range(source_format.framing.type.kind.maximum, -1, -1) if kind not in used)


def filler_frame(framing: Framing, type_id: int) -> bytes:
    """The smallest frame of a type; it has no content."""
    beyond = max(framing.size_min - framing.length_adds, 0)
    length = -(-beyond // framing.length_unit)
    frame = bytearray(length * framing.length_unit + framing.length_adds)
    for place, value in ((framing.length, length), (framing.type, type_id)):
        frame[place.offset : place.end] = value.to_bytes(place.size, "big" if framing.is_big_endian else "little")
    return bytes(frame)
