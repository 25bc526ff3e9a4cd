"""Time for judging others: it stands still while this process does not look. Pure.

To a process that was stopped, or whose application was busy, everything that it heard seems old, although the others
did nothing wrong: what they sent meanwhile waits in queues, or was lost there. So code that decides about a sender by
the age of something heard (silence, time-outs, patience with a gap) takes this time.

Between two looks at the network, time advances as usual, up to PAUSE_NS. More is a pause. Then time stands still for
another MOMENT_NS, in which the queues are read, and after that advances by PAUSE_NS and the moment. So an application
that always pauses learns of silence, too, but later. If nothing arrived meanwhile, all of the pause counts.

A loop that waits for the network, while something can become due, must look at least every LOOK_EVERY_NS.

Invariant: it never goes back, and never advances by more than another clock would since it was last looked at, and
before that stood still.
"""

from __future__ import annotations

MS = 1_000_000
LOOK_EVERY_NS = 25 * MS
PAUSE_NS = 30 * MS  # between two looks
MOMENT_NS = 20 * MS  # in which the threads of libzmq and of calls pass on what arrived while they were stopped as well
assert PAUSE_NS > LOOK_EVERY_NS


class PauseFreeClock:
    """For one thread at a time.

    Args:
        monotonic_ns: the time now, by a clock that does not stop.

    Attributes:
        now_ns: the time at the last look.
        limit_ns: the time that it does not pass before the next look.
        pause_count: how many pauses have ended.
        paused_ns: how far it was behind the clock that does not stop, at the last look.
    """

    __slots__ = ("_looked_at_ns", "_owed_ns", "_still_until_ns", "limit_ns", "now_ns", "pause_count", "paused_ns")

    def __init__(self, monotonic_ns: int) -> None:
        self.now_ns = self._looked_at_ns = monotonic_ns
        self.limit_ns, self.paused_ns, self.pause_count = monotonic_ns + PAUSE_NS, 0, 0
        self._owed_ns = self._still_until_ns = 0  # what it advances by, when it has stood still for a moment

    def look(self, monotonic_ns: int, *, missed_nothing: bool = False) -> int:
        """The process looks at the network now. Returns the time.

        Args:
            missed_nothing: nothing arrived since the last look, nor within a moment after a pause: all of it counts.
        """
        passed_ns, self._looked_at_ns = monotonic_ns - self._looked_at_ns, monotonic_ns
        is_still = monotonic_ns < self._still_until_ns
        if missed_nothing or (passed_ns <= PAUSE_NS and not is_still):
            advance_ns, self._owed_ns = passed_ns + self._owed_ns, 0
            is_still = False
        elif passed_ns <= PAUSE_NS:
            advance_ns, self._owed_ns = 0, self._owed_ns + passed_ns
        else:  # a pause has ended; the one before it counts
            advance_ns, self._owed_ns = (0 if is_still else self._owed_ns), PAUSE_NS
            self._still_until_ns, is_still = monotonic_ns + MOMENT_NS, True
            self.pause_count += 1
        self.now_ns += advance_ns
        self.paused_ns = monotonic_ns - self.now_ns
        self.limit_ns = self.now_ns if is_still else self.now_ns + PAUSE_NS
        return self.now_ns

    def was_paused(self, monotonic_ns: int) -> bool:
        """True if the last look is too long ago to count in full."""
        return monotonic_ns - self._looked_at_ns > PAUSE_NS

    def between(self, monotonic_ns: int) -> int:
        """The time at a moment after the last look."""
        return min(monotonic_ns - self.paused_ns, self.limit_ns)

    def monotonic_ns(self, at_ns: int) -> int:
        """When the clock that does not stop will show it, if there is no pause."""
        return at_ns + self.paused_ns
