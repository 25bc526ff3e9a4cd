"""One subscriber of a run: the real mergers in a simple shell, with lossy links and replay from any adapter."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tandemfeed.client_lib.stream.trust.stream_trust import Distrusted, StreamTrust, Verdict
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.merge.belief import Belief
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import (
    Deliver,
    DeliverSeries,
    Ended,
    MergeEffect,
    RequestReplay,
    SessionChanged,
    Stale,
)
from tandemfeed.feedcore.merge.history.place import BEGINNING, ResumePoint
from tandemfeed.feedcore.merge.sessions import FormerSession, SessionMerger
from tandemfeed.feedcore.pause_free_clock import LOOK_EVERY_NS, MOMENT_NS, PAUSE_NS, PauseFreeClock
from tandemfeed.feedcore.vouched_epochs import VouchedEpochs
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import (
    RETRANSMISSION_BIT,
    OutputFlag,
    OutputPacket,
    encode_output_packet,
)
from tandemfeed.feedcore.wire.packet_series import PacketSeries, decode_series, packets_of
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.transport.sealing.opening import ReceivedPacket
from tests.simulation.checkers.content import Violation
from tests.simulation.plan import MS, ClientPlan, Plan
from tests.simulation.proofs import EpochProof
from tests.simulation.signed_line import Sealed
from tests.simulation.toy_feed import FIRST_SESSION
from tests.simulation.world import START_NS, World

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor
    from tests.simulation.cluster import Cluster

SOCKET_QUEUE_MAX = 200
CLIENT_GRACE_NS = 3_000 * MS  # longer than the interval of the final heartbeats, which is one second
SILENT_NS = 100 * MS  # how long nothing can have arrived from an adapter whose stream is stale
UNCONFIRMED_NS = 600 * MS  # short enough to declare messages of a single adapter missing during the run


class Announced(NamedTuple):
    """What the admin server announces to a client."""

    active: int
    epoch: int
    session: int


Arrival: TypeAlias = "OutputPacket | Sealed | EpochProof | Announced"


class ClientActor:
    """A process that subscribes to every channel.

    Args:
        watch: called with each effect; passes it to the checkers.
    """

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        plan: Plan,
        own: ClientPlan,
        watch: Callable[[ClientActor, int, MergeEffect], None],
    ) -> None:
        self.name = f"client{own.number}"
        self.is_live = own.is_live
        self.ended: set[int] = set()  # channels whose last session has ended
        self.sessions: dict[int, int] = {}  # by channel, the session after the newest change
        start_seq = None if own.is_live else 1
        channels = range(1, len(plan.channels) + 1)
        config = MergerConfig(confirm=own.confirm, session_grace_ns=CLIENT_GRACE_NS)
        patience_ns = own.declare_after_ns or (UNCONFIRMED_NS if own.confirm > 1 else 0)
        if patience_ns:
            pause_ns = min(config.retry_every_max_ns, patience_ns // 2)
            config = replace(config, retry_every_max_ns=pause_ns, declare_after_ns=patience_ns)
        self._config, self.is_confirming = config, own.confirm > 1
        self.declare_after_ns = config.declare_after_ns
        self.counters = {number: CounterSet() for number in channels}
        self.mergers = {
            number: SessionMerger(number, FIRST_SESSION, self.counters[number], config, start_seq)
            for number in channels
        }
        self.first_session = 0  # the session it started with; 0: not started
        self.unknown_ends: set[tuple[int, int]] = set()  # (channel, session) over when it started, without known end
        self._number = own.number
        self._last_session = FIRST_SESSION + len(plan.new_sessions)
        self._world, self._cluster, self._watch = world, cluster, watch
        self._start_ns = START_NS + own.start_ns
        self._random = random.Random((plan.chance_seed << 8) ^ own.number)
        self._wake_at_ns: int | None = None
        # Which adapter's replay service was first in the last request of a channel, for numbered messages (True) or for
        # others. A common counter would send each kind to the same adapters if requests alternate.
        self._turns: Counter[tuple[int, bool]] = Counter()
        self._is_paused, self._paused_at_ns = False, 0
        self._inbox: list[Arrival] = []
        self._clock = PauseFreeClock(world.now_ns)
        self.verifies = own.verify
        self._trusts: dict[int, StreamTrust] = {}  # by channel
        self._vouched = VouchedEpochs()
        self._beliefs: dict[int, Belief] = {}  # by channel
        self._arrived_at_ns: dict[tuple[int, int], int] = {}  # by channel and adapter, at the socket

    @property
    def has_ended(self) -> bool:
        """True after the last `Ended` of every channel."""
        return len(self.ended) == len(self.mergers)

    @property
    def now_ns(self) -> int:
        """The client's time, which stands still while it is paused."""
        return self._clock.now_ns

    def on_output(self, packet: OutputPacket) -> None:
        """A datagram arrives at the socket."""
        if not packet.flags & RETRANSMISSION_BIT and packet.session == self.mergers[packet.channel_id].session:
            self._arrived_at_ns[packet.channel_id, packet.adapter_id] = self._world.now_ns
        self._arrive(packet)

    def on_sealed(self, datagram: Sealed) -> None:
        """A datagram arrives at the socket of a client that checks signatures."""
        self._arrive(datagram)

    def _arrive(self, datagram: Arrival) -> None:
        if self._is_paused or self._inbox:
            if len(self._inbox) < SOCKET_QUEUE_MAX:
                self._inbox.append(datagram)
        elif self._world.now_ns >= self._start_ns:
            self._open(datagram)

    def announce(self) -> None:
        """The admin server announces the present starts of the adapters, and those before."""
        for channel, trust in self._trusts.items():
            lines = [
                each[channel]
                for adapter in self._cluster.adapters
                for each in (adapter.former_lines, adapter.lines)
                if channel in each
            ]
            trust.announce(replace(line.start, next_counters={channel: line.next_counter}) for line in lines)

    def on_proof(self, proof: EpochProof) -> None:
        """A datagram with the proof of an epoch arrives at the socket."""
        if self._cluster.admin.proofs.is_genuine(proof):
            self._arrive(proof)

    def on_announced(self, announced: Announced) -> None:
        """The admin server announces the active, its epoch, and the session by which it describes the feed."""
        self._arrive(announced)

    def pause(self) -> None:
        """Pause, if it has started."""
        if self._world.now_ns < self._start_ns:
            return
        self._is_paused, self._paused_at_ns = True, self._world.now_ns
        self._world.log("{} is paused", self.name)

    def resume(self, _: object = None) -> None:
        """Resume. After a long pause, the datagrams that the sockets kept come a moment later, because the threads that
        pass them on were stopped, too."""
        if self._is_paused:
            self._world.log("{} resumes", self.name)
            self._is_paused = False
            if self._world.now_ns - self._paused_at_ns <= PAUSE_NS:
                self._catch_up(None)
                return
            self._world.after(self._random.randrange(MOMENT_NS // 2), self._catch_up)
            self._schedule()

    def _catch_up(self, _: object) -> None:
        """Take what waits, unless another pause has begun."""
        while self._inbox and not self._is_paused:
            self._open(self._inbox.pop(0))
        self._schedule()

    # ---- inside ----

    def _begin(self) -> None:
        """Start with the session that the admin server describes; every second client, with the feed's first."""
        session = self._cluster.admin.session
        is_from_former = not self.is_live and self._number % 2 == 1
        self.first_session = FIRST_SESSION if is_from_former else session
        for number in self.mergers:
            start_seq = None if self.is_live else 1
            former = [self._former(number, each) for each in range(self.first_session, session)]
            self.mergers[number] = SessionMerger(
                number, session, self.counters[number], self._config, start_seq, former=former
            )
            belief = self._beliefs[number] = Belief(self.counters[number], self._vouched, session)
            if self.verifies:
                may_extend = partial(self._may_extend, belief)
                self._trusts[number] = StreamTrust(number, self.counters[number], self.verifies, may_extend)
        self.announce()
        self._cluster.on_client_begun(self)
        self._note_vouched(*self._cluster.admin.roles)

    def _may_extend(self, belief: Belief, packet: OutputPacket) -> bool:
        return belief.may_extend(packet, self.now_ns)

    def _former(self, channel: int, session: int) -> FormerSession:
        """A session that is over, from its first message, with what the adapters that are up tell of it."""
        up = [adapter for adapter in self._cluster.adapters if adapter.is_alive and not adapter.is_paused]
        found = [adapter.journal.last_heartbeat(session, channel) for adapter in up]
        heartbeats = [each for each in found if each is not None]
        heartbeats.sort(key=lambda each: (each.epoch, each.flags & OutputFlag.END_OF_STREAM), reverse=True)
        if not (heartbeats and heartbeats[0].flags & OutputFlag.END_OF_STREAM):
            self.unknown_ends.add((channel, session))
        return FormerSession(session, ResumePoint(BEGINNING, Lineage(), {}), tuple(heartbeats))

    def _open(self, datagram: Arrival) -> None:
        """Take a datagram, if it is believed now."""
        self._clock.look(self._world.now_ns)
        if not self.first_session:
            self._begin()
        if isinstance(datagram, OutputPacket):
            self._take(datagram)
            return
        if isinstance(datagram, EpochProof):
            self._note_vouched(datagram.adapter_id, datagram.epoch)
            return
        if isinstance(datagram, Announced):
            for belief in self._beliefs.values():
                belief.on_described(datagram.session, self.now_ns)
            self._note_vouched(datagram.active, datagram.epoch)
            return
        try:
            if isinstance(datagram, ReceivedPacket):
                channel = datagram.packet.channel_id
                verdicts = self._trusts[channel].on_packet(datagram, self.now_ns)
            else:
                channel = datagram.claimed.channel_id
                verdicts = self._trusts[channel].on_signature(datagram, self.now_ns)
        except PacketRefused:
            return
        for verdict in verdicts:
            self._take_verdict(verdict)

    def _take_verdict(self, verdict: Verdict) -> None:
        if isinstance(verdict, Distrusted):
            raise Violation("trust", f"{self.name}: {verdict}, although no one forges")
        self._take(verdict)

    def _note_vouched(self, adapter_id: int, epoch: int) -> None:
        """The admin server says that it granted this epoch to this adapter."""
        if self._vouched.vouch(epoch, adapter_id):
            for belief in self._beliefs.values():
                belief.on_vouched(self.now_ns)
        self._take_released()

    def _take_released(self) -> None:
        for belief in self._beliefs.values():
            if belief.released:
                released, belief.released = belief.released, []
                for packet in released:
                    self._merge(packet)

    def _take(self, packet: OutputPacket) -> None:
        belief, trust = self._beliefs[packet.channel_id], self._trusts.get(packet.channel_id)
        if trust is not None and belief.asks_who_lives(packet, self.now_ns):  # as `Channels` does
            for proved_at_ns, verdict in trust.on_timer(self.now_ns):
                if isinstance(verdict, OutputPacket):
                    self._believe(verdict, proved_at_ns)
                else:
                    self._take_verdict(verdict)
        self._believe(packet, self.now_ns)

    def _believe(self, packet: OutputPacket, now_ns: int) -> None:
        believed = self._beliefs[packet.channel_id].believed(packet, now_ns)
        self._take_released()
        if believed is not None:
            self._merge(believed)

    def _merge(self, packet: OutputPacket) -> None:
        merger = self.mergers[packet.channel_id]
        if self._trusts and packet.flags & RETRANSMISSION_BIT:
            self._trusts[packet.channel_id].on_replayed(packet)
        self._cluster.on_heard(self, packet)
        effects = merger.on_packet(packet, self.now_ns)
        if effects:
            self._perform(packet.channel_id, effects)
        self._cluster.at_end_of_turn(self, packet.channel_id, is_timer=False)
        self._schedule()

    def _take_series(self, series: PacketSeries) -> None:
        """Take packets of a replay that continue each other."""
        self._clock.look(self._world.now_ns)
        if not self.first_session:
            self._begin()
        if not self._beliefs[series.channel_id].believes_series(series, self.now_ns):
            for packet in series.packets:
                self._take(packet)
            return
        if self._trusts:
            self._trusts[series.channel_id].on_replayed_series(series)
        for packet in series.packets:
            self._cluster.on_heard(self, packet)
        effects = self.mergers[series.channel_id].on_series(series, self.now_ns)
        self._perform(series.channel_id, effects)
        self._cluster.at_end_of_turn(self, series.channel_id, is_timer=False)
        self._schedule()

    def _perform(self, channel: int, effects: list[MergeEffect]) -> None:
        for effect in unfolded(effects):
            if self._world.is_verbose or not isinstance(effect, Deliver | RequestReplay):
                self._world.log("{} {}", self.name, describe(effect))
            self._watch(self, channel, effect)
            if isinstance(effect, Stale) and not self._trusts:
                self._check_silence(effect)
            if isinstance(effect, SessionChanged):
                self.sessions[channel] = effect.new_session
            if isinstance(effect, RequestReplay):
                self._ask(effect)
            elif isinstance(effect, Ended) and self.sessions.get(channel, self.first_session) == self._last_session:
                self.ended.add(channel)

    def _check_silence(self, stale: Stale) -> None:
        """Nothing of the adapter has arrived at the socket for some time, whether the client has looked or not."""
        silent_ns = self._world.now_ns - self._arrived_at_ns.get((stale.channel_id, stale.adapter_id), 0)
        if silent_ns < SILENT_NS:
            raise Violation("pauses", f"{self.name}: {stale}, although it sent something {silent_ns / MS:.1f} ms ago")

    def _schedule(self) -> None:
        deadlines = [merger.next_deadline_ns() for merger in self.mergers.values()]
        deadline = min((each for each in deadlines if each is not None), default=None)
        if deadline is None:
            return
        now_ns = self._world.now_ns
        wake_at_ns = max(now_ns, min(self._clock.monotonic_ns(deadline), now_ns + LOOK_EVERY_NS))
        if self._wake_at_ns is None or wake_at_ns < self._wake_at_ns:
            self._wake_at_ns = wake_at_ns
            self._world.at(wake_at_ns, self._wake, wake_at_ns)

    def _wake(self, when: int) -> None:
        if self._wake_at_ns != when:
            return
        self._wake_at_ns = None
        if self._is_paused:
            return
        now_ns = self._clock.look(self._world.now_ns)
        due = [merger.next_deadline_ns() for merger in self.mergers.values()]
        if any(each is not None and each <= now_ns for each in due):
            for trust in self._trusts.values():  # first, because it knows which adapters live
                for _, verdict in trust.on_timer(now_ns):
                    self._take_verdict(verdict)
        for channel, merger in self.mergers.items():
            deadline = merger.next_deadline_ns()
            if deadline is not None and deadline <= now_ns:
                self._perform(channel, merger.on_timer(now_ns, self._random.random()))
                self._cluster.at_end_of_turn(self, channel, is_timer=True)
        self._schedule()

    def _ask(self, request: RequestReplay) -> None:
        """Ask as many replay services as copies are needed; successive requests rotate through the adapters."""
        adapters = list(self._cluster.adapters)
        is_numbered = bool(request.input_ranges or request.message_range)
        self._turns[request.channel_id, is_numbered] += 1
        turn = self._turns[request.channel_id, is_numbered] % len(adapters)
        adapters = adapters[turn:] + adapters[:turn]
        adapters.sort(key=lambda adapter: request.lateness(adapter.adapter_id))
        for adapter in adapters[: request.copy_count]:
            self._world.call(self._world.link(self.name, adapter.name), self._answer, (adapter, request))

    def _answer(self, question: tuple[AdapterActor, RequestReplay]) -> None:
        """Answer a replay request at the adapter."""
        adapter, request = question
        if adapter.is_alive and not adapter.is_paused:
            packets = adapter.journal.replay(request.session, request.channel_id, request.input_ranges)
            packets += adapter.journal.replay_messages(request.session, request.channel_id, request.message_range)
            packets += adapter.journal.replay_provisional(request.session, request.channel_id, request.source_ranges)
            loss = self._world.weather.replay_loss
            if loss:
                packets = [packet for packet in packets if self._random.random() >= loss]
            self._world.call(self._world.link(adapter.name, self.name), self._hear, (request, packets))

    def _hear(self, answer: tuple[RequestReplay, list[OutputPacket]]) -> None:
        """Take a whole answer; the merger then may request the next part at once."""
        request, packets = answer
        self._clock.look(self._world.now_ns)
        parts, refused = decode_series([encode_output_packet(packet) for packet in packets])
        assert not refused
        for part in parts:
            if isinstance(part, PacketSeries) and not self._is_paused and self._world.now_ns >= self._start_ns:
                self._take_series(part)
            else:
                for packet in packets_of(part):
                    self.on_output(packet)
        if not self._is_paused:
            self.mergers[request.channel_id].on_replay_ended(request, self.now_ns, is_answered=True)
            self._schedule()


def unfolded(effects: Iterable[MergeEffect]) -> Iterator[MergeEffect]:
    """The effects with a `Deliver` for each packet of a series, as the checkers know them."""
    for effect in effects:
        if isinstance(effect, DeliverSeries):
            yield from map(Deliver, effect.series.packets)
        else:
            yield effect


def describe(effect: MergeEffect) -> str:
    """Describes an effect in one line."""
    if isinstance(effect, Deliver):
        packet = effect.packet
        runs = [(run.source_stream_id, run.first_source_seq, run.end_source_seq - 1) for run in packet.runs]
        where = f"epoch {packet.epoch} from adapter {packet.adapter_id}, {runs}"
        return f"delivers input {packet.first_input_seq}..{packet.end_input_seq - 1} of {where}"
    return str(effect)
