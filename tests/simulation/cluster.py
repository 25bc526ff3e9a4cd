"""One run: builds what the plan says, lets the storm pass, heals, and waits until all has converged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from feedcore.counters import Counter
from feedcore.merge.effects import MergeEffect
from feedcore.replica.effects import AdapterEffect, StateMoved
from feedcore.replica.engine_config import SessionState
from feedcore.wire.output_packet import FROM_ACTIVE_BIT, OutputPacket
from tests.simulation.adapter import AdapterActor
from tests.simulation.admin import AdminActor
from tests.simulation.checkers import ContentChecker, DeliveryChecker, PacketReader, TotalOrderChecker, Truth
from tests.simulation.client import ClientActor
from tests.simulation.faults import Strikes
from tests.simulation.plan import CALM, MS, FaultKind, Plan
from tests.simulation.session_checker import SessionChecker
from tests.simulation.source import SessionMessages, SourceActor
from tests.simulation.state_checker import ConvergenceChecker, StateChecker
from tests.simulation.term_checker import TermChecker
from tests.simulation.toy_feed import FIRST_SESSION, ToyConverter, expected_bodies, make_messages
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


class SessionChecks:
    """The checkers of one session."""

    def __init__(self, plan: Plan, truth: Truth) -> None:
        self.truth = truth
        reader = PacketReader()
        undecided = frozenset(number for number, streams in enumerate(plan.channels, 1) if len(streams) == 1)
        self.content = ContentChecker(reader, self.truth, undecided)
        self.deliveries = {
            (f"client{client.number}", channel): DeliveryChecker(
                f"client{client.number}",
                streams,
                reader,
                self.truth,
                is_live=client.is_live,
                may_gap=plan.may_lose_journals or client.confirm > 1,
            )
            for client in plan.clients
            for channel, streams in enumerate(plan.channels, 1)
        }


class Checks:
    """Every checker of a run.

    Attributes:
        of: by session.
    """

    def __init__(self, plan: Plan, adapters: list[AdapterActor], messages: SessionMessages) -> None:
        self.of = {session: SessionChecks(plan, truth) for session, truth in _truths(plan, messages).items()}
        self.terms = TermChecker(adapters)
        truths = {session: checks.truth for session, checks in self.of.items()}
        self.states = StateChecker(plan, adapters, messages, truths)
        self.sessions = SessionChecker(min(messages), may_miss_end=plan.may_lose_journals)

    @property
    def is_corrupted(self) -> bool:
        """True if some adapter's memory was spoilt."""
        return any(checks.truth.corrupted for checks in self.of.values())


def _truths(plan: Plan, messages: SessionMessages) -> dict[int, Truth]:
    """What must come out, by session; where the conversion state is carried on, so are a stream's running sums."""
    is_carried = plan.session_state is SessionState.CARRY
    converters = {stream: ToyConverter() for stream in plan.streams}  # symbols belong to one stream each
    truths: dict[int, Truth] = {}
    for session, streams in messages.items():
        expected = {
            stream: expected_bodies(rows, converters[stream] if is_carried else None)
            for stream, rows in streams.items()
        }
        # A state that is carried on and that every adapter with it lost is gone: then the sums go on from another one.
        is_unsure = bool(plan.holes or plan.has(FaultKind.CRASH) or plan.has(FaultKind.VANISH))
        has_holes = bool(plan.holes) if not truths else is_carried and is_unsure
        truths[session] = Truth(expected, has_holes=has_holes)
    return truths


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
            FIRST_SESSION + number: {
                stream: make_messages(
                    Random((plan.seed << 8) ^ stream ^ number << 40), stream, len(plan.streams), message_count
                )
                for stream in plan.streams
            }
            for number, message_count in enumerate(plan.message_counts)
        }
        self.adapters: list[AdapterActor] = []
        self.clients: list[ClientActor] = []
        self.checks = Checks(plan, self.adapters, messages)
        self.truths = {session: checks.truth for session, checks in self.checks.of.items()}
        self.admin = AdminActor(world, self, plan)
        self.source = SourceActor(world, plan, messages, self.adapters)
        self.adapters += [AdapterActor(world, self, plan, own) for own in plan.adapters]
        self.clients += [ClientActor(world, self, plan, own, self._on_merge_effect) for own in plan.clients]
        for adapter in self.adapters:
            hearers = [(peer.name, peer.on_output) for peer in self.adapters if peer is not adapter]
            hearers += [(client.name, client.on_output) for client in self.clients]
            adapter.listen([(world.link(adapter.name, name), hear) for name, hear in hearers])
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
        if self.checks.is_corrupted:
            world.run_until(world.now_ns + REPAIR_NS)
        self._check_deliveries()
        self.checks.states.compare(is_end=True)
        digest = self._trace.hexdigest() if self._trace else ""
        count = sum(plan.message_counts) * len(plan.streams)
        return Outcome(plan.seed, digest, self.admin.lease.epoch, count, calm_ns)

    def _check_deliveries(self) -> None:
        plan, sessions = self.plan, self.checks.sessions
        is_acked = plan.has_total_order and not any(
            counters.counts[Counter.PACKETS_UNACKED] for adapter in self.adapters for counters in adapter.counters
        )
        begun = {client.name: client.first_session for client in self.clients}
        for session, checks in self.checks.of.items():
            for (client, channel), checker in checks.deliveries.items():
                if session >= begun[client] and not sessions.was_skipped(client, channel, session):
                    checker.is_live = checker.is_live and session == begun[client]
                    checker.at_end(checks.content.where, channel)
            for channel in range(1, len(plan.channels) + 1) if is_acked else ():
                TotalOrderChecker.at_end(check for (_, number), check in checks.deliveries.items() if number == channel)

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
        self.checks.of[packet.session].content.on_transmit(packet, is_active=is_active, journal=adapter.journal)

    def on_committed(self, packets: tuple[OutputPacket, ...]) -> None:
        """Provisional packets have become decisions; every adapter that hears of them may transmit them."""
        for packet in packets:
            self.checks.of[packet.session].content.note(packet, is_active=True)

    def on_moved(self, adapter: AdapterActor, effect: StateMoved) -> None:
        """A channel of an adapter moved."""
        self.checks.terms.on_moved(adapter, effect.new)

    def _on_merge_effect(self, client: ClientActor, channel: int, effect: MergeEffect) -> None:
        if self._trace:
            self._trace.update(f"{self.world.now_ns} {client.name} {effect!r}\n".encode())
        session = self.checks.sessions.on_effect(client, channel, effect)
        self.checks.of[session].deliveries[client.name, channel].on_effect(effect)

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
