"""For how long this process has run: a clock that stands still while it is paused. Pure.

A process that was stopped finds that nothing has arrived for long, although what the others sent may only wait to be
read. So both sides judge the silence of the other by this time. (`feedcore` has a finer clock for those who may import
it; the journal can be used alone.)

Invariant: it never goes back, and between two looks advances by at most `pause_ns`.
"""

from __future__ import annotations


class RunningTime:
    """Owner: one thread.

    Args:
        pause_ns: more than this between two looks is a pause.

    Attributes:
        now_ns: for how long the process had run at the last look.
        looked_at_ns: when that was.
    """

    __slots__ = ("_pause_ns", "looked_at_ns", "now_ns")

    def __init__(self, pause_ns: int) -> None:
        assert pause_ns > 0
        self._pause_ns = pause_ns
        self.now_ns = self.looked_at_ns = 0

    def look(self, monotonic_ns: int) -> int:
        """Look after what has arrived was read, or while it is read. Returns for how long the process has run."""
        self.now_ns += min(max(monotonic_ns - self.looked_at_ns, 0), self._pause_ns)
        self.looked_at_ns = max(monotonic_ns, self.looked_at_ns)
        return self.now_ns

    def monotonic_ns(self, at_ns: int) -> int:
        """When it will be this time, if there is no pause."""
        return self.looked_at_ns + at_ns - self.now_ns

    def next_look_ns(self) -> int:
        """When to look at the latest, so that it does not count as a pause."""
        return self.looked_at_ns + self._pause_ns
