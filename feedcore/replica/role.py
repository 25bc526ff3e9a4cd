"""A role: what a channel's replica does in one state or a few, as an object that owns what ends with it.

A role takes events, appends effects in order, and returns the succession that ends it, or None while it goes on. The
replica (`feedcore.replica.replica`) makes the next role from the succession: what outlives a role is in the `Channel`,
or is passed on in the succession.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from feedcore.counters import Counter
from feedcore.replica.channel import Channel
from feedcore.replica.channel_state import Buckets, ChannelSnapshot, ChannelStatus
from feedcore.replica.decision_intake import OutOfStep
from feedcore.replica.decision_log import RunsReply
from feedcore.replica.effects import AdapterEffect
from feedcore.replica.source_tracker import Slice
from feedcore.replica.states import ReplicaState
from feedcore.wire.output_packet import FROM_ACTIVE_BIT, PROVISIONAL_BIT, OutputPacket
from feedcore.wire.position import FIRST_SEQ


@dataclass(frozen=True, slots=True)
class ToJoining:
    """Leave the place in the channel and join anew."""

    reason: str


@dataclass(frozen=True, slots=True)
class ToFollowing:
    """Follow the active's decisions.

    Attributes:
        state: RESYNCHRONIZING, SYNCHRONIZED or DETACHED.
        quiet_end: runs that end at or before this `input_seq` were transmitted in a former life.
        catch_up_by_ns: a snapshot is taken if the state is not SYNCHRONIZED by then; None: no limit.
    """

    state: ReplicaState
    reason: str
    quiet_end: int = FIRST_SEQ
    catch_up_by_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ToAhead:
    """Transmit provisionally. Attributes: quiet_end: as in `ToFollowing`."""

    reason: str
    quiet_end: int = FIRST_SEQ


@dataclass(frozen=True, slots=True)
class ToDeciding:
    """Decide in an epoch. Attributes: is_unplaced: the role that ends had no place in the channel."""

    epoch: int
    is_unplaced: bool = False


@dataclass(frozen=True, slots=True)
class ToFailed:
    """Leave the group."""

    reason: str


Succession: TypeAlias = ToJoining | ToFollowing | ToAhead | ToDeciding | ToFailed


class Role:
    """The events of a replica; a role overrides those that concern it.

    Attributes:
        is_transmitting: the role has something true to say in heartbeats.
        is_savable: the conversion state is known to be the cluster's, and worth saving.
        heartbeat_flags: of its heartbeats.
    """

    is_transmitting = False
    is_savable = False
    heartbeat_flags = 0

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def begin(self, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """The role begins; its state has been entered."""
        return None

    def on_slices(
        self, source_stream_id: int, slices: list[Slice], effects: list[AdapterEffect], now_ns: int
    ) -> Succession | None:
        """The next source messages of a stream, in order."""
        return None

    def on_output_packet(self, packet: OutputPacket, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """Another adapter's output packet, not a provisional one."""
        return None

    def on_peer_status(
        self, status: ChannelStatus, adapter_id: int, effects: list[AdapterEffect], now_ns: int
    ) -> Succession | None:
        """Another adapter's state, from the sync channel."""
        return None

    def on_active_changed(self, now_ns: int) -> None:
        """Another adapter than before is known to be active."""

    def on_runs(self, reply: RunsReply, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """The decisions asked for."""
        return None

    def on_runs_refused(self, reason: str, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """The active cannot give the decisions asked for."""
        return None

    def on_snapshot(self, snapshot: ChannelSnapshot, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """The snapshot asked for."""
        return None

    def on_buckets(self, answer: Buckets, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """The buckets asked for."""
        return None

    def promote(self, epoch: int, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """The lease on an epoch is held."""
        return ToDeciding(epoch)

    def demote(self, reason: str, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """The lease is gone."""
        return None

    def give_up_epoch(self, heir_adapter_id: int, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """Hand the epoch over to another adapter."""
        return None

    def fail(self, reason: str, effects: list[AdapterEffect]) -> Succession | None:
        """Leave the group."""
        return ToFailed(reason)

    def readmit(self) -> Succession | None:
        """Enter the group again."""
        return None

    def due_promotion(self, now_ns: int) -> Succession | None:
        """The epoch that is held begins here, if its predecessor's end need not be awaited any more."""
        return None

    def on_timer(self, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """Whatever of this role is due."""
        return None

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` has something to do."""
        return None

    def heartbeat(self, now_ns: int) -> AdapterEffect:
        """What the role says of itself when it has nothing else to say."""
        return self.channel.heartbeat(self.heartbeat_flags, None, now_ns)


class BackupRole(Role):
    """What all roles have in common that hear another adapter's decisions: joining, following, ahead."""

    def on_output_packet(self, packet: OutputPacket, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        channel, intake = self.channel, self.channel.intake
        assert not packet.flags & PROVISIONAL_BIT
        if packet.epoch < intake.epoch and packet.end_input_seq > intake.lineage.end_of(packet.epoch):
            channel.counters.add(Counter.STALE_EPOCH_PACKETS)
            return None
        if packet.flags & FROM_ACTIVE_BIT and packet.epoch >= intake.epoch:
            self.hear_active(packet.adapter_id, packet.epoch, effects, now_ns)
        try:
            channel.hear(packet, now_ns)
        except OutOfStep as contradiction:
            return self.leave(str(contradiction), now_ns, is_trouble=True)
        return self.apply(effects, now_ns)

    def on_peer_status(
        self, status: ChannelStatus, adapter_id: int, effects: list[AdapterEffect], now_ns: int
    ) -> Succession | None:
        channel = self.channel
        if status.state is not ReplicaState.ACTIVE or status.position.epoch < channel.intake.epoch:
            return None
        self.hear_active(adapter_id, status.position.epoch, effects, now_ns)
        try:
            channel.intake.on_lineage(status.lineage, channel.line.position())
        except OutOfStep as contradiction:
            return self.leave(str(contradiction), now_ns, is_trouble=True)
        if status.position.epoch != channel.intake.epoch:
            return None
        channel.intake.on_next_input_seq(status.position.next_input_seq, now_ns)
        return self.compare(status, effects, now_ns)

    def hear_active(self, adapter_id: int, epoch: int, effects: list[AdapterEffect], now_ns: int) -> None:
        """The active speaks."""
        if self.channel.active.hear(adapter_id, epoch, now_ns):
            self.on_active_changed(now_ns)

    def leave(self, reason: str, now_ns: int, *, is_trouble: bool = False) -> Succession | None:
        """The place in the channel is lost. `is_trouble`: this adapter contradicted the group."""
        if is_trouble:
            self.channel.out_of_sync_at_ns.append(now_ns)
        return ToJoining(reason)

    def compare(self, status: ChannelStatus, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """The active's conversion-state digest may be compared."""
        return None

    def apply(self, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        """Do whatever the decisions and source messages at hand allow."""
        raise NotImplementedError

    def due_promotion(self, now_ns: int) -> Succession | None:
        channel, hand_over = self.channel, self.channel.hand_over
        if not hand_over.is_awaited:
            return None
        epoch = hand_over.due_epoch(
            channel.intake.epoch, channel.line.next_input_seq, now_ns, is_blocked=channel.is_blocked
        )
        return None if epoch is None else self.promote(epoch, [], now_ns)
