"""When each event of a recording is due in a replay. Pure: takes event times, returns due times, without a clock.

Invariant: the distance of two due times is the distance of the events divided by the speed, whatever happens between
them. A replay that is late continues without waiting until it has caught up.
"""

from __future__ import annotations

from fractions import Fraction


class Pacer:
    """The due times of one replay.

    Args:
        speed: 1 as recorded, 10 ten times as fast; None: every event is due immediately.

    Raises:
        ValueError: the speed is not greater than 0.
    """

    def __init__(self, speed: Fraction | None) -> None:
        if speed is not None and speed <= 0:
            raise ValueError(f"speed is {speed}; it must be greater than 0")
        self._speed = speed
        self._anchor: tuple[int, int] | None = None

    def due_ns(self, event_at_ns: int, now_ns: int) -> int:
        """When an event is due, on the clock of `now_ns`; the first one is due now.

        Args:
            event_at_ns: when it happened.
            now_ns: the current time of any monotonic clock.
        """
        if self._speed is None:
            return now_ns
        if self._anchor is None:
            self._anchor = event_at_ns, now_ns
        first_at_ns, began_ns = self._anchor
        return began_ns + int((event_at_ns - first_at_ns) / self._speed)


def parse_speed(text: str) -> Fraction | None:
    """Parse a speed: 1, 0.5, 10x, max.

    Raises:
        ValueError: the text is not a speed.
    """
    if text.strip().lower() == "max":
        return None
    try:
        speed = Fraction(text.strip().lower().removesuffix("x"))
    except (ValueError, ZeroDivisionError):
        speed = Fraction(0)
    if speed <= 0:
        raise ValueError(f"{text!r} is not a speed; write 1 (as recorded), 10, 0.5, or max")
    return speed
