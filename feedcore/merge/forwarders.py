"""Where those who forward provisionally stand, and so when a subscription may begin with what they send (protocol 7.5).

A provisional packet identifies its messages by their source alone. If a client began live and nothing of a source
stream has come yet, it cannot see by that whether they are new or lie before its beginning: a forwarder may lag far
behind an active that it does not hear. But its heartbeats say where its decided history ends, and all that it forwards
lies after that.

Invariant: a source stream begins with a provisional packet only if nothing of it is decided between the subscription's
beginning and the place of the packet's sender.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemfeed.feedcore.merge.place import Place, first_place
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.position import FIRST_SEQ


class Standing(NamedTuple):
    """Where an adapter's decided history ends."""

    lineage: Lineage
    place: Place

    def within(self, followed: Lineage) -> Place:
        """Up to where that history is the one that counts."""
        parting = self.lineage.parts_at(followed) if followed.entries else None
        if parting is None or parting.first_input_seq >= self.place.input_seq:
            return self.place
        return first_place(parting)


class Forwarders:
    """The forwarders of one channel, by their heartbeats.

    Args:
        start_message_seq: where the subscription begins; None: live.

    Attributes:
        is_from_start: the subscription has every source stream from its first message on.
    """

    def __init__(self, start_message_seq: int | None) -> None:
        self.is_from_start = start_message_seq == FIRST_SEQ
        self._is_live = start_message_seq is None
        self._standings: dict[int, Standing] = {}  # by adapter_id
        self._begun_after: list[Standing] = []  # of those by whom source streams began, before numbers did

    def on_heartbeat(self, packet: OutputPacket, lineage: Lineage) -> None:
        """A forwarder's heartbeat, and the lineage in it."""
        if self._is_live:
            self._standings[packet.adapter_id] = Standing(lineage, first_place(packet))

    def may_begin(self, packet: OutputPacket, followed: Lineage, next_input_seq: int | None) -> bool:
        """True if a source stream that nothing has come of yet may begin with this provisional packet.

        A subscription from a certain message on waits for the numbers: how much of the stream lies before this packet
        cannot be known.

        Args:
            followed: the history that counts now.
            next_input_seq: the next one of the subscription; None as long as it has not begun.
        """
        standing = self._standings.get(packet.adapter_id)
        if standing is None:
            return self.is_from_start
        if packet.first_input_seq < standing.place.input_seq:
            return False  # overtaken: it is from before its sender stood there
        if next_input_seq is None:
            self._begun_after.append(standing)
            return True
        return standing.within(followed).input_seq == next_input_seq

    def numbers_begin(self, packet: OutputPacket, followed: Lineage) -> Place:
        """Where a subscription that begins live has its numbers begin, by the first numbered packet that it hears.

        If source streams have begun with forwarded messages, that is where their forwarders stood: all that is decided
        after that may belong to those streams, and what was delivered of it is known by its source identity.
        """
        return min([first_place(packet), *(standing.within(followed) for standing in self._begun_after)])
