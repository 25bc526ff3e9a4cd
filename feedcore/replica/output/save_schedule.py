"""When to save a channel's state in the output journal, so that a restarted adapter can continue from it."""

from __future__ import annotations

from tandemfeed.feedcore.wire.position import FIRST_SEQ

STATE_SIZE_MAX = 8 << 20  # making and writing such a state pauses the channel for some milliseconds
NEVER_NS = 1 << 62


class SaveSchedule:
    """When the state of one channel is saved."""

    def __init__(self, interval_ns: int, now_ns: int) -> None:
        self._interval_ns = interval_ns
        self._due_at_ns = now_ns + interval_ns
        self._saved_input_seq = FIRST_SEQ

    def is_due(self, next_input_seq: int, now_ns: int) -> bool:
        """True if it is time to save, and the channel has moved since the last time."""
        if now_ns < self._due_at_ns:
            return False
        self._due_at_ns = now_ns + self._interval_ns
        has_moved = next_input_seq != self._saved_input_seq
        self._saved_input_seq = next_input_seq
        return has_moved

    def is_small_enough(self, size: int) -> bool:
        """False if saving a state of `size` bytes would pause the channel for too long; then none is saved any more."""
        if size > STATE_SIZE_MAX:
            self._due_at_ns = NEVER_NS
        return size <= STATE_SIZE_MAX

    def next_deadline_ns(self) -> int:
        """When to call `is_due`."""
        return self._due_at_ns
