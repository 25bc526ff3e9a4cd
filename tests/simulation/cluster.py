"""One run: builds the cluster of a plan, runs the storm, ends all faults, and waits until everything has converged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from tandemfeed.admin_server.lease.lease_terms import LeaseConfig
from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.effects import MergeEffect
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot, PeerState
from tandemfeed.feedcore.replica.config import PublishMode, SessionState
from tandemfeed.feedcore.replica.effects import AdapterEffect, RunsLost, StateMoved
from tandemfeed.feedcore.wire.output_packet import FROM_ACTIVE_BIT, OutputPacket
from tests.simulation.adapter import AdapterActor
from tests.simulation.admin import AdminActor
from tests.simulation.checkers.acked import AckedChecker
from tests.simulation.checkers.confirmation import ConfirmChecker
from tests.simulation.checkers.content import ContentChecker, DeliveryChecker, PacketReader, TotalOrderChecker, Truth
from tests.simulation.checkers.events import EventChecker
from tests.simulation.checkers.grants import GrantChecker
from tests.simulation.checkers.hand_overs import HandOverChecker
from tests.simulation.checkers.lies import LieChecker
from tests.simulation.checkers.losses import LossChecker
from tests.simulation.checkers.pauses import PauseChecker
from tests.simulation.checkers.sessions import SessionChecker
from tests.simulation.checkers.states import ConvergenceChecker, StateChecker
from tests.simulation.checkers.terms import TermChecker
from tests.simulation.client import ClientActor
from tests.simulation.faults import FaultInjector
from tests.simulation.plan import CALM, MS, FaultKind, Plan
from tests.simulation.source import SessionMessages, SourceActor
from tests.simulation.toy_feed import FIRST_SESSION, ToyConverter, expected_bodies, make_messages
from tests.simulation.world import START_NS, World

AFTER_STORM_NS = 50 * MS  # between the last packet of the source and the end of all faults
CALM_NS = 20_000 * MS
POLL_INTERVAL_NS = 5 * MS
REPAIR_NS = 1_000 * MS  # for comparing digests, and requesting and setting buckets
COMPARE_EVERY_NS = 60 * MS


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run; equal plans give equal outcomes, byte for byte.

    Attributes:
        digest: of every effect of every core, in order; empty unless the run was traced.
        calm_ns: how long the run took to converge after the faults ended.
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
        self.reader = reader = PacketReader()
        undecided = frozenset(number for number, streams in enumerate(plan.channels, 1) if len(streams) == 1)
        self.content = ContentChecker(reader, self.truth, undecided)
        self.confirm = ConfirmChecker(reader) if any(client.confirm > 1 for client in plan.clients) else None
        self.deliveries = {
            (f"client{client.number}", channel): DeliveryChecker(
                f"client{client.number}",
                streams,
                reader,
                self.truth,
                table=plan.tables[channel - 1],
                is_live=client.is_live,
                may_have_gaps=plan.may_lose_journals or client.confirm > 1 or client.declare_after_ns > 0,
                is_confirming=client.confirm > 1,
            )
            for client in plan.clients
            for channel, streams in enumerate(plan.channels, 1)
        }


class Checks:
    """Every checker of a run.

    Attributes:
        of: the checkers by session.
    """

    def __init__(self, plan: Plan, adapters: list[AdapterActor], messages: SessionMessages) -> None:
        self.of = {session: SessionChecks(plan, truth) for session, truth in _truths(plan, messages).items()}
        self.terms = TermChecker(adapters)
        self.acked = AckedChecker() if plan.publish is PublishMode.ACKED else None
        fresh_ns = max(plan.timing.lease_ttl_ns, 4 * plan.timing.sync_interval_ns)
        self.grants = GrantChecker(fresh_ns, max(plan.timing.grace_ns, LeaseConfig().first_grace_ns))
        self.hand_overs = HandOverChecker()
        self.lies = LieChecker(plan)
        self.pauses = PauseChecker(plan) if plan.has_lone_pauses else None
        # The next two check only plans with one session, because session changes follow other rules.
        self.losses = LossChecker(plan) if not plan.new_sessions else None
        self.events: dict[tuple[str, int], EventChecker] = {}  # by client and channel, once the client has started
        truths = {session: checks.truth for session, checks in self.of.items()}
        self.states = StateChecker(plan, adapters, messages, truths)
        lengths = {
            (channel, session): sum(len(by_stream[stream]) for stream in streams)
            for channel, streams in enumerate(plan.channels, 1)
            for session, by_stream in messages.items()
        }
        self.sessions = SessionChecker(min(messages), may_miss_end=plan.may_lose_journals, lengths=lengths)

    @property
    def is_corrupted(self) -> bool:
        """True if the conversion state of an adapter was corrupted."""
        return any(checks.truth.corrupted for checks in self.of.values())


def _truths(plan: Plan, messages: SessionMessages) -> dict[int, Truth]:
    """The expected output by session; if the conversion state is carried over, so are the running sums of a stream."""
    is_carried = plan.session_state is SessionState.CARRY
    # Each symbol belongs to one stream.
    converters = {(table, stream): ToyConverter(table) for table in plan.tables for stream in plan.streams}
    truths: dict[int, Truth] = {}
    for session, streams in messages.items():
        expected = {
            (table, stream): expected_bodies(streams[stream], converter if is_carried else ToyConverter(table))
            for (table, stream), converter in converters.items()
        }
        # If every adapter loses a carried state in a crash, the sums continue from another state.
        is_uncertain = bool(truths) and is_carried and (plan.has(FaultKind.CRASH) or plan.has(FaultKind.VANISH))
        has_losses = (
            bool(plan.journal_gaps) or is_uncertain
        )  # with journal gaps, losses are declared early in every session
        truths[session] = Truth(expected, has_losses=has_losses)
    return truths


class Cluster:
    """The processes, the network and the checkers of one run.

    Args:
        is_traced: include every effect in the outcome's digest.
        is_verbose: include every packet in the timeline.
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
            others = [peer for peer in self.adapters if peer is not adapter]
            others += [client for client in self.clients if not client.verifies]
            readers = [client for client in self.clients if client.verifies]
            adapter.listen(
                [(world.link(adapter.name, each.name), each) for each in others],
                [(world.link(adapter.name, each.name), each) for each in readers],
            )
        self._convergence = ConvergenceChecker(plan, self.adapters, self.clients)
        self._trace = hashlib.sha256() if is_traced else None

    def run(self) -> Outcome:
        """Run the storm and then the calm.

        Raises:
            Violation: an invariant was violated; the timeline says what happened before.
        """
        world, plan = self.world, self.plan
        for adapter, own in zip(self.adapters, plan.adapters, strict=True):
            world.at(START_NS + own.start_ns, adapter.start)
        self.source.start()
        world.weather = plan.weather
        FaultInjector(world, self).plan(plan.faults)
        world.at(START_NS + COMPARE_EVERY_NS, self._compare_states)
        world.run_until(START_NS + plan.source_start_ns + plan.storm_ns + AFTER_STORM_NS)
        self._heal()
        calm_ns = self._await_convergence()
        if self.checks.is_corrupted:
            world.run_until(world.now_ns + REPAIR_NS)
        self._check_deliveries()
        self.checks.states.compare(is_end=True)
        self.checks.lies.at_end(self.admin.claims)
        digest = self._trace.hexdigest() if self._trace else ""
        count = sum(plan.message_counts) * len(plan.streams)
        return Outcome(plan.seed, digest, self.admin.lease.epoch, count, calm_ns)

    def _check_deliveries(self) -> None:
        plan, sessions = self.plan, self.checks.sessions
        is_acked = plan.has_total_order and not any(
            counters.counts[Counter.PACKETS_UNACKED] for adapter in self.adapters for counters in adapter.counters
        )
        begun = {client.name: client.first_session for client in self.clients}
        for client in self.clients:
            for channel, counters in client.counters.items():
                passed_over = counters.counts[Counter.MERGE_SILENT_GAPS]
                checker = self.checks.of[client.first_session].deliveries[client.name, channel]
                checker.check_silent_gaps(passed_over)
        for session, checks in self.checks.of.items():
            for (client, channel), checker in checks.deliveries.items():
                if session >= begun[client] and not sessions.was_skipped(client, channel, session):
                    checker.is_live = checker.is_live and session == begun[client]
                    was_cut_short = sessions.was_cut_short(client, channel, session)
                    checker.at_end(checks.content.where, channel, was_cut_short=was_cut_short)
            for channel in range(1, len(plan.channels) + 1) if is_acked else ():
                TotalOrderChecker.at_end(check for (_, number), check in checks.deliveries.items() if number == channel)

    # ---- calls from the actors ----

    def on_effects(self, adapter: AdapterActor, effects: list[AdapterEffect]) -> None:
        """An adapter is about to perform these effects in this order."""
        if self._trace:
            for effect in effects:
                self._trace.update(f"{self.world.now_ns} {adapter.name} {effect!r}\n".encode())

    def on_transmit(self, adapter: AdapterActor, packet: OutputPacket) -> None:
        """An adapter transmits a packet."""
        is_active = bool(packet.flags & FROM_ACTIVE_BIT)
        self.checks.terms.on_transmit(adapter, packet)
        self.checks.sessions.on_transmit(packet)
        if self.checks.pauses is not None:
            self.checks.pauses.on_transmit(adapter, packet, self.world.now_ns)
        if self.checks.acked is not None:
            self.checks.acked.on_transmit(adapter, packet)
        self.checks.of[packet.session].content.on_transmit(packet, is_active=is_active, journal=adapter.journal)

    def on_garbled(self, packet: OutputPacket) -> None:
        """An adapter transmits a packet that differs from the one it made."""
        checks = self.checks.of[packet.session]
        checks.truth.garbled.update((each.source_stream_id, each.source_seq) for each in checks.reader.inputs(packet))

    def on_committed(self, packets: tuple[OutputPacket, ...]) -> None:
        """Provisional packets have become decisions, which every adapter may now transmit."""
        for packet in packets:
            self.checks.of[packet.session].content.note(packet, is_active=True)
            self.on_sent(packet)

    def on_sent(self, packet: OutputPacket) -> None:
        """A packet was transmitted unchanged, or is in a journal, ready for replay."""
        if (confirm := self.checks.of[packet.session].confirm) is not None:
            confirm.on_sent(packet)

    def on_state_given(self, adapter: AdapterActor, snapshot: ChannelSnapshot) -> None:
        """An adapter gives its conversion state to another adapter, or saves it."""
        if self.checks.acked is not None:
            self.checks.acked.on_state(adapter, snapshot)

    def on_lost(self, adapter: AdapterActor, lost: RunsLost) -> None:
        """An active declares source messages lost."""
        if self.checks.pauses is not None:
            self.checks.pauses.on_lost(adapter, lost)
        if self.checks.losses is not None:
            sent_at_ns = self.source.sent_at_ns[FIRST_SESSION, lost.source_stream_id, lost.first_source_seq]
            self.checks.losses.on_lost(adapter, lost, sent_at_ns, self.world.now_ns)

    def on_peer_state(self, adapter: AdapterActor, state: PeerState) -> None:
        """An adapter receives the state of another one."""
        if self.checks.losses is not None:
            self.checks.losses.on_peer_state(adapter, state)

    def on_adapter_started(self) -> None:
        """The admin server announces the adapters' starts to the readers that check signatures."""
        for client in self.clients:
            client.announce()

    def on_client_begun(self, client: ClientActor) -> None:
        """A client has created its mergers."""
        for channel, merger in client.mergers.items() if not self.plan.new_sessions else ():
            reader, patience_ns = self.checks.of[client.first_session].reader, client.declare_after_ns
            self.checks.events[client.name, channel] = EventChecker(
                client.name, merger, reader, patience_ns, is_confirming=client.is_confirming
            )

    def on_heard(self, client: ClientActor, packet: OutputPacket) -> None:
        """A client is about to give a packet to its merger."""
        if (events := self.checks.events.get((client.name, packet.channel_id))) is not None:
            events.on_packet(packet, client.now_ns)

    def at_end_of_turn(self, client: ClientActor, channel: int, *, is_timer: bool) -> None:
        """A client's merger has handed over everything that was due."""
        if (events := self.checks.events.get((client.name, channel))) is not None:
            events.at_end_of_turn(client.now_ns, is_timer=is_timer)

    def on_moved(self, adapter: AdapterActor, effect: StateMoved) -> None:
        """A channel of an adapter changed its state."""
        self.checks.terms.on_moved(adapter, effect.new)
        self.checks.hand_overs.on_moved(adapter, effect, self.world.now_ns)
        if self.checks.pauses is not None:
            self.checks.pauses.on_moved(adapter, effect, self.world.now_ns)

    def _on_merge_effect(self, client: ClientActor, channel: int, effect: MergeEffect) -> None:
        if self._trace:
            self._trace.update(f"{self.world.now_ns} {client.name} {effect!r}\n".encode())
        session = self.checks.sessions.on_effect(client, channel, effect)
        checks = self.checks.of[session]
        checks.deliveries[client.name, channel].on_effect(effect)
        if (events := self.checks.events.get((client.name, channel))) is not None:
            events.on_effect(effect, client.now_ns)
        if client.is_confirming and checks.confirm is not None:
            checks.confirm.on_effect(client.name, effect)

    # ---- phases ----

    def _compare_states(self, _: object) -> None:
        self.checks.states.compare()
        self.world.after(COMPARE_EVERY_NS, self._compare_states)

    def _heal(self) -> None:
        world = self.world
        world.log("the storm ends")
        world.weather = CALM
        world.heal_all()
        self.admin.restart()
        self.admin.resume()
        for adapter in self.adapters:
            adapter.garble(0)
            adapter.is_damaging = False
            if adapter.liar is not None:
                adapter.lie(0)
            if adapter.is_slow:
                adapter.slow_down(0)
            if adapter.is_alive:
                adapter.resume()
            else:
                adapter.start()
            adapter.replace_unfit()
        for client in self.clients:
            client.resume()
        self.admin.readmit_all()

    def _await_convergence(self) -> int:
        began_ns = self.world.now_ns
        while self.world.now_ns < began_ns + CALM_NS and not self._convergence.is_done():
            self.world.run_until(self.world.now_ns + POLL_INTERVAL_NS)
        self._convergence.at_end(CALM_NS)
        return self.world.now_ns - began_ns
