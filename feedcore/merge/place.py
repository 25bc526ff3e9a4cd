"""A place in a channel, by both of its numbers, and the packet that shows which two belong together.

A subscription asks for a `message_seq`, but the merge goes by `input_seq`. The first packet that shows both brings them
together: the one that holds the message, or begins or ends right before it, or a heartbeat that stands there. How many
source messages without a message lie in between does not matter.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_parts import placed_frames
from tandemfeed.feedcore.wire.position import FIRST_SEQ


class Place(NamedTuple):
    """Between two source messages of a channel: what comes next there.

    Attributes:
        input_seq: the next one; it orders places.
        message_seq: the next one; several places share it where source messages made no message.
    """

    input_seq: int
    message_seq: int


BEGINNING = Place(FIRST_SEQ, FIRST_SEQ)


def first_place(of: OutputPacket | EpochStart | Lineage) -> Place:
    """Where a packet or an epoch begins, or where a heartbeat stands."""
    return Place(of.first_input_seq, of.first_message_seq)


def end_place(packet: OutputPacket) -> Place:
    """What comes after a packet."""
    return Place(packet.end_input_seq, packet.end_message_seq)


def place_of_message(packet: OutputPacket, message_seq: int) -> Place | None:
    """The place of a message that a packet or heartbeat shows; None if it shows none.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    if message_seq == packet.first_message_seq:
        return first_place(packet)
    if message_seq == packet.end_message_seq:
        return end_place(packet)
    if packet.first_message_seq < message_seq < packet.end_message_seq:
        return Place(placed_frames(packet)[message_seq - packet.first_message_seq][0], message_seq)
    return None
