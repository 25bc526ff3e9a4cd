"""Where those who forward provisionally stand, and so when a subscription may begin with what they send (protocol 7.5).

A provisional packet tells its messages by source identity alone. Of a source stream that nothing has come of yet, who
began live cannot tell by that whether they are new or lie before the beginning: a forwarder may lag far behind an
active that it does not hear. But its heartbeats say where its numbered history ends, and all that it forwards lies
behind that.

Invariant: a source stream begins with a provisional packet only if nothing of it is numbered between the subscription's
beginning and the place of the packet's sender.
"""

from __future__ import annotations

from feedcore.wire.lineage import Lineage, decode_lineage
from feedcore.wire.output_packet import PROVISIONAL_BIT, OutputPacket
from feedcore.wire.position import FIRST_SEQ

Place = tuple[Lineage, int]  # the history somebody stands in, and the next `message_seq` there


class Forwarders:
    """The forwarders of one channel, as their heartbeats tell.

    Args:
        start_message_seq: where the subscription begins; None: live.

    Attributes:
        is_from_start: the subscription has every source stream from its first message on.
    """

    def __init__(self, start_message_seq: int | None) -> None:
        self.is_from_start = start_message_seq == FIRST_SEQ
        self._is_live = start_message_seq is None
        self._places: dict[int, Place] = {}  # by adapter_id
        self._begun_behind: list[Place] = []  # of those by whom source streams began, before numbers did

    def on_heartbeat(self, packet: OutputPacket) -> None:
        """A heartbeat of any kind.

        Raises:
            PacketRefused: MALFORMED.
        """
        if packet.flags & PROVISIONAL_BIT and self._is_live:
            self._places[packet.adapter_id] = decode_lineage(packet.payload), packet.first_message_seq

    def may_begin(self, packet: OutputPacket, followed: Lineage, next_message_seq: int | None) -> bool:
        """True if a source stream that nothing has come of yet may begin with this provisional packet.

        Who wants all from a certain number on waits for the numbers: how much of the stream lies before this packet
        is not to be known.

        Args:
            followed: the history that counts now.
            next_message_seq: the next one of the subscription; None as long as it has heard of none.
        """
        place = self._places.get(packet.adapter_id)
        if self.is_from_start or place is None:
            return self.is_from_start
        if packet.first_message_seq < place[1]:
            return False  # overtaken: it is from before its sender stood there
        if next_message_seq is None:
            self._begun_behind.append(place)
            return True
        return _shared(place, followed) == next_message_seq

    def numbers_begin(self, packet: OutputPacket, followed: Lineage) -> int:
        """Where a subscription that begins live has its first number, by the first numbered packet that it hears.

        If source streams have begun with forwarded messages, that is where their forwarders stood: all that is numbered
        behind that may belong to those streams, and what was delivered of it is known by its source identity.
        """
        stood = (_shared(place, followed) for place in self._begun_behind)
        return min((packet.first_message_seq, *stood))


def _shared(place: Place, followed: Lineage) -> int:
    """Up to where a forwarder's history is that which counts."""
    lineage, message_seq = place
    return min(message_seq, lineage.parts_at(followed)) if followed.epoch else message_seq
