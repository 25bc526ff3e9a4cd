"""A token bucket: how soon the next item may be sent, so that a rate is kept. Pure.

It gains the rate, up to a burst. An item may be sent as soon as nothing is owed, whatever its size, and is then owed
itself. So an item that is larger than the burst is only delayed, and never stuck.

Invariant: between two items, not more than the burst and the earlier item was spent beyond the rate.
"""

from __future__ import annotations

SECOND_NS = 1_000_000_000


class TokenBucket:
    """Args: per_second: the rate; burst: what may be saved while nothing is sent. Both in the unit of `spend`."""

    def __init__(self, per_second: int, burst: int, now_ns: int) -> None:
        assert per_second > 0, per_second
        assert burst >= 0, burst
        self._rate, self._most = per_second, burst * SECOND_NS
        self._left, self._since_ns = self._most, now_ns  # times SECOND_NS, so that nothing is rounded

    def wait_ns(self, now_ns: int) -> int:
        """For how long nothing may be sent; 0: the next item may be sent now."""
        self._gain(now_ns)
        return max(0, -(self._left // self._rate))

    def spend(self, amount: int, now_ns: int) -> None:
        """An item is sent."""
        assert self.wait_ns(now_ns) == 0, "nothing may be sent yet"
        self._left -= amount * SECOND_NS

    def _gain(self, now_ns: int) -> None:
        gained = max(0, now_ns - self._since_ns) * self._rate
        self._left = min(self._most, self._left + gained)
        self._since_ns = max(self._since_ns, now_ns)
