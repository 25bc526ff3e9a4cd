"""Pauses of the own process, as a core notices them: it was called much later than it had asked for.

A process that was stopped, or did not get a processor, finds afterwards that all others have been silent and that every
time limit has passed, although what they sent meanwhile waits in its queues. A core that judges others by their silence
therefore asks before each event whether its own process was paused, and adds the pause, once, to every time from which
it measures the silence of others (docs/protocol.md clause 11).

It must never extend what its own process may do: a lease runs out during a pause like at any other time.

Invariant: the pauses that it reports do not overlap, and none is longer than the time since the last event.
"""

from __future__ import annotations

NEVER_NS = 1 << 62


class OwnPauses:
    """The pauses of one process.

    Args:
        late_ns: a core that is called this much later than it asked for was paused; less is ordinary scheduling. A
            pause is noticed from the first deadline that it delays, so what the core judges must take longer than the
            time between two of its deadlines and `late_ns`.

    Attributes:
        noticed_at_ns: an event at this time or later ends a pause. A plain attribute, because every event reads it.
    """

    __slots__ = ("_due_ns", "_late_ns", "noticed_at_ns")

    def __init__(self, late_ns: int) -> None:
        self._late_ns = late_ns
        self._due_ns = self.noticed_at_ns = NEVER_NS

    def expect(self, deadline_ns: int | None, served_at_ns: int) -> None:
        """The core asks to be called at its deadline, if it has one.

        Args:
            served_at_ns: the time of the last event: what was overdue then has not been delayed since.
        """
        self._due_ns = NEVER_NS if deadline_ns is None else max(deadline_ns, served_at_ns)
        self.noticed_at_ns = self._due_ns + self._late_ns

    def take(self, now_ns: int) -> int:
        """Take an event. Returns for how long the process was paused before it, or 0."""
        if now_ns < self.noticed_at_ns:
            return 0
        self.noticed_at_ns = NEVER_NS
        return now_ns - self._due_ns
