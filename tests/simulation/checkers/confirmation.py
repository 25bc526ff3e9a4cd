"""A client with confirm=2 may deliver only messages that two adapters transmitted, or keep for replay, with the same
place, source identity and bytes (docs/protocol.md clause 7.6)."""

from __future__ import annotations

from typing import TypeAlias

from tandemfeed.feedcore.merge.effects import Deliver, Filled, MergeEffect
from tandemfeed.feedcore.wire.output_packet import ANNOUNCEMENT_BIT, HEARTBEAT_BIT, PROVISIONAL_BIT, OutputPacket
from tests.simulation.checkers.content import Input, PacketReader, Violation

Content: TypeAlias = tuple[int, int, Input]  # channel, input_seq, converted message
UNCONFIRMABLE_BITS = PROVISIONAL_BIT | HEARTBEAT_BIT | ANNOUNCEMENT_BIT


class ConfirmChecker:
    """Compares what confirming clients deliver with what adapters sent."""

    def __init__(self, reader: PacketReader) -> None:
        self._reader = reader
        self._senders: dict[Content, set[int]] = {}
        self._seen: set[tuple[int, int, int, bytes]] = set()

    def on_sent(self, packet: OutputPacket) -> None:
        """An adapter transmits a packet unchanged, or appends it to its journal, from which it may be replayed."""
        key = packet.adapter_id, packet.channel_id, packet.first_input_seq, packet.payload
        if packet.flags & UNCONFIRMABLE_BITS or key in self._seen:
            return
        self._seen.add(key)
        for input_seq, found in enumerate(self._reader.inputs(packet), packet.first_input_seq):
            self._senders.setdefault((packet.channel_id, input_seq, found), set()).add(packet.adapter_id)

    def on_effect(self, name: str, effect: MergeEffect) -> None:
        """The merger of a confirming client hands over an effect."""
        if not isinstance(effect, Deliver | Filled):
            return
        packet = effect.packet
        for input_seq, found in enumerate(self._reader.inputs(packet), packet.first_input_seq):
            senders = self._senders.get((packet.channel_id, input_seq, found), set())
            if len(senders) < 2 and found.bodies:
                text = f"{name} got input {input_seq} of channel {packet.channel_id}, sent only by {sorted(senders)}"
                raise Violation("confirm", text)
