"""Acked publishing (docs/protocol.md clause 5.6): nothing leaves the active before a backup has it, unless that is
counted, and no state is given or saved that includes what has not left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedcore.counters import Counter
from feedcore.replica.channel_state import ChannelSnapshot
from feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    FROM_ACTIVE_BIT,
    HEARTBEAT_BIT,
    PROVISIONAL_BIT,
    RETRANSMISSION_BIT,
    OutputPacket,
)
from tests.simulation.checkers.content import Violation

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor

NOT_DECIDED_BITS = HEARTBEAT_BIT | PROVISIONAL_BIT | ANNOUNCEMENT_BIT | RETRANSMISSION_BIT


class AckedChecker:
    """Watches every adapter's packets."""

    def __init__(self) -> None:
        self._applied: dict[tuple[int, int, int], int] = {}  # (session, channel, epoch) -> how far a backup has come
        self._unacked: dict[tuple[int, int], int] = {}  # (adapter, life) -> packets that left unacknowledged

    def on_transmit(self, adapter: AdapterActor, packet: OutputPacket) -> None:
        """A packet goes out."""
        place = packet.session, packet.channel_id, packet.epoch
        if not packet.flags & FROM_ACTIVE_BIT:
            if not packet.flags & PROVISIONAL_BIT:
                self._applied[place] = max(self._applied.get(place, 0), packet.end_input_seq)
            return
        if packet.flags & NOT_DECIDED_BITS or packet.end_input_seq <= self._applied.get(place, 0):
            return
        if not adapter.engine.lease.is_held:
            return  # handed over in order: everything leaves
        life = adapter.adapter_id, adapter.life
        self._unacked[life] = self._unacked.get(life, 0) + 1
        if self._unacked[life] > adapter.counters[-1].counts[Counter.PACKETS_UNACKED]:
            text = f"{adapter.name} transmits {packet.first_input_seq} of epoch {packet.epoch}, which no backup has"
            raise Violation("acked", text)

    def on_state(self, adapter: AdapterActor, snapshot: ChannelSnapshot) -> None:
        """A conversion state is given to another adapter, or saved."""
        position = snapshot.position
        journalled = adapter.journal.end_of(snapshot.session, snapshot.channel_id, position.epoch)
        sent = max(journalled, snapshot.lineage.first_input_seq)
        if adapter.is_active and position.next_input_seq > sent:
            text = f"{adapter.name} gives a state at {position.next_input_seq}, but only what precedes {sent} has left"
            raise Violation("acked", text)
