"""The lease store of a run: the admin server's own lease core, behind connections with delays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from admin_server.lease_core import FeedLease, Granted, LeaseConfig, LeaseDecision
from feedcore.effects import AdapterEffect
from tests.simulation.world import MS, World

if TYPE_CHECKING:
    from tests.simulation.actors import AdapterActor
    from tests.simulation.cluster import Cluster

NAME = "admin"
MARGIN_NS = 20 * MS
GRACE_NS = 400 * MS
TICK_NS = 5 * MS


class LeaseStoreActor:
    """Hears adapters, performs the core's decisions."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        config = LeaseConfig(ttl_ns=cluster.lease_ttl_ns, allowance_ns=MARGIN_NS, grace_ns=GRACE_NS)
        self.lease = FeedLease(config)
        self._world, self._cluster = world, cluster
        self._attending: dict[int, AdapterActor] = {}
        self._reported_at_ns: dict[int, int] = {}  # by the adapter's own clock, when its newest report was sent

    @property
    def epoch(self) -> int:
        """The newest epoch granted."""
        return self.lease.epoch

    @property
    def holder(self) -> AdapterActor | None:
        """Who holds the lease."""
        return self._attending.get(self.lease.holder)

    def on_attend(self, adapter: AdapterActor) -> None:
        """An adapter's stream began."""

        sent_at_ns = adapter.clock_ns()

        def arrive() -> None:
            self._reported_at_ns[adapter.adapter_id] = sent_at_ns
            self._attending[adapter.adapter_id] = adapter
            self._perform(self.lease.on_attend(adapter.adapter_id, self._world.now_ns))
            self._tell_cluster()

        self._world.call(adapter.name, NAME, arrive)

    def on_gone(self, adapter: AdapterActor) -> None:
        """An adapter's process died, and its connection with it."""

        def gone() -> None:
            if not adapter.is_alive:
                self._attending.pop(adapter.adapter_id, None)
                self._perform(self.lease.on_gone(adapter.adapter_id, self._world.now_ns))

        self._world.call(adapter.name, NAME, gone)

    def on_report(self, adapter: AdapterActor) -> None:
        """An adapter told its state."""
        sent_at_ns = adapter.clock_ns()
        state, seq, life = adapter.state, adapter.engine.replicas[1].line.next_message_seq, adapter.life

        def arrive() -> None:
            if not adapter.is_alive or adapter.life != life:
                return
            self._reported_at_ns[adapter.adapter_id] = sent_at_ns
            if self.lease.holder != adapter.adapter_id:
                self._perform(self.lease.on_report(adapter.adapter_id, state, seq, 1.0, self._world.now_ns))

        self._world.call(adapter.name, NAME, arrive)

    def on_renew(self, adapter: AdapterActor, epoch: int, sent_at_ns: int, life: int) -> None:
        """An adapter wants its lease renewed; the renewal counts from when it asked."""

        def arrive() -> None:
            if self.lease.renew(adapter.adapter_id, epoch, self._world.now_ns):
                until = sent_at_ns + self._cluster.lease_ttl_ns - MARGIN_NS
                self._send(adapter, life, lambda: adapter.engine.on_lease_renewed(epoch, until, adapter.clock_ns()))
            else:
                reason = "not the holder"
                self._send(adapter, life, lambda: adapter.engine.on_lease_lost(epoch, reason, adapter.clock_ns()))

        self._world.call(adapter.name, NAME, arrive)

    def tick(self) -> None:
        """Terms that ended, and grace that has passed."""
        self._perform(self.lease.on_timer(self._world.now_ns))
        self._world.after(TICK_NS, self.tick)

    def _perform(self, decisions: list[LeaseDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, Granted):
                self._grant(decision)
            else:
                self._world.tell(f"epoch {decision.epoch} is vacant: {decision.reason}")
        if decisions:
            self._tell_cluster()

    def _grant(self, granted: Granted) -> None:
        adapter, epoch = self._attending[granted.adapter_id], granted.epoch
        self._cluster.transmissions.on_grant(epoch)
        self._world.tell(f"epoch {epoch} is granted to {adapter.name}")

        until = self._reported_at_ns[granted.adapter_id] + self._cluster.lease_ttl_ns - MARGIN_NS
        self._send(adapter, adapter.life, lambda: adapter.engine.on_lease_granted(epoch, until, adapter.clock_ns()))

    def _tell_cluster(self) -> None:
        active, epoch = self.lease.holder, self.lease.epoch
        for adapter in self._attending.values():
            self._send(
                adapter,
                adapter.life,
                lambda a=adapter: a.engine.on_cluster_changed(active, epoch, a.clock_ns()),
            )

    def _send(self, adapter: AdapterActor, life: int, action: Callable[[], list[AdapterEffect]]) -> None:
        self._world.call(NAME, adapter.name, lambda: adapter.do(action, life))
