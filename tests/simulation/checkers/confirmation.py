"""What a client with confirm=2 may deliver (docs/protocol.md clause 7.6): only what two adapters sent, or keep for
replay, equally in place, source identity and bytes."""

from __future__ import annotations

from typing import TypeAlias

from feedcore.merge.effects import Deliver, Filled, MergeEffect
from feedcore.wire.output_packet import ANNOUNCEMENT_BIT, HEARTBEAT_BIT, PROVISIONAL_BIT, OutputPacket
from tests.simulation.checkers.content import Input, PacketReader, Violation

Content: TypeAlias = tuple[int, int, Input]  # channel, input_seq, what it became
UNCONFIRMABLE_BITS = PROVISIONAL_BIT | HEARTBEAT_BIT | ANNOUNCEMENT_BIT


class ConfirmChecker:
    """Everything that any adapter sent, and what confirming clients were handed."""

    def __init__(self, reader: PacketReader) -> None:
        self._reader = reader
        self._senders: dict[Content, set[int]] = {}
        self._seen: set[tuple[int, int, int, bytes]] = set()

    def on_sent(self, packet: OutputPacket) -> None:
        """An adapter puts a packet on the wire as it is, or in its journal, from where it may be replayed."""
        key = packet.adapter_id, packet.channel_id, packet.first_input_seq, packet.payload
        if packet.flags & UNCONFIRMABLE_BITS or key in self._seen:
            return
        self._seen.add(key)
        for input_seq, found in enumerate(self._reader.inputs(packet), packet.first_input_seq):
            self._senders.setdefault((packet.channel_id, input_seq, found), set()).add(packet.adapter_id)

    def on_effect(self, name: str, effect: MergeEffect) -> None:
        """A confirming client is handed something."""
        if not isinstance(effect, Deliver | Filled):
            return
        packet = effect.packet
        for input_seq, found in enumerate(self._reader.inputs(packet), packet.first_input_seq):
            senders = self._senders.get((packet.channel_id, input_seq, found), set())
            if len(senders) < 2 and found.bodies:
                text = f"{name} got input {input_seq} of channel {packet.channel_id}, which {sorted(senders)} sent"
                raise Violation("confirm", text)
