"""One subscriber of a run: the real mergers in a simple shell, with lossy links and replay from any adapter."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Deliver, DeliverSeries, Ended, MergeEffect, RequestReplay, SessionChanged
from tandemfeed.feedcore.merge.history.place import BEGINNING, ResumePoint
from tandemfeed.feedcore.merge.sessions import FormerSession, SessionMerger
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket, encode_output_packet
from tandemfeed.feedcore.wire.packet_series import PacketSeries, decode_series, packets_of
from tests.simulation.plan import MS, ClientPlan, Plan
from tests.simulation.toy_feed import FIRST_SESSION
from tests.simulation.world import START_NS, World

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor
    from tests.simulation.cluster import Cluster

SOCKET_QUEUE_MAX = 200
CLIENT_GRACE_NS = 3_000 * MS  # longer than the interval of the final heartbeats, which is one second
UNCONFIRMED_NS = 600 * MS  # short enough to declare messages of a single adapter missing during the run


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
        self._is_paused = False
        self._inbox: list[OutputPacket] = []

    @property
    def has_ended(self) -> bool:
        """True after the last `Ended` of every channel."""
        return len(self.ended) == len(self.mergers)

    def on_output(self, packet: OutputPacket) -> None:
        """A datagram arrives at the socket."""
        if self._is_paused:
            if len(self._inbox) < SOCKET_QUEUE_MAX:
                self._inbox.append(packet)
        elif self._world.now_ns >= self._start_ns:
            self._take(packet)

    def pause(self) -> None:
        """Pause."""
        self._is_paused = True
        self._world.log("{} is paused", self.name)

    def resume(self, _: object = None) -> None:
        """Resume with the datagrams that the sockets kept."""
        if self._is_paused:
            self._world.log("{} resumes", self.name)
            self._is_paused = False
            waiting, self._inbox = self._inbox, []
            for packet in waiting:
                self._take(packet)
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
        self._cluster.on_client_begun(self)

    def _former(self, channel: int, session: int) -> FormerSession:
        """A session that is over, from its first message, with what the adapters that are up tell of it."""
        up = [adapter for adapter in self._cluster.adapters if adapter.is_alive and not adapter.is_paused]
        found = [adapter.journal.last_heartbeat(session, channel) for adapter in up]
        heartbeats = [each for each in found if each is not None]
        heartbeats.sort(key=lambda each: (each.epoch, each.flags & OutputFlag.END_OF_STREAM), reverse=True)
        if not (heartbeats and heartbeats[0].flags & OutputFlag.END_OF_STREAM):
            self.unknown_ends.add((channel, session))
        return FormerSession(session, ResumePoint(BEGINNING, Lineage(), {}), tuple(heartbeats))

    def _take(self, packet: OutputPacket) -> None:
        if not self.first_session:
            self._begin()
        merger = self.mergers[packet.channel_id]
        self._cluster.on_heard(self, packet)
        effects = merger.on_packet(packet, self._world.now_ns)
        if effects:
            self._perform(packet.channel_id, effects)
        self._cluster.at_end_of_turn(self, packet.channel_id, is_timer=False)
        self._schedule()

    def _take_series(self, series: PacketSeries) -> None:
        """Take packets of a replay that continue each other."""
        if not self.first_session:
            self._begin()
        for packet in series.packets:
            self._cluster.on_heard(self, packet)
        effects = self.mergers[series.channel_id].on_series(series, self._world.now_ns)
        self._perform(series.channel_id, effects)
        self._cluster.at_end_of_turn(self, series.channel_id, is_timer=False)
        self._schedule()

    def _perform(self, channel: int, effects: list[MergeEffect]) -> None:
        for effect in unfolded(effects):
            if self._world.is_verbose or not isinstance(effect, Deliver | RequestReplay):
                self._world.log("{} {}", self.name, describe(effect))
            self._watch(self, channel, effect)
            if isinstance(effect, SessionChanged):
                self.sessions[channel] = effect.new_session
            if isinstance(effect, RequestReplay):
                self._ask(effect)
            elif isinstance(effect, Ended) and self.sessions.get(channel, self.first_session) == self._last_session:
                self.ended.add(channel)

    def _schedule(self) -> None:
        deadlines = [merger.next_deadline_ns() for merger in self.mergers.values()]
        deadline = min((each for each in deadlines if each is not None), default=None)
        now_ns = self._world.now_ns
        if deadline is not None and (self._wake_at_ns is None or deadline < self._wake_at_ns):
            self._wake_at_ns = max(deadline, now_ns)
            self._world.at(self._wake_at_ns, self._wake, self._wake_at_ns)

    def _wake(self, when: int) -> None:
        if self._wake_at_ns != when:
            return
        self._wake_at_ns = None
        if self._is_paused:
            return
        for channel, merger in self.mergers.items():
            deadline = merger.next_deadline_ns()
            if deadline is not None and deadline <= when:
                self._perform(channel, merger.on_timer(self._world.now_ns, self._random.random()))
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
        parts, refused = decode_series([encode_output_packet(packet) for packet in packets])
        assert not refused
        for part in parts:
            if isinstance(part, PacketSeries) and not self._is_paused and self._world.now_ns >= self._start_ns:
                self._take_series(part)
            else:
                for packet in packets_of(part):
                    self.on_output(packet)
        if not self._is_paused:
            self.mergers[request.channel_id].on_replay_ended(request, self._world.now_ns, is_answered=True)
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
