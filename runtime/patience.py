"""How long to wait before something that is not heard counts as missing. Pure: time comes in.

A process that was paused (stopped, swapped out, its machine suspended) finds that everything it waits for is late,
although all of it may have arrived meanwhile and only wait to be read. So the time of a pause proves nothing about
others, and after it they get the whole time again: connections may have to be made again.

Invariant: patience ends only after `limit_ns` in which this process looked at least every `pause_ns`.
"""

from __future__ import annotations


class Patience:
    """One thing that is waited for. Owner: one thread at a time.

    Args:
        limit_ns: for how long.
        pause_ns: this process was paused if it did not look for longer.
    """

    def __init__(self, limit_ns: int, pause_ns: int) -> None:
        assert pause_ns > 0
        self._limit_ns, self._pause_ns = limit_ns, pause_ns
        self._looked_at_ns: int | None = None
        self._waited_ns = 0

    @property
    def is_waiting(self) -> bool:
        """Whether anything is waited for."""
        return self._looked_at_ns is not None

    def begin(self, now_ns: int) -> None:
        """Wait from now on. Does nothing if it waits already."""
        if self._looked_at_ns is None:
            self._looked_at_ns, self._waited_ns = now_ns, 0

    def end(self) -> None:
        """It is there, or no longer expected."""
        self._looked_at_ns = None

    def is_over(self, now_ns: int) -> bool:
        """Look: whether it counts as missing now. Look only after what has arrived was read.

        Call it at `next_look_ns` or earlier.
        """
        if self._looked_at_ns is None:
            return False
        unwatched_ns, self._looked_at_ns = now_ns - self._looked_at_ns, now_ns
        self._waited_ns = 0 if unwatched_ns > self._pause_ns else self._waited_ns + unwatched_ns
        return self._waited_ns >= self._limit_ns

    def next_look_ns(self) -> int | None:
        """When to look at the latest; None: nothing is waited for."""
        if self._looked_at_ns is None:
            return None
        return self._looked_at_ns + min(max(self._limit_ns - self._waited_ns, 0), max(self._pause_ns // 2, 1))


class RunningTime:
    """A clock that stands still while this process is paused. Owner: one thread.

    Args:
        pause_ns: between two looks at most this much passes.
    """

    def __init__(self, pause_ns: int) -> None:
        assert pause_ns > 0
        self._pause_ns = pause_ns
        self._looked_at_ns: int | None = None
        self._running_ns = 0

    def look(self, now_ns: int) -> int:
        """For how long the process has run. Call it often."""
        if self._looked_at_ns is not None:
            self._running_ns += min(now_ns - self._looked_at_ns, self._pause_ns)
        self._looked_at_ns = now_ns
        return self._running_ns
