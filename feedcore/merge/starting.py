"""Where a subscription from a given `message_seq` on begins among the source messages.

The application asks for a `message_seq`; the merge goes by `input_seq`. The first packet that shows both brings them
together: the one that holds the message, or begins or ends right before it, or a heartbeat that stands there. How many
source messages without a message lie in between does not matter.
"""

from __future__ import annotations

from feedcore.merge.place import Place
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.packet_parts import message_input_seqs


def place_of_message(packet: OutputPacket, message_seq: int) -> Place | None:
    """The place of a message that a packet or heartbeat shows; None if it shows none.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    first, end = packet.first_message_seq, packet.first_message_seq + packet.message_count
    if message_seq == first:
        return Place(packet.first_input_seq, first)
    if message_seq == end:
        return Place(packet.end_input_seq, end)
    if first < message_seq < end:
        return Place(message_input_seqs(packet)[message_seq - first], message_seq)
    return None
