"""Invariant 5: at most one adapter transmits as active in an epoch, epochs only grow, and a term ends at its holder
before it ends at the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedcore.output_packet import FROM_ACTIVE_BIT, RETRANSMISSION_BIT, OutputPacket
from feedcore.states import ReplicaState
from tests.simulation.checkers import Violation

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor

PASSED = "its term passed without renewal"  # the reason of admin_server.lease_core


class TermChecker:
    """Watches grants and who speaks as active.

    Args:
        adapters: filled in by the cluster.
    """

    def __init__(self, adapters: Sequence[AdapterActor]) -> None:
        self._adapters = adapters
        self._active_of: dict[tuple[int, int], int] = {}  # (epoch, channel) -> adapter
        self._granted = 0
        self._passed: set[int] = set()  # epochs whose term has passed at the store

    def on_grant(self, epoch: int) -> None:
        """The store granted an epoch."""
        if epoch <= self._granted:
            raise Violation("5", f"epoch {epoch} is granted after {self._granted}")
        self._granted = epoch

    def on_vacated(self, epoch: int, reason: str) -> None:
        """A lease ended at the store. If its term passed, its holder must have stopped believing in it."""
        if reason != PASSED:
            return
        self._passed.add(epoch)
        for adapter in self._adapters:
            is_holder = adapter.is_alive and adapter.engine.lease.epoch == epoch
            lease = adapter.engine.lease if is_holder else None
            if lease is not None and lease.may_transmit(adapter.clock_ns()) and not lease.is_by_consent:
                raise Violation("5", f"{adapter.name} still believes in epoch {epoch}, whose term has passed")

    def on_transmit(self, adapter: AdapterActor, packet: OutputPacket) -> None:
        """A packet goes out; if it says that it comes from the active, it must."""
        if not packet.flags & FROM_ACTIVE_BIT or packet.flags & RETRANSMISSION_BIT:
            return
        place = (packet.epoch, packet.channel_id)
        owner = self._active_of.setdefault(place, adapter.adapter_id)
        if owner != adapter.adapter_id:
            raise Violation("5", f"adapters {owner} and {adapter.adapter_id} are both active in epoch {packet.epoch}")
        if packet.epoch in self._passed and not adapter.is_late and not adapter.engine.lease.is_by_consent:
            raise Violation("5", f"{adapter.name} is active in epoch {packet.epoch}, whose term has passed")
        if packet.epoch > self._granted:
            raise Violation("5", f"{adapter.name} is active in epoch {packet.epoch}, which nobody granted")

    def on_moved(self, adapter: AdapterActor, new: ReplicaState) -> None:
        """A channel moved; who becomes active must hold the newest epoch it knows of."""
        lease = adapter.engine.lease
        if new is ReplicaState.ACTIVE and lease.epoch and lease.epoch < lease.last_epoch:
            raise Violation("5", f"{adapter.name} becomes active in epoch {lease.epoch}, knowing of {lease.last_epoch}")
