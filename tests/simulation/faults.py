"""Injects the faults of a plan into the processes and links of a run, and ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemfeed.feedcore.replica.config import SessionState
from tandemfeed.feedcore.wire.lineage import UNLIMITED
from tests.simulation.plan import ACTIVE, ALL_PROCESSES, Fault, FaultKind
from tests.simulation.toy_feed import SYMBOLS
from tests.simulation.world import ADMIN, SOURCE, START_NS, Link, World

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor
    from tests.simulation.cluster import Cluster

PARTITIONS = (FaultKind.MUTE, FaultKind.CUT, FaultKind.HOLD)


class FaultInjector:
    """Injects the faults of one run."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self._world, self._cluster = world, cluster

    def plan(self, faults: tuple[Fault, ...]) -> None:
        """Schedule every fault."""
        for fault in faults:
            self._world.at(START_NS + fault.at_ns, self._inject, fault)

    def _inject(self, fault: Fault) -> None:
        cluster, world, kind = self._cluster, self._world, fault.kind
        if kind in PARTITIONS:
            self._partition(fault)
        elif kind in (FaultKind.ADMIN_CRASH, FaultKind.ADMIN_VANISH):
            cluster.admin.crash(fault.amount, is_silent=kind is FaultKind.ADMIN_VANISH)
            world.after(fault.length_ns, cluster.admin.restart)
        elif kind is FaultKind.ADMIN_PAUSE:
            cluster.admin.pause()
            world.after(fault.length_ns, cluster.admin.resume)
        elif kind is FaultKind.SOURCE_STOP:
            world.log("the source stops for {} ms", fault.length_ns // 1_000_000)
            cluster.source.stop_for(fault.length_ns)
        elif kind is FaultKind.SOURCE_RESET:
            world.log("packets of an old session appear on the source's groups")
            cluster.source.number_foreign_session(world.now_ns + fault.length_ns)
        elif kind is FaultKind.HAND_OVER:
            heir = self._adapter(fault.other)
            world.log("an operator orders a hand-over to {}", fault.other or "the best backup")
            cluster.admin.hand_over(heir.adapter_id if heir else None)
        elif fault.whom.startswith("client"):
            self._pause_client(fault)
        else:
            adapter = self._adapter(fault.whom)
            if adapter is not None and adapter.is_alive:
                self._inject_into_adapter(fault, adapter)

    def _inject_into_adapter(self, fault: Fault, adapter: AdapterActor) -> None:
        world, kind = self._world, fault.kind
        if kind in (FaultKind.CRASH, FaultKind.VANISH):
            adapter.crash(fault.amount, is_silent=kind is FaultKind.VANISH)
            world.after(fault.length_ns, adapter.start)
        elif kind is FaultKind.PAUSE:
            adapter.pause()
            world.after(fault.length_ns, adapter.resume)
        elif kind is FaultKind.PAUSE_BEFORE_SENDING:
            adapter.pause_before_sending()
            world.after(fault.length_ns, adapter.resume)
        elif kind is FaultKind.SLOW:
            adapter.slow_down(fault.amount)
            world.after(fault.length_ns, lambda _: adapter.slow_down(0))
        elif kind is FaultKind.GARBLE:
            world.log("{} starts to send garbled packets", adapter.name)
            adapter.garble(max(1, fault.amount))
            world.after(fault.length_ns, lambda _: adapter.garble(0))
        elif kind is FaultKind.UNFIT:
            adapter.become_unfit()
            world.after(fault.length_ns, adapter.replace_unfit)
        elif kind is FaultKind.DAMAGE:
            world.log("{} starts to give damaged conversion states", adapter.name)
            adapter.is_damaging = True
            world.after(fault.length_ns, lambda _: setattr(adapter, "is_damaging", False))
        elif kind is FaultKind.LIE:
            adapter.lie(fault.amount / 100)
            world.after(fault.length_ns, lambda _: adapter.lie(0))
        elif kind is FaultKind.CORRUPT and not adapter.is_active:
            self._corrupt(adapter, fault.amount % SYMBOLS)

    def _corrupt(self, adapter: AdapterActor, symbol: int) -> None:
        session, truths = adapter.engine.session, self._cluster.truths
        places = truths[session].corrupted.setdefault(symbol, {})
        if self._cluster.plan.session_state is SessionState.CARRY:
            for later in range(session + 1, max(truths) + 1):
                truths[later].corrupted.setdefault(symbol, {}).update(dict.fromkeys(adapter.converters, UNLIMITED))
        for channel, converter in adapter.converters.items():
            converter.sums[symbol] ^= 1 << 40
            places[channel] = max(places.get(channel, 0), adapter.engine.replicas[channel].line.next_input_seq)
        self._world.log("{}: the conversion state of symbol {} is corrupted", adapter.name, symbol)

    def _pause_client(self, fault: Fault) -> None:
        for client in self._cluster.clients:
            if client.name == fault.whom:
                client.pause()
                self._world.after(fault.length_ns, client.resume)

    def _partition(self, fault: Fault) -> None:
        whom, other = self._name(fault.whom), self._name(fault.other)
        if not whom or not other or whom == other:
            return
        links = [*self._links(whom, other), *(self._links(other, whom) if fault.kind is not FaultKind.MUTE else ())]
        is_held = fault.kind is FaultKind.HOLD
        self._world.log("{}: {} -> {} ({} links)", fault.kind.value, whom, other, len(links))
        for link in links:
            self._world.cut(link, is_held=is_held)
        breaks = ADMIN in (whom, other) or ALL_PROCESSES in (whom, other)
        broken = [each for each in (whom, other) if each.startswith("adapter")] if breaks and not is_held else []
        if fault.kind is FaultKind.CUT and fault.amount:
            for adapter in self._cluster.adapters:
                if adapter.name in broken and adapter.is_alive:
                    self._cluster.admin.on_broken(adapter)
        self._world.after(fault.length_ns, self._heal, (links, is_held, broken))

    def _heal(self, what: tuple[list[Link], bool, list[str]]) -> None:
        links, is_held, broken = what
        for link in links:
            self._world.heal(link, is_held=is_held)
        for adapter in self._cluster.adapters:  # reconnect those that lost their connection
            if adapter.name in broken and adapter.is_alive:
                self._cluster.admin.on_connect(adapter)

    def _links(self, sender: str, receiver: str) -> list[Link]:
        names = [each.name for each in self._cluster.adapters] + [each.name for each in self._cluster.clients]
        names += [ADMIN, SOURCE]
        senders = names if sender == ALL_PROCESSES else [sender]
        receivers = names if receiver == ALL_PROCESSES else [receiver]
        return [self._world.link(a, b) for a in senders for b in receivers if a != b]

    def _adapter(self, name: str) -> AdapterActor | None:
        if name == ACTIVE:
            return self._cluster.admin.holder
        return next((adapter for adapter in self._cluster.adapters if adapter.name == name), None)

    def _name(self, name: str) -> str:
        """The name of the process; empty if it does not exist, as in a shrunk plan."""
        if name in (ADMIN, SOURCE, ALL_PROCESSES):
            return name
        if name.startswith("client"):
            return name if any(client.name == name for client in self._cluster.clients) else ""
        adapter = self._adapter(name)
        return adapter.name if adapter else ""
