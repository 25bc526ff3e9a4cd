"""What an adapter's own journal says of its former life, and when to write the next entry of it.

A restarted adapter stands where its journal ends: at the saved state, moved on by the decisions that it transmitted
since, as the source messages come in again. It asks the active for the decisions behind that, and takes a whole
snapshot only if that cannot be. Pure bookkeeping: `feedcore.replica.replica` asks and decides.
"""

from __future__ import annotations

from feedcore.wire.position import FIRST_SEQ

STATE_SIZE_MAX = 8 << 20  # taking and writing it holds the channel up by some milliseconds
NEVER_NS = 1 << 62
CATCH_UP_NS_MAX = 2_000_000_000  # an old state, or a source journal that does not answer: a snapshot is faster
TRIES_MAX = 4  # an active that does not answer these is asked for a snapshot


class OwnPast:
    """The past of one channel.

    Attributes:
        is_usable: the channel stands where the former life ended.
        transmitted_end: one past the last `message_seq` the former life transmitted: up to there nothing is sent again.

    Args:
        interval_ns: between two savings.
    """

    def __init__(self, interval_ns: int, now_ns: int) -> None:
        self.is_usable = False
        self.transmitted_end = FIRST_SEQ
        self._tries_left = TRIES_MAX
        self._interval_ns = interval_ns
        self._due_at_ns = now_ns + interval_ns
        self._saved_seqs: dict[int, int] = {}
        self._patience_ends_at_ns: int | None = None

    def adopt(self, transmitted_end: int) -> None:
        """The journal's newest entry was installed."""
        self.is_usable, self.transmitted_end = True, transmitted_end

    def forget(self) -> None:
        """It is of no use."""
        self.is_usable, self.transmitted_end = False, FIRST_SEQ
        self._patience_ends_at_ns = None

    def begin_catching_up(self, now_ns: int) -> None:
        """What it misses is being asked for."""
        self._patience_ends_at_ns = now_ns + CATCH_UP_NS_MAX

    def end_catching_up(self) -> None:
        """It led somewhere, or another way was taken."""
        self._patience_ends_at_ns = None

    def leads_nowhere(self, now_ns: int) -> bool:
        """True if catching up takes so long that a snapshot is the better way, or the only one."""
        return self._patience_ends_at_ns is not None and now_ns >= self._patience_ends_at_ns

    def take_try(self) -> bool:
        """True if the active may be asked for what follows, once more."""
        if self.is_usable:
            self._tries_left -= 1
            if self._tries_left < 0:
                self.forget()
        return self.is_usable

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
