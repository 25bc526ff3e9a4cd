"""The processes of a run: source, adapters, clients. Each is a shell around production cores, dull as the real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from feedcore.counters import CounterSet
from feedcore.decision_log import DecisionLogTooShort
from feedcore.effects import (
    AdapterEffect,
    AppendToJournal,
    RenewLease,
    RequestRuns,
    RequestSnapshot,
    RequestSource,
    RunsLost,
    SaveState,
    StateMoved,
    Transmit,
)
from feedcore.engine import AdapterEngine, ChannelConfig, EngineConfig, NotActive
from feedcore.merge_effects import Ended, MergeEffect, RequestReplay
from feedcore.merger import StreamMerger
from feedcore.output_packet import OutputFlag, OutputPacket, decode_output_packet, encode_output_packet
from feedcore.position import ChannelSnapshot
from feedcore.replica_config import ReplicaConfig
from feedcore.source_packet import SourceFlag, decode_source_packet
from feedcore.states import ReplicaState
from tests.simulation.toy_feed import FEED_ID, SESSION, ToyConverter, encode_source
from tests.simulation.world import MS, World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

CHANNEL = 1
SYNC_INTERVAL_NS = 50 * MS
SOCKET_QUEUE_MAX = 200  # datagrams a paused process's sockets keep


class SourceActor:
    """Sends prepared packets on schedule, heartbeats, and answers gap requests from a journal that never loses."""

    name = "source"

    def __init__(self, world: World, cluster: Cluster, messages: dict[int, list[tuple[int, int]]]) -> None:
        self._world, self._cluster = world, cluster
        self._next = dict.fromkeys(messages, 1)
        self._messages = messages
        self._journal: dict[int, list[bytes]] = {stream: [] for stream in messages}

    def start(self, duration_ns: int) -> None:
        chance = self._world.random
        for stream, messages in self._messages.items():
            packets, first = [], 0
            while first < len(messages):
                count = chance.randint(1, 6)
                packets.append(messages[first : first + count])
                first += count
            for _ in packets:
                self._world.after(chance.randrange(duration_ns), lambda stream=stream: self._send_next(stream))
            self._packets = getattr(self, "_packets", {}) | {stream: iter(packets)}
        self._world.after(10 * MS, self._beat)

    def fill(self, stream: int, first: int, last: int) -> list[bytes]:
        """What the source journal has of source_seq first…last."""
        found = []
        for datagram in self._journal[stream]:
            packet = decode_source_packet(datagram, FEED_ID)
            if packet.first_source_seq <= last and packet.end_source_seq > first:
                found.append(datagram)
        return found

    def _send_next(self, stream: int) -> None:
        messages = next(self._packets[stream])
        datagram = encode_source(stream, self._next[stream], messages, self._world.now_ns, 0)
        self._next[stream] += len(messages)
        self._journal[stream].append(datagram)
        self._multicast(datagram)

    def _beat(self) -> None:
        for stream, next_seq in self._next.items():
            flags = SourceFlag.HEARTBEAT
            if next_seq > len(self._messages[stream]):
                flags |= SourceFlag.END_OF_STREAM
            self._multicast(encode_source(stream, next_seq, [], self._world.now_ns, flags))
        self._world.after(10 * MS, self._beat)

    def _multicast(self, datagram: bytes) -> None:
        for adapter in self._cluster.adapters:
            self._world.multicast(self.name, adapter.name, lambda a=adapter: a.on_source(datagram))


class AdapterActor:
    """One adapter: crashes, restarts, pauses; between these the real engine."""

    def __init__(self, world: World, cluster: Cluster, adapter_id: int, streams: tuple[int, ...]) -> None:
        self.name = f"adapter{adapter_id}"
        self.adapter_id = adapter_id
        self.is_alive = False
        self.life = 0  # answers to a former life's questions are not heard
        self.journal: dict[int, OutputPacket] = {}  # by first message_seq: a newer epoch's numbering replaces
        self.saved: list[ChannelSnapshot] = []  # states in the output journal, the newest last
        self.is_paused = False
        self.engine: AdapterEngine
        self._world, self._cluster = world, cluster
        self._streams = streams
        self._inbox: list[Callable[[], None]] = []
        self._wake_at_ns: int | None = None
        self._drift = world.random.uniform(-50e-6, 50e-6)

    # ---- life ----

    def start(self) -> None:
        self.is_alive, self.is_paused = True, False
        self.life += 1
        self._inbox.clear()
        self._wake_at_ns = None
        config = EngineConfig(
            FEED_ID,
            self.adapter_id,
            SESSION,
            (ChannelConfig(CHANNEL, self._streams),),
            datagram_size_max=256,
            lease_ttl_ns=self._cluster.lease_ttl_ns,
            replica=ReplicaConfig(state_interval_ns=self._cluster.state_interval_ns),
        )
        self.engine = AdapterEngine(config, {CHANNEL: ToyConverter()}, CounterSet(), self.clock_ns())
        if self.saved:
            self.engine.resume_from(self.saved[-1])
        self._world.tell(f"{self.name} starts")
        self._cluster.lease_store.on_attend(self)
        self._schedule()
        self._report()

    def crash(self) -> None:
        self.is_alive = False
        # Some crashes take the journal's newest entries along.
        del self.saved[self._world.random.randint(0, len(self.saved)) :]
        self._world.tell(f"{self.name} crashes, {len(self.saved)} saved states left")
        self._cluster.lease_store.on_gone(self)

    def pause(self) -> None:
        self.is_paused = True
        self._world.tell(f"{self.name} is paused")

    def resume(self) -> None:
        if not self.is_alive or not self.is_paused:
            return
        self.is_paused = False
        self._world.tell(f"{self.name} resumes")
        waiting, self._inbox = self._inbox[:SOCKET_QUEUE_MAX], []
        for action in waiting:
            self._world.after(0, action)
        self._schedule()

    def clock_ns(self) -> int:
        """The adapter's own monotonic clock."""
        return int(self._world.now_ns * (1 + self._drift))

    @property
    def state(self) -> ReplicaState:
        return self.engine.replicas[CHANNEL].state

    # ---- events ----

    def do(self, action: Callable[[], list[AdapterEffect]], life: int | None = None) -> None:
        """Run an event through the engine and perform its effects; a paused process does so when it resumes."""
        if not self.is_alive or (life is not None and life != self.life):
            return
        if self.is_paused:
            self._inbox.append(lambda: self.do(action, life))
            return
        for effect in action():
            self._perform(effect)
        self._cluster.check_adapter(self)
        self._schedule()

    def on_source(self, datagram: bytes) -> None:
        self.do(lambda: self.engine.on_source_datagram(datagram, self.clock_ns()))

    def on_output(self, datagram: bytes) -> None:
        self.do(lambda: self.engine.on_output_packet(decode_output_packet(datagram), self.clock_ns()))

    def replay(self, ranges: tuple[tuple[int, int], ...]) -> list[OutputPacket]:
        """What the output journal has of these ranges."""
        found = []
        for seq in sorted(self.journal):
            packet = self.journal[seq]
            if any(packet.first_message_seq <= last and packet.end_message_seq > first for first, last in ranges):
                found.append(packet._replace(flags=packet.flags | OutputFlag.RETRANSMISSION))
        return found

    # ---- inside ----

    def _perform(self, effect: AdapterEffect) -> None:
        match effect:
            case AppendToJournal(packet):
                for seq in [seq for seq in self.journal if seq >= packet.first_message_seq]:
                    if self.journal[seq].epoch < packet.epoch:
                        del self.journal[seq]
                if packet.message_count:
                    self.journal[packet.first_message_seq] = packet
            case SaveState(snapshot):
                self.saved = [*self.saved[-2:], snapshot]
            case Transmit(packet):
                self._transmit(packet)
            case RequestSource(stream, first, last):
                self._ask(
                    self._cluster.source.name,
                    lambda: self._cluster.source.fill(stream, first, last),
                    lambda datagrams: [self.on_source(datagram) for datagram in datagrams],
                )
            case RequestRuns(channel, peer_id, position):
                self._ask_peer(
                    peer_id,
                    lambda peer: peer.runs_since(channel, position),
                    lambda reply: self.do(lambda: self.engine.on_runs(channel, reply, self.clock_ns())),
                    lambda reason: self.do(lambda: self.engine.on_runs_refused(channel, reason, self.clock_ns())),
                )
            case RequestSnapshot(channel, peer_id):
                self._ask_peer(
                    peer_id,
                    lambda peer: peer.snapshot(channel),
                    lambda snapshot: self.do(lambda: self.engine.on_snapshot(snapshot, self.clock_ns())),
                )
            case RenewLease(epoch):
                sent_at_ns, life = self.clock_ns(), self.life
                self._cluster.lease_store.on_renew(self, epoch, sent_at_ns, life)
            case StateMoved(_, old, new, reason):
                self._world.tell(f"{self.name} {old.value} -> {new.value}: {reason}")
                self._cluster.lease_store.on_report(self)
            case RunsLost(stream, first, last):
                self._world.tell(f"{self.name} declares stream {stream} {first}..{last} lost")

    def _transmit(self, packet: OutputPacket) -> None:
        self._cluster.transmissions.on_transmit(packet, self.state)
        datagram = encode_output_packet(packet)
        for peer in self._cluster.adapters:
            if peer is not self:
                self._world.multicast(self.name, peer.name, lambda p=peer: p.on_output(datagram))
        for client in self._cluster.clients:
            self._world.multicast(self.name, client.name, lambda c=client: c.on_output(datagram))

    def _ask(self, whom: str, question: Callable[[], object], hear: Callable[[object], object]) -> None:
        life = self.life

        def answer() -> None:
            found = question()
            if found is not None:
                self._world.call(whom, self.name, lambda: hear(found) if self.life == life else None)

        self._world.call(self.name, whom, answer)

    def _ask_peer(self, peer_id, question, hear, refused=lambda reason: None) -> None:  # type: ignore[no-untyped-def]
        peer = next((a for a in self._cluster.adapters if a.adapter_id == peer_id), None)
        if peer is None or peer is self:
            return

        def ask() -> object:
            if not peer.is_alive or peer.is_paused:
                return None
            try:
                return hear, question(peer.engine)
            except NotActive:
                return None
            except DecisionLogTooShort as short:
                return refused, str(short)

        self._ask(peer.name, ask, lambda pair: pair[0](pair[1]))

    def _schedule(self) -> None:
        deadline = self.engine.next_deadline_ns()
        if deadline is None or self.is_paused or not self.is_alive:
            return
        when = int(deadline / (1 + self._drift)) + 1
        if self._wake_at_ns is None or when < self._wake_at_ns or self._wake_at_ns <= self._world.now_ns:
            self._wake_at_ns = when
            life = self.life
            self._world.at(when, lambda: self._wake(when, life))

    def _wake(self, when: int, life: int) -> None:
        if life == self.life and self._wake_at_ns == when:
            self._wake_at_ns = None
            self.do(lambda: self.engine.on_timer(self.clock_ns()), life)

    def _report(self) -> None:
        """Every sync interval: state to the lease store, and from the active to everybody."""
        life = self.life
        if not self.is_alive:
            return
        if not self.is_paused:
            self._cluster.lease_store.on_report(self)
            if self.state is ReplicaState.ACTIVE:
                status = self.engine.channel_status(CHANNEL)
                for peer in self._cluster.adapters:
                    if peer is not self:
                        self._world.call(self.name, peer.name, lambda p=peer: p.on_status(status, self.adapter_id))
        self._world.after(SYNC_INTERVAL_NS, lambda: self._report() if self.life == life else None)

    def on_status(self, status, adapter_id: int) -> None:  # type: ignore[no-untyped-def]
        self.do(lambda: self.engine.on_peer_status(status, adapter_id, self.clock_ns()))


class ClientActor:
    """One subscriber: the real merger over lossy links, replay from any adapter."""

    def __init__(self, world: World, cluster: Cluster, index: int, checker) -> None:  # type: ignore[no-untyped-def]
        self.name = f"client{index}"
        self.checker = checker
        self.has_ended = False
        self.merger = StreamMerger(CHANNEL, CounterSet(), start_message_seq=1)
        self._world, self._cluster = world, cluster
        self._wake_at_ns: int | None = None

    def on_output(self, datagram: bytes) -> None:
        self._do(self.merger.on_packet(decode_output_packet(datagram), self._world.now_ns))

    def _do(self, effects: list[MergeEffect]) -> None:
        for effect in effects:
            self.checker.on_effect(effect)
            if isinstance(effect, RequestReplay):
                self._ask(effect)
            elif isinstance(effect, Ended):
                self.has_ended = True
        deadline = self.merger.next_deadline_ns()
        if deadline is not None and (self._wake_at_ns is None or deadline < self._wake_at_ns):
            self._wake_at_ns = max(deadline, self._world.now_ns)
            self._world.at(self._wake_at_ns, lambda when=self._wake_at_ns: self._wake(when))

    def _wake(self, when: int) -> None:
        if self._wake_at_ns == when:
            self._wake_at_ns = None
            self._do(self.merger.on_timer(self._world.now_ns, self._world.random.random()))

    def _ask(self, request: RequestReplay) -> None:
        alive = [adapter for adapter in self._cluster.adapters if adapter.is_alive]
        if not alive:
            return
        adapter = self._world.random.choice(alive)

        def answer() -> None:
            if adapter.is_alive and not adapter.is_paused:
                packets = adapter.replay(request.ranges)
                self._world.call(adapter.name, self.name, lambda: self._hear(packets))

        self._world.call(self.name, adapter.name, answer)

    def _hear(self, packets: list[OutputPacket]) -> None:
        for packet in packets:
            self._do(self.merger.on_packet(packet, self._world.now_ns))
