"""The takeovers of a feed: counts by reason, and the last few takeovers. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

LAST_COUNT = 12


class TakeoverReason(StrEnum):
    """Why a lease ended; each value is a sentence about the lease."""

    PROCESS_ENDED = "its adapter's process ended"
    STREAM_ENDED = "its adapter's stream ended"
    TERM_PASSED = "its term passed without renewal"
    GIVEN_UP = "its adapter gave it up"
    HANDED_OVER = "its adapter handed it over"
    FAILED = "its adapter handed it over to be failed"
    RESTORED = "its holder did not return after the server's restart"


@dataclass(frozen=True, slots=True)
class Takeover:
    """An epoch that began because the previous one had ended.

    Attributes:
        at_ns: when it began, by the store's monotonic clock.
        former: the adapter_id of the previous holder; 0: unknown.
    """

    at_ns: int
    reason: TakeoverReason
    epoch: int
    former: int
    adapter_id: int


class Takeovers:
    """The takeovers of one feed since the store started.

    Attributes:
        counts: the number for each reason.
        last: the last few takeovers, the newest last.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(TakeoverReason, 0)
        self.last: deque[Takeover] = deque(maxlen=LAST_COUNT)
        self._vacated: tuple[TakeoverReason, int] | None = None

    def are_frequent(self, now_ns: int, period_ns: int) -> bool:
        """Whether the last few takeovers all happened within the last `period_ns`."""
        return len(self.last) == LAST_COUNT and now_ns - self.last[0].at_ns < period_ns

    def on_vacated(self, reason: TakeoverReason, former: int) -> None:
        """A lease ended; the next grant makes it a takeover."""
        self._vacated = (reason, former)

    def on_continued(self) -> None:
        """The former holder has the lease again, in the same epoch."""
        self._vacated = None

    def on_granted(self, adapter_id: int, epoch: int, now_ns: int) -> None:
        """An epoch began; the first epoch of a feed is not a takeover."""
        if self._vacated is not None:
            (reason, former), self._vacated = self._vacated, None
            self._add(Takeover(now_ns, reason, epoch, former, adapter_id))

    def on_handed_over(self, takeover: Takeover) -> None:
        """The former holder handed the lease over to an heir."""
        self._add(takeover)

    def _add(self, takeover: Takeover) -> None:
        self.counts[takeover.reason] += 1
        self.last.append(takeover)
