"""The role of a backup that hears neither an active nor an admin server: sends provisionally (protocol 6.8).

Decisions are applied only once they cover everything that was sent provisionally. Until then, a granted lease can still
commit what was sent. While an active is heard, sending pauses after every k-th message, so that the active gets past.
"""

from __future__ import annotations

from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.input.applying import apply_decisions, forward
from tandemfeed.feedcore.replica.output.production import ConversionDiverged
from tandemfeed.feedcore.replica.output.provisional import Throttle
from tandemfeed.feedcore.replica.roles.following import PositionedBackup
from tandemfeed.feedcore.replica.roles.role import Next, ToFollowing, ToJoining
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import OutputFlag


class Ahead(PositionedBackup):
    """Owns the throttle; the production line owns what was sent ahead."""

    heartbeat_flags = int(OutputFlag.PROVISIONAL)

    def __init__(self, channel: Channel, now_ns: int) -> None:
        super().__init__(channel, now_ns)
        self._throttle = Throttle(channel.config.throttle_message_count, channel.config.throttle_pause_ns)

    def begin(self, now_ns: int) -> Next:
        return self.apply(now_ns)

    def apply(self, now_ns: int) -> Next:
        channel = self.channel
        try:
            apply_decisions(channel, now_ns)
        except ConversionDiverged as divergence:
            return self.diverge(divergence, now_ns)
        is_silent = channel.is_active_silent(now_ns)
        if channel.line.provisional is None and not is_silent:
            return ToFollowing(ReplicaState.RESYNCHRONIZING, "the active is past all that was sent ahead")
        forward(channel, self._throttle, now_ns, is_throttled=not is_silent)
        return self.due_promotion(now_ns)

    def on_timer(self, now_ns: int) -> Next:
        self.request_runs(now_ns)
        if self.is_stuck(now_ns) and not self.channel.is_active_silent(now_ns):
            return ToJoining(f"the source messages of {self._front_run} did not arrive")
        return self.apply(now_ns)

    def next_deadline_ns(self) -> int | None:
        pause_ends_ns = self._throttle.until_ns if self.channel.backlog.message_count else None
        return earliest(self.channel.intake.next_deadline_ns(), pause_ends_ns)
