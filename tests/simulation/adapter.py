"""One adapter of a run: the real engine in a simple shell that can crash, restart, pause and be slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, assert_never

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.lease.holder_clock import HolderClock
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot, PeerState
from tandemfeed.feedcore.replica.config import PublishMode
from tandemfeed.feedcore.replica.effects import (
    AcceptOffer,
    AdapterEffect,
    CommitProvisional,
    Publish,
    ReleaseLease,
    RenewLease,
    RequestEpoch,
    RequestHandOver,
    RequestToFail,
    RunsLost,
    ServerRequest,
    SessionBegun,
    ShowEpochProof,
    StateMoved,
    Transmit,
    perform,
)
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME_SIZE,
    PROVISIONAL_BIT,
    RUN_SIZE,
    OutputPacket,
    decode_output_packet,
    encode_output_packet,
)
from tests.simulation.adapter_parts import brief, engine_config
from tests.simulation.checkers.content import Violation
from tests.simulation.liar import Liar
from tests.simulation.output_journal import OutputJournal
from tests.simulation.peer_calls import PeerCalls
from tests.simulation.plan import AdapterPlan, Plan
from tests.simulation.proofs import EpochProof
from tests.simulation.signed_line import Sealed, SignedLine
from tests.simulation.toy_feed import FEED_ID, OUT_BODY, ToyConverter
from tests.simulation.world import SOURCE, START_NS, Link, World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

SOCKET_QUEUE_MAX = 200  # datagrams that sockets keep while the process does not read
PPM = 1_000_000
WALL_NS = 1_700_000_000 * 1_000_000_000
Event = tuple[Callable[..., list[AdapterEffect]], tuple[object, ...]]


class Listener(Protocol):
    """A receiver of an adapter's multicast."""

    def on_output(self, packet: OutputPacket) -> None: ...
    def on_proof(self, proof: EpochProof) -> None: ...


class Reader(Protocol):
    """A receiver that checks signatures."""

    def on_sealed(self, datagram: Sealed) -> None: ...
    def on_proof(self, proof: EpochProof) -> None: ...


class AdapterActor:
    """An adapter process and its host.

    Attributes:
        life: number of the start; replies to an earlier life are dropped.
        is_paused: paused; events wait.
        is_late: sending packets that it decided before it was paused.
        journal: survives the process.
        holder_clock: of the present life.
    """

    def __init__(self, world: World, cluster: Cluster, plan: Plan, own: AdapterPlan) -> None:
        self.name = f"adapter{own.adapter_id}"
        self.adapter_id = own.adapter_id
        self.life = 0
        self.is_alive = False
        self.is_paused = False
        self.is_late = False
        self.journal = OutputJournal()
        self.engine: AdapterEngine
        self.holder_clock = HolderClock()
        self.converters: dict[int, ToyConverter] = {}
        self.counters: list[CounterSet] = []  # one per life
        self.from_source: Link = world.link(SOURCE, self.name)
        self._world, self._cluster, self._plan, self._own = world, cluster, plan, own
        self._calls = PeerCalls(world, cluster, self)
        self._listeners: Sequence[tuple[Link, Listener]] = ()
        self._readers: Sequence[tuple[Link, Reader]] = ()
        # By channel, of this life and the one before: what it sends to the readers that check signatures.
        self.lines: dict[int, SignedLine] = {}
        self.former_lines: dict[int, SignedLine] = {}
        self._proofs: dict[int, EpochProof] = {}  # by epoch
        self._inbox: deque[Event] = deque()
        self._datagrams_waiting = 0
        self._unperformed: list[AdapterEffect] = []
        self._pauses_before_sending = False
        self._slow_ns = self._resumed = 0
        self._former_ends: dict[tuple[int, int, int], int] = {}
        self._garbles_every = 0  # 0: no packet is garbled
        self.abstains = False  # in its last report
        self.is_damaging = False  # the conversion state that it gives to others is damaged
        self.liar: Liar | None = None  # None: it is honest
        self._is_unfit = False  # it has lost something that it needs, until it is restarted
        self._busy_until_ns = 0
        self._wake_at_ns: int | None = None
        self._ended_ns: int | None = None  # when the previous life ended
        self.request_source = self._calls.request_source
        self.request_runs = self._calls.request_runs
        self.request_snapshot = self._calls.request_snapshot
        self.request_buckets = self._calls.request_buckets

    # ---- life ----

    def listen(self, listeners: Sequence[tuple[Link, Listener]], readers: Sequence[tuple[Link, Reader]]) -> None:
        """Set the receivers of this adapter's output. Args: readers: those that check signatures."""
        self._listeners, self._readers = listeners, readers

    def start(self, _: object = None) -> None:
        """Start a new process on the same host, with the same journal."""
        if self.is_alive:
            return
        self.is_alive, self.is_paused, self._pauses_before_sending, self._is_unfit = True, False, False, False
        self.life += 1
        self.holder_clock = HolderClock()
        self._inbox.clear()
        self._unperformed.clear()
        self._proofs.clear()
        self._datagrams_waiting = self._busy_until_ns = 0
        self._wake_at_ns = None
        self.converters = {channel: ToyConverter(table) for channel, table in enumerate(self._plan.tables, 1)}
        self.counters.append(CounterSet())
        session = max(self._cluster.admin.session, self.journal.newest_session())
        config = engine_config(self._plan, self.adapter_id, session, self._ended_ns)
        self.engine = AdapterEngine(config, self.converters, self.counters[-1], self.clock_ns())
        self.engine.health = self._own.health
        self.former_lines = self.lines
        self.lines = {channel: SignedLine(FEED_ID, channel, self.adapter_id, self.life) for channel in self.converters}
        self._cluster.on_adapter_started()
        self._former_ends = {}
        for state, runs in self.journal.resumable(session):
            self.engine.resume_from(state, runs, self.clock_ns())
            self._former_ends |= self.journal.ends(session, state.channel_id)
        self.engine.resume_final_heartbeats(self.journal.final_heartbeats(session), self.clock_ns())
        self._resumed = self.counters[-1].counts[Counter.SNAPSHOTS_INSTALLED]
        self._world.log("{} starts", self.name)
        self._cluster.admin.on_connect(self)
        self._schedule()
        self._report(self.life)

    def crash(self, entries_lost: int, *, is_silent: bool) -> None:
        """The process dies. With `is_silent` its host dies too, so that no connection ends."""
        self.is_alive, self._ended_ns = False, self.clock_ns()
        lost = self.journal.lose_tail(entries_lost)
        self._world.log("{} {}, {} journal entries lost", self.name, "vanishes" if is_silent else "crashes", lost)
        if not is_silent:
            self._cluster.admin.on_disconnect(self)

    def pause(self) -> None:
        """Pause."""
        self.is_paused = True
        self._world.log("{} is paused", self.name)

    def pause_before_sending(self) -> None:
        """Pause after the next decision that transmits, before its effects are performed."""
        self._pauses_before_sending = True

    def resume(self, _: object = None) -> None:
        """Resume: first send the packets that were about to be sent, then do what is due, and only then, which is the
        worst order, process the waiting events."""
        self._pauses_before_sending = False
        if not self.is_alive or not self.is_paused:
            return
        self.is_paused = False
        self._world.log("{} resumes", self.name)
        effects, self._unperformed = self._unperformed, []
        self.is_late = True
        self._perform(effects)
        self.is_late = False
        self._run((self.engine.on_timer, ()))
        waiting, self._inbox = self._inbox, deque()
        self._datagrams_waiting = 0
        for event in waiting:
            self._world.after(0, self._take, (event, self.life))
        self._schedule()

    def become_unfit(self) -> None:
        """Lose a thread or the disk: ask to leave the group, until the process is restarted."""
        self._is_unfit, self.engine.health = True, 0.0
        self._world.log("{} is unfit", self.name)

    def replace_unfit(self, _: object = None) -> None:
        """Restart the process if it is still the unfit one."""
        if self._is_unfit and self.is_alive:
            self.crash(0, is_silent=False)
            self.start()

    def slow_down(self, event_ns: int) -> None:
        """Make every event take this long; 0: events take no time."""
        self._slow_ns = event_ns
        self._world.log("{} needs {} us per event", self.name, event_ns // 1_000)

    def lie(self, share: float) -> None:
        """Name wrong numbers in this share of what it sends; 0: none."""
        self._world.log("{} {}", self.name, "begins to lie" if share else "lies no more")
        self.liar = Liar(self._plan.chance_seed, self.adapter_id, share) if share else None

    def garble(self, every: int) -> None:
        """Garble one in `every` packets; 0: none."""
        self._garbles_every = every

    def clock_ns(self) -> int:
        """The adapter's monotonic clock."""
        now = self._world.now_ns
        return now + now * self._own.drift_ppm // PPM + self._own.clock_offset_ns

    def stamp(self) -> int:
        """Note that a report to the admin server is sent now; returns its id."""
        return self.holder_clock.on_report_sent(self.clock_ns())

    def wall_ns(self) -> int:
        """The adapter's wall clock."""
        now = self._world.now_ns
        return WALL_NS + now + sum(by for at, by in self._own.wall_steps if now >= START_NS + at)

    @property
    def is_slow(self) -> bool:
        """True while events take time."""
        return self._slow_ns > 0

    @property
    def states(self) -> list[ReplicaState]:
        """The state of each channel."""
        return [replica.state for replica in self.engine.replicas.values()]

    @property
    def is_active(self) -> bool:
        """True if it is active in any channel."""
        return any(state is ReplicaState.ACTIVE for state in self.states)

    # ---- events ----

    def on_source(self, datagram: bytes) -> None:
        """A source datagram arrives at the socket."""
        if self.is_alive:
            self._hear(self.engine.on_source_datagram, datagram)

    def on_output(self, packet: OutputPacket) -> None:
        """Another adapter's datagram arrives at the socket."""
        if self.is_alive:
            self._hear(self.engine.on_output_packet, packet)

    def on_message(self, life: int, event: Callable[..., list[AdapterEffect]], *arguments: object) -> None:
        """A message over a connection arrives; it is dropped if it is for an earlier life."""
        if life == self.life and self.is_alive:
            self._enter((event, arguments))

    def on_peer_state(self, state: PeerState, proof: EpochProof | None) -> None:
        """Another adapter's state arrives, with the proof of the newest epoch that it knows."""
        if proof is not None:
            self._enter((self._take_proof, (proof,)))
        self._enter((self._take_state, (state,)))

    def on_proof(self, proof: EpochProof) -> None:
        """A datagram with a proof arrives at the socket."""
        if self.is_alive:
            self._hear(self._take_proof, proof)

    def keep_proof(self, epoch: int, adapter_id: int) -> None:
        """The admin server gave a proof."""
        self._proofs[epoch] = EpochProof(epoch, adapter_id)

    @property
    def newest_proof(self) -> EpochProof | None:
        """The proof of the newest epoch that this adapter knows, if it has it."""
        return self._proofs.get(self.engine.vouched.newest)

    # ---- events: answers of the lease store to a report ----

    def on_lease_granted(self, epoch: int, report_id: int, ttl_ns: int, now_ns: int) -> list[AdapterEffect]:
        """A grant arrives."""
        self.keep_proof(epoch, self.adapter_id)
        return self.engine.on_lease_granted(epoch, self.holder_clock.valid_until_ns(report_id, ttl_ns), now_ns)

    def on_lease_renewed(self, epoch: int, report_id: int, ttl_ns: int, now_ns: int) -> list[AdapterEffect]:
        """A renewal arrives."""
        return self.engine.on_lease_renewed(epoch, self.holder_clock.valid_until_ns(report_id, ttl_ns), now_ns)

    def on_lease_offered(
        self, epoch: int, after_epoch: int, report_id: int, ttl_ns: int, now_ns: int
    ) -> list[AdapterEffect]:
        """An offer arrives."""
        self.keep_proof(epoch, self.adapter_id)
        until_ns = self.holder_clock.valid_until_ns(report_id, ttl_ns)
        return self.engine.on_lease_offered(epoch, after_epoch, until_ns, now_ns)

    # ---- inside: events ----

    def _take_proof(self, proof: EpochProof, now_ns: int) -> list[AdapterEffect]:
        if not self._cluster.admin.proofs.is_genuine(proof):
            return []
        self._proofs[proof.epoch] = proof
        return self.engine.on_epoch_vouched(proof.epoch, proof.adapter_id, now_ns)

    def _take_state(self, state: PeerState, now_ns: int) -> list[AdapterEffect]:
        self._cluster.on_peer_state(self, state)
        return self.engine.on_peer_state(state, now_ns)

    def _hear(self, event: Callable[..., list[AdapterEffect]], datagram: object) -> None:
        if self.is_paused or self._slow_ns:
            if self._datagrams_waiting >= SOCKET_QUEUE_MAX:
                return
            self._datagrams_waiting += 1
        self._enter((event, (datagram,)))

    def _enter(self, event: Event) -> None:
        if self.is_paused:
            self._inbox.append(event)
        elif self._slow_ns or self._busy_until_ns > self._world.now_ns:
            self._busy_until_ns = max(self._busy_until_ns, self._world.now_ns) + self._slow_ns
            self._world.at(self._busy_until_ns, self._take, (event, self.life))
        else:
            self._run(event)

    def _take(self, entry: tuple[Event, int]) -> None:
        event, life = entry
        if life != self.life or not self.is_alive:
            return
        self._datagrams_waiting = max(0, self._datagrams_waiting - 1)
        if self.is_paused:
            self._inbox.append(event)
        else:
            self._run(event)

    def _run(self, event: Event) -> None:
        action, arguments = event
        effects = action(*arguments, self.clock_ns())
        if effects:
            if self._pauses_before_sending and any(isinstance(effect, Publish | Transmit) for effect in effects):
                self._pauses_before_sending = False
                self._unperformed = effects
                self.pause()
                return
            self._perform(effects)
        self._schedule()

    def _schedule(self) -> None:
        deadline = self.engine.next_deadline_ns()
        if deadline is None or self.is_paused or not self.is_alive:
            return
        local_ns = deadline - self._own.clock_offset_ns
        when = local_ns * PPM // (PPM + self._own.drift_ppm) + 1
        now_ns = self._world.now_ns
        if when < now_ns:
            when = now_ns
        if self._wake_at_ns is None or when < self._wake_at_ns or self._wake_at_ns < now_ns:
            self._wake_at_ns = when
            self._world.at(when, self._wake, (when, self.life))

    def _wake(self, key: tuple[int, int]) -> None:
        when, life = key
        if life == self.life and self._wake_at_ns == when and self.is_alive:
            self._wake_at_ns = None
            if not self.is_paused:
                self._enter((self.engine.on_timer, ()))

    def _report(self, life: int) -> None:
        """Send its state to the admin server and to all peers, at every sync interval."""
        if not self.is_alive or life != self.life:
            return
        if not self.is_paused:
            if self._is_unfit:
                self._enter((self.engine.on_unfit, ("it lost its disk",)))
            self._cluster.admin.on_report(self)
            self._calls.tell_state()
        self._world.after(self._plan.timing.sync_interval_ns, self._report, life)

    # ---- effects (feedcore.replica.effects.EffectHandler) ----

    def _perform(self, effects: list[AdapterEffect]) -> None:
        self._cluster.on_effects(self, effects)
        perform(effects, self)
        for line in self.lines.values() if self._readers else ():
            while line.is_signature_due:
                self._send_to_readers(line.sign(self.wall_ns()))

    def publish(self, packets: Sequence[OutputPacket]) -> None:
        """Journal and transmit each packet."""
        for packet in packets:
            self.append_to_journal(packet)
            self.transmit(packet)

    def append_to_journal(self, packet: OutputPacket) -> None:
        """Append a packet, which then survives a crash."""
        self._check_own_past(packet)
        self.journal.append(packet)
        self._cluster.on_sent(packet)
        if self._plan.publish is PublishMode.ACKED:
            self._cluster.checks.of[packet.session].content.on_journalled(packet)

    def save_state(self, snapshot: ChannelSnapshot) -> None:
        """Append a state, which then survives a crash."""
        self._cluster.on_state_given(self, snapshot)
        self.journal.append(snapshot)

    def commit_provisional(self, committed: CommitProvisional) -> None:
        """Record in the journal that provisional packets are decisions."""
        packets = self.journal.commit_provisional(committed)
        text = "{} commits channel {} input {}..{} in epoch {}: {} packets"
        first, last = committed.first_input_seq, committed.end_input_seq - 1
        self._world.log(text, self.name, committed.channel_id, first, last, committed.epoch, len(packets))
        self._cluster.on_committed(packets)

    def transmit(self, packet: OutputPacket) -> None:
        """Multicast a packet to all receivers."""
        world = self._world
        self._cluster.on_transmit(self, packet)
        if world.is_verbose:
            world.log("{} transmits {}", self.name, brief(packet))
        if self._garbles_every and packet.message_count and not packet.first_input_seq % self._garbles_every:
            packet = self._garbled(packet)
        if self.liar is not None:
            for lie in self.liar.packets(packet, self.engine.vouched.owner_of(packet.epoch)):
                if world.is_verbose:
                    world.log("{} lies: {}", self.name, brief(lie))
                self._send(lie)
        self._send(packet)

    def _send(self, packet: OutputPacket) -> None:
        multicast = self._world.multicast
        if self._plan.has_real_codec:
            datagram = encode_output_packet(packet)
            for link, listener in self._listeners:
                multicast(link, listener.on_output, decode_output_packet(datagram))
        else:
            for link, listener in self._listeners:
                multicast(link, listener.on_output, packet)
        if self._readers:
            self._send_to_readers(self.lines[packet.channel_id].seal(packet, self.wall_ns()))

    def _send_to_readers(self, datagram: Sealed) -> None:
        for link, reader in self._readers:
            self._world.multicast(link, reader.on_sealed, datagram)

    def show_epoch_proof(self, shown: ShowEpochProof) -> None:
        """Multicast a proof, if it is here."""
        proof = self._proofs.get(shown.epoch)
        if proof is not None and proof.adapter_id == shown.adapter_id:
            for link, receiver in (*self._listeners, *self._readers):
                self._world.multicast(link, receiver.on_proof, proof)

    def _check_own_past(self, packet: OutputPacket) -> None:
        """Check that this life repeats no packet of an earlier life in an epoch, unless a snapshot superseded it."""
        has_own_place = 0 < self.counters[-1].counts[Counter.SNAPSHOTS_INSTALLED] == self._resumed
        end = self._former_ends.get((packet.session, packet.channel_id, packet.epoch), 0)
        if has_own_place and packet.runs and not packet.flags & PROVISIONAL_BIT and packet.end_input_seq <= end:
            raise Violation("restart", f"{self.name} transmits {packet.first_input_seq} again after a restart")

    def _garbled(self, packet: OutputPacket) -> OutputPacket:
        """The packet with a wrong running sum, different for each adapter, in its first message."""
        if any(run.is_source_gap for run in packet.runs) or len(packet.payload) == RUN_SIZE * len(packet.runs):
            return packet
        payload = bytearray(packet.payload)
        payload[RUN_SIZE * len(packet.runs) + OUTPUT_FRAME_SIZE + OUT_BODY.size - 2] ^= self.adapter_id
        found = packet._replace(payload=bytes(payload))
        self._cluster.on_garbled(found)
        self._cluster.on_sent(found)
        return found

    def ask_server(self, request: ServerRequest) -> None:
        """Send a request over the stream to the admin server."""
        admin = self._cluster.admin
        match request:
            case AcceptOffer(epoch):
                admin.on_offer_accepted(self, epoch)
            case ReleaseLease(epoch):
                admin.on_released(self, epoch)
            case RequestEpoch(epoch):
                admin.on_next_epoch(self, epoch)
            case RequestHandOver():
                admin.on_hand_over_wish(self, request)
            case RequestToFail(reason):
                admin.on_ask_to_fail(self, reason)
            case RenewLease(epoch):
                admin.on_renew(self, epoch)
            case _:
                assert_never(request)

    def on_state_moved(self, moved: StateMoved) -> None:
        """Log, check and report a change of state."""
        text = "{} channel {}: {} -> {}: {}"
        self._world.log(text, self.name, moved.channel_id, moved.old.value, moved.new.value, moved.reason)
        self._cluster.on_moved(self, moved)
        self._cluster.admin.on_report(self)

    def on_session_begun(self, begun: SessionBegun) -> None:
        """Log and report a new session."""
        how = "" if begun.is_complete else " (its end is missing)"
        self._world.log("{} moves from session {}{} to {}", self.name, begun.old_session, how, begun.new_session)
        self._cluster.admin.on_report(self)

    def on_runs_lost(self, lost: RunsLost) -> None:
        """Log and check a declared loss."""
        text = "{} declares lost in channel {}: source {} {}..{}"
        first, last = lost.first_source_seq, lost.last_source_seq
        self._cluster.on_lost(self, lost)
        self._world.log(text, self.name, lost.channel_id, lost.source_stream_id, first, last)
