"""The role of a replica without a place in the channel: it gets one by its own journal or a snapshot (protocol 5.1).

Every adapter begins with it. It hears everything meanwhile, transmits nothing, and asks the active it knows of.
"""

from __future__ import annotations

from collections.abc import Iterable

from feedcore.counters import Counter
from feedcore.replica.applying import apply_decisions
from feedcore.replica.channel import Channel
from feedcore.replica.channel_state import ChannelSnapshot
from feedcore.replica.decision_intake import OutOfStep
from feedcore.replica.decision_log import RunsReply
from feedcore.replica.effects import AdapterEffect, RequestRuns, RequestSnapshot, SaveState
from feedcore.replica.production import ConversionDiverged, SnapshotRefused
from feedcore.replica.restart_state import RestartState
from feedcore.replica.role import BackupRole, Succession, ToDeciding, ToFailed, ToFollowing
from feedcore.replica.source_tracker import Slice
from feedcore.replica.states import ReplicaState
from feedcore.wire.lineage import Lineage
from feedcore.wire.position import FIRST_SEQ, MessageStreamState, Run

CATCH_UP_NS_MAX = 2_000_000_000  # an old state, or a source journal that does not answer: a snapshot is faster


class Joining(BackupRole):
    """Owns what this adapter's journal says of its former life, and when to ask."""

    def __init__(self, channel: Channel, now_ns: int) -> None:
        super().__init__(channel)
        self._restart = RestartState()
        self._ask_at_ns = now_ns

    def begin(self, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        self.channel.unanchor()
        return None

    def resume_from(self, snapshot: ChannelSnapshot, runs: Iterable[Run], now_ns: int) -> None:
        """Stand where the journal's newest state is; the decisions transmitted after it are applied as the source
        messages come. Before any other event."""
        channel = self.channel
        try:
            channel.line.install(snapshot)
        except (ValueError, SnapshotRefused):  # the table was changed between two lives: begin with an empty state
            return
        intake = channel.intake
        intake.lineage = channel.line.lineage
        channel.anchor(now_ns)
        decided, next_input_seq = [], snapshot.position.next_input_seq
        for run in runs:
            if run.first_input_seq != next_input_seq or run.epoch < intake.lineage.epoch:
                break  # the former life had to join anew there
            if run.epoch > intake.lineage.epoch:  # an epoch that began since: its first decision says where
                intake.lineage = intake.lineage.opened(run.epoch, run.first_input_seq, run.first_message_seq)
            decided.append(run)
            next_input_seq = run.end_input_seq
        try:
            channel.take_runs(RunsReply(intake.lineage, tuple(decided)), now_ns)
        except OutOfStep:
            channel.unanchor()
            return
        self._restart.adopt(next_input_seq)

    def begin_session(self, conversion_state: bytes, now_ns: int) -> Succession | None:
        """A session begins, and this is its conversion state there: its first decision is the next one."""
        channel = self.channel
        position = MessageStreamState(next_source_seqs=dict.fromkeys(channel.trackers, FIRST_SEQ))
        channel.line.install(ChannelSnapshot(channel.channel_id, position, Lineage(), conversion_state))
        try:
            channel.anchor(now_ns)
            channel.intake.on_runs((), now_ns)  # those that were heard before
        except OutOfStep:  # what was heard of it contradicts itself: the active's snapshot tells
            channel.unanchor()
            return None
        return ToFollowing(ReplicaState.RESYNCHRONIZING, f"session {channel.line.session} begins")

    # ---- what is heard ----

    def on_slices(
        self, source_stream_id: int, slices: list[Slice], effects: list[AdapterEffect], now_ns: int
    ) -> Succession | None:
        channel = self.channel
        channel.backlog.add(source_stream_id, slices)
        if channel.backlog.message_count > channel.config.backlog_count_max:
            return self.leave("too many source messages wait for decisions", now_ns)
        return self.apply(effects, now_ns)

    def on_active_changed(self, now_ns: int) -> None:
        self._ask_at_ns = now_ns

    def leave(self, reason: str, now_ns: int, *, is_trouble: bool = False) -> Succession | None:
        """The only place it can lose is the one its own journal gave it."""
        if self._restart.is_usable:
            self._restart.forget()
            self.channel.unanchor()
            self._ask_at_ns = now_ns
        return None

    def apply(self, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        if self._restart.is_usable:
            try:
                end = self._restart.transmitted_end
                apply_decisions(self.channel, effects, now_ns, quiet_end=end, only_quiet=True)
            except ConversionDiverged as divergence:
                self.channel.counters.add(Counter.DIGESTS_UNEQUAL)
                return self.leave(str(divergence), now_ns)
        return None

    # ---- answers ----

    def on_runs(self, reply: RunsReply, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        channel = self.channel
        if not self._is_continued_by(reply):
            return self.leave("the active's decisions do not continue its own", now_ns)
        try:
            channel.take_runs(reply, now_ns)
        except OutOfStep as contradiction:
            return self.leave(str(contradiction), now_ns)
        channel.counters.add(Counter.STATES_RESUMED)
        reason = f"own journal at input_seq {channel.line.next_input_seq}"
        return self._enter_group(reason, now_ns, self._restart.transmitted_end, now_ns + CATCH_UP_NS_MAX)

    def on_runs_refused(self, reason: str, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        return self.leave(reason, now_ns)

    def on_snapshot(self, snapshot: ChannelSnapshot, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        channel = self.channel
        if snapshot.position.epoch < channel.intake.epoch:
            return None
        try:
            channel.line.install(snapshot)
        except SnapshotRefused:
            channel.counters.add(Counter.SNAPSHOTS_REFUSED)
            return None  # it is asked for again
        except ValueError as mismatch:
            return ToFailed(f"the active's conversion state does not fit: {mismatch}")
        self._restart.forget()
        try:
            channel.intake.on_lineage(snapshot.lineage, snapshot.position)
            channel.anchor(now_ns)
            channel.intake.on_runs((), now_ns)
        except OutOfStep:
            channel.unanchor()
            self._ask_at_ns = now_ns
            return None
        if channel.savings.is_small_enough(len(snapshot.conversion_state)):
            effects.append(SaveState(snapshot))  # what the journal holds from before does not lead up to here
        return self._enter_group(f"snapshot at input_seq {channel.line.next_input_seq}", now_ns)

    def _is_continued_by(self, reply: RunsReply) -> bool:
        """True if the decisions in the reply follow this adapter's own past without a gap."""
        position = self.channel.intake.position()
        return (
            self._restart.is_usable
            and reply.lineage.holds(position.epoch, position.next_input_seq)
            and (not reply.runs or reply.runs[0].first_input_seq <= position.next_input_seq)
        )

    def _enter_group(
        self, reason: str, now_ns: int, quiet_end: int = FIRST_SEQ, catch_up_by_ns: int | None = None
    ) -> Succession:
        self.channel.active.heard_at_ns = now_ns
        return ToFollowing(ReplicaState.RESYNCHRONIZING, reason, quiet_end, catch_up_by_ns)

    # ---- the lease, and time ----

    def promote(self, epoch: int, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        return ToDeciding(epoch, is_unplaced=not self._restart.is_usable)

    def on_timer(self, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        request = self._due_request(now_ns)
        if request is not None:
            effects.append(request)
        return self.due_promotion(now_ns)  # if its place was lost meanwhile, it begins where it stood

    def _due_request(self, now_ns: int) -> AdapterEffect | None:
        """What to ask the active for, if it is time."""
        channel = self.channel
        active_id = channel.active.adapter_id
        if not active_id or now_ns < self._ask_at_ns:
            return None
        self._ask_at_ns = now_ns + channel.config.snapshot_retry_ns
        was_usable = self._restart.is_usable
        if self._restart.take_try():
            return RequestRuns(channel.channel_id, active_id, channel.intake.position(), channel.line.session)
        if was_usable:
            channel.unanchor()
        return RequestSnapshot(channel.channel_id, active_id, channel.line.session)

    def next_deadline_ns(self) -> int | None:
        due = [self.channel.hand_over.next_deadline_ns()]
        due.append(self._ask_at_ns if self.channel.active.adapter_id else None)
        return min((at_ns for at_ns in due if at_ns is not None), default=None)
