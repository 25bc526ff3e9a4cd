"""One channel at one adapter: everything that outlives a role.

This is the position and conversion state (`line`), the source input (`trackers`, `backlog`), the decisions received
(`intake`), the known active, and the current state. A role (`feedcore.replica.roles.role`) works on it, and owns what
ends with the role.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.lease.failing import TIMES_MAX
from tandemfeed.feedcore.replica.active_view import ActiveView, FlapDamper
from tandemfeed.feedcore.replica.channel_state import ChannelStatus, RunsReply
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import AdapterEffect, Publish, RequestRuns, StateMoved
from tandemfeed.feedcore.replica.hand_over import HandOver
from tandemfeed.feedcore.replica.input.backlog import Backlog
from tandemfeed.feedcore.replica.input.decision_intake import DecisionIntake
from tandemfeed.feedcore.replica.input.source_tracker import Slice, SourceTracker
from tandemfeed.feedcore.replica.output.production import ProductionLine
from tandemfeed.feedcore.replica.output.save_schedule import SaveSchedule
from tandemfeed.feedcore.replica.roles.states import ReplicaState, StateRecord
from tandemfeed.feedcore.wire.lineage import decode_lineage
from tandemfeed.feedcore.wire.output_packet import (
    END_OF_STREAM_BIT,
    EPOCH_ENDED_BIT,
    HEARTBEAT_BIT,
    OutputFlag,
    OutputPacket,
)
from tandemfeed.feedcore.wire.position import FIRST_SEQ, Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.feedcore.wire.source_packet import SourcePacket

IN_STEP = (ReplicaState.ACTIVE, ReplicaState.SYNCHRONIZED, ReplicaState.DETACHED)


class Channel:
    """The data that the roles of one channel's replica share.

    Attributes:
        out_of_sync_at_ns: the last times when it was out of sync with the group, by contradiction or differing digests.
        has_admin: an admin server is in contact; the engine sets it.
        available_at_peers: by adapter_id, up to where an adapter in step has each source stream without a gap, as last
            reported. Kept in every role, because a new active must know from the start what it may not declare lost.
        ask_lease_store_at_ns: no hand-over or epoch is requested before then. Kept across terms, so that two adapters
            that lack the same messages do not hand over to each other continually.
        effects: those of the current event, in order; the replica takes them at its end.
        transmitted_ends: what a previous process of this adapter transmitted: by epoch, one past the last `input_seq`.
    """

    def __init__(
        self, channel_id: int, line: ProductionLine, config: ReplicaConfig, counters: CounterSet, now_ns: int
    ) -> None:
        self.channel_id, self.line, self.config, self.counters = channel_id, line, config, counters
        self.is_single_source = len(line.next_source_seqs) == 1
        self.trackers = {
            stream: SourceTracker(stream, config.tracker, line.session) for stream in line.next_source_seqs
        }
        self.backlog = Backlog(self.trackers)
        self.intake = DecisionIntake(config.intake, is_single_source=self.is_single_source)
        self.active = ActiveView(now_ns)
        self.flaps = FlapDamper()
        self.hand_over = HandOver(config.promotion_patience_ns)
        self.record = StateRecord()
        self.save_schedule = SaveSchedule(config.state_interval_ns, now_ns)
        self.out_of_sync_at_ns: deque[int] = deque(maxlen=TIMES_MAX)
        self.has_admin = True
        self.ask_lease_store_at_ns = 0
        self.available_at_peers: dict[int, dict[int, int]] = {}
        self.transmitted_ends: dict[int, int] = {}
        self._beat_at_ns = now_ns  # the last heartbeat, or the beginning
        self._said: OutputPacket | None = None  # by the last heartbeat
        self._repeated_count = 0  # heartbeats before it that said the same
        self.effects: list[AdapterEffect] = []
        self._arrivals = 0
        self._announced_end: tuple[int, int] | None = None  # (epoch, input_seq) of the end that an adapter announced

    @property
    def state(self) -> ReplicaState:
        """The current state."""
        return self.record.state

    def move(self, new: ReplicaState, reason: str) -> None:
        """Enter another state; an illegal move raises `IllegalMove`."""
        old = self.record.enter(new, reason)
        self.emit(StateMoved(self.channel_id, old, new, reason))

    def inherit_from(self, before: Channel, now_ns: int) -> None:
        """Take over from `before`, this channel in the previous session, what is known about the group."""
        active = self.active
        active.note_active(before.active.adapter_id, before.active.epoch)
        active.heard_at_ns = now_ns  # a session begins because the group was heard in it, or this adapter decides
        self.out_of_sync_at_ns, self.flaps, self.has_admin = before.out_of_sync_at_ns, before.flaps, before.has_admin

    # ---- the place in the channel ----

    def anchor(self, now_ns: int) -> None:
        """Begin at the line's position, with everything received so far that follows it."""
        self.intake.anchor(self.line.position())
        self._return_backlog()
        for stream, tracker in self.trackers.items():
            self.backlog.add(stream, tracker.anchor(self.line.next_source_seqs.get(stream, FIRST_SEQ), now_ns))

    def unanchor(self) -> None:
        """Give up the place in the channel; from now on only hold what arrives.

        The waiting source messages are kept: the active may be gone before it answers where to continue, and this
        adapter may be the next to decide (protocol 5.1).
        """
        self.intake.unanchor()
        self._return_backlog()

    def keep_own_history(self) -> None:
        """This adapter decides, or did until now: keep its own history, and forget decisions received from others."""
        self.intake.restart(self.line.lineage, self.line.position())

    def _return_backlog(self) -> None:
        for stream, tracker in self.trackers.items():
            tracker.unanchor(self.backlog.take_stream(stream))

    # ---- received data ----

    def take_source(self, packet: SourcePacket, now_ns: int) -> list[Slice]:
        """Take a source packet and return the slices that it makes available, in order."""
        self._arrivals += 1
        return self.trackers[packet.source_stream_id].on_packet(packet, self._arrivals, now_ns)

    def take_output_packet(self, packet: OutputPacket, now_ns: int) -> None:
        """Take another adapter's packet, for its history, its decisions or the end of the decisions.

        Raises:
            PacketRefused: it names a source stream that the channel does not have, or its history is malformed.
            DecisionConflict: what was applied here contradicts it.
        """
        intake = self.intake
        if packet.flags & HEARTBEAT_BIT:
            if packet.flags & EPOCH_ENDED_BIT:
                self.hand_over.on_ended(packet.epoch, packet.first_input_seq)
            if packet.epoch > intake.epoch and packet.payload:
                lineage = decode_lineage(packet.payload)
                if lineage.epoch != packet.epoch:
                    raise PacketRefused(Refusal.MALFORMED, f"epoch {packet.epoch} with the lineage {lineage.entries}")
                intake.on_lineage(lineage, self.line.position())
            if packet.epoch == intake.epoch:
                intake.on_next_input_seq(packet.first_input_seq, now_ns)
                if packet.flags & END_OF_STREAM_BIT:
                    self._announced_end = packet.epoch, packet.first_input_seq
            return
        for run in packet.runs:
            if run.source_stream_id not in self.trackers:
                raise PacketRefused(Refusal.UNKNOWN_STREAM, f"source stream {run.source_stream_id} in a decision")
        intake.on_runs(packet.runs, now_ns)
        self._note_source_ends(packet.runs, now_ns)

    def note_available(self, status: ChannelStatus, adapter_id: int) -> None:
        """Note which source messages another adapter has, as its state reports. The last report of an adapter that now
        joins is kept, because it may soon be in step again with all that it had."""
        if status.state in IN_STEP:
            self.available_at_peers[adapter_id] = dict(status.available_source_seqs)
        elif status.state is ReplicaState.FAILED:
            self.available_at_peers.pop(adapter_id, None)

    def take_runs(self, reply: RunsReply, now_ns: int) -> None:
        """Take the requested decisions.

        Raises:
            DecisionConflict: what was applied here contradicts them.
        """
        self.intake.on_lineage(reply.lineage, self.line.position())
        self.intake.on_runs(reply.runs, now_ns)
        self._note_source_ends(reply.runs, now_ns)

    def _note_source_ends(self, runs: tuple[Run, ...], now_ns: int) -> None:
        for run in runs:
            self.trackers[run.source_stream_id].note_end(run.end_source_seq, now_ns)

    def seek_end(self, now_ns: int) -> None:
        """The source has begun a later session."""
        for tracker in self.trackers.values():
            tracker.seek_end(now_ns)

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused: the active was not silent meanwhile, and gaps were not open."""
        self.active.heard_at_ns += pause_ns
        self.hand_over.on_own_pause(pause_ns)
        for tracker in self.trackers.values():
            tracker.on_own_pause(pause_ns)

    # ---- queries ----

    @property
    def is_blocked(self) -> bool:
        """True while decisions, or the source messages that they need, are outstanding."""
        return bool(self.intake.ready) or self.intake.has_gap

    @property
    def is_at_end(self) -> bool:
        """True if all of the session was applied here; the source or another adapter announced where it ends."""
        line = self.line
        if (
            self._announced_end is not None
            and self._announced_end[1] == line.next_input_seq
            and self.intake.lineage.holds(*self._announced_end)
        ):
            return True
        return all(tracker.ended_at == line.next_source_seqs[stream] for stream, tracker in self.trackers.items())

    def is_active_silent(self, now_ns: int) -> bool:
        """True if the active has not been heard for `detach_after_ns`."""
        return self.active.silent_ns(now_ns) >= self.config.detach_after_ns

    def undecided_count(self) -> int:
        """How many source messages can be numbered without a decision. In a channel of one source stream, these are all
        up to the end of the current epoch, once a decision of that epoch was received.

        Not before, because an active may have requested the epoch to declare a source gap, which is then its first
        decision.
        """
        line = self.line
        if not self.is_single_source or self.intake.ready or line.next_input_seq == line.lineage.first_input_seq:
            return 0
        return max(0, self.intake.lineage.end_of(line.epoch) - line.next_input_seq)

    # ---- effects ----

    def emit(self, *effects: AdapterEffect) -> None:
        """Add to the effects of the current event."""
        self.effects += effects

    def publish(self, packets: Sequence[OutputPacket]) -> None:
        """Journal and transmit each packet."""
        if packets:
            self.effects.append(Publish(packets))

    def heartbeat(self, flags: int, released: tuple[int, int] | None, now_ns: int) -> OutputPacket:
        """The next heartbeat. `released`: how far packets have left, if some decided ones still wait."""
        if self.hand_over.is_at_end(self.line.position()):
            flags |= OutputFlag.EPOCH_ENDED
        if released is None and self.is_at_end:
            flags |= OutputFlag.END_OF_STREAM
        beat = self.line.heartbeat(flags, released)
        self._repeated_count = self._repeated_count + 1 if beat == self._said else 0
        self._beat_at_ns, self._said = now_ns, beat
        return beat

    @property
    def heartbeat_at_ns(self) -> int:
        """When the next heartbeat is due: later on an idle channel, but soon once it has something new."""
        is_idle = (
            self._said is not None
            and self._repeated_count >= self.config.idle_after_count
            and self._said.first_input_seq == self.line.next_input_seq
        )
        return self._beat_at_ns + (
            self.config.idle_heartbeat_interval_ns if is_idle else self.config.heartbeat_interval_ns
        )

    def request_source(self, now_ns: int) -> None:
        """Request missing source messages from the source journal, where that is due."""
        for tracker in self.trackers.values():
            if (request := tracker.on_timer(now_ns)) is not None:
                self.counters.add(Counter.SOURCE_GAP_REQUESTS, 1)
                self.emit(request)

    def request_runs(self) -> None:
        """Request from the active the decisions after those received."""
        position, session = self.intake.position(), self.line.session
        self.emit(RequestRuns(self.channel_id, self.active.adapter_id, position, session))
