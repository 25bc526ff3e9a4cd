"""Checks invariant 5: at most one adapter transmits as active in an epoch, epochs only grow, and a term ends at its
holder before it ends at the lease store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandemfeed.admin_server.lease.lease_decisions import HOLDER_CONTINUED
from tandemfeed.admin_server.lease.takeovers import TakeoverReason
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import FROM_ACTIVE_BIT, RETRANSMISSION_BIT, OutputPacket
from tests.simulation.checkers.content import Violation

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor

PASSED = (TakeoverReason.TERM_PASSED, TakeoverReason.RESTORED)


class TermChecker:
    """Checks grants and the packets of actives.

    Args:
        adapters: all adapters; the cluster fills this in.
    """

    def __init__(self, adapters: Sequence[AdapterActor]) -> None:
        self._adapters = adapters
        self._active_of: dict[tuple[int, int], int] = {}  # (epoch, channel) -> adapter
        self._granted = self._offered = 0
        self._ended_otherwise: set[int] = set()  # epochs that ended at the store before their term had passed
        self._begun = 0  # the newest epoch in which an adapter became active

    def on_grant(self, epoch: int) -> None:
        """The store granted an epoch."""
        if epoch <= self._granted and epoch != self._offered:
            raise Violation("5", f"epoch {epoch} is granted after {self._granted}")
        self._granted, self._offered = max(self._granted, epoch), 0

    def on_offered(self, epoch: int) -> None:
        """The store offered an epoch to an heir; it may later be granted to it once."""
        self.on_grant(epoch)
        self._offered = epoch

    def on_vacated(self, epoch: int, reason: str) -> None:
        """A lease ended at the store."""
        if reason not in PASSED:
            self._ended_otherwise.add(epoch)

    def on_withdrawn(self, epoch: int, reason: str) -> None:
        """An offer was withdrawn, at the end of its term or of the heir's stream."""
        if reason != HOLDER_CONTINUED:
            self._ended_otherwise.add(epoch)

    def on_transmit(self, adapter: AdapterActor, packet: OutputPacket) -> None:
        """An adapter transmits a packet; if the packet claims to come from the active, that must be true."""
        if not packet.flags & FROM_ACTIVE_BIT or packet.flags & RETRANSMISSION_BIT:
            return
        place = (packet.epoch, packet.channel_id)
        owner = self._active_of.setdefault(place, adapter.adapter_id)
        if owner != adapter.adapter_id:
            raise Violation("5", f"adapters {owner} and {adapter.adapter_id} are both active in epoch {packet.epoch}")
        if packet.epoch not in self._ended_otherwise and packet.epoch < self._begun and not adapter.is_late:
            raise Violation("5", f"{adapter.name} is active in {packet.epoch} after {self._begun} has begun")
        if packet.epoch > self._granted:
            raise Violation("5", f"{adapter.name} is active in epoch {packet.epoch}, which was never granted")
        lease, line = adapter.engine.lease, adapter.engine.replicas[packet.channel_id].line
        newest = lease.last_epoch
        # Packets that waited for an acknowledgement may be transmitted after the adapter has begun its next epoch.
        is_of_session_before = packet.session < adapter.engine.session
        is_before_epoch = is_of_session_before or packet.end_input_seq <= line.lineage.first_input_seq
        was_decided_before = lease.epoch == newest and is_before_epoch
        if packet.epoch < newest and not (adapter.is_late or was_decided_before):
            raise Violation("5", f"{adapter.name} is active in epoch {packet.epoch} although it knows {newest}")

    def on_moved(self, adapter: AdapterActor, new: ReplicaState) -> None:
        """A channel changed its state. A new active must hold the newest epoch it knows, and be the only active.

        A holder may continue after its term has passed at the store, while all others have promised to accept no
        grant. So the check is made when the next epoch begins, not when the term passes.
        """
        lease = adapter.engine.lease
        if new is not ReplicaState.ACTIVE:
            return
        if lease.epoch and lease.epoch < lease.last_epoch:
            text = f"{adapter.name} becomes active in epoch {lease.epoch} although it knows {lease.last_epoch}"
            raise Violation("5", text)
        self._begun = max(self._begun, lease.epoch)
        for other in self._adapters:
            if other is adapter or not other.is_alive or not 0 < other.engine.lease.epoch < lease.epoch:
                continue
            held = other.engine.lease
            if held.epoch not in self._ended_otherwise and held.may_transmit(other.clock_ns()):
                text = (
                    f"{adapter.name} becomes active in epoch {lease.epoch} while {other.name} still holds {held.epoch}"
                )
                raise Violation("5", f"{text}, which was not ended before its term")
