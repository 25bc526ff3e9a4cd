"""The positions of provisional forwarders, and so when a subscription may begin with their packets (protocol 7.5).

A provisional packet identifies its messages by their source alone. A live client that has received nothing of a source
stream cannot tell from that whether they are new or precede its start: a forwarder may lag far behind an active that it
does not hear. But the forwarder's heartbeats give the place where its decided history ends, and everything that it
forwards lies after that place.

Invariant: a source stream begins with a provisional packet only if nothing of it is decided between the start of the
subscription and the place of the packet's sender.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemfeed.feedcore.merge.history.place import Place, first_place
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.position import FIRST_SEQ


class DecidedEnd(NamedTuple):
    """The place where an adapter's decided history ends."""

    lineage: Lineage
    place: Place

    def within(self, followed: Lineage) -> Place:
        """The end of the part of this history that the followed history contains."""
        fork = self.lineage.fork_from(followed) if followed.entries else None
        if fork is None or fork.first_input_seq >= self.place.input_seq:
            return self.place
        return first_place(fork)


class Forwarders:
    """The forwarders of one channel, as their heartbeats show them.

    Args:
        start_message_seq: where the subscription begins; None: live.

    Attributes:
        is_from_start: the subscription includes every source stream from its first message on.
    """

    def __init__(self, start_message_seq: int | None) -> None:
        self.is_from_start = start_message_seq == FIRST_SEQ
        self._is_live = start_message_seq is None
        self._decided_ends: dict[int, DecidedEnd] = {}  # by adapter_id
        self._begun_after: list[DecidedEnd] = []  # of the forwarders with which source streams began before numbers did

    def on_heartbeat(self, packet: OutputPacket, lineage: Lineage) -> None:
        """Take a forwarder's heartbeat and the lineage in it."""
        if self._is_live:
            self._decided_ends[packet.adapter_id] = DecidedEnd(lineage, first_place(packet))

    def may_begin(self, packet: OutputPacket, followed: Lineage, next_input_seq: int | None) -> bool:
        """True if a source stream that is new to the client may begin with this provisional packet.

        A subscription from a later message waits for the numbers, because it cannot know how much of the stream lies
        before this packet.

        Args:
            followed: the history that counts now.
            next_input_seq: the subscription's next one; None until it has begun.
        """
        decided_end = self._decided_ends.get(packet.adapter_id)
        if decided_end is None:
            return self.is_from_start
        if packet.first_input_seq < decided_end.place.input_seq:
            return False  # overtaken: sent before its sender reached that place
        if next_input_seq is None:
            self._begun_after.append(decided_end)
            return True
        return decided_end.within(followed).input_seq == next_input_seq

    def numbers_begin(self, packet: OutputPacket, followed: Lineage) -> Place:
        """The place where a live subscription's numbers begin, given the first numbered packet or heartbeat it hears.

        If source streams have begun with forwarded messages, the numbers begin at the lowest place of their forwarders:
        what is decided after it may belong to those streams, and messages that were delivered are dropped by source
        identity.
        """
        return min([first_place(packet), *(decided_end.within(followed) for decided_end in self._begun_after)])
