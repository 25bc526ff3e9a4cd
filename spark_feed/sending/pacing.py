"""When the next packet is due. The schedule is absolute, so that delays do not add up. Pure.

After a stall the schedule shifts so that at most `catch_up_ns` worth of packets follow in a burst, because receivers
have bounded buffers.
"""

from __future__ import annotations

from typing import Protocol

BURST_RATE_MAX = 100_000.0  # messages per second, because a recorded burst may share one time stamp
CATCH_UP_NS = 20_000_000  # the kernel's default socket buffer takes about 100 full packets: 5,000 a second times 20 ms
NS = 1_000_000_000


class Pacer(Protocol):
    """The schedule that the sending core follows."""

    def due_ns(self, event_at_ns: int, now_ns: int) -> int:
        """When to send the next packet, given the event time of its last message."""

    def on_sent(self, message_count: int, due_ns: int, now_ns: int) -> None:
        """The packet that was due at `due_ns` was sent at `now_ns`."""


class RatePacer:
    """A constant number of messages per second."""

    def __init__(self, messages_per_s: float, catch_up_ns: int = CATCH_UP_NS) -> None:
        if not messages_per_s > 0:
            raise ValueError(f"the rate is {messages_per_s:g} messages per second; it must be greater than 0")
        self._interval_ns = NS / messages_per_s
        self._catch_up_ns = catch_up_ns
        self._origin_ns: int | None = None
        self._sent_count = 0

    def due_ns(self, event_at_ns: int, now_ns: int) -> int:
        """The origin plus the time that the messages sent so far take at this rate."""
        if self._origin_ns is None:
            self._origin_ns = now_ns
        return self._origin_ns + int(self._sent_count * self._interval_ns)

    def on_sent(self, message_count: int, due_ns: int, now_ns: int) -> None:
        """Count the messages; after a stall, shift the origin."""
        assert self._origin_ns is not None, "on_sent before due_ns"
        self._sent_count += message_count
        self._origin_ns += max(0, now_ns - due_ns - self._catch_up_ns)


class SpeedPacer:
    """The recorded pace times a factor, up to `burst_rate_max` messages per second."""

    def __init__(self, factor: float, catch_up_ns: int = CATCH_UP_NS, burst_rate_max: float = BURST_RATE_MAX) -> None:
        if not factor > 0:
            raise ValueError(f"the speed is {factor:g}; it must be greater than 0")
        self._factor = factor
        self._interval_min_ns = NS / burst_rate_max
        self._not_before_ns = 0.0  # since the origin
        self._catch_up_ns = catch_up_ns
        self._origin_ns: int | None = None
        self._first_event_at_ns = 0
        self._last_event_at_ns = 0

    def due_ns(self, event_at_ns: int, now_ns: int) -> int:
        """The origin plus the scaled time since the first event; never before the previous event."""
        if self._origin_ns is None:
            self._origin_ns = now_ns
            self._first_event_at_ns = self._last_event_at_ns = event_at_ns
        self._last_event_at_ns = max(self._last_event_at_ns, event_at_ns)
        elapsed_ns = (self._last_event_at_ns - self._first_event_at_ns) / self._factor
        return self._origin_ns + int(max(elapsed_ns, self._not_before_ns))

    def on_sent(self, message_count: int, due_ns: int, now_ns: int) -> None:
        """Set the earliest time of the next packet; after a stall, shift the origin."""
        assert self._origin_ns is not None, "on_sent before due_ns"
        self._not_before_ns = due_ns - self._origin_ns + message_count * self._interval_min_ns
        self._origin_ns += max(0, now_ns - due_ns - self._catch_up_ns)
