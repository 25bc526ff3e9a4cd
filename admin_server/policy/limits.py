"""The limits of each identity: calls a second, and subscriptions open at a time. Pure."""

from __future__ import annotations

from collections import Counter

SECOND_NS = 1_000_000_000


class CallRates:
    """How many calls each identity may still make now. It gains its rate every second, and saves at most a second's
    worth, or one call if that is more."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, int]] = {}  # identity -> calls left at a time; as many entries as identities

    def admit(self, identity: str, calls_per_second_max: float, now_ns: int) -> bool:
        """Whether the identity may make a call now; if so, it is counted."""
        most = max(1.0, calls_per_second_max)
        left, since_ns = self._left.get(identity, (most, now_ns))
        left = min(most, left + max(0, now_ns - since_ns) * calls_per_second_max / SECOND_NS)
        is_admitted = left >= 1.0
        self._left[identity] = (left - is_admitted, now_ns)
        return is_admitted


class OpenSubscriptions:
    """How many subscriptions each identity has open."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.total = 0

    def begin(self, identity: str, count_max: int | None) -> bool:
        """Count one more, unless the identity has as many as it may have."""
        if count_max is not None and self._counts[identity] >= count_max:
            return False
        self._counts[identity] += 1
        self.total += 1
        return True

    def count_of(self, identity: str) -> int:
        """How many the identity has open."""
        return self._counts[identity]

    def end(self, identity: str) -> None:
        """Count one less."""
        self._counts[identity] -= 1
        self.total -= 1
        if not self._counts[identity]:
            del self._counts[identity]
