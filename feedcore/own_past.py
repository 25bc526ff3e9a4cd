"""What an adapter's own journal says of its former life, and when to write the next entry of it.

A restarted adapter that finds its state in its journal asks the active for the decisions since, and takes a whole
snapshot only if that cannot be. Pure bookkeeping: `feedcore.replica` asks and decides.
"""

from __future__ import annotations

from feedcore.decision_log import RunsReply
from feedcore.position import FIRST_SEQ, ChannelSnapshot

STATE_SIZE_MAX = 8 << 20  # taking and writing it holds the channel up by some milliseconds
NEVER_NS = 1 << 62
CATCH_UP_NS_MAX = 2_000_000_000  # an old state, or a source journal that does not answer: a snapshot is faster
TRIES_MAX = 4  # an active that does not answer these is asked for a snapshot


class OwnPast:
    """The saved state of one channel.

    Args:
        interval_ns: between two savings.
    """

    def __init__(self, interval_ns: int, now_ns: int) -> None:
        self.snapshot: ChannelSnapshot | None = None
        self._tries_left = TRIES_MAX
        self._interval_ns = interval_ns
        self._due_at_ns = now_ns + interval_ns
        self._saved_seqs: dict[int, int] = {}
        self._patience_ends_at_ns: int | None = None

    def adopt(self, snapshot: ChannelSnapshot) -> None:
        """The journal's newest entry."""
        self.snapshot = snapshot
        self._tries_left = TRIES_MAX

    def forget(self) -> ChannelSnapshot | None:
        """It was used, or is of no use."""
        snapshot, self.snapshot = self.snapshot, None
        return snapshot

    def begin_catching_up(self, now_ns: int) -> None:
        """It was installed; what it misses is being asked for."""
        self._patience_ends_at_ns = now_ns + CATCH_UP_NS_MAX

    def end_catching_up(self) -> None:
        """It led somewhere, or another way was taken."""
        self._patience_ends_at_ns = None

    def leads_nowhere(self, now_ns: int) -> bool:
        """True if catching up takes so long that a snapshot is the better way, or the only one."""
        return self._patience_ends_at_ns is not None and now_ns >= self._patience_ends_at_ns

    def take_try(self) -> ChannelSnapshot | None:
        """The entry to go on from, for one more try; None if there is none, or nobody answered often enough."""
        self._tries_left -= 1
        if self._tries_left < 0:
            self.forget()
        return self.snapshot

    def is_continued_by(self, reply: RunsReply) -> bool:
        """True if the decisions in the reply follow the entry: no epoch since began before it, and there is no seam."""
        if self.snapshot is None:
            return False
        position = self.snapshot.position
        starts = {**reply.epoch_starts, reply.epoch: reply.epoch_first_message_seq}
        return (
            reply.epoch >= position.epoch
            and all(first >= position.next_message_seq for epoch, first in starts.items() if epoch > position.epoch)
            and (not reply.runs or reply.runs[0].first_message_seq == position.next_message_seq)
        )

    def is_due(self, next_source_seqs: dict[int, int], now_ns: int) -> bool:
        """True if it is time to save, and there is something new."""
        if now_ns < self._due_at_ns:
            return False
        self._due_at_ns = now_ns + self._interval_ns
        if next_source_seqs == self._saved_seqs or not is_begun(next_source_seqs):
            return False
        self._saved_seqs = dict(next_source_seqs)
        return True

    def is_small_enough(self, size: int) -> bool:
        """False if a state of so many bytes is not worth a pause of the channel; then none is saved any more."""
        if size > STATE_SIZE_MAX:
            self._due_at_ns = NEVER_NS
        return size <= STATE_SIZE_MAX

    def next_deadline_ns(self, *, is_saving: bool) -> int | None:
        """When to ask `is_due`, if it is asked now, or `leads_nowhere` next."""
        due = [self._due_at_ns] if is_saving else []
        if self._patience_ends_at_ns is not None:
            due.append(self._patience_ends_at_ns)
        return min(due, default=None)


def is_begun(next_source_seqs: dict[int, int]) -> bool:
    """False as long as nothing was converted: such a state is not worth keeping."""
    return any(seq != FIRST_SEQ for seq in next_source_seqs.values())
