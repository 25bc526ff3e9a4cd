"""An adapter's replica of one channel: decides as active, follows as backup, and moves between the two.

Sans-I/O: events with `now_ns` in, ordered effects out (`feedcore.effects`). It composes the source trackers (what is
here), the decision intake (what was decided) and the production line (convert, number). The lease is the engine's
matter: `promote` and `demote` are its words.

Invariants (docs/protocol.md clause 5): a backup transmits only what the active decided; an active transmits only
between `promote` and `demote`; whatever is transmitted was put in the journal's effect before.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from feedcore.backlog import Backlog
from feedcore.counters import Counter, CounterSet
from feedcore.decision_intake import DecisionIntake, OutOfStep
from feedcore.decision_log import RunsReply
from feedcore.effects import (
    AdapterEffect,
    AppendToJournal,
    RequestRuns,
    RequestSnapshot,
    RunsLost,
    SaveState,
    StateMoved,
    Transmit,
)
from feedcore.output_packet import FROM_ACTIVE_BIT, OutputFlag, OutputPacket
from feedcore.own_past import OwnPast, is_begun
from feedcore.position import FIRST_SEQ, ChannelSnapshot, ChannelStatus
from feedcore.production import ConversionDiverged, ProductionLine
from feedcore.refusal import PacketRefused, Refusal
from feedcore.replica_config import ReplicaConfig
from feedcore.source_packet import SourcePacket
from feedcore.source_tracker import Slice, SourceTracker
from feedcore.states import LEGAL_MOVES, ReplicaState

STORY_LENGTH = 32
RUN_SOURCE_COUNT_MAX = 0xFFFF  # a run's source_count is 16 bits on the wire


class IllegalMove(AssertionError):
    """A move that LEGAL_MOVES does not have: a bug, told with the replica's story."""


class ChannelReplica:
    """One channel at one adapter; begins JOINING, always."""

    def __init__(
        self, channel_id: int, line: ProductionLine, config: ReplicaConfig, counters: CounterSet, now_ns: int
    ) -> None:
        self.channel_id = channel_id
        self.state = ReplicaState.JOINING
        self.line = line
        self.intake = DecisionIntake(config.intake)
        self.trackers = {stream: SourceTracker(stream, config.tracker) for stream in line.next_source_seqs}
        self._config = config
        self._counters = counters
        self._backlog = Backlog(self.trackers)
        self._arrivals = 0
        self._active_adapter_id = 0  # whom to ask: the newest epoch's active, by its own word or the admin server's
        self._active_epoch = 0
        self._active_heard_at_ns = now_ns
        self._blocked_since_ns: int | None = None
        self._heartbeat_at_ns = now_ns + config.heartbeat_interval_ns
        self._snapshot_at_ns = now_ns
        self._past = OwnPast(config.state_interval_ns, now_ns)
        self._story: deque[str] = deque(maxlen=STORY_LENGTH)

    # ---- events ----

    def resume_from(self, snapshot: ChannelSnapshot) -> None:
        """What the output journal holds of this adapter's former life; before any other event."""
        self._past.adopt(snapshot)

    def on_source_packet(self, packet: SourcePacket, now_ns: int) -> list[AdapterEffect]:
        """A source packet of one of the channel's streams, its frames checked."""
        stream = packet.source_stream_id
        self._arrivals += 1
        slices = self.trackers[stream].on_packet(packet, self._arrivals, now_ns)
        if self.state is ReplicaState.ACTIVE:
            effects: list[AdapterEffect] = []
            for piece in slices:
                self._decide(piece, effects, now_ns)
            return effects
        if not slices:
            return []
        self._backlog.add(stream, slices)
        if self.intake.ready:
            return self._apply(now_ns)
        if self._backlog.message_count > self._config.backlog_count_max:
            return self._rejoin(f"{self._backlog.message_count} source messages wait for decisions", now_ns)
        return []

    def on_output_packet(self, packet: OutputPacket, now_ns: int) -> list[AdapterEffect]:
        """Another adapter's output packet: its runs are decisions.

        Raises:
            PacketRefused: a run names a source stream that the channel does not have.
        """
        intake = self.intake
        if packet.epoch < intake.epoch and packet.end_message_seq > intake.epoch_starts[intake.epoch]:
            self._counters.add(Counter.STALE_EPOCH_PACKETS)
            return []
        if self.state is ReplicaState.ACTIVE or self.state is ReplicaState.FAILED:
            return []
        self._check_streams(packet)
        effects: list[AdapterEffect] = []
        if packet.flags & FROM_ACTIVE_BIT:
            self._hear_active(packet.adapter_id, packet.epoch, now_ns, effects)
        try:
            if packet.epoch > intake.epoch:
                intake.open_epoch(packet.epoch, packet.epoch_first_message_seq, self.line.position())
            if packet.runs:
                intake.on_runs(packet.runs, now_ns)
                self._note_source_ends(packet, now_ns)
            else:
                intake.on_next_message_seq(packet.first_message_seq, now_ns)
        except OutOfStep as contradiction:
            return effects + self._rejoin(str(contradiction), now_ns)
        if intake.ready:
            effects += self._apply(now_ns)
        else:
            self._judge(now_ns, effects)
        return effects

    def on_runs(self, reply: RunsReply, now_ns: int) -> list[AdapterEffect]:
        """The decisions asked for."""
        if self.state in (ReplicaState.ACTIVE, ReplicaState.FAILED):
            return []
        if self.state is ReplicaState.JOINING:
            return self._resume(reply, now_ns)
        return self._take_runs(reply, now_ns)

    def _resume(self, reply: RunsReply, now_ns: int) -> list[AdapterEffect]:
        """Go on from this adapter's own past, if the active's decisions continue it."""
        if reply.epoch < self.intake.epoch:
            return []
        is_continued, snapshot = self._past.is_continued_by(reply), self._past.forget()
        self._snapshot_at_ns = now_ns  # unless it is used: a snapshot is wanted, at once
        if snapshot is None or not is_continued:
            return []
        effects = self._install(snapshot, now_ns, is_own=True)
        if self.state is ReplicaState.JOINING:
            return effects
        self._counters.add(Counter.STATES_RESUMED)
        self._past.begin_catching_up(now_ns)
        return effects + self._take_runs(reply, now_ns)

    def _take_runs(self, reply: RunsReply, now_ns: int) -> list[AdapterEffect]:
        try:
            for epoch, first in {**reply.epoch_starts, reply.epoch: reply.epoch_first_message_seq}.items():
                self.intake.epoch_starts.setdefault(epoch, first)
            if reply.epoch > self.intake.epoch:
                self.intake.open_epoch(reply.epoch, reply.epoch_first_message_seq, self.line.position())
            self.intake.on_runs(reply.runs, now_ns)
        except OutOfStep as contradiction:
            return self._rejoin(str(contradiction), now_ns)
        for run in reply.runs:
            self.trackers[run.source_stream_id].note_end(run.end_source_seq, now_ns)
        return self._apply(now_ns)

    def on_runs_refused(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        """The active cannot give the decisions any more: join anew by snapshot."""
        if self.state is ReplicaState.JOINING and self._past.forget() is not None:
            self._snapshot_at_ns = now_ns
        if self.state in (ReplicaState.ACTIVE, ReplicaState.FAILED, ReplicaState.JOINING):
            return []
        return self._rejoin(reason, now_ns)

    def on_snapshot(self, snapshot: ChannelSnapshot, now_ns: int) -> list[AdapterEffect]:
        """A snapshot from the active; ignored unless this replica is joining and it is of the newest epoch."""
        if self.state is not ReplicaState.JOINING or snapshot.position.epoch < self.intake.epoch:
            return []
        self._past.forget()
        return self._install(snapshot, now_ns)

    def _install(self, snapshot: ChannelSnapshot, now_ns: int, *, is_own: bool = False) -> list[AdapterEffect]:
        effects: list[AdapterEffect] = []
        try:
            self.line.install(snapshot)
        except ValueError as mismatch:
            if is_own:  # the table was changed between two lives: only the active's state fits
                return effects
            self._move(ReplicaState.FAILED, f"the active's conversion state does not fit: {mismatch}", effects)
            return effects
        self._anchor(now_ns)
        if snapshot.position.epoch > self.intake.epoch:
            self.intake.epoch = snapshot.position.epoch
        self.intake.epoch_starts[snapshot.position.epoch] = snapshot.epoch_first_message_seq
        try:
            self.intake.on_runs((), now_ns)
        except OutOfStep as contradiction:
            return effects + self._rejoin(str(contradiction), now_ns)
        self._active_heard_at_ns = now_ns
        whose = "own journal" if is_own else "snapshot"
        self._move(ReplicaState.RESYNCHRONIZING, f"{whose} at message_seq {self.line.next_message_seq}", effects)
        self._blocked_since_ns = now_ns
        # What follows a past of its own is still to be taken in, so nothing is said yet about being synchronized.
        return effects if is_own else effects + self._apply(now_ns)

    def on_active_status(self, status: ChannelStatus, adapter_id: int, now_ns: int) -> list[AdapterEffect]:
        """The active's state from the sync channel: compare positions and conversion-state digests."""
        if self.state in (ReplicaState.ACTIVE, ReplicaState.FAILED) or status.state is not ReplicaState.ACTIVE:
            return []
        effects: list[AdapterEffect] = []
        self._hear_active(adapter_id, status.position.epoch, now_ns, effects)
        if self.state is ReplicaState.JOINING or status.position.epoch != self.intake.epoch:
            return effects
        self.intake.on_position(status.position, now_ns)
        ours = self.line.digests_at.get(status.digest_message_seq)
        if ours is not None:
            if ours == status.digests:
                self._counters.add(Counter.DIGESTS_EQUAL)
            else:
                self._counters.add(Counter.DIGESTS_UNEQUAL)
                buckets = [index for index, (a, b) in enumerate(zip(ours, status.digests, strict=False)) if a != b]
                reason = f"conversion state differs at message_seq {status.digest_message_seq}, buckets {buckets[:8]}"
                return effects + self._rejoin(reason, now_ns)
        return effects

    def on_active_known(self, adapter_id: int, epoch: int, now_ns: int) -> None:
        """Somebody says who is active in an epoch (0: nobody); older news changes nothing."""
        if epoch < self._active_epoch or (adapter_id == 0 and epoch == self._active_epoch):
            return
        if adapter_id != self._active_adapter_id:
            self._snapshot_at_ns = now_ns
        self._active_adapter_id, self._active_epoch = adapter_id, epoch

    def promote(self, epoch: int, now_ns: int) -> list[AdapterEffect]:
        """The lease on `epoch` was granted: decide from here on, beginning with what waits for decisions."""
        effects: list[AdapterEffect] = []
        if self.state is ReplicaState.FAILED:
            return effects
        if self.state is ReplicaState.ACTIVE:
            return self._go_on(epoch)
        if self.state is ReplicaState.JOINING:
            # Nobody else could be granted: this replica's position, however old, is the cluster's best.
            self._recall(epoch)
            self._anchor(now_ns)
        self.line.open_epoch(epoch, self.line.next_message_seq)
        self.intake.epoch = epoch
        self.intake.epoch_starts[epoch] = self.line.next_message_seq
        self.intake.ready.clear()
        self._past.end_catching_up()
        self._blocked_since_ns = None
        self._move(ReplicaState.ACTIVE, f"epoch {epoch} from message_seq {self.line.next_message_seq}", effects)
        effects.append(Transmit(self.line.heartbeat(self._heartbeat_flags())))  # tells everyone at once
        for piece in self._backlog.take_all():
            self._decide(piece, effects, now_ns)
        return effects

    def _recall(self, epoch: int) -> None:
        """Promoted without having joined: go on from this adapter's own past, as far as it fits."""
        own = self._past.forget()
        if own is not None and self.line.epoch <= own.position.epoch < epoch:
            with suppress(ValueError):  # the table was changed between two lives: begin with an empty state
                self.line.install(own)

    def _go_on(self, epoch: int) -> list[AdapterEffect]:
        """The lease store took this adapter for a new one and granted it the next epoch: nothing else changes."""
        self.line.open_epoch(epoch, self.line.next_message_seq)
        self.intake.epoch = epoch
        self.intake.epoch_starts[epoch] = self.line.next_message_seq
        return [Transmit(self.line.heartbeat(self._heartbeat_flags()))]

    def demote(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        """The lease is gone: from now on this replica is a backup that joins anew."""
        return self._rejoin(reason, now_ns) if self.state is ReplicaState.ACTIVE else []

    def on_timer(self, now_ns: int) -> list[AdapterEffect]:
        """Everything that is due: source gaps, missed decisions, snapshots, heartbeats, silence of the active."""
        effects: list[AdapterEffect] = []
        for tracker in self.trackers.values():
            requests = tracker.on_timer(now_ns)
            if requests:
                self._counters.add(Counter.SOURCE_GAP_REQUESTS, len(requests))
                effects += requests
            if self.state is ReplicaState.ACTIVE:
                self._declare_lost(tracker, effects, now_ns)
        if self.state is ReplicaState.JOINING:
            if self._active_adapter_id and now_ns >= self._snapshot_at_ns:
                self._snapshot_at_ns = now_ns + self._config.snapshot_retry_ns
                effects.append(self._ask_to_join())
        elif self.state not in (ReplicaState.ACTIVE, ReplicaState.FAILED):
            if self.intake.is_request_due(now_ns):
                self._counters.add(Counter.RUN_REQUESTS)
                position = self.intake.position(self.line.epoch)
                effects.append(RequestRuns(self.channel_id, self._active_adapter_id, position))
            self._judge(now_ns, effects)
            if self._past.leads_nowhere(now_ns):
                effects += self._rejoin("what follows its own past does not come", now_ns)
        if self._is_savable() and self._past.is_due(self.line.next_source_seqs, now_ns):
            effects += self.on_stop()
        if self._speaks() and now_ns >= self._heartbeat_at_ns:
            self._heartbeat_at_ns = now_ns + self._config.heartbeat_interval_ns
            effects.append(Transmit(self.line.heartbeat(self._heartbeat_flags())))
        return effects

    def on_stop(self) -> list[AdapterEffect]:
        """The state to go on from, if there is one and it is not too large."""
        if not self._is_savable() or not is_begun(self.line.next_source_seqs):
            return []
        snapshot = self.line.snapshot()
        return [SaveState(snapshot)] if self._past.is_small_enough(len(snapshot.conversion_state)) else []

    def next_deadline_ns(self) -> int | None:
        """The earliest moment at which `on_timer` has something to do."""
        deadlines = [tracker.next_deadline_ns() for tracker in self.trackers.values()]
        if self.state is ReplicaState.JOINING:
            deadlines.append(self._snapshot_at_ns if self._active_adapter_id else None)
        elif self.state is not ReplicaState.FAILED:
            deadlines.append(self._heartbeat_at_ns if self._speaks() else None)
            deadlines.append(None if self.state is ReplicaState.ACTIVE else self.intake.next_deadline_ns())
            deadlines.append(self._past.next_deadline_ns(is_saving=self._is_savable()))
        due = [deadline for deadline in deadlines if deadline is not None]
        return min(due) if due else None

    # ---- queries ----

    def status(self) -> ChannelStatus:
        """State and position, with the newest digest."""
        line = self.line
        digests = line.digests_at.get(line.digest_message_seq, ())
        return ChannelStatus(
            self.channel_id, self.state, line.position(), line.epoch_first_message_seq, line.digest_message_seq, digests
        )

    def source_lag(self) -> int:
        """Source messages known to exist that have not been converted here."""
        return sum(t.known_end - self.line.next_source_seqs[stream] for stream, t in self.trackers.items())

    # ---- inside ----

    def _decide(self, piece: Slice, effects: list[AdapterEffect], now_ns: int) -> None:
        packets = self.line.decide(piece)
        effects += map(AppendToJournal, packets)
        effects += map(Transmit, packets)
        self._heartbeat_at_ns = now_ns + self._config.heartbeat_interval_ns

    def _declare_lost(self, tracker: SourceTracker, effects: list[AdapterEffect], now_ns: int) -> None:
        hole = tracker.lost(now_ns)
        if hole is None:
            return
        first, last = hole
        effects.append(RunsLost(tracker.source_stream_id, first, last))
        self._counters.add(Counter.SOURCE_MESSAGES_LOST, last - first + 1)
        while first <= last:
            count = min(last - first + 1, RUN_SOURCE_COUNT_MAX)
            packet = self.line.decide_gap(tracker.source_stream_id, count)
            effects += (AppendToJournal(packet), Transmit(packet))
            first += count
        for piece in tracker.skip_to(last + 1, now_ns):
            self._decide(piece, effects, now_ns)

    def _apply(self, now_ns: int) -> list[AdapterEffect]:
        """Convert and transmit every decided run whose source messages are here."""
        effects: list[AdapterEffect] = []
        ready = self.intake.ready
        try:
            while ready:
                run = ready[0]
                tracker = self.trackers[run.source_stream_id]
                epoch_first = self.intake.epoch_starts.get(run.epoch, self.line.epoch_first_message_seq)
                if run.is_source_gap:
                    packets = [self.line.follow_gap(run, OutputFlag.NONE, epoch_first)]
                    self._backlog.drop_before(run.source_stream_id, run.end_source_seq)
                    slices = tracker.skip_to(run.end_source_seq, now_ns)
                    self._backlog.add(run.source_stream_id, slices)
                elif tracker.next_source_seq is not None and run.end_source_seq <= tracker.next_source_seq:
                    pieces = self._backlog.take(run.source_stream_id, run.source_count)
                    packets = self.line.follow(run, pieces, epoch_first)
                else:
                    break
                ready.popleft()
                for packet in packets:
                    effects += (AppendToJournal(packet), Transmit(packet))
        except ConversionDiverged as divergence:
            self._counters.add(Counter.DIGESTS_UNEQUAL)
            return effects + self._rejoin(str(divergence), now_ns)
        if effects:
            self._heartbeat_at_ns = now_ns + self._config.heartbeat_interval_ns
        self._judge(now_ns, effects)
        return effects

    def _judge(self, now_ns: int, effects: list[AdapterEffect]) -> None:
        """Which of the backup's states fits what is outstanding and who is heard."""
        if not self.intake.ready and not self.intake.has_hole:
            self._blocked_since_ns = None
        elif self._blocked_since_ns is None:
            self._blocked_since_ns = now_ns
        blocked = self._blocked_since_ns
        if self.state is ReplicaState.RESYNCHRONIZING and blocked is None:
            self._past.end_catching_up()
            self._move(ReplicaState.SYNCHRONIZED, "nothing outstanding", effects)
        elif self.state is ReplicaState.SYNCHRONIZED:
            if blocked is not None and now_ns - blocked >= self._config.resynchronizing_after_ns:
                self._move(ReplicaState.RESYNCHRONIZING, "decisions or source messages are outstanding", effects)
            elif now_ns - self._active_heard_at_ns >= self._config.detach_after_ns:
                self._move(ReplicaState.DETACHED, "the active is silent", effects)

    def _hear_active(self, adapter_id: int, epoch: int, now_ns: int, effects: list[AdapterEffect]) -> None:
        self._active_heard_at_ns = now_ns
        if epoch != self._active_epoch or adapter_id != self._active_adapter_id:
            self.on_active_known(adapter_id, epoch, now_ns)
        if self.state is ReplicaState.DETACHED:
            self._move(ReplicaState.SYNCHRONIZED, f"adapter {adapter_id} is heard", effects)

    def _note_source_ends(self, packet: OutputPacket, now_ns: int) -> None:
        for run in packet.runs:
            self.trackers[run.source_stream_id].note_end(run.end_source_seq, now_ns)

    def _check_streams(self, packet: OutputPacket) -> None:
        for run in packet.runs:
            if run.source_stream_id not in self.trackers:
                raise PacketRefused(Refusal.UNKNOWN_STREAM, f"source stream {run.source_stream_id} in a decision")

    def _anchor(self, now_ns: int) -> None:
        """Begin at the line's position: everything heard so far is sorted in from there."""
        self.intake.anchor(self.line.position())
        self._backlog.clear()
        for stream, tracker in self.trackers.items():
            self._backlog.add(stream, tracker.anchor(self.line.next_source_seqs.get(stream, FIRST_SEQ), now_ns))

    def _rejoin(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        effects: list[AdapterEffect] = []
        self._move(ReplicaState.JOINING, reason, effects)
        self._past.end_catching_up()
        self.intake.unanchor()
        self._backlog.clear()
        for tracker in self.trackers.values():
            tracker.unanchor()
        self._blocked_since_ns = None
        self._snapshot_at_ns = now_ns
        return effects

    def _ask_to_join(self) -> AdapterEffect:
        own = self._past.take_try()
        if own is not None:
            return RequestRuns(self.channel_id, self._active_adapter_id, own.position)
        return RequestSnapshot(self.channel_id, self._active_adapter_id)

    def _is_savable(self) -> bool:
        """State is worth saving where it is known to be the cluster's."""
        return self.state in (ReplicaState.ACTIVE, ReplicaState.SYNCHRONIZED)

    def _speaks(self) -> bool:
        """A replica without a position, or out of the group, has nothing true to say."""
        return self.line.epoch > 0 and self.state not in (ReplicaState.JOINING, ReplicaState.FAILED)

    def _heartbeat_flags(self) -> int:
        flags = OutputFlag.FROM_ACTIVE if self.state is ReplicaState.ACTIVE else OutputFlag.NONE
        ended = all(
            tracker.ended_at is not None and tracker.ended_at == self.line.next_source_seqs[stream]
            for stream, tracker in self.trackers.items()
        )
        return flags | OutputFlag.END_OF_STREAM if ended else flags

    def _move(self, new: ReplicaState, reason: str, effects: list[AdapterEffect]) -> None:
        old = self.state
        self._story.append(f"{old.value} -> {new.value}: {reason}")
        if new not in LEGAL_MOVES[old]:
            raise IllegalMove("; ".join(self._story))
        self.state = new
        effects.append(StateMoved(self.channel_id, old, new, reason))
