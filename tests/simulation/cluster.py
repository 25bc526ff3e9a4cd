"""One run: builds what the plan says, lets the storm pass, heals, and waits until all has converged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from admin_server.lease_terms import LeaseConfig
from feedcore.counters import Counter
from feedcore.merge.effects import MergeEffect
from feedcore.replica.channel_state import ChannelSnapshot, PeerState
from feedcore.replica.config import PublishMode
from feedcore.replica.effects import AdapterEffect, RunsLost, StateMoved
from feedcore.wire.output_packet import FROM_ACTIVE_BIT, OutputPacket
from tests.simulation.adapter import AdapterActor
from tests.simulation.admin import AdminActor
from tests.simulation.checkers.acked import AckedChecker
from tests.simulation.checkers.confirmation import ConfirmChecker
from tests.simulation.checkers.content import ContentChecker, DeliveryChecker, PacketReader, TotalOrderChecker, Truth
from tests.simulation.checkers.events import EventChecker
from tests.simulation.checkers.grants import GrantChecker
from tests.simulation.checkers.hand_overs import HandOverChecker
from tests.simulation.checkers.losses import LossChecker
from tests.simulation.checkers.states import ConvergenceChecker, StateChecker
from tests.simulation.checkers.terms import TermChecker
from tests.simulation.client import ClientActor
from tests.simulation.faults import Strikes
from tests.simulation.plan import CALM, MS, Plan
from tests.simulation.source import SourceActor
from tests.simulation.toy_feed import expected_bodies, make_messages
from tests.simulation.world import START_NS, World

AFTER_STORM_NS = 50 * MS  # between the last packet of the source and the end of all faults
CALM_NS = 20_000 * MS
LOOK_EVERY_NS = 5 * MS
REPAIR_NS = 1_000 * MS  # for digests to be told, buckets to be asked for and set
COMPARE_EVERY_NS = 60 * MS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run was like; equal plans give equal outcomes, byte for byte.

    Attributes:
        digest: of every effect of every core, in order; empty unless the run was traced.
        calm_ns: how long it took to converge once the faults had stopped.
    """

    seed: int
    digest: str
    epochs: int
    messages: int
    calm_ns: int


class Checks:
    """Every checker of a run."""

    def __init__(self, plan: Plan, adapters: list[AdapterActor], messages: dict[int, list[tuple[int, int]]]) -> None:
        expected = {stream: expected_bodies(rows) for stream, rows in messages.items()}
        self.truth = Truth(expected, has_holes=bool(plan.holes))
        self.reader = reader = PacketReader()
        undecided = frozenset(number for number, streams in enumerate(plan.channels, 1) if len(streams) == 1)
        self.content = ContentChecker(reader, self.truth, undecided)
        self.terms = TermChecker(adapters)
        self.acked = AckedChecker() if plan.publish is PublishMode.ACKED else None
        self.confirm = ConfirmChecker(reader) if any(client.confirm > 1 for client in plan.clients) else None
        fresh_ns = max(plan.timing.lease_ttl_ns, 4 * plan.timing.sync_interval_ns)
        self.grants = GrantChecker(fresh_ns, max(plan.timing.grace_ns, LeaseConfig().first_grace_ns))
        self.hand_overs = HandOverChecker()
        self.events: dict[tuple[str, int], EventChecker] = {}
        self.states = StateChecker(plan, adapters, messages, self.truth)
        self.deliveries = {
            (f"client{client.number}", channel): DeliveryChecker(
                f"client{client.number}",
                streams,
                reader,
                self.truth,
                is_live=client.is_live,
                may_gap=plan.may_lose_journals or client.confirm > 1 or client.declare_after_ns > 0,
                is_confirming=client.confirm > 1,
            )
            for client in plan.clients
            for channel, streams in enumerate(plan.channels, 1)
        }


class Cluster:
    """Everything of one run.

    Args:
        is_traced: every effect goes into the outcome's digest.
        is_verbose: the timeline has every packet.
    """

    def __init__(self, plan: Plan, *, is_traced: bool = False, is_verbose: bool = False) -> None:
        self.plan = plan
        self.world = world = World(plan.chance_seed, is_verbose=is_verbose)
        messages = {
            stream: make_messages(Random((plan.seed << 8) ^ stream), stream, len(plan.streams), plan.message_count)
            for stream in plan.streams
        }
        self.adapters: list[AdapterActor] = []
        self.clients: list[ClientActor] = []
        self.checks = Checks(plan, self.adapters, messages)
        self.truth = self.checks.truth
        self.losses = LossChecker(plan, lambda stream, source_seq: self.source.sent_at_ns[stream, source_seq])
        self.admin = AdminActor(world, self, plan)
        self.source = SourceActor(world, plan, messages, self.adapters)
        self.adapters += [AdapterActor(world, self, plan, own) for own in plan.adapters]
        self.clients += [ClientActor(world, self, plan, own, self._on_merge_effect) for own in plan.clients]
        for adapter in self.adapters:
            hearers = [(peer.name, peer.on_output) for peer in self.adapters if peer is not adapter]
            hearers += [(client.name, client.on_output) for client in self.clients]
            adapter.listen([(world.link(adapter.name, name), hear) for name, hear in hearers])
        for client in self.clients:
            for channel, merger in client.mergers.items():
                self.checks.events[client.name, channel] = EventChecker(
                    client.name,
                    merger,
                    self.checks.reader,
                    client.repair.declare_after_ns,
                    is_confirming=client.is_confirming,
                )
        self._convergence = ConvergenceChecker(plan, self.adapters, self.clients)
        self._trace = hashlib.sha256() if is_traced else None

    def run(self) -> Outcome:
        """The storm, then the calm.

        Raises:
            Violation: an invariant broke; the timeline says what had happened.
        """
        world, plan = self.world, self.plan
        for adapter, own in zip(self.adapters, plan.adapters, strict=True):
            world.at(START_NS + own.start_ns, adapter.start)
        self.source.start()
        world.weather = plan.weather
        Strikes(world, self).plan(plan.faults)
        world.at(START_NS + COMPARE_EVERY_NS, self._compare_states)
        world.run_until(START_NS + plan.source_start_ns + plan.storm_ns + AFTER_STORM_NS)
        self._heal()
        calm_ns = self._await_convergence()
        if self.truth.corrupted:
            world.run_until(world.now_ns + REPAIR_NS)
        for (_, channel), checker in self.checks.deliveries.items():
            checker.at_end(self.checks.content.where, channel)
        for client in self.clients:
            for channel, counters in client.counters.items():
                passed_over = counters.counts[Counter.MERGE_SILENT_GAPS]
                self.checks.deliveries[client.name, channel].must_have_passed_over_nothing(passed_over)
        self.checks.states.compare(is_end=True)
        if plan.has_total_order and not any(
            counters.counts[Counter.PACKETS_UNACKED] for adapter in self.adapters for counters in adapter.counters
        ):
            for channel in range(1, len(plan.channels) + 1):
                found = (check for (_, number), check in self.checks.deliveries.items() if number == channel)
                TotalOrderChecker.at_end(found)
        digest = self._trace.hexdigest() if self._trace else ""
        return Outcome(plan.seed, digest, self.admin.lease.epoch, plan.message_count * len(plan.streams), calm_ns)

    # ---- what the actors tell ----

    def on_effects(self, adapter: AdapterActor, effects: list[AdapterEffect]) -> None:
        """An adapter is about to perform these, in this order."""
        if self._trace:
            for effect in effects:
                self._trace.update(f"{self.world.now_ns} {adapter.name} {effect!r}\n".encode())

    def on_transmit(self, adapter: AdapterActor, packet: OutputPacket) -> None:
        """An adapter puts a packet on the wire."""
        is_active = bool(packet.flags & FROM_ACTIVE_BIT)
        self.checks.terms.on_transmit(adapter, packet)
        if self.checks.acked is not None:
            self.checks.acked.on_transmit(adapter, packet)
        self.checks.content.on_transmit(packet, is_active=is_active, journal=adapter.journal)

    def on_garbled(self, packet: OutputPacket) -> None:
        """A packet goes out that differs from what its sender made."""
        self.truth.garbled.update(
            (found.source_stream_id, found.source_seq) for found in self.checks.reader.inputs(packet)
        )

    def on_committed(self, packets: tuple[OutputPacket, ...]) -> None:
        """Provisional packets have become decisions; every adapter that hears of them may transmit them."""
        for packet in packets:
            self.checks.content.note(packet, is_active=True)
            self.on_sent(packet)

    def on_sent(self, packet: OutputPacket) -> None:
        """A packet is on the wire as it is, or in a journal for replay."""
        if self.checks.confirm is not None:
            self.checks.confirm.on_sent(packet)

    def on_state_given(self, adapter: AdapterActor, snapshot: ChannelSnapshot) -> None:
        """An adapter gives its conversion state to another, or saves it."""
        if self.checks.acked is not None:
            self.checks.acked.on_state(adapter, snapshot)

    def on_lost(self, adapter: AdapterActor, lost: RunsLost) -> None:
        """An active declares source messages lost."""
        self.losses.on_lost(adapter, lost, self.world.now_ns)

    def on_peer_state(self, adapter: AdapterActor, state: PeerState) -> None:
        """An adapter hears another's state."""
        self.losses.on_peer_state(adapter, state)

    def on_heard(self, client: ClientActor, packet: OutputPacket) -> None:
        """A client is about to give a packet to its merger."""
        self.checks.events[client.name, packet.channel_id].on_packet(packet, self.world.now_ns)

    def at_end_of_turn(self, client: ClientActor, channel: int, *, is_timer: bool) -> None:
        """A client's merger has handed over all that was due."""
        self.checks.events[client.name, channel].at_end_of_turn(self.world.now_ns, is_timer=is_timer)

    def on_moved(self, adapter: AdapterActor, effect: StateMoved) -> None:
        """A channel of an adapter moved."""
        self.checks.terms.on_moved(adapter, effect.new)
        self.checks.hand_overs.on_moved(adapter, effect, self.world.now_ns)

    def _on_merge_effect(self, client: ClientActor, channel: int, effect: MergeEffect) -> None:
        if self._trace:
            self._trace.update(f"{self.world.now_ns} {client.name} {effect!r}\n".encode())
        self.checks.deliveries[client.name, channel].on_effect(effect)
        self.checks.events[client.name, channel].on_effect(effect, self.world.now_ns)
        if client.is_confirming and self.checks.confirm is not None:
            self.checks.confirm.on_effect(client.name, effect)

    # ---- phases ----

    def _compare_states(self, _: object) -> None:
        self.checks.states.compare()
        self.world.after(COMPARE_EVERY_NS, self._compare_states)

    def _heal(self) -> None:
        world = self.world
        world.tell("the storm is over")
        world.weather = CALM
        world.mend_all()
        self.admin.restart()
        for adapter in self.adapters:
            adapter.garble(0)
            adapter.is_damaging = False
            if adapter.is_slow:
                adapter.slow_down(0)
            if adapter.is_alive:
                adapter.resume()
            else:
                adapter.start()
        for client in self.clients:
            client.resume()
        self.admin.readmit_all()

    def _await_convergence(self) -> int:
        began_ns = self.world.now_ns
        while self.world.now_ns < began_ns + CALM_NS and not self._convergence.is_done():
            self.world.run_until(self.world.now_ns + LOOK_EVERY_NS)
        self._convergence.at_end(CALM_NS)
        return self.world.now_ns - began_ns
