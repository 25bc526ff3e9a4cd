"""An adapter's replica of one channel: passes every event to the current role, and makes the next role when one ends.

Sans-I/O: it takes events with `now_ns` and returns ordered effects (`feedcore.replica.effects`). The roles are
joining, following, ahead, deciding and failed (`feedcore.replica.roles.role` says what a role is). The engine owns
the lease, and orders `promote`, `demote` and `hand_over`.

Invariants (docs/protocol.md clause 5): a backup transmits only what the active decided, or what needs no decision,
unless marked as provisional; an active transmits only between `promote` and the end of its term; the effect that
journals a packet comes before the one that transmits it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.channel_state import Answer, ChannelSnapshot, ChannelStatus
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import AdapterEffect, SaveState, Transmit
from tandemfeed.feedcore.replica.input.decision_intake import DecisionIntake
from tandemfeed.feedcore.replica.output.production import ProductionLine
from tandemfeed.feedcore.replica.roles.ahead import Ahead
from tandemfeed.feedcore.replica.roles.deciding import Deciding
from tandemfeed.feedcore.replica.roles.following import Following, PositionedBackup
from tandemfeed.feedcore.replica.roles.joining import Joining
from tandemfeed.feedcore.replica.roles.role import (
    Failed,
    Role,
    Succession,
    ToAhead,
    ToDeciding,
    ToFailed,
    ToFollowing,
    ToJoining,
)
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import PROVISIONAL_BIT, OutputPacket
from tandemfeed.feedcore.wire.position import FIRST_SEQ, Run
from tandemfeed.feedcore.wire.source_packet import SourcePacket


class ChannelReplica:
    """One channel at one adapter. It always begins JOINING."""

    def __init__(
        self, channel_id: int, line: ProductionLine, config: ReplicaConfig, counters: CounterSet, now_ns: int
    ) -> None:
        self.channel = Channel(channel_id, line, config, counters, now_ns)
        self._role: Role = Joining(self.channel, now_ns)

    # ---- events: data ----

    def on_source_packet(self, packet: SourcePacket, now_ns: int) -> list[AdapterEffect]:
        """Take a source packet of one of the channel's streams, whose frames were checked."""
        slices = self.channel.take_source(packet, now_ns)
        return self._end(self._role.on_slices(packet.source_stream_id, slices, now_ns), now_ns) if slices else []

    def on_output_packet(self, packet: OutputPacket, now_ns: int) -> list[AdapterEffect]:
        """Take another adapter's output packet. Its runs are decisions, unless it is provisional.

        Raises:
            PacketRefused: a run names a source stream that the channel does not have, or a heartbeat is malformed.
        """
        if packet.flags & PROVISIONAL_BIT:
            return []
        return self._end(self._role.on_output_packet(packet, now_ns), now_ns)

    # ---- events: the group ----

    def on_peer_status(self, status: ChannelStatus, adapter_id: int, now_ns: int) -> list[AdapterEffect]:
        """Take another adapter's state from the sync channel."""
        self.channel.note_available(status, adapter_id)
        return self._end(self._role.on_peer_status(status, adapter_id, now_ns), now_ns)

    def on_active_known(self, adapter_id: int, epoch: int, now_ns: int) -> None:
        """Take a report of the active adapter in an epoch (0: none). An older report is ignored."""
        if self.channel.active.note_active(adapter_id, epoch):
            self._role.on_active_changed(now_ns)

    def resume_from(self, snapshot: ChannelSnapshot, runs: Iterable[Run], now_ns: int) -> None:
        """Resume from the output journal of this adapter's previous process: the newest state, and the decisions
        transmitted after it. Must come before any other event."""
        assert isinstance(self._role, Joining)
        self._role.resume_from(snapshot, runs, now_ns)

    def on_answer(self, answer: Answer, now_ns: int) -> list[AdapterEffect]:
        """Take another adapter's answer to a request."""
        return self._end(self._role.on_answer(answer, now_ns), now_ns)

    # ---- orders of the engine ----

    def promote(self, epoch: int, now_ns: int) -> list[AdapterEffect]:
        """Decide from now on, in `epoch`, beginning with the source messages that wait for decisions."""
        return self._end(self._role.promote(epoch, now_ns), now_ns)

    def promote_when_caught_up(self, epoch: int, after_epoch: int, now_ns: int) -> list[AdapterEffect]:
        """Decide in an epoch that was handed over, from where `after_epoch`, the previous one, ends."""
        if self.state is ReplicaState.ACTIVE:
            return []
        self.channel.hand_over.await_end(epoch, after_epoch, now_ns)
        return self._end(self._role.due_promotion(now_ns), now_ns)

    def demote(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        """Stop deciding, because the lease is lost."""
        self.channel.hand_over.cancel()
        return self._end(self._role.demote(reason, now_ns), now_ns)

    def hand_over(self, heir_adapter_id: int, now_ns: int) -> list[AdapterEffect]:
        """Give up the epoch in an orderly way, and announce it."""
        succession = self._role.give_up_epoch(heir_adapter_id, now_ns)
        effects = self._end(succession, now_ns)
        return effects if succession is None else [*effects, Transmit(self._role.heartbeat(now_ns))]

    def fail(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        """Leave the group; an admin can readmit this adapter."""
        self.channel.hand_over.cancel()
        return self._end(self._role.fail(reason), now_ns)

    def readmit(self, now_ns: int) -> list[AdapterEffect]:
        """Return to the group, by joining it again."""
        return self._end(self._role.readmit(), now_ns)

    # ---- the session ----

    def begin_session(
        self, before: ChannelReplica, conversion_state: bytes | None, epoch: int, now_ns: int
    ) -> list[AdapterEffect]:
        """Begin the session. Until now this replica only held what it received of it.

        Args:
            before: the channel's replica in the previous session, which ends.
            conversion_state: the state with which the session begins; None: not known, so it joins by a snapshot.
            epoch: the epoch in which this adapter decides, or 0.
        """
        assert isinstance(self._role, Joining)
        self.channel.inherit_from(before.channel, now_ns)
        if before.state is ReplicaState.FAILED:
            return self.fail("failed in the previous session", now_ns)
        begun = None if conversion_state is None else self._role.begin_session(conversion_state, now_ns)
        effects = self._end(begun, now_ns)
        return effects + self.promote(epoch, now_ns) if epoch else effects

    def discard_other_history(self, before: ChannelReplica) -> None:
        """Drop decisions of this session that followed a different end of the previous session than `before` applied.

        Called before `begin_session`, if sessions carry the conversion state over.
        """
        line, heard = before.line, self.intake.epoch
        if any(start.epoch > heard and start.first_input_seq < line.next_input_seq for start in line.lineage.entries):
            self.channel.unanchor()

    def conclude(self, given_up_at_ns: int, now_ns: int) -> list[AdapterEffect]:
        """Give up missing messages after the grace time; from `given_up_at_ns` on, even those that others have."""
        trackers = self.channel.trackers.values()
        for tracker in trackers:
            tracker.conclude(given_up_at_ns)
        effects = self.on_timer(now_ns)  # declares the losses
        for tracker in trackers:
            tracker.conclude(given_up_at_ns)
        return effects

    def final_heartbeat(self, now_ns: int) -> OutputPacket | None:
        """The heartbeat that announces where the session ended, if all of it was applied here."""
        return self._role.heartbeat(now_ns) if self._sends_heartbeats and self.channel.is_at_end else None

    # ---- time ----

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused: nothing that others did meanwhile has arrived yet."""
        self.channel.on_own_pause(pause_ns)
        self._role.on_own_pause(pause_ns)

    def on_timer(self, now_ns: int) -> list[AdapterEffect]:
        """Do everything that is due: source gaps, the role's timers, saving the state, a heartbeat."""
        channel = self.channel
        channel.request_source(now_ns)
        effects = self._end(self._role.on_timer(now_ns), now_ns)
        if self._role.is_savable and channel.save_schedule.is_due(channel.line.next_input_seq, now_ns):
            effects += self.on_stop()
        if self._sends_heartbeats and now_ns >= channel.heartbeat_at_ns:
            effects.append(Transmit(self._role.heartbeat(now_ns)))
        return effects

    def on_stop(self) -> list[AdapterEffect]:
        """Save the state from which the next process continues, if there is one and it is not too large."""
        line = self.channel.line
        if not self._role.is_savable or line.next_input_seq == FIRST_SEQ:
            return []
        snapshot = line.snapshot()
        is_small = self.channel.save_schedule.is_small_enough(len(snapshot.conversion_state))
        return [SaveState(snapshot)] if is_small else []

    def next_deadline_ns(self) -> int | None:
        """The earliest moment at which `on_timer` has something to do."""
        channel, role = self.channel, self._role
        return earliest(
            *[tracker.next_deadline_ns() for tracker in channel.trackers.values()],
            role.next_deadline_ns(),
            channel.heartbeat_at_ns if self._sends_heartbeats else None,
            channel.save_schedule.next_deadline_ns() if role.is_savable else None,
        )

    # ---- queries ----

    @property
    def state(self) -> ReplicaState:
        """The current state."""
        return self.channel.record.state

    @property
    def line(self) -> ProductionLine:
        """Position, conversion state and output."""
        return self.channel.line

    @property
    def intake(self) -> DecisionIntake:
        """The decisions received."""
        return self.channel.intake

    @property
    def is_placed(self) -> bool:
        """True if it has a place in the channel and belongs to the group."""
        return self._role.is_placed

    @property
    def is_holding(self) -> bool:
        """True while decided packets wait for an acknowledgement."""
        return isinstance(self._role, Deciding) and self._role.is_holding

    @property
    def awaits_promotion(self) -> bool:
        """True while this adapter holds the lease and waits for the end of the previous epoch."""
        return self.channel.hand_over.is_awaited

    def status(self) -> ChannelStatus:
        """The state, position and newest digest, to be reported to others."""
        line = self.channel.line
        available = {
            stream: tracker.next_source_seq
            for stream, tracker in self.channel.trackers.items()
            if tracker.next_source_seq is not None
        }
        return ChannelStatus(self.channel.channel_id, self.state, line.position(), line.lineage, line.digest, available)

    def hears_active(self, now_ns: int) -> bool:
        """True if this is a backup whose active is not silent."""
        return isinstance(self._role, PositionedBackup) and not self.channel.is_active_silent(now_ns)

    def source_lags(self) -> dict[int, int]:
        """By source stream, the messages known to exist that have not been converted here."""
        done = self.channel.line.next_source_seqs
        return {stream: tracker.known_end - done[stream] for stream, tracker in self.channel.trackers.items()}

    # ---- inside ----

    @property
    def _sends_heartbeats(self) -> bool:
        """False for a replica without a position or outside the group, whose heartbeats would be wrong."""
        return self._role.is_placed and self.channel.line.epoch > 0

    def _end(self, succession: Succession | None, now_ns: int) -> list[AdapterEffect]:
        """End the event. If it ended the role, enter the next state and begin the next role. Returns all effects."""
        while succession is not None:
            self._role = self._next_role(succession, now_ns)
            succession = self._role.begin(now_ns)
        channel = self.channel
        effects, channel.effects = channel.effects, []
        return effects

    def _next_role(self, succession: Succession, now_ns: int) -> Role:
        channel = self.channel
        match succession:
            case ToJoining(reason):
                channel.move(ReplicaState.JOINING, reason)
                return Joining(channel, now_ns)
            case ToFollowing(state, reason):
                channel.move(state, reason)
                return Following(channel, now_ns, succession)
            case ToAhead(reason):
                channel.move(ReplicaState.AHEAD, reason)
                return Ahead(channel, now_ns)
            case ToDeciding(epoch):
                channel.move(ReplicaState.ACTIVE, f"epoch {epoch} from input_seq {channel.line.next_input_seq}")
                return Deciding(channel, succession)
            case ToFailed(reason):
                channel.move(ReplicaState.FAILED, reason)
                return Failed(channel)
            case _:
                assert_never(succession)
