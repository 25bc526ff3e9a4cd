"""An adapter's replica of one channel: decides as active, follows as backup, and moves between the two.

Sans-I/O: events with `now_ns` in, ordered effects out (`feedcore.replica.effects`). It composes what a backup does
(`feedcore.replica.following`), what an active does (`feedcore.replica.deciding`) and the production line both work
on. The lease is the engine's matter: `promote`, `demote` and `hand_over` are its words.

Invariants (docs/protocol.md clause 5): a backup transmits as its own only what the active decided, or what needs no
decision; an active transmits only between `promote` and the end of its term; whatever is transmitted was put in the
journal's effect before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from feedcore.counters import Counter, CounterSet
from feedcore.replica.active_view import ActiveView
from feedcore.replica.channel_state import Buckets, ChannelSnapshot, ChannelStatus
from feedcore.replica.config import OnSilence, ReplicaConfig
from feedcore.replica.deciding import Decider
from feedcore.replica.decision_log import RunsReply
from feedcore.replica.effects import (
    AdapterEffect,
    NumberForGood,
    RequestBuckets,
    RequestRuns,
    SaveState,
    StateMoved,
    Transmit,
)
from feedcore.replica.following import Follower, OutOfStep
from feedcore.replica.hand_over import HandOver
from feedcore.replica.joining import Joining
from feedcore.replica.own_past import is_begun
from feedcore.replica.production import ConversionDiverged, ProductionLine, SnapshotRefused
from feedcore.replica.states import LEGAL_MOVES, ReplicaState
from feedcore.wire.output_packet import EPOCH_ENDED_BIT, FROM_ACTIVE_BIT, PROVISIONAL_BIT, OutputFlag, OutputPacket
from feedcore.wire.position import Run
from feedcore.wire.source_packet import SourcePacket

STORY_LENGTH = 32
FOLLOWING = (ReplicaState.SYNCHRONIZED, ReplicaState.RESYNCHRONIZING, ReplicaState.DETACHED, ReplicaState.AHEAD)


class IllegalMove(AssertionError):
    """A move that LEGAL_MOVES does not have: a bug, told with the replica's story."""


class ChannelReplica:
    """One channel at one adapter; begins JOINING, always.

    Attributes:
        out_of_sync_at_ns: when it last had to leave the group's state: contradictions and differing digests.
        has_admin: an admin server is in contact; the engine's word.
    """

    def __init__(
        self, channel_id: int, line: ProductionLine, config: ReplicaConfig, counters: CounterSet, now_ns: int
    ) -> None:
        self.channel_id = channel_id
        self.state = ReplicaState.JOINING
        self.line = line
        self.follower = Follower(line, config)
        self.intake, self.trackers = self.follower.intake, self.follower.trackers
        self.decider = Decider(line, self.trackers, config, counters)
        self.has_admin = True
        self.out_of_sync_at_ns: deque[int] = deque(maxlen=8)
        self._config = config
        self._counters = counters
        self._arrivals = 0
        self._active = ActiveView(now_ns)
        self._joining = Joining(channel_id, self.follower, config, now_ns)
        self._past = self._joining.past
        self._hand_over = HandOver(config.promotion_patience_ns)
        self._blocked_since_ns: int | None = None
        self._heartbeat_at_ns = now_ns + config.heartbeat_interval_ns
        self._front: tuple[Run | None, int] = (None, now_ns)  # the decision that waits first, and since when
        self._story: deque[str] = deque(maxlen=STORY_LENGTH)

    # ---- the source ----

    def on_source_packet(self, packet: SourcePacket, now_ns: int) -> list[AdapterEffect]:
        """A source packet of one of the channel's streams, its frames checked."""
        stream = packet.source_stream_id
        self._arrivals += 1
        slices = self.trackers[stream].on_packet(packet, self._arrivals, now_ns)
        effects: list[AdapterEffect] = []
        if self.state is ReplicaState.ACTIVE:
            for piece in slices:
                self.decider.decide(piece, effects, now_ns)
            return effects
        if not slices:
            return effects
        backlog = self.follower.backlog
        backlog.add(stream, slices)
        if self.intake.ready or self.state is not ReplicaState.SYNCHRONIZED or self.follower.is_single_source:
            effects += self._apply(now_ns)
        if backlog.message_count > self._config.backlog_count_max:
            effects += self._rejoin(f"{backlog.message_count} source messages wait for decisions", now_ns)
        return effects

    # ---- other adapters ----

    def on_output_packet(self, packet: OutputPacket, now_ns: int) -> list[AdapterEffect]:
        """Another adapter's output packet: its runs are decisions, unless it is provisional.

        Raises:
            PacketRefused: a run names a source stream that the channel does not have, or a heartbeat no history.
        """
        if self.state is ReplicaState.FAILED or packet.flags & PROVISIONAL_BIT:
            return []
        if self.state is ReplicaState.ACTIVE:
            return self.decider.on_peer_packet(packet)
        if packet.epoch < self.intake.epoch and packet.end_message_seq > self.intake.lineage.end_of(packet.epoch):
            self._counters.add(Counter.STALE_EPOCH_PACKETS)
            return []
        effects: list[AdapterEffect] = []
        if packet.flags & FROM_ACTIVE_BIT and packet.epoch >= self.intake.epoch:
            self._hear_active(packet.adapter_id, packet.epoch, now_ns, effects)
        if packet.flags & EPOCH_ENDED_BIT:
            self._hand_over.on_ended(packet.epoch, packet.first_message_seq)
        try:
            self.follower.hear(packet, now_ns)
        except OutOfStep as contradiction:
            return effects + self._rejoin(str(contradiction), now_ns, is_trouble=True)
        applied = self._apply(now_ns)
        return effects + applied if effects else applied

    def on_peer_status(self, status: ChannelStatus, adapter_id: int, now_ns: int) -> list[AdapterEffect]:
        """Another adapter's state from the sync channel: compare positions and conversion-state digests."""
        if self.state is ReplicaState.ACTIVE:
            is_backup = status.state in (ReplicaState.SYNCHRONIZED, ReplicaState.DETACHED)
            self.decider.note_elsewhere(adapter_id, status.available_source_seqs if is_backup else None)
        if self.state in (ReplicaState.ACTIVE, ReplicaState.FAILED) or status.state is not ReplicaState.ACTIVE:
            return []
        effects: list[AdapterEffect] = []
        if status.position.epoch < self.intake.epoch:
            return effects
        self._hear_active(adapter_id, status.position.epoch, now_ns, effects)
        try:
            self.intake.on_lineage(status.lineage, self.line.position())
        except OutOfStep as contradiction:
            return effects + self._rejoin(str(contradiction), now_ns, is_trouble=True)
        if self.state is ReplicaState.JOINING or status.position.epoch != self.intake.epoch:
            return effects
        self.intake.on_position(status.position, now_ns)
        return effects + self._compare(status, now_ns)

    def _compare(self, status: ChannelStatus, now_ns: int) -> list[AdapterEffect]:
        """Duty 4: where buckets of the conversion state differ at the same position, set them to the active's."""
        theirs, ours = status.digest, self.line.digests_at.get(status.digest.message_seq)
        if ours is None or ours.source_seqs != theirs.source_seqs or self.follower.repair.is_under_way:
            return []
        if ours.digests == theirs.digests:
            self._counters.add(Counter.DIGESTS_EQUAL)
            return []
        self._counters.add(Counter.DIGESTS_UNEQUAL)
        self.out_of_sync_at_ns.append(now_ns)
        if len(ours.digests) != len(theirs.digests):
            return self._rejoin("the active's conversion state has another number of buckets", now_ns)
        differing = tuple(
            bucket for bucket, pair in enumerate(zip(ours.digests, theirs.digests, strict=True)) if pair[0] != pair[1]
        )
        self.follower.repair.begin(differing, now_ns)
        return [RequestBuckets(self.channel_id, self._active.adapter_id, differing)]

    def on_buckets(self, answer: Buckets, now_ns: int) -> list[AdapterEffect]:
        """The buckets asked for, at the active's position."""
        repair = self.follower.repair
        if not repair.is_under_way or self.state not in FOLLOWING:
            return []
        if not repair.on_answer(answer, self.line.position(), now_ns):
            return self._repair_again(now_ns)
        return self._apply(now_ns)

    def _repair_again(self, now_ns: int) -> list[AdapterEffect]:
        repair = self.follower.repair
        if repair.take_try(now_ns):
            return [RequestBuckets(self.channel_id, self._active.adapter_id, repair.buckets)]
        return self._rejoin(f"buckets {repair.buckets[:8]} differ and could not be set", now_ns)

    def on_active_known(self, adapter_id: int, epoch: int, now_ns: int) -> None:
        """Somebody says who is active in an epoch (0: nobody); older news changes nothing."""
        if self._active.know(adapter_id, epoch):
            self._joining.ask_at_once(now_ns)

    # ---- joining ----

    def resume_from(self, snapshot: ChannelSnapshot, runs: Iterable[Run], now_ns: int) -> None:
        """What the output journal holds of this adapter's former life: the newest state, and the decisions that were
        transmitted behind it. Before any other event."""
        self._joining.resume_from(snapshot, runs, now_ns)

    def on_runs(self, reply: RunsReply, now_ns: int) -> list[AdapterEffect]:
        """The decisions asked for."""
        if self.state in (ReplicaState.ACTIVE, ReplicaState.FAILED) or reply.lineage.epoch < self.intake.epoch:
            return []
        effects: list[AdapterEffect] = []
        if self.state is ReplicaState.JOINING and not self._joining.is_continued_by(reply):
            return self._forget_past(now_ns)
        try:
            self.follower.take(reply, now_ns)
        except OutOfStep as contradiction:
            return self._rejoin(str(contradiction), now_ns, is_trouble=True)
        if self.state is ReplicaState.JOINING:
            self._counters.add(Counter.STATES_RESUMED)
            self._past.begin_catching_up(now_ns)
            self._enter_group(f"own journal at message_seq {self.line.next_message_seq}", effects, now_ns)
        return effects + self._apply(now_ns)

    def on_runs_refused(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        """The active cannot give the decisions any more: join anew by snapshot."""
        if self.state is ReplicaState.JOINING:
            return self._forget_past(now_ns)
        if self.state not in FOLLOWING or self._is_active_silent(now_ns):
            return []  # nobody decides: there is nothing to join
        return self._rejoin(reason, now_ns)

    def on_snapshot(self, snapshot: ChannelSnapshot, now_ns: int) -> list[AdapterEffect]:
        """A snapshot from the active; ignored unless this replica is joining and it is of the newest epoch."""
        if self.state is not ReplicaState.JOINING or snapshot.position.epoch < self.intake.epoch:
            return []
        effects: list[AdapterEffect] = []
        try:
            self._joining.install(snapshot, now_ns)
        except SnapshotRefused:
            self._counters.add(Counter.SNAPSHOTS_REFUSED)
            return effects  # it is asked for again
        except ValueError as mismatch:
            self._move(ReplicaState.FAILED, f"the active's conversion state does not fit: {mismatch}", effects)
            return effects
        except OutOfStep:
            self._joining.begin_anew(now_ns)
            return effects
        self._enter_group(f"snapshot at message_seq {self.line.next_message_seq}", effects, now_ns)
        return effects + self._apply(now_ns)

    def _enter_group(self, why: str, effects: list[AdapterEffect], now_ns: int) -> None:
        self._active.heard_at_ns = self._blocked_since_ns = now_ns
        self._move(ReplicaState.RESYNCHRONIZING, why, effects)

    def _forget_past(self, now_ns: int) -> list[AdapterEffect]:
        if self._past.is_usable:
            self._joining.begin_anew(now_ns)
        return []

    # ---- the lease ----

    def promote(self, epoch: int, now_ns: int) -> list[AdapterEffect]:
        """The lease on `epoch` is held: decide from here on, beginning with what waits for decisions."""
        effects: list[AdapterEffect] = []
        self._hand_over.cancel()
        if self.state is ReplicaState.FAILED:
            return effects
        if self.state is ReplicaState.ACTIVE:
            return self._go_on(epoch, now_ns)
        first = self.line.next_message_seq
        end = self.line.number_for_good(epoch)
        if self.state is ReplicaState.JOINING and not self._past.is_usable:
            self.follower.anchor(now_ns)  # nobody else could be granted: this position is the cluster's best
        self.follower.repair.end()
        self.follower.follow_on()
        self.decider.begin()
        self._past.end_catching_up()
        self._hand_over.begin()
        self._blocked_since_ns = None
        self._move(ReplicaState.ACTIVE, f"epoch {epoch} from message_seq {first}", effects)
        if end > first:
            effects.append(NumberForGood(self.channel_id, epoch, first, end))
        effects.append(self._heartbeat(now_ns))  # tells everyone at once
        for piece in self.follower.backlog.take_all():
            self.decider.decide(piece, effects, now_ns)
        return effects

    @property
    def awaits_promotion(self) -> bool:
        """True while the lease is held and the end of the epoch before is waited for."""
        return self._hand_over.is_awaited

    def promote_when_level(self, epoch: int, now_ns: int) -> list[AdapterEffect]:
        """The lease on an epoch that was handed over is held: begin where the one before it ended."""
        if self.state is ReplicaState.ACTIVE:
            return []
        self._hand_over.await_end(epoch, now_ns)
        return self._try_promotion(now_ns)

    def _try_promotion(self, now_ns: int) -> list[AdapterEffect]:
        if not self._hand_over.is_awaited:
            return []
        epoch = self._hand_over.due_epoch(
            self.intake.epoch, self.line.next_message_seq, now_ns, is_blocked=self.follower.is_blocked
        )
        return [] if epoch is None else self.promote(epoch, now_ns)

    def _go_on(self, epoch: int, now_ns: int) -> list[AdapterEffect]:
        """The active was granted the next epoch: nothing else changes, but a loss may be declared now."""
        self.line.open_epoch(epoch)
        self.follower.follow_on()
        effects: list[AdapterEffect] = [self._heartbeat(now_ns)]
        for tracker in self.trackers.values():
            self.decider.declare_lost(tracker, effects, now_ns)
        return effects

    def demote(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        """The lease is gone: from now on this replica is a backup that hears nobody yet."""
        self._hand_over.cancel()
        if self.state is not ReplicaState.ACTIVE:
            return []
        effects = self.decider.gate.keep_back() if self.decider.gate is not None else []
        self.follower.follow_on()
        self._active.heard_at_ns = now_ns - self._config.proceed_after_ns
        self._move(ReplicaState.DETACHED, reason, effects)
        return effects

    def hand_over(self, heir_adapter_id: int, now_ns: int) -> list[AdapterEffect]:
        """Give the epoch up, in order: from now on this replica is a synchronised backup of the heir."""
        if self.state is not ReplicaState.ACTIVE:
            return []
        effects = self.decider.gate.let_out() if self.decider.gate is not None else []
        self.follower.follow_on()
        self._hand_over.on_ended(self.line.epoch, self.line.next_message_seq)
        self._active.adapter_id, self._active.heard_at_ns = heir_adapter_id, now_ns
        self._counters.add(Counter.HAND_OVERS)
        self._move(ReplicaState.SYNCHRONIZED, f"handed over to adapter {heir_adapter_id}", effects)
        effects.append(self._heartbeat(now_ns))
        return effects

    # ---- the group ----

    def fail(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        """Leave the group; an admin readmits."""
        effects: list[AdapterEffect] = []
        if self.state is not ReplicaState.FAILED:
            if self.state is ReplicaState.ACTIVE and self.decider.gate is not None:
                effects += self.decider.gate.keep_back()
            self._joining.begin_anew(now_ns)
            self._move(ReplicaState.FAILED, reason, effects)
        return effects

    def readmit(self, now_ns: int) -> list[AdapterEffect]:
        """Let in again: join anew."""
        effects: list[AdapterEffect] = []
        if self.state is ReplicaState.FAILED:
            self.out_of_sync_at_ns.clear()
            self._joining.ask_at_once(now_ns)
            self._move(ReplicaState.JOINING, "readmitted", effects)
        return effects

    # ---- time ----

    def on_timer(self, now_ns: int) -> list[AdapterEffect]:
        """Everything that is due: source gaps, missed decisions, snapshots, heartbeats, silence of the active."""
        effects: list[AdapterEffect] = []
        for tracker in self.trackers.values():
            requests = tracker.on_timer(now_ns)
            if requests:
                self._counters.add(Counter.SOURCE_GAP_REQUESTS, len(requests))
                effects += requests
        if self.state is ReplicaState.ACTIVE:
            effects += self.decider.on_timer(now_ns)
        elif self.state is ReplicaState.JOINING:
            request = self._joining.due_request(self._active.adapter_id, now_ns)
            if request is not None:
                effects.append(request)
            effects += self._try_promotion(now_ns)  # whose place was lost meanwhile begins where it stood
        elif self.state is not ReplicaState.FAILED:
            effects += self._follow_on_timer(now_ns)
        if self._is_savable() and self._past.is_due(self.line.next_source_seqs, now_ns):
            effects += self.on_stop()
        if self._speaks() and now_ns >= self._heartbeat_at_ns:
            effects.append(self._heartbeat(now_ns))
        return effects

    def _follow_on_timer(self, now_ns: int) -> list[AdapterEffect]:
        effects: list[AdapterEffect] = []
        if self.intake.is_request_due(now_ns) and self._active.adapter_id:
            self._counters.add(Counter.RUN_REQUESTS)
            effects.append(RequestRuns(self.channel_id, self._active.adapter_id, self.intake.position()))
        if self.follower.repair.is_late(now_ns):
            effects += self._repair_again(now_ns)
        if self._past.leads_nowhere(now_ns):
            effects += self._rejoin("what follows its own past does not come", now_ns)
        elif self._is_stuck(now_ns):
            effects += self._rejoin(f"the source messages of {self._front[0]} do not come", now_ns)
        return effects + self._apply(now_ns)

    def on_stop(self) -> list[AdapterEffect]:
        """The state to go on from, if there is one and it is not too large."""
        if not self._is_savable() or not is_begun(self.line.next_source_seqs):
            return []
        snapshot = self.line.snapshot()
        return [SaveState(snapshot)] if self._past.is_small_enough(len(snapshot.conversion_state)) else []

    def next_deadline_ns(self) -> int | None:
        """The earliest moment at which `on_timer` has something to do."""
        due = [tracker.next_deadline_ns() for tracker in self.trackers.values()]
        if self.state is ReplicaState.JOINING:
            due.append(self._joining.next_deadline_ns(self._active.adapter_id))
            due.append(self._hand_over.next_deadline_ns())
        elif self.state is not ReplicaState.FAILED:
            due.append(self._heartbeat_at_ns if self._speaks() else None)
            due.append(self._past.next_deadline_ns(is_saving=self._is_savable()))
            if self.state is ReplicaState.ACTIVE:
                due.append(self.decider.next_deadline_ns())
            else:
                due += (self.intake.next_deadline_ns(), self.follower.repair.next_deadline_ns())
            if self.state is ReplicaState.AHEAD and self.follower.backlog.message_count:
                due.append(self.follower.throttle.until_ns)
        return min((deadline for deadline in due if deadline is not None), default=None)

    # ---- queries ----

    def status(self) -> ChannelStatus:
        """State and position, with the newest digest."""
        line = self.line
        available = {
            stream: tracker.next_source_seq
            for stream, tracker in self.trackers.items()
            if tracker.next_source_seq is not None
        }
        return ChannelStatus(self.channel_id, self.state, line.position(), line.lineage, line.digest, available)

    def hears_active(self, now_ns: int) -> bool:
        """True if this is a backup whose active is not silent."""
        return self.state in FOLLOWING and not self._is_active_silent(now_ns)

    def source_lag(self) -> int:
        """Source messages known to exist that have not been converted here."""
        return sum(t.known_end - self.line.next_source_seqs[stream] for stream, t in self.trackers.items())

    # ---- inside ----

    def _apply(self, now_ns: int) -> list[AdapterEffect]:
        """Whatever this state allows to be done with what is here."""
        effects: list[AdapterEffect] = []
        follower, past = self.follower, self._past
        if self.state is ReplicaState.JOINING and not past.is_usable:
            return effects
        try:
            is_quiet = self.state is ReplicaState.JOINING
            follower.apply(effects, now_ns, quiet_end=past.transmitted_end, is_quiet=is_quiet)
            while follower.set_buckets():
                follower.apply(effects, now_ns, quiet_end=past.transmitted_end)
        except ConversionDiverged as divergence:
            self._counters.add(Counter.DIGESTS_UNEQUAL)
            return effects + self._rejoin(str(divergence), now_ns, is_trouble=True)
        if self.state is ReplicaState.JOINING:
            return effects
        self._judge(now_ns, effects)
        if follower.is_single_source and self._is_level() and follower.may_anticipate():
            follower.anticipate(effects)
        if self.state is ReplicaState.AHEAD:
            follower.forward(effects, now_ns, is_throttled=not self._is_active_silent(now_ns))
        effects += self._try_promotion(now_ns)
        return effects

    def _is_level(self) -> bool:
        return self.state is ReplicaState.SYNCHRONIZED or self.state is ReplicaState.DETACHED

    def _judge(self, now_ns: int, effects: list[AdapterEffect]) -> None:
        """Which of the backup's states fits what is outstanding and who is heard."""
        if not self.follower.is_blocked:
            self._blocked_since_ns = None
            if self.state is ReplicaState.SYNCHRONIZED and self._active.heard_at_ns == now_ns:
                return  # the hot path: every packet of the active's comes by here
        elif self._blocked_since_ns is None:
            self._blocked_since_ns = now_ns
        blocked = self._blocked_since_ns
        if self.state is ReplicaState.AHEAD and self.line.provisional is None and not self._is_active_silent(now_ns):
            self._move(ReplicaState.RESYNCHRONIZING, "the active is past all that was sent ahead", effects)
        if self.state is ReplicaState.RESYNCHRONIZING and blocked is None:
            self._past.end_catching_up()
            self._move(ReplicaState.SYNCHRONIZED, "nothing outstanding", effects)
        is_long = blocked is not None and now_ns - blocked >= self._config.resynchronizing_after_ns
        if self.state is ReplicaState.SYNCHRONIZED and is_long:
            self._move(ReplicaState.RESYNCHRONIZING, "decisions or source messages are outstanding", effects)
        if self.state in (ReplicaState.SYNCHRONIZED, ReplicaState.RESYNCHRONIZING) and self._is_active_silent(now_ns):
            self._move(ReplicaState.DETACHED, "the active is silent", effects)
        if self.state is ReplicaState.DETACHED and self._may_proceed(now_ns):
            self._move(ReplicaState.AHEAD, "neither the active nor an admin server is to be heard", effects)

    def _is_stuck(self, now_ns: int) -> bool:
        """The active had source messages that nobody has any more: only a snapshot leads past them."""
        front = self.intake.ready[0] if self.intake.ready else None
        if front is not self._front[0]:
            self._front = front, now_ns
        is_following = self.state in (ReplicaState.SYNCHRONIZED, ReplicaState.RESYNCHRONIZING)
        is_following = is_following or (self.state is ReplicaState.AHEAD and not self._is_active_silent(now_ns))
        return is_following and front is not None and now_ns - self._front[1] >= self._config.stuck_after_ns

    def _is_active_silent(self, now_ns: int) -> bool:
        return self._active.silent_ns(now_ns) >= self._config.detach_after_ns

    def _may_proceed(self, now_ns: int) -> bool:
        return (
            not self.has_admin
            and self._config.on_silence is OnSilence.PROCEED
            and self._active.silent_ns(now_ns) >= self._config.proceed_after_ns
            and not self.follower.may_anticipate()
        )

    def _hear_active(self, adapter_id: int, epoch: int, now_ns: int, effects: list[AdapterEffect]) -> None:
        if self._active.hear(adapter_id, epoch, now_ns):
            self._joining.ask_at_once(now_ns)
        if self.state is ReplicaState.DETACHED:
            self._move(ReplicaState.SYNCHRONIZED, f"adapter {adapter_id} is heard", effects)

    def _rejoin(self, reason: str, now_ns: int, *, is_trouble: bool = False) -> list[AdapterEffect]:
        effects: list[AdapterEffect] = []
        if self.state is ReplicaState.JOINING:
            return self._forget_past(now_ns)
        if is_trouble:
            self.out_of_sync_at_ns.append(now_ns)
        self._move(ReplicaState.JOINING, reason, effects)
        self._joining.begin_anew(now_ns)
        self._blocked_since_ns = None
        return effects

    def _is_savable(self) -> bool:
        """State is worth saving where it is known to be the cluster's."""
        return self.state in (ReplicaState.ACTIVE, ReplicaState.SYNCHRONIZED) and not self.decider.is_holding

    def _speaks(self) -> bool:
        """A replica without a position, or out of the group, has nothing true to say."""
        return self.line.epoch > 0 and self.state not in (ReplicaState.JOINING, ReplicaState.FAILED)

    def _heartbeat(self, now_ns: int) -> AdapterEffect:
        self._heartbeat_at_ns = now_ns + self._config.heartbeat_interval_ns
        is_active = self.state is ReplicaState.ACTIVE
        flags = int(OutputFlag.FROM_ACTIVE) if is_active else 0
        if self.state is ReplicaState.AHEAD:
            flags |= OutputFlag.PROVISIONAL
        if self._hand_over.is_at_end(self.line.position()):
            flags |= OutputFlag.EPOCH_ENDED
        is_ended = all(
            tracker.ended_at is not None and tracker.ended_at == self.line.next_source_seqs[stream]
            for stream, tracker in self.trackers.items()
        )
        seq = self.decider.heartbeat_seq() if is_active else self.line.next_message_seq
        if is_ended and seq == self.line.next_message_seq:
            flags |= OutputFlag.END_OF_STREAM
        return Transmit(self.line.heartbeat(flags, seq))

    def _move(self, new: ReplicaState, reason: str, effects: list[AdapterEffect]) -> None:
        old = self.state
        self._story.append(f"{old.value} -> {new.value}: {reason}")
        if new not in LEGAL_MOVES[old]:
            raise IllegalMove("; ".join(self._story))
        self.state = new
        effects.append(StateMoved(self.channel_id, old, new, reason))
