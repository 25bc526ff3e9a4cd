"""The time by which a gateway holds messages back and limits rates: it begins as the wall clock, and is never stepped.

An administrator or NTP may set the wall clock back by an hour. What is measured by it would then stand still for an
hour: no rate would be regained, so nothing more would be accepted or numbered. What is stored, such as until when a
message is held, is still an absolute time, which the next start reads by its own clock.
"""

from __future__ import annotations

from collections.abc import Callable


class SteadyClock:
    """The wall clock of the moment when it is made, and what has passed since then.

    Args:
        wall_clock_ns: ns since 1970.
        clock_ns: monotonic time.
    """

    def __init__(self, wall_clock_ns: Callable[[], int], clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._offset_ns = wall_clock_ns() - clock_ns()

    def __call__(self) -> int:
        """The present time, in ns since 1970."""
        return self._clock_ns() + self._offset_ns
