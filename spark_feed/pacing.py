"""When the next packet is due: an absolute schedule, so that no delay of the past adds up. Pure.

After a stall the schedule is moved so that at most `catch_up_ns` worth of packets follow in a burst: receivers have
bounded buffers.
"""

from __future__ import annotations

from typing import Protocol

BURST_RATE_MAX = 100_000.0  # messages a second: recorded bursts may share one time stamp, receivers have limits
CATCH_UP_NS = 20_000_000  # a kernel's default socket buffer holds about 100 full packets: 5,000 a second times 20 ms
NS = 1_000_000_000


class Pacer(Protocol):
    """What the sending core asks of a schedule."""

    def due_ns(self, event_at_ns: int, now_ns: int) -> int:
        """When the packet at hand, whose last message has this event time, should be sent."""

    def on_sent(self, message_count: int, due_ns: int, now_ns: int) -> None:
        """The packet that was due then was sent now."""


class RatePacer:
    """A constant number of messages a second."""

    def __init__(self, messages_per_s: float, catch_up_ns: int = CATCH_UP_NS) -> None:
        if not messages_per_s > 0:
            raise ValueError(f"rate {messages_per_s}: choose more than 0 messages a second")
        self._interval_ns = NS / messages_per_s
        self._catch_up_ns = catch_up_ns
        self._origin_ns: int | None = None
        self._sent_count = 0

    def due_ns(self, event_at_ns: int, now_ns: int) -> int:
        """As far behind the origin as the messages sent so far take at the rate."""
        if self._origin_ns is None:
            self._origin_ns = now_ns
        return self._origin_ns + int(self._sent_count * self._interval_ns)

    def on_sent(self, message_count: int, due_ns: int, now_ns: int) -> None:
        """Count; move the origin after a stall."""
        assert self._origin_ns is not None, "on_sent before due_ns"
        self._sent_count += message_count
        self._origin_ns += max(0, now_ns - due_ns - self._catch_up_ns)


class SpeedPacer:
    """Recorded time, faster or slower by a factor; never faster than `burst_rate_max` messages a second."""

    def __init__(self, factor: float, catch_up_ns: int = CATCH_UP_NS, burst_rate_max: float = BURST_RATE_MAX) -> None:
        if not factor > 0:
            raise ValueError(f"speed {factor}: choose more than 0")
        self._factor = factor
        self._interval_min_ns = NS / burst_rate_max
        self._not_before_ns = 0.0  # behind the origin
        self._catch_up_ns = catch_up_ns
        self._origin_ns: int | None = None
        self._first_event_at_ns = 0
        self._last_event_at_ns = 0

    def due_ns(self, event_at_ns: int, now_ns: int) -> int:
        """As far behind the origin as the event is behind the first one; an event never goes before its forerunner."""
        if self._origin_ns is None:
            self._origin_ns = now_ns
            self._first_event_at_ns = self._last_event_at_ns = event_at_ns
        self._last_event_at_ns = max(self._last_event_at_ns, event_at_ns)
        behind_ns = (self._last_event_at_ns - self._first_event_at_ns) / self._factor
        return self._origin_ns + int(max(behind_ns, self._not_before_ns))

    def on_sent(self, message_count: int, due_ns: int, now_ns: int) -> None:
        """Keep the distance to the next one; move the origin after a stall."""
        assert self._origin_ns is not None, "on_sent before due_ns"
        self._not_before_ns = due_ns - self._origin_ns + message_count * self._interval_min_ns
        self._origin_ns += max(0, now_ns - due_ns - self._catch_up_ns)
