"""Acked publishing (docs/protocol.md clause 5.6): the active transmits only messages that a backup has, or counts the
exception; and it neither gives nor saves a state that includes messages it has not transmitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import (
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
    """Checks the packets and states of all adapters."""

    def __init__(self) -> None:
        self._applied: dict[tuple[int, int, int], int] = {}  # (session, channel, epoch) -> end of what a backup has
        self._unacked: dict[tuple[int, int], int] = {}  # (adapter, life) -> packets transmitted unacknowledged

    def on_transmit(self, adapter: AdapterActor, packet: OutputPacket) -> None:
        """An adapter transmits a packet."""
        place = packet.session, packet.channel_id, packet.epoch
        if not packet.flags & FROM_ACTIVE_BIT:
            if not packet.flags & PROVISIONAL_BIT:
                self._applied[place] = max(self._applied.get(place, 0), packet.end_input_seq)
            return
        if packet.flags & NOT_DECIDED_BITS or packet.end_input_seq <= self._applied.get(place, 0):
            return
        if not adapter.engine.lease.is_held:
            return  # in a hand-over everything is transmitted
        life = adapter.adapter_id, adapter.life
        self._unacked[life] = self._unacked.get(life, 0) + 1
        if self._unacked[life] > adapter.counters[-1].counts[Counter.PACKETS_UNACKED]:
            text = f"{adapter.name} transmits {packet.first_input_seq} of epoch {packet.epoch}, which no backup has"
            raise Violation("acked", text)

    def on_state(self, adapter: AdapterActor, snapshot: ChannelSnapshot) -> None:
        """An adapter gives a conversion state to another adapter, or saves it."""
        position = snapshot.position
        journalled = adapter.journal.end_of(snapshot.session, snapshot.channel_id, position.epoch)
        sent = max(journalled, snapshot.lineage.first_input_seq)
        is_active = adapter.engine.replicas[snapshot.channel_id].state is ReplicaState.ACTIVE
        if is_active and position.next_input_seq > sent:
            text = f"{adapter.name} gives a state at {position.next_input_seq}, but has transmitted only up to {sent}"
            raise Violation("acked", text)
