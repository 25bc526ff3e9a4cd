"""One run: draws a cluster and a fault plan from the seed, lets the storm pass, heals, checks that all converged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from feedcore.states import ReplicaState
from tests.simulation.actors import CHANNEL, AdapterActor, ClientActor, SourceActor
from tests.simulation.checkers import DeliveryChecker, TransmissionChecker, Violation
from tests.simulation.lease_store import NAME as ADMIN
from tests.simulation.lease_store import LeaseStoreActor
from tests.simulation.toy_feed import expected_bodies, make_messages
from tests.simulation.world import MS, US, LinkFaults, World

STORM_NS = 1_500 * MS
CALM_NS = 20_000 * MS
CONVERGED = (ReplicaState.ACTIVE, ReplicaState.SYNCHRONIZED, ReplicaState.FAILED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run was like; equal seeds give equal outcomes, byte for byte."""

    seed: int
    digest: str
    epochs: int
    messages: int
    timeline: tuple[str, ...]


class Cluster:
    """Everything of one run."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        chance = world.random
        self.lease_ttl_ns = chance.choice((150, 300)) * MS
        self.state_interval_ns = chance.choice((20, 100, 400)) * MS
        streams = tuple(range(1, chance.randint(1, 3) + 1))
        count = chance.randint(50, 300)
        messages = {stream: make_messages(chance, stream, len(streams), count) for stream in streams}
        expected = {stream: expected_bodies(rows) for stream, rows in messages.items()}
        self.message_count = count * len(streams)
        self.transmissions = TransmissionChecker()
        self.lease_store = LeaseStoreActor(world, self)
        self.source = SourceActor(world, self, messages)
        self.adapters = [
            AdapterActor(world, self, number, streams) for number in range(1, chance.choice((2, 2, 3)) + 1)
        ]
        self.clients = [
            ClientActor(world, self, number, DeliveryChecker(f"client{number}", expected)) for number in (1, 2)
        ]
        self._trace = hashlib.sha256()

    def run(self) -> Outcome:
        """The storm, then the calm.

        Raises:
            Violation: an invariant broke; the timeline says what had happened.
        """
        world = self.world
        for adapter in self.adapters:
            world.after(world.random.randrange(30 * MS), adapter.start)
        world.after(1, self.lease_store.tick)
        world.after(world.random.randrange(200 * MS), lambda: self.source.start(STORM_NS))
        self._plan_storm()
        start = world.now_ns
        world.run_until(start + STORM_NS + 200 * MS)
        self._heal()
        self._await_convergence(world.now_ns + CALM_NS)
        for client in self.clients:
            client.checker.at_end()
        self._check_digests()
        return Outcome(
            world.seed, self._trace.hexdigest(), self.lease_store.epoch, self.message_count, tuple(world.timeline)
        )

    def check_adapter(self, adapter: AdapterActor) -> None:
        """After every event of an adapter: what must always hold, and the run's trace."""
        line = adapter.engine.replicas[CHANNEL].line
        self._trace.update(
            b"%d %d %d %d\n" % (self.world.now_ns, adapter.adapter_id, line.epoch, line.next_message_seq)
        )

    def _plan_storm(self) -> None:
        chance, world = self.world.random, self.world
        world.faults = LinkFaults(
            loss=chance.choice((0.0, 0.01, 0.1, 0.3)),
            duplication=chance.choice((0.0, 0.05)),
            delay_min_ns=20 * US,
            delay_max_ns=chance.choice((200 * US, 3 * MS)),
        )
        world.tell(f"{len(self.adapters)} adapters, {world.faults}")
        for _ in range(chance.randint(0, 4)):
            adapter = chance.choice(self.adapters)
            at_ns = chance.randrange(100 * MS, STORM_NS)
            length_ns = chance.choice((20, 100, 250, 500, 900)) * MS
            fault = chance.choice(
                ("crash", "crash", "crash-active", "pause", "pause-active", "cut-multicast", "cut-admin")
            )
            world.after(at_ns, lambda f=fault, a=adapter, n=length_ns: self._strike(f, a, n))

    def _strike(self, fault: str, adapter: AdapterActor, length_ns: int) -> None:
        world = self.world
        if fault.endswith("-active"):
            adapter = self.lease_store.holder or adapter
        if not adapter.is_alive:
            return
        if fault.startswith("crash"):
            adapter.crash()
            world.after(length_ns, lambda: None if adapter.is_alive else adapter.start())
        elif fault.startswith("pause"):
            adapter.pause()
            world.after(length_ns, adapter.resume)
        else:
            others = (
                [ADMIN]
                if fault == "cut-admin"
                else [peer.name for peer in [*self.adapters, *self.clients] if peer is not adapter] + ["source"]
            )
            pairs = {(adapter.name, other) for other in others} | {(other, adapter.name) for other in others}
            world.tell(f"{adapter.name} is cut off from {others}")
            world.blocked |= pairs
            world.after(length_ns, lambda: world.blocked.difference_update(pairs))

    def _heal(self) -> None:
        world = self.world
        world.tell("the storm is over")
        world.faults = LinkFaults()
        world.blocked.clear()
        for adapter in self.adapters:
            if not adapter.is_alive:
                adapter.start()
            adapter.resume()

    def _await_convergence(self, end_ns: int) -> None:
        def is_done() -> bool:
            return all(client.has_ended for client in self.clients) and all(
                adapter.state in CONVERGED for adapter in self.adapters
            )

        if not self.world.run_until(end_ns, is_done):
            states = {adapter.name: adapter.state.value for adapter in self.adapters}
            ended = {client.name: (client.has_ended, client.merger.next_message_seq) for client in self.clients}
            raise Violation(f"9: not converged after {CALM_NS // MS} ms of calm: {states}, {ended}")

    def _check_digests(self) -> None:
        """Invariant 7."""
        by_position: dict[tuple[int, ...], bytes] = {}
        for adapter in self.adapters:
            if adapter.state is ReplicaState.FAILED:
                continue
            line = adapter.engine.replicas[CHANNEL].line
            state = line.snapshot().conversion_state
            key = (line.next_message_seq, *line.next_source_seqs.values())
            if by_position.setdefault(key, state) != state:
                raise Violation(f"7: {adapter.name} has another conversion state at {key}")
