"""A place in a channel, given by both of its numbers.

A subscription names a `message_seq`, but the merge uses `input_seq`. The first packet that shows both connects them: a
packet that contains the message, begins with it or ends right before it, or a heartbeat at that place. It does not
matter how many source messages without a message lie in between.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_parts import placed_frames
from tandemfeed.feedcore.wire.position import FIRST_SEQ


class Place(NamedTuple):
    """A place between two source messages of a channel, given by the next numbers.

    Attributes:
        input_seq: the next one; it orders places.
        message_seq: the next one; several places share it where source messages made no message.
    """

    input_seq: int
    message_seq: int


class ResumePoint(NamedTuple):
    """Where a merge continues that an earlier one left.

    Attributes:
        lineage: the history that the earlier merge followed: of a newer one it shows where the place counts no more.
        next_source_seqs: by source stream, one past the newest `source_seq` that was delivered.
    """

    place: Place
    lineage: Lineage
    next_source_seqs: dict[int, int]


BEGINNING = Place(FIRST_SEQ, FIRST_SEQ)


def first_place(of: OutputPacket | EpochStart | Lineage) -> Place:
    """The place where a packet or an epoch begins, or to which a heartbeat refers."""
    return Place(of.first_input_seq, of.first_message_seq)


def end_place(packet: OutputPacket) -> Place:
    """The place after a packet."""
    return Place(packet.end_input_seq, packet.end_message_seq)


def place_of_message(packet: OutputPacket, message_seq: int) -> Place | None:
    """The place of a message, if the packet or heartbeat shows it; otherwise None.

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
