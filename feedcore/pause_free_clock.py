"""Time for judging others: it stands still while this process does not look. Pure.

To a process that was stopped, or whose application was busy, everything that it heard seems old, although the others
did nothing wrong: what they sent meanwhile waits in queues, or was lost there. So code that decides about a sender by
the age of something heard (silence, time-outs, patience with a gap) takes this time.

Between two looks at the network, time advances as usual, up to `pause_ns`. More is a pause. Then time stands still for
another `moment_ns`, in which the queues are read, and after that advances by `counted_ns` and the moment. So an
application that always pauses learns of silence, too, but later. If nothing arrived meanwhile, all of the pause counts.

The defaults are for a loop that waits for the network: while something can become due, it must look at least every
LOOK_EVERY_NS. A core that is called at its own deadlines, and measures some things by the true time, notices its pauses
by a late call instead (`feedcore.hiccup`).

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
        pause_ns: this process was paused if it did not look for longer.
        moment_ns: how long the queues are read after a pause, until something can be judged.
        counted_ns: how much of a pause counts; None: `pause_ns`.

    Attributes:
        now_ns: the time at the last look.
        limit_ns: the time that it does not pass before the next look.
        pause_count: how many pauses have ended.
        paused_ns: how far it was behind the clock that does not stop, at the last look.
    """

    __slots__ = (
        "_counted_ns", "_looked_at_ns", "_moment_ns", "_owed_ns", "_pause_ns", "_still_until_ns",
        "limit_ns", "now_ns", "pause_count", "paused_ns",
    )  # fmt: skip

    def __init__(
        self,
        monotonic_ns: int,
        *,
        pause_ns: int = PAUSE_NS,
        moment_ns: int = MOMENT_NS,
        counted_ns: int | None = None,
    ) -> None:
        self._pause_ns, self._moment_ns = pause_ns, moment_ns
        self._counted_ns = pause_ns if counted_ns is None else counted_ns
        assert 0 <= self._counted_ns <= pause_ns
        self.now_ns = self._looked_at_ns = monotonic_ns
        self.limit_ns, self.paused_ns, self.pause_count = monotonic_ns + pause_ns, 0, 0
        self._owed_ns = self._still_until_ns = 0  # what it advances by, when it has stood still for a moment

    def look(self, monotonic_ns: int, *, missed_nothing: bool = False) -> int:
        """The process looks at the network now. Returns the time.

        Args:
            missed_nothing: nothing arrived since the last look, nor within a moment after a pause: all of it counts.
        """
        passed_ns, self._looked_at_ns = monotonic_ns - self._looked_at_ns, monotonic_ns
        is_still = monotonic_ns < self._still_until_ns
        if missed_nothing or (passed_ns <= self._pause_ns and not is_still):
            advance_ns, self._owed_ns = passed_ns + self._owed_ns, 0
            is_still = False
        elif passed_ns <= self._pause_ns:
            advance_ns, self._owed_ns = 0, self._owed_ns + passed_ns
        else:  # a pause has ended; the one before it counts
            advance_ns, self._owed_ns = (0 if is_still else self._owed_ns), self._counted_ns
            self._still_until_ns, is_still = monotonic_ns + self._moment_ns, self._moment_ns > 0
            self.pause_count += 1
        self.now_ns += advance_ns
        self.paused_ns = monotonic_ns - self.now_ns
        self.limit_ns = self.now_ns if is_still else self.now_ns + self._pause_ns
        return self.now_ns

    def was_paused(self, monotonic_ns: int) -> bool:
        """True if the last look is too long ago to count in full."""
        return monotonic_ns - self._looked_at_ns > self._pause_ns

    def between(self, monotonic_ns: int) -> int:
        """The time at a moment after the last look."""
        return min(monotonic_ns - self.paused_ns, self.limit_ns)

    def monotonic_ns(self, at_ns: int) -> int:
        """When the clock that does not stop will show it, if there is no pause."""
        return at_ns + self.paused_ns
