"""A role is the behaviour of a channel's replica in one state or a few, and owns the data that ends with the role.

A role takes events, and adds effects to those of its channel, in order. It returns None to continue, or the succession
that ends it, from which the replica (`feedcore.replica.replica`) makes the next role. Data that outlives a role is in
the `Channel`, or in the succession.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.channel_state import Answer, ChannelStatus
from tandemfeed.feedcore.replica.input.decision_intake import DecisionConflict
from tandemfeed.feedcore.replica.input.source_tracker import Slice
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import FROM_ACTIVE_BIT, PROVISIONAL_BIT, OutputPacket


@dataclass(frozen=True, slots=True)
class ToJoining:
    """Give up the place in the channel and rejoin."""

    reason: str


@dataclass(frozen=True, slots=True)
class ToFollowing:
    """Follow the active's decisions.

    Attributes:
        state: RESYNCHRONIZING, SYNCHRONIZED or DETACHED.
        catch_up_by_ns: the replica rejoins by snapshot if it is not SYNCHRONIZED by then; None: no limit.
    """

    state: ReplicaState
    reason: str
    catch_up_by_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ToAhead:
    """Transmit provisionally."""

    reason: str


@dataclass(frozen=True, slots=True)
class ToDeciding:
    """Decide in an epoch. Attributes: is_unplaced: the previous role had no place in the channel."""

    epoch: int
    is_unplaced: bool = False


@dataclass(frozen=True, slots=True)
class ToFailed:
    """Leave the group."""

    reason: str


Succession: TypeAlias = ToJoining | ToFollowing | ToAhead | ToDeciding | ToFailed
Next: TypeAlias = Succession | None


class Role:
    """The events of a replica; a role overrides those that it handles.

    Attributes:
        is_placed: it has a place in the channel and belongs to the group, so that it may send heartbeats.
        heartbeat_flags: the flags of its heartbeats.
    """

    is_placed = False
    heartbeat_flags = 0

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    @property
    def is_savable(self) -> bool:
        """True if the conversion state is known to be that of the group, and may be saved."""
        return False

    def begin(self, now_ns: int) -> Next:
        """Begin the role, after its state has been entered."""
        return None

    def on_slices(self, source_stream_id: int, slices: list[Slice], now_ns: int) -> Next:
        """Take the next source messages of a stream, in order."""
        return None

    def on_output_packet(self, packet: OutputPacket, now_ns: int) -> Next:
        """Take another adapter's output packet, which is not provisional."""
        return None

    def on_peer_status(self, status: ChannelStatus, adapter_id: int, now_ns: int) -> Next:
        """Take another adapter's state, from the sync channel."""
        return None

    def on_active_changed(self, now_ns: int) -> None:
        """React to a change of the known active."""

    def on_answer(self, answer: Answer, now_ns: int) -> Next:
        """Take another adapter's answer to a request of this role."""
        return None

    def promote(self, epoch: int, now_ns: int) -> Next:
        """Decide in `epoch`, on which this adapter holds the lease."""
        return ToDeciding(epoch)

    def demote(self, reason: str, now_ns: int) -> Next:
        """Stop deciding, because the lease is lost."""
        return None

    def give_up_epoch(self, heir_adapter_id: int, now_ns: int) -> Next:
        """Hand the epoch over to another adapter."""
        return None

    def fail(self, reason: str) -> Next:
        """Leave the group."""
        return ToFailed(reason)

    def readmit(self) -> Next:
        """Return to the group."""
        return None

    def due_promotion(self, now_ns: int) -> Next:
        """Begin the epoch that was handed over to this adapter, if it need not wait for the end of the previous one."""
        return None

    def on_timer(self, now_ns: int) -> Next:
        """Do what is due in this role."""
        return None

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused: what the role waits for may be in its queues, so it waits as much longer."""

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` has something to do."""
        return None

    def heartbeat(self, now_ns: int) -> OutputPacket:
        """The heartbeat that the role sends while it has nothing else to send."""
        return self.channel.heartbeat(self.heartbeat_flags, None, now_ns)


class Failed(Role):
    """The role of a replica that has left the group: it transmits nothing and waits to be readmitted (protocol 6.9)."""

    def begin(self, now_ns: int) -> Next:
        self.channel.unanchor()
        return None

    def promote(self, epoch: int, now_ns: int) -> Next:
        return None

    def fail(self, reason: str) -> Next:
        return None

    def readmit(self) -> Next:
        self.channel.out_of_sync_at_ns.clear()
        return ToJoining("readmitted")


class BackupRole(Role):
    """The behaviour common to the roles that take decisions from another adapter: joining, following, ahead."""

    def on_output_packet(self, packet: OutputPacket, now_ns: int) -> Next:
        channel, intake = self.channel, self.channel.intake
        assert not packet.flags & PROVISIONAL_BIT
        if packet.epoch < intake.epoch and packet.end_input_seq > intake.lineage.end_of(packet.epoch):
            channel.counters.add(Counter.STALE_EPOCH_PACKETS)
            return None
        if packet.flags & FROM_ACTIVE_BIT and packet.epoch >= intake.epoch:
            self.on_active_message(packet.adapter_id, packet.epoch, now_ns)
        try:
            channel.take_output_packet(packet, now_ns)
        except DecisionConflict as contradiction:
            return self.leave(str(contradiction), now_ns, is_trouble=True)
        return self.apply(now_ns)

    def on_peer_status(self, status: ChannelStatus, adapter_id: int, now_ns: int) -> Next:
        channel = self.channel
        if status.state is not ReplicaState.ACTIVE or status.position.epoch < channel.intake.epoch:
            return None
        self.on_active_message(adapter_id, status.position.epoch, now_ns)
        try:
            channel.intake.on_lineage(status.lineage, channel.line.position())
        except DecisionConflict as contradiction:
            return self.leave(str(contradiction), now_ns, is_trouble=True)
        channel.intake.on_next_input_seq(status.position.next_input_seq, now_ns)
        return self.compare(status, now_ns)

    def on_active_message(self, adapter_id: int, epoch: int, now_ns: int) -> None:
        """Note that the active was heard."""
        if self.channel.active.on_message(adapter_id, epoch, now_ns):
            self.on_active_changed(now_ns)

    def leave(self, reason: str, now_ns: int, *, is_trouble: bool = False) -> Next:
        """Give up the place in the channel. `is_trouble`: this adapter contradicted the group."""
        if is_trouble:
            self.channel.out_of_sync_at_ns.append(now_ns)
        return ToJoining(reason)

    def compare(self, status: ChannelStatus, now_ns: int) -> Next:
        """Compare the active's conversion-state digest, if it is comparable."""
        return None

    def apply(self, now_ns: int) -> Next:
        """Apply the decisions whose source messages are here."""
        raise NotImplementedError

    def due_promotion(self, now_ns: int) -> Next:
        channel, hand_over = self.channel, self.channel.hand_over
        if not hand_over.is_awaited:
            return None
        epoch = hand_over.due_epoch(
            channel.intake.epoch, channel.line.next_input_seq, now_ns, is_blocked=channel.is_blocked
        )
        return None if epoch is None else self.promote(epoch, now_ns)
