"""The adapter's core: one lease, one replica per channel. Everything an adapter decides is decided here.

Sans-I/O: the shell (`adapter`) and the simulator feed the very same events and perform the very same effects, in
order. It never reads a clock: `now_ns` is the caller's monotonic clock.

Invariant: an effect that transmits as active is returned only while `LeaseView.may_transmit(now_ns)` holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from feedcore.converter import Converter
from feedcore.counters import Counter, CounterSet
from feedcore.decision_log import DecisionLogTooShort, RunsReply
from feedcore.effects import AdapterEffect
from feedcore.lease_view import LeaseLapsed, LeaseView
from feedcore.output_packet import DATAGRAM_SIZE_DEFAULT, DATAGRAM_SIZE_MAX, OutputPacket
from feedcore.position import ChannelSnapshot, ChannelStatus, MessageStreamState
from feedcore.production import LineConfig, ProductionLine
from feedcore.refusal import PacketRefused, Refusal
from feedcore.replica import ChannelReplica
from feedcore.replica_config import ReplicaConfig
from feedcore.source_packet import decode_source_packet
from feedcore.states import ReplicaState

__all__ = [
    "AdapterEngine",
    "ChannelConfig",
    "ChannelStatus",
    "DecisionLogTooShort",
    "EngineConfig",
    "NotActive",
    "RunsReply",
]

MS = 1_000_000


class NotActive(Exception):
    """Only the active answers this: ask the adapter that the admin server names."""


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """One ordered output stream and the source streams that feed it; a source stream feeds one channel only."""

    channel_id: int
    source_stream_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What never changes during a run of an adapter.

    Attributes:
        session: trading day, YYYYMMDD.
        datagram_size_max: bytes of an output datagram, header and seal included.
        lease_ttl_ns: the lease's term as the admin server announced it.
    """

    feed_id: int
    adapter_id: int
    session: int
    channels: tuple[ChannelConfig, ...]
    datagram_size_max: int = DATAGRAM_SIZE_DEFAULT
    lease_ttl_ns: int = 300 * MS
    replica: ReplicaConfig = field(default_factory=ReplicaConfig)

    def __post_init__(self) -> None:
        if not 256 <= self.datagram_size_max <= DATAGRAM_SIZE_MAX:
            raise ValueError(
                f"datagram_size_max {self.datagram_size_max} is not within 256 and {DATAGRAM_SIZE_MAX} bytes"
            )
        streams = [stream for channel in self.channels for stream in channel.source_stream_ids]
        if len(streams) != len(set(streams)):
            raise ValueError(f"a source stream feeds two channels: {sorted(streams)}")


class AdapterEngine:
    """Active or backup of one feed.

    Args:
        converters: per channel_id the converter that owns the channel's conversion state.
        counters: what is counted goes here; the shell exports it.
        now_ns: the monotonic clock at construction.
    """

    def __init__(
        self, config: EngineConfig, converters: Mapping[int, Converter], counters: CounterSet, now_ns: int
    ) -> None:
        self.config = config
        self.lease = LeaseView(config.lease_ttl_ns)
        self.counters = counters
        self.replicas: dict[int, ChannelReplica] = {}
        self._by_stream: dict[int, tuple[ChannelReplica, Converter]] = {}
        for channel in config.channels:
            converter = converters[channel.channel_id]
            line_config = LineConfig(
                config.feed_id,
                channel.channel_id,
                config.adapter_id,
                config.session,
                channel.source_stream_ids,
                config.datagram_size_max,
            )
            line = ProductionLine(line_config, converter, counters)
            replica = ChannelReplica(channel.channel_id, line, config.replica, counters, now_ns)
            self.replicas[channel.channel_id] = replica
            for stream in channel.source_stream_ids:
                self._by_stream[stream] = (replica, converter)

    # ---- events ----

    def resume_from(self, snapshot: ChannelSnapshot) -> None:
        """What the output journal holds of this adapter's former life: a channel's newest saved state.

        Before any other event. It is used if the active's decisions continue it; else the active gives its own.
        """
        self.replicas[snapshot.channel_id].resume_from(snapshot)

    def on_source_datagram(self, datagram: bytes, now_ns: int) -> list[AdapterEffect]:
        """A datagram of a source stream, from multicast or from the source journal; a bad one is counted, no more."""
        effects = self._fence(now_ns)
        try:
            packet = decode_source_packet(datagram, self.config.feed_id)
            if packet.session != self.config.session:
                raise PacketRefused(Refusal.WRONG_SESSION, f"session {packet.session}, ours is {self.config.session}")
            found = self._by_stream.get(packet.source_stream_id)
            if found is None:
                raise PacketRefused(Refusal.UNKNOWN_STREAM, f"source stream {packet.source_stream_id}")
            replica, converter = found
            if packet.message_count and not converter.check(datagram):
                raise PacketRefused(Refusal.MALFORMED, "the frames do not add up to the packet")
        except PacketRefused as refused:
            self.counters.refuse(refused.reason)
            return effects
        self.counters.counts[Counter.SOURCE_PACKETS] += 1
        produced = replica.on_source_packet(packet, now_ns)
        return effects + produced if effects else produced

    def on_output_packet(self, packet: OutputPacket, now_ns: int) -> list[AdapterEffect]:
        """Another adapter's output packet, opened."""
        effects = self._fence(now_ns)
        try:
            if packet.feed_id != self.config.feed_id:
                raise PacketRefused(Refusal.WRONG_FEED, f"feed {packet.feed_id}")
            if packet.session != self.config.session:
                raise PacketRefused(Refusal.WRONG_SESSION, f"session {packet.session}, ours is {self.config.session}")
            replica = self.replicas.get(packet.channel_id)
            if replica is None:
                raise PacketRefused(Refusal.WRONG_CHANNEL, f"channel {packet.channel_id}")
            if packet.adapter_id == self.config.adapter_id:
                return effects  # our own, or our former life's: nothing to learn from it
            effects += self._note_epoch(packet.epoch, f"adapter {packet.adapter_id} transmits in it", now_ns)
            return effects + replica.on_output_packet(packet, now_ns)
        except PacketRefused as refused:
            self.counters.refuse(refused.reason)
            return effects

    def on_runs(self, channel_id: int, reply: RunsReply, now_ns: int) -> list[AdapterEffect]:
        """The answer to `RequestRuns`."""
        return self._fence(now_ns) + self.replicas[channel_id].on_runs(reply, now_ns)

    def on_runs_refused(self, channel_id: int, reason: str, now_ns: int) -> list[AdapterEffect]:
        """The active's decision log is too short for the answer to `RequestRuns`."""
        return self._fence(now_ns) + self.replicas[channel_id].on_runs_refused(reason, now_ns)

    def on_snapshot(self, snapshot: ChannelSnapshot, now_ns: int) -> list[AdapterEffect]:
        """The answer to `RequestSnapshot`."""
        return self._fence(now_ns) + self.replicas[snapshot.channel_id].on_snapshot(snapshot, now_ns)

    def on_peer_status(self, status: ChannelStatus, adapter_id: int, now_ns: int) -> list[AdapterEffect]:
        """A channel's state as the active tells it over the sync channel."""
        effects = self._fence(now_ns)
        replica = self.replicas.get(status.channel_id)
        return effects if replica is None else effects + replica.on_active_status(status, adapter_id, now_ns)

    def on_cluster_changed(self, active_adapter_id: int, epoch: int, now_ns: int) -> list[AdapterEffect]:
        """The admin server says who is active (0: nobody) in which epoch."""
        effects = self._fence(now_ns)
        if active_adapter_id != self.config.adapter_id:
            effects += self._note_epoch(epoch, f"the admin server granted it to adapter {active_adapter_id}", now_ns)
            for replica in self.replicas.values():
                replica.on_active_known(active_adapter_id, epoch, now_ns)
        return effects

    def on_lease_granted(self, epoch: int, valid_until_ns: int, now_ns: int) -> list[AdapterEffect]:
        """A lease on a new epoch: every channel becomes active. A grant that came too late changes nothing."""
        effects = self._fence(now_ns)
        if not self.lease.on_granted(epoch, valid_until_ns, now_ns):
            return effects
        for replica in self.replicas.values():
            effects += replica.promote(epoch, now_ns)
        return effects

    def on_lease_renewed(self, epoch: int, valid_until_ns: int, now_ns: int) -> list[AdapterEffect]:
        """The lease store renewed the lease."""
        effects = self._fence(now_ns)
        self.lease.on_renewed(epoch, valid_until_ns)
        return effects

    def on_lease_lost(self, epoch: int, reason: str, now_ns: int) -> list[AdapterEffect]:
        """The lease store says that the lease is not ours any more."""
        if epoch != self.lease.epoch:
            return []
        self.lease.drop()
        return self._demote(reason, now_ns)

    def on_timer(self, now_ns: int) -> list[AdapterEffect]:
        """Everything due at `now_ns`."""
        due = self.lease.on_timer(now_ns)
        effects: list[AdapterEffect] = []
        if isinstance(due, LeaseLapsed):
            effects += self._lapse(due, now_ns)
        elif due is not None:
            effects.append(due)
        for replica in self.replicas.values():
            effects += replica.on_timer(now_ns)
        return effects

    def on_stop(self) -> list[AdapterEffect]:
        """This adapter is about to stop in order: what its next start can go on from."""
        return [effect for replica in self.replicas.values() for effect in replica.on_stop()]

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` wants to be called next; None: not before another event."""
        deadlines = [self.lease.next_deadline_ns(), *(each.next_deadline_ns() for each in self.replicas.values())]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # ---- queries, between events ----

    def channel_status(self, channel_id: int) -> ChannelStatus:
        """State, position and newest digest of a channel."""
        return self.replicas[channel_id].status()

    def snapshot(self, channel_id: int) -> ChannelSnapshot:
        """Conversion state of a channel at the present position.

        Raises:
            NotActive: this adapter does not decide for the channel.
        """
        return self._active_replica(channel_id).line.snapshot()

    def runs_since(self, channel_id: int, position: MessageStreamState) -> RunsReply:
        """Decisions behind a position.

        Raises:
            NotActive: this adapter does not decide for the channel.
            DecisionLogTooShort: the caller needs a snapshot.
        """
        line = self._active_replica(channel_id).line
        return line.log.since(position, line.epoch, line.epoch_first_message_seq)

    # ---- inside ----

    def _active_replica(self, channel_id: int) -> ChannelReplica:
        replica = self.replicas[channel_id]
        if replica.state is not ReplicaState.ACTIVE:
            raise NotActive(f"channel {channel_id} is {replica.state.value} at adapter {self.config.adapter_id}")
        return replica

    def _fence(self, now_ns: int) -> list[AdapterEffect]:
        """Before anything else: if the lease has run out, stop being active. A paused process wakes up here."""
        lease = self.lease
        if not lease.is_held or lease.may_transmit(now_ns):
            return []
        lapsed = LeaseLapsed(lease.epoch)
        lease.drop()
        return self._lapse(lapsed, now_ns)

    def _lapse(self, lapsed: LeaseLapsed, now_ns: int) -> list[AdapterEffect]:
        self.counters.add(Counter.LEASE_LAPSED)
        return self._demote(f"the lease on epoch {lapsed.epoch} ran out", now_ns)

    def _note_epoch(self, epoch: int, why: str, now_ns: int) -> list[AdapterEffect]:
        """A newer epoch than ours exists: whoever told us, our own term is over."""
        held = self.lease.epoch
        self.lease.note_epoch(epoch)
        if not held or epoch <= held:
            return []
        self.lease.drop()
        return self._demote(f"epoch {epoch} has begun: {why}", now_ns)

    def _demote(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        effects: list[AdapterEffect] = []
        for replica in self.replicas.values():
            effects += replica.demote(reason, now_ns)
        return effects
