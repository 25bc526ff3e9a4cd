"""The role of a backup with a place in the channel: applies the active's decisions on arrival (protocol 5.2 to 5.7).

It has three states: SYNCHRONIZED, RESYNCHRONIZING while something is outstanding, and DETACHED while the active is
silent. It transmits only what was decided, or what needs no decision.
"""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.channel_state import Answer, Buckets, ChannelStatus, RunsRefused, RunsReply
from tandemfeed.feedcore.replica.config import OnSilence
from tandemfeed.feedcore.replica.input.applying import anticipate, apply_decisions
from tandemfeed.feedcore.replica.input.decision_intake import DecisionConflict
from tandemfeed.feedcore.replica.input.source_tracker import Slice
from tandemfeed.feedcore.replica.output.bucket_repair import BucketRepair
from tandemfeed.feedcore.replica.output.production import ConversionDiverged
from tandemfeed.feedcore.replica.roles.role import BackupRole, Next, ToAhead, ToFollowing, ToJoining
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.position import Run


class PositionedBackup(BackupRole):
    """A backup with a place, whether it follows or is ahead: takes decisions and requests those it missed."""

    is_placed = True

    def __init__(self, channel: Channel, now_ns: int) -> None:
        super().__init__(channel)
        self._front_run: Run | None = None  # the first decision that waits, and since when
        self._front_since_ns = now_ns

    def on_slices(self, source_stream_id: int, slices: list[Slice], now_ns: int) -> Next:
        channel = self.channel
        channel.backlog.add(source_stream_id, slices)
        succession = self.apply(now_ns) if self.is_due_to_apply() else None
        if succession is None and channel.backlog.message_count > channel.config.backlog_count_max:
            return self.leave(f"{channel.backlog.message_count} source messages wait for decisions", now_ns)
        return succession

    def is_due_to_apply(self) -> bool:
        """False if source messages alone change nothing."""
        return True

    def on_answer(self, answer: Answer, now_ns: int) -> Next:
        channel = self.channel
        if isinstance(answer, RunsRefused) and not channel.is_active_silent(now_ns):
            return self.leave(answer.reason, now_ns)  # while no adapter decides, a snapshot is not available
        if not isinstance(answer, RunsReply) or answer.lineage.epoch < channel.intake.epoch:
            return None
        try:
            channel.take_runs(answer, now_ns)
        except DecisionConflict as contradiction:
            return self.leave(str(contradiction), now_ns, is_trouble=True)
        return self.apply(now_ns)

    def diverge(self, divergence: ConversionDiverged, now_ns: int) -> Next:
        """This adapter's conversion state is not the active's."""
        self.channel.counters.add(Counter.DIGESTS_UNEQUAL)
        return self.leave(str(divergence), now_ns, is_trouble=True)

    def request_runs(self, now_ns: int) -> None:
        """Request missed decisions from the active, if a request is due."""
        channel = self.channel
        if channel.intake.is_request_due(now_ns) and channel.active.adapter_id:
            channel.counters.add(Counter.RUN_REQUESTS)
            channel.request_runs()

    def is_stuck(self, now_ns: int) -> bool:
        """True if the next decision has waited too long for source messages that no adapter may have any more."""
        ready = self.channel.intake.ready
        front = ready[0] if ready else None
        if front is not self._front_run:
            self._front_run, self._front_since_ns = front, now_ns
        return front is not None and now_ns - self._front_since_ns >= self.channel.config.stuck_after_ns

    def on_own_pause(self, pause_ns: int) -> None:
        self._front_since_ns += pause_ns


class Following(PositionedBackup):
    """Owns the repair of differing buckets, how long something has been outstanding, and the limit of a catch-up."""

    def __init__(self, channel: Channel, now_ns: int, terms: ToFollowing) -> None:
        super().__init__(channel, now_ns)
        self._repair = BucketRepair(channel)
        self._catch_up_by_ns = terms.catch_up_by_ns
        self._blocked_since_ns: int | None = None

    @property
    def is_savable(self) -> bool:
        return self.channel.state is ReplicaState.SYNCHRONIZED

    def begin(self, now_ns: int) -> Next:
        return self.apply(now_ns) if self.channel.state is ReplicaState.RESYNCHRONIZING else None

    def is_due_to_apply(self) -> bool:
        return bool(self.channel.intake.ready) or self.channel.is_single_source

    def on_active_message(self, adapter_id: int, epoch: int, now_ns: int) -> None:
        channel = self.channel
        if channel.is_active_silent(now_ns):
            channel.flaps.on_silence(now_ns)
        channel.active.on_message(adapter_id, epoch, now_ns)
        if channel.state is ReplicaState.DETACHED and channel.flaps.may_return(now_ns):
            channel.move(ReplicaState.SYNCHRONIZED, f"adapter {adapter_id} is heard")

    # ---- applying ----

    def apply(self, now_ns: int) -> Next:
        channel, repair = self.channel, self._repair
        try:
            apply_decisions(channel, now_ns, repair=repair)
            while repair.set_if_reached():
                apply_decisions(channel, now_ns, repair=repair)
        except ConversionDiverged as divergence:
            return self.diverge(divergence, now_ns)
        succession = self._judge(now_ns)
        if succession is not None:
            return succession
        if channel.is_single_source and not repair.buckets:
            anticipate(channel)
        return self.due_promotion(now_ns)

    def _judge(self, now_ns: int) -> Next:
        """Enter the state that fits what is outstanding and whether the active is heard."""
        channel = self.channel
        if not channel.is_blocked:
            self._blocked_since_ns = None
            if channel.state is ReplicaState.SYNCHRONIZED and channel.active.heard_at_ns == now_ns:
                return None  # the hot path: runs for every packet of the active
        elif self._blocked_since_ns is None:
            self._blocked_since_ns = now_ns
        since = self._blocked_since_ns
        if channel.state is ReplicaState.RESYNCHRONIZING and since is None:
            self._catch_up_by_ns = None
            channel.move(ReplicaState.SYNCHRONIZED, "nothing outstanding")
        is_long = since is not None and now_ns - since >= channel.config.resynchronizing_after_ns
        if channel.state is ReplicaState.SYNCHRONIZED and is_long:
            channel.move(ReplicaState.RESYNCHRONIZING, "decisions or source messages are outstanding")
        if channel.state is not ReplicaState.DETACHED and channel.is_active_silent(now_ns):
            channel.move(ReplicaState.DETACHED, "the active is silent")
        if channel.state is ReplicaState.DETACHED and self._may_proceed(now_ns):
            return ToAhead("neither the active nor an admin server is heard")
        return None

    def _may_proceed(self, now_ns: int) -> bool:
        channel, config = self.channel, self.channel.config
        return (
            not channel.has_admin
            and config.on_silence is OnSilence.PROCEED
            and channel.active.silent_ns(now_ns) >= config.proceed_after_ns
            and not channel.undecided_count()
            and not self._repair.buckets  # its conversion state is known to be wrong
        )

    # ---- conversion state ----

    def compare(self, status: ChannelStatus, now_ns: int) -> Next:
        """Begin to set the buckets that differ from the active's at the same position to the active's values."""
        channel, theirs = self.channel, status.digest
        ours = channel.line.digests_at.get(theirs.input_seq)
        if ours is None or ours.epoch != theirs.epoch or self._repair.buckets:
            return None
        if ours.digests == theirs.digests:
            channel.counters.add(Counter.DIGESTS_EQUAL)
            return None
        channel.counters.add(Counter.DIGESTS_UNEQUAL)
        channel.out_of_sync_at_ns.append(now_ns)
        if len(ours.digests) != len(theirs.digests):
            return self.leave("the active's conversion state has a different number of buckets", now_ns)
        pairs = zip(ours.digests, theirs.digests, strict=True)
        differing = tuple(bucket for bucket, (mine, foreign) in enumerate(pairs) if mine != foreign)
        self._repair.begin(differing, now_ns)
        return None

    def on_answer(self, answer: Answer, now_ns: int) -> Next:
        if not isinstance(answer, Buckets):
            return super().on_answer(answer, now_ns)
        if not self._repair.buckets:
            return None
        return self.apply(now_ns) if self._repair.on_answer(answer, now_ns) else self._give_up_repair(now_ns)

    def _give_up_repair(self, now_ns: int) -> Next:
        return self.leave(f"buckets {self._repair.buckets[:8]} differ and could not be set", now_ns)

    # ---- time ----

    def on_own_pause(self, pause_ns: int) -> None:
        super().on_own_pause(pause_ns)
        self._repair.on_own_pause(pause_ns)
        if self._catch_up_by_ns is not None:
            self._catch_up_by_ns += pause_ns
        if self._blocked_since_ns is not None:
            self._blocked_since_ns += pause_ns

    def on_timer(self, now_ns: int) -> Next:
        self.request_runs(now_ns)
        if self._repair.is_late(now_ns) and not self._repair.ask(now_ns):
            return self._give_up_repair(now_ns)
        if self._catch_up_by_ns is not None and now_ns >= self._catch_up_by_ns:
            return ToJoining("the catch-up from its own journal took too long")
        if self.is_stuck(now_ns) and self.channel.state is not ReplicaState.DETACHED:
            return ToJoining(f"the source messages of {self._front_run} did not arrive")
        return self.apply(now_ns)

    def next_deadline_ns(self) -> int | None:
        return earliest(self.channel.intake.next_deadline_ns(), self._repair.next_deadline_ns(), self._catch_up_by_ns)
