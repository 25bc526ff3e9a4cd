"""The lease store of a run: grants the next epoch to the best candidate when a connection or a term ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedcore.states import ReplicaState
from tests.simulation.world import MS, World

if TYPE_CHECKING:
    from tests.simulation.actors import AdapterActor
    from tests.simulation.cluster import Cluster

NAME = "admin"
MARGIN_NS = 20 * MS
GRACE_NS = 400 * MS
RANK = {
    ReplicaState.SYNCHRONIZED: 0,
    ReplicaState.DETACHED: 0,
    ReplicaState.RESYNCHRONIZING: 1,
    ReplicaState.JOINING: 2,
}


class LeaseStoreActor:
    """What the admin server's lease store does, as its callers see it over a connection with delays."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.epoch = 0
        self.holder: AdapterActor | None = None
        self._world, self._cluster = world, cluster
        self._until_ns = 0
        self._attending: dict[AdapterActor, tuple[ReplicaState, int]] = {}
        self._vacant_since_ns = world.now_ns

    def on_attend(self, adapter: AdapterActor) -> None:
        def arrive() -> None:
            if self.holder is adapter:  # a new life has no lease
                self._vacate()
            self._attending[adapter] = (ReplicaState.JOINING, 0)
            self._tell_cluster()
            self._consider()

        self._world.call(adapter.name, NAME, arrive)

    def on_gone(self, adapter: AdapterActor) -> None:
        def gone() -> None:
            if not adapter.is_alive:
                self._attending.pop(adapter, None)
                if self.holder is adapter:
                    self._vacate()
                    self._consider()

        self._world.call(adapter.name, NAME, gone)

    def on_report(self, adapter: AdapterActor) -> None:
        state, seq, life = adapter.state, adapter.engine.replicas[1].line.next_message_seq, adapter.life

        def arrive() -> None:
            if adapter.is_alive and adapter.life == life and adapter in self._attending:
                self._attending[adapter] = (state, seq)
                self._consider()

        self._world.call(adapter.name, NAME, arrive)

    def on_renew(self, adapter: AdapterActor, epoch: int, sent_at_ns: int, life: int) -> None:
        def arrive() -> None:
            if self.holder is adapter and epoch == self.epoch and self._world.now_ns < self._until_ns:
                self._until_ns = self._world.now_ns + self._cluster.lease_ttl_ns + MARGIN_NS
                until = sent_at_ns + self._cluster.lease_ttl_ns - MARGIN_NS
                self._send(adapter, life, lambda: adapter.engine.on_lease_renewed(epoch, until, adapter.clock_ns()))
            else:
                self._send(
                    adapter, life, lambda: adapter.engine.on_lease_lost(epoch, "not the holder", adapter.clock_ns())
                )

        self._world.call(adapter.name, NAME, arrive)

    def tick(self) -> None:
        """Terms that ended, and grace that has passed."""
        if self.holder is not None and self._world.now_ns >= self._until_ns:
            self._world.tell(f"the lease on epoch {self.epoch} ran out")
            self._vacate()
        self._consider()
        self._world.after(5 * MS, self.tick)

    def _vacate(self) -> None:
        self.holder = None
        self._vacant_since_ns = self._world.now_ns
        self._tell_cluster()

    def _consider(self) -> None:
        if self.holder is not None:
            return
        candidates = [
            (RANK[state], -seq, adapter.adapter_id, adapter)
            for adapter, (state, seq) in self._attending.items()
            if state in RANK
        ]
        if not candidates:
            return
        rank, _, _, best = min(candidates, key=lambda row: row[:3])
        patience = 0 if rank == 0 or self.epoch == 0 else GRACE_NS
        if self._world.now_ns - self._vacant_since_ns < patience:
            return
        self._grant(best)

    def _grant(self, adapter: AdapterActor) -> None:
        self.epoch += 1
        self.holder = adapter
        self._until_ns = self._world.now_ns + self._cluster.lease_ttl_ns + MARGIN_NS
        self._cluster.transmissions.on_grant(self.epoch)
        self._world.tell(f"epoch {self.epoch} is granted to {adapter.name}")
        epoch, life = self.epoch, adapter.life
        # The receiver counts from the server's answer here: links are never so slow that a term passes on the way.
        granted_at_ns = adapter.clock_ns()
        until = granted_at_ns + self._cluster.lease_ttl_ns - MARGIN_NS
        self._send(adapter, life, lambda: adapter.engine.on_lease_granted(epoch, until, adapter.clock_ns()))
        self._tell_cluster()

    def _tell_cluster(self) -> None:
        active = self.holder.adapter_id if self.holder else 0
        epoch = self.epoch
        for adapter in self._attending:
            self._send(
                adapter,
                adapter.life,
                lambda a=adapter: a.engine.on_cluster_changed(active, epoch, a.clock_ns()),
            )

    def _send(self, adapter: AdapterActor, life: int, action) -> None:  # type: ignore[no-untyped-def]
        self._world.call(NAME, adapter.name, lambda: adapter.do(action, life))
