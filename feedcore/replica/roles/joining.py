"""The role of a replica without a place in the channel: its own journal or a snapshot gives it one (protocol 5.1).

Every adapter begins in this role. It receives everything and transmits nothing. It requests from the active the
decisions that follow its own journal, if the journal has a state to continue from; otherwise it requests a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.channel_state import Answer, ChannelSnapshot, RunsRefused, RunsReply
from tandemfeed.feedcore.replica.effects import RequestSnapshot, SaveState
from tandemfeed.feedcore.replica.input.applying import apply_decisions
from tandemfeed.feedcore.replica.input.decision_intake import DecisionConflict
from tandemfeed.feedcore.replica.input.source_tracker import Slice
from tandemfeed.feedcore.replica.output.production import ConversionDiverged, SnapshotRefused
from tandemfeed.feedcore.replica.roles.role import BackupRole, Next, ToDeciding, ToFailed, ToFollowing
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.position import FIRST_SEQ, MessageStreamState, Run

CATCH_UP_NS_MAX = 2_000_000_000  # if the state is old or the source journal does not answer, a snapshot is faster
TRIES_MAX = 4  # after this many unanswered requests for decisions, request a snapshot


class Joining(BackupRole):
    """Owns whether the channel resumed where this adapter's previous process ended, and when to request again."""

    def __init__(self, channel: Channel, now_ns: int) -> None:
        super().__init__(channel)
        self._is_resumed = False
        self._tries_left = TRIES_MAX
        self._ask_at_ns = now_ns

    def begin(self, now_ns: int) -> Next:
        self.channel.transmitted_ends.clear()
        self.channel.unanchor()
        return None

    def resume_from(self, snapshot: ChannelSnapshot, runs: Iterable[Run], now_ns: int) -> None:
        """Resume from the newest state in the journal. The decisions transmitted after it are applied when their source
        messages arrive. Must come before any other event."""
        channel = self.channel
        try:
            channel.line.install(snapshot)
        except (ValueError, SnapshotRefused):  # the table changed since then: begin with an empty state
            return
        channel.intake.lineage = channel.line.lineage
        channel.anchor(now_ns)
        self._is_resumed = True
        try:
            decided = self._decided_after(snapshot, runs)
            channel.take_runs(RunsReply(channel.intake.lineage, decided), now_ns)
        except DecisionConflict:
            self._forget_previous_process()

    def _decided_after(self, snapshot: ChannelSnapshot, runs: Iterable[Run]) -> tuple[Run, ...]:
        """The decisions transmitted after a saved state, up to the first gap; the history of the intake includes them.

        There is a gap if the previous process rejoined, or sent messages provisionally that were decided later. The
        active has the decisions in the gap; those after it are not transmitted again.

        A newer epoch may begin before the end of an older one: a process was granted it before it had applied again
        what an earlier process had decided. Then the newer epoch's decisions replace the older ones.
        """
        channel, intake = self.channel, self.channel.intake
        begins_at, epoch = snapshot.position.next_input_seq, intake.lineage.epoch
        decided: list[Run] = []
        next_input_seq, is_continued = begins_at, True
        for run in runs:
            channel.transmitted_ends[run.epoch] = run.end_input_seq
            if run.epoch > epoch and begins_at <= run.first_input_seq < next_input_seq:
                while decided and decided[-1].end_input_seq > run.first_input_seq:
                    decided.pop()
                next_input_seq, is_continued = decided[-1].end_input_seq if decided else begins_at, True
            is_continued = is_continued and run.first_input_seq == next_input_seq and run.epoch >= epoch
            if is_continued:
                decided.append(run)
                next_input_seq, epoch = run.end_input_seq, run.epoch
        for run in decided:
            if run.epoch > intake.lineage.epoch:  # a later epoch, which begins with this decision
                intake.lineage = intake.lineage.opened(run.epoch, run.first_input_seq, run.first_message_seq)
        return tuple(decided)

    def _forget_previous_process(self) -> None:
        self._is_resumed = False
        self.channel.transmitted_ends.clear()
        self.channel.unanchor()

    def begin_session(self, conversion_state: bytes, now_ns: int) -> Next:
        """Begin a session with this conversion state, before its first decision."""
        channel = self.channel
        position = MessageStreamState(next_source_seqs=dict.fromkeys(channel.trackers, FIRST_SEQ))
        channel.line.install(ChannelSnapshot(channel.channel_id, position, Lineage(), conversion_state))
        try:
            channel.anchor(now_ns)
            channel.intake.on_runs((), now_ns)  # those received before
        except DecisionConflict:  # they contradict each other: wait for the active's snapshot
            channel.unanchor()
            return None
        return ToFollowing(ReplicaState.RESYNCHRONIZING, f"session {channel.line.session} begins")

    # ---- data ----

    def on_slices(self, source_stream_id: int, slices: list[Slice], now_ns: int) -> Next:
        channel = self.channel
        channel.backlog.add(source_stream_id, slices)
        if channel.backlog.message_count > channel.config.backlog_count_max:
            return self.leave("too many source messages wait for decisions", now_ns)
        return self.apply(now_ns)

    def on_active_changed(self, now_ns: int) -> None:
        self._ask_at_ns = now_ns

    def leave(self, reason: str, now_ns: int, *, is_trouble: bool = False) -> Next:
        """Lose the place in the channel that the journal gave, if it did."""
        if self._is_resumed:
            self._forget_previous_process()
            self._ask_at_ns = now_ns
        return None

    def apply(self, now_ns: int) -> Next:
        if self._is_resumed:
            try:
                apply_decisions(self.channel, now_ns, only_quiet=True)
            except ConversionDiverged as divergence:
                self.channel.counters.add(Counter.DIGESTS_UNEQUAL)
                return self.leave(str(divergence), now_ns)
        return None

    # ---- answers ----

    def on_answer(self, answer: Answer, now_ns: int) -> Next:
        match answer:
            case RunsReply():
                return self._on_runs(answer, now_ns)
            case RunsRefused():
                return self.leave(answer.reason, now_ns)
            case ChannelSnapshot():
                return self._on_snapshot(answer, now_ns)
        return None

    def _on_runs(self, reply: RunsReply, now_ns: int) -> Next:
        channel = self.channel
        if not self._is_continued_by(reply):
            return self.leave("the active's decisions do not continue this adapter's own", now_ns)
        try:
            channel.take_runs(reply, now_ns)
        except DecisionConflict as contradiction:
            return self.leave(str(contradiction), now_ns)
        channel.counters.add(Counter.STATES_RESUMED)
        return self._enter_group(f"own journal at input_seq {channel.line.next_input_seq}", now_ns, CATCH_UP_NS_MAX)

    def _is_continued_by(self, reply: RunsReply) -> bool:
        """True if the decisions in the reply continue those of this adapter without a gap."""
        position = self.channel.intake.position()
        return (
            self._is_resumed
            and reply.lineage.holds(position.epoch, position.next_input_seq)
            and (not reply.runs or reply.runs[0].first_input_seq <= position.next_input_seq)
        )

    def _on_snapshot(self, snapshot: ChannelSnapshot, now_ns: int) -> Next:
        channel = self.channel
        if snapshot.position.epoch < channel.intake.epoch:
            return None
        try:
            channel.line.install(snapshot)
        except SnapshotRefused:
            channel.counters.add(Counter.SNAPSHOTS_REFUSED)
            return None  # it is requested again
        except ValueError as mismatch:
            return ToFailed(f"the active's conversion state does not fit: {mismatch}")
        self._is_resumed = False
        channel.transmitted_ends.clear()
        try:
            channel.intake.on_lineage(snapshot.lineage, snapshot.position)
            channel.anchor(now_ns)
            channel.intake.on_runs((), now_ns)
        except DecisionConflict:
            channel.unanchor()
            self._ask_at_ns = now_ns
            return None
        if channel.save_schedule.is_small_enough(len(snapshot.conversion_state)):
            channel.emit(SaveState(snapshot))  # older entries in the journal do not lead to this position
        return self._enter_group(f"snapshot at input_seq {channel.line.next_input_seq}", now_ns)

    def _enter_group(self, reason: str, now_ns: int, catch_up_ns: int | None = None) -> Next:
        self.channel.active.heard_at_ns = now_ns
        catch_up_by_ns = None if catch_up_ns is None else now_ns + catch_up_ns
        return ToFollowing(ReplicaState.RESYNCHRONIZING, reason, catch_up_by_ns)

    # ---- the lease, and time ----

    def promote(self, epoch: int, now_ns: int) -> Next:
        return ToDeciding(epoch, is_unplaced=not self._is_resumed)

    def on_timer(self, now_ns: int) -> Next:
        if self.channel.active.adapter_id and now_ns >= self._ask_at_ns:
            self._ask_at_ns = now_ns + self.channel.config.snapshot_retry_ns
            self._ask()
        return self.due_promotion(now_ns)  # if the place was lost meanwhile, the epoch begins at the last position

    def _ask(self) -> None:
        """Request the decisions that follow this adapter's journal or, if that failed, a snapshot."""
        channel = self.channel
        if self._is_resumed and self._tries_left:
            self._tries_left -= 1
            channel.request_runs()
            return
        if self._is_resumed:
            self._forget_previous_process()
        channel.emit(RequestSnapshot(channel.channel_id, channel.active.adapter_id, channel.line.session))

    def next_deadline_ns(self) -> int | None:
        ask_at_ns = self._ask_at_ns if self.channel.active.adapter_id else None
        return earliest(self.channel.hand_over.next_deadline_ns(), ask_at_ns)
