"""Adapters of the toy feed that tests drive by hand."""

from __future__ import annotations

from typing import TypeVar

from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.channel_state import PeerState
from tandemfeed.feedcore.replica.config import ChannelConfig, EngineConfig, ReplicaConfig, SessionState
from tandemfeed.feedcore.replica.effects import AdapterEffect, Publish, ShowEpochProof, Transmit
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.input.source_tracker import Slice
from tandemfeed.feedcore.replica.output.production import ProductionLine
from tandemfeed.feedcore.replica.replica import ChannelReplica
from tandemfeed.feedcore.replica.roles.role import ToJoining
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.source_packet import decode_source_packet
from tests.simulation.toy_feed import FEED_ID, SESSION, ToyConverter, encode_source

MS = 1_000_000
SECOND = 1_000 * MS
CHANNEL = 1
LEASE_NS = 300 * MS
NEWEST_SESSION = SESSION + 9  # that the admin server describes: the tests' adapters may be in any session up to it
Effect = TypeVar("Effect")


class Adapter:
    """An engine and its converter; the test gives the time of each event."""

    def __init__(
        self,
        adapter_id: int,
        streams: tuple[int, ...] = (1, 2),
        replica: ReplicaConfig | None = None,
        previous_process_ended_ns: int | None = None,
        session: int = SESSION,
        session_state: SessionState = SessionState.RESET,
    ) -> None:
        config = EngineConfig(
            FEED_ID,
            adapter_id,
            session,
            (ChannelConfig(CHANNEL, streams),),
            replica=replica or ReplicaConfig(),
            previous_process_ended_ns=previous_process_ended_ns,
            session_state=session_state,
        )
        self.adapter_id = adapter_id
        self.converter = ToyConverter()
        self.counters = CounterSet()
        self.engine = AdapterEngine(config, {CHANNEL: self.converter}, self.counters, 0)
        self.engine.on_cluster_changed(0, 0, 0, session=NEWEST_SESSION)

    @property
    def replica(self) -> ChannelReplica:
        return self.engine.replicas[CHANNEL]

    @property
    def state(self) -> ReplicaState:
        return self.replica.state

    @property
    def next_message_seq(self) -> int:
        return self.replica.line.next_message_seq

    def activate(self, epoch: int = 1, now_ns: int = 0) -> list[AdapterEffect]:
        """Grant this adapter the lease."""
        return self.engine.on_lease_granted(epoch, now_ns + LEASE_NS, now_ns)

    def follow(self, active: Adapter, now_ns: int = 0) -> None:
        """Join by installing the active's snapshot."""
        self.engine.on_cluster_changed(active.adapter_id, active.engine.lease.epoch, now_ns, [active.adapter_id])
        active.engine.peers.others |= {self.adapter_id}
        self.engine.on_answer(CHANNEL, active.engine.snapshot(CHANNEL), now_ns)
        hear(self, active.engine.on_timer(now_ns + 20 * MS), now_ns)
        assert self.state is ReplicaState.SYNCHRONIZED

    def source(self, stream: int, first: int, values: list[int], now_ns: int = 0) -> list[AdapterEffect]:
        """Take a source packet with one message per value, for the stream's own symbol."""
        rows = [(stream % 2, value) for value in values]
        return self.engine.on_source_datagram(encode_source(stream, first, rows, 0, 0), now_ns)

    def lose_place(self, now_ns: int) -> None:
        """Rejoin."""
        self.replica._end(ToJoining("a test says so"), now_ns)

    def tell(self, other: Adapter, now_ns: int) -> list[AdapterEffect]:
        """Send this adapter's report to another."""
        vouched = self.engine.vouched
        proven = other.engine.on_epoch_vouched(vouched.newest, vouched.owner_of(vouched.newest), now_ns)
        return proven + other.engine.on_peer_state(self.report(now_ns), now_ns)

    def report(self, now_ns: int) -> PeerState:
        """Make this adapter's report, as sent at this time."""
        return self.engine.report(now_ns, 1)


def pair(streams: tuple[int, ...] = (1, 2), replica: ReplicaConfig | None = None) -> tuple[Adapter, Adapter]:
    """An active and a synchronised backup."""
    active, backup = Adapter(1, streams, replica), Adapter(2, streams, replica)
    active.activate()
    backup.follow(active)
    return active, backup


def hear(receiver: Adapter, effects: list[AdapterEffect], now_ns: int) -> list[AdapterEffect]:
    """Pass what one adapter transmitted to another, proofs of epochs included."""
    found: list[AdapterEffect] = []
    for effect in effects:
        if isinstance(effect, ShowEpochProof):
            found += receiver.engine.on_epoch_vouched(effect.epoch, effect.adapter_id, now_ns)
        for packet in transmitted([effect]):
            found += receiver.engine.on_output_packet(packet, now_ns)
    return found


def of(effects: list[AdapterEffect], kind: type[Effect]) -> list[Effect]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def transmitted(effects: list[AdapterEffect]) -> list[OutputPacket]:
    """The transmitted packets, in order."""
    found: list[OutputPacket] = []
    for effect in effects:
        match effect:
            case Publish():
                found += effect.packets
            case Transmit():
                found.append(effect.packet)
    return found


def data(effects: list[AdapterEffect]) -> list[OutputPacket]:
    """The transmitted packets that contain decisions."""
    return [packet for packet in transmitted(effects) if packet.runs]


def flags(effects: list[AdapterEffect]) -> list[OutputFlag]:
    """The flags of each transmitted packet."""
    return [packet.flags for packet in transmitted(effects)]


def a_channel(
    config: ReplicaConfig | None = None, streams: tuple[int, ...] = (1, 2), *, datagram_size_max: int = 1_472
) -> Channel:
    """A channel without a replica, anchored at its beginning, in epoch 1: for tests of one part of a replica."""
    config = config or ReplicaConfig()
    channels = (ChannelConfig(CHANNEL, streams),)
    engine = EngineConfig(FEED_ID, 1, SESSION, channels, datagram_size_max, replica=config)
    counters = CounterSet()
    line = ProductionLine(engine, channels[0], ToyConverter(), counters)
    channel = Channel(CHANNEL, line, config, counters, 0)
    channel.anchor(0)
    line.open_epoch(1)
    channel.keep_own_history()
    return channel


def slices(channel: Channel, stream: int, first: int, values: list[int], now_ns: int = 0) -> list[Slice]:
    """What a source packet with one message per value, for the stream's own symbol, makes available."""
    datagram = encode_source(stream, first, [(stream % 2, value) for value in values], 0, 0)
    return channel.take_source(decode_source_packet(datagram, FEED_ID), now_ns)
