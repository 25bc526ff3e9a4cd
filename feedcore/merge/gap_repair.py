"""When to ask for missing messages, how often, and when to give up: the client's patience, as a core of its own."""

from __future__ import annotations

from dataclasses import dataclass

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class RepairConfig:
    """Timers of gap repair at the client.

    Attributes:
        request_after_ns: how long to wait for another adapter's copy before asking a replay service.
        retry_every_ns: pause before the second request; doubled for each further one.
        retry_every_max_ns: cap of that pause.
        declare_after_ns: how long to go on asking before the gap is declared.
        reorder_ns: how long to wait once every live stream is past it: the network may have changed packets' order.
    """

    request_after_ns: int = 4 * MS
    retry_every_ns: int = 20 * MS
    retry_every_max_ns: int = 250 * MS
    declare_after_ns: int = 5_000 * MS
    reorder_ns: int = MS // 5

    def __post_init__(self) -> None:
        assert self.reorder_ns <= self.request_after_ns
        assert self.request_after_ns <= self.retry_every_ns <= self.retry_every_max_ns < self.declare_after_ns


class GapRepair:
    """The patience for one gap at a time: the first one, because nothing after it can be delivered.

    Args:
        config: timers.
    """

    def __init__(self, config: RepairConfig) -> None:
        self._config = config
        self._since_ns: int | None = None
        self._request_at_ns = 0
        self._attempts = 0
        self._has_asked = False
        self._jitter = 0.0  # the newest we were given: clients that lost the same packet do not ask in step

    @property
    def is_open(self) -> bool:
        """True while something is missing."""
        return self._since_ns is not None

    def opened(self, now_ns: int) -> bool:
        """there is a gap; True if that is news."""
        if self._since_ns is not None:
            return False
        self._since_ns = now_ns
        self._request_at_ns = now_ns + int(self._config.request_after_ns * (1 + self._jitter / 2))
        self._attempts = 0
        self._has_asked = False
        return True

    def progressed(self, now_ns: int) -> None:
        """What is missing now is another gap: patience begins anew, but a request under way is not repeated early."""
        if self._since_ns is not None:
            self._since_ns = now_ns
            self._attempts = 0

    def hurry(self, now_ns: int) -> None:
        """Every live stream is past the gap: waiting long for another copy is in vain."""
        if self._since_ns is not None and not self._has_asked:
            self._request_at_ns = min(self._request_at_ns, now_ns + self._config.reorder_ns)

    def closed(self) -> None:
        """The gap is gone."""
        self._since_ns = None

    def next_deadline_ns(self) -> int | None:
        """When to ask, or to give up."""
        if self._since_ns is None:
            return None
        return min(self._request_at_ns, self._since_ns + self._config.declare_after_ns)

    def is_hopeless(self, now_ns: int) -> bool:
        """True once the gap has been open for longer than the limit."""
        return self._since_ns is not None and now_ns - self._since_ns >= self._config.declare_after_ns

    def is_request_due(self, now_ns: int, jitter: float) -> bool:
        """True once per due request.

        Args:
            jitter: in [0, 1): spreads the next one over a pause to twice a pause, so that clients do not ask in step.
        """
        self._jitter = jitter
        if self._since_ns is None or now_ns < self._request_at_ns:
            return False
        pause = min(self._config.retry_every_ns << min(self._attempts, 16), self._config.retry_every_max_ns)
        self._attempts += 1
        self._has_asked = True
        self._request_at_ns = now_ns + pause + int(pause * jitter)
        return True
