"""How a replica gets its place in the channel: by its own journal and what follows, or by a snapshot (protocol 5.1).

Part of `feedcore.replica.replica`, which says when and moves the state.
"""

from __future__ import annotations

from collections.abc import Iterable

from feedcore.replica.channel_state import ChannelSnapshot
from feedcore.replica.config import ReplicaConfig
from feedcore.replica.decision_log import RunsReply
from feedcore.replica.effects import AdapterEffect, RequestRuns, RequestSnapshot
from feedcore.replica.following import Follower, OutOfStep
from feedcore.replica.own_past import OwnPast
from feedcore.replica.production import SnapshotRefused
from feedcore.wire.position import Run


class Joining:
    """What a JOINING replica knows and asks for.

    Attributes:
        past: what this adapter's journal says of its former life.
    """

    def __init__(self, channel_id: int, follower: Follower, config: ReplicaConfig, now_ns: int) -> None:
        self.past = OwnPast(config.state_interval_ns, now_ns)
        self._channel_id, self._follower = channel_id, follower
        self._retry_ns = config.snapshot_retry_ns
        self._ask_at_ns = now_ns

    def ask_at_once(self, now_ns: int) -> None:
        """Somebody else can be asked, or something else must be."""
        self._ask_at_ns = now_ns

    def resume_from(self, snapshot: ChannelSnapshot, runs: Iterable[Run], now_ns: int) -> None:
        """Stand where the journal's newest state is; the decisions transmitted behind it are applied as the source
        messages come."""
        follower = self._follower
        try:
            follower.line.install(snapshot)
        except (ValueError, SnapshotRefused):  # the table was changed between two lives: begin with an empty state
            return
        intake = follower.intake
        intake.lineage = follower.line.lineage
        follower.anchor(now_ns)
        decided = []
        for run in runs:
            if run.epoch > intake.lineage.epoch and run.first_message_seq < intake.lineage.first_message_seq:
                break  # the former life had to begin anew there
            if run.epoch > intake.lineage.epoch:  # one that began since: its first decision says where
                intake.lineage = intake.lineage.opened(run.epoch, run.first_message_seq)
            decided.append(run)
        try:
            follower.take(RunsReply(intake.lineage, tuple(decided)), now_ns)
        except OutOfStep:
            follower.unanchor()
            return
        self.past.adopt(intake.position().next_message_seq)

    def is_continued_by(self, reply: RunsReply) -> bool:
        """True if the decisions in the reply follow this adapter's own past without a seam."""
        position = self._follower.intake.position()
        behind = [run for run in reply.runs if run.message_count]
        return (
            self.past.is_usable
            and reply.lineage.holds(position.epoch, position.next_message_seq)
            and (not behind or behind[0].first_message_seq == position.next_message_seq)
        )

    def install(self, snapshot: ChannelSnapshot, now_ns: int) -> None:
        """Stand where the active does.

        Raises:
            ValueError: it is another table's; nothing has changed.
            SnapshotRefused: it is damaged; nothing has changed.
            OutOfStep: what was heard since contradicts it.
        """
        follower = self._follower
        follower.line.install(snapshot)
        self.past.forget()
        follower.intake.on_lineage(snapshot.lineage, snapshot.position)
        follower.anchor(now_ns)
        follower.intake.on_runs((), now_ns)

    def begin_anew(self, now_ns: int) -> None:
        """Without a place from now on: a snapshot is wanted, at once."""
        self.past.forget()
        self._follower.unanchor()
        self._ask_at_ns = now_ns

    def due_request(self, active_adapter_id: int, now_ns: int) -> AdapterEffect | None:
        """What to ask the active for, if it is time."""
        if not active_adapter_id or now_ns < self._ask_at_ns:
            return None
        self._ask_at_ns = now_ns + self._retry_ns
        was_usable = self.past.is_usable
        if self.past.take_try():
            return RequestRuns(self._channel_id, active_adapter_id, self._follower.intake.position())
        if was_usable:
            self._follower.unanchor()
        return RequestSnapshot(self._channel_id, active_adapter_id)

    def next_deadline_ns(self, active_adapter_id: int) -> int | None:
        """When to ask."""
        return self._ask_at_ns if active_adapter_id else None
