"""How much of a service one identity may take, whatever the others take. Pure.

A caller with a valid login can make more calls than a server can serve. So each identity has a rate, places for open
calls and streams, and a share of the threads. Calls above the rate wait for their turn; if that would take too long,
they are refused, and only after a pause: a caller that makes its refused calls again must not keep the server busy.

Invariant: an identity with fewer than `FEW` open calls gets a place, and one without work in a thread gets a thread,
however many calls another identity makes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

SECOND_NS = 1_000_000_000
BURST_S = 2  # of the rate, which an identity saves while it makes no calls
TURN_WAIT_NS_MAX = 5 * SECOND_NS  # so that all clients of an identity may come together after an outage
REFUSAL_PAUSE_NS = SECOND_NS
HELD_MAX = 4_096  # calls of an identity that wait; each takes some 20 KiB. Further ones are refused without a pause
FEW = 2
Job = TypeVar("Job")


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of one identity at one service.

    Attributes:
        per_second: calls, and requests within calls.
        open_max: calls that are being served at the same time, except streams.
        stream_max: open streams.
    """

    per_second: int
    open_max: int
    stream_max: int


SUBSCRIPTIONS = "tandemfeed.v1.StreamAdministration"
# Of the services that clients call (docs/access.md).
OF_CLIENTS: Mapping[str, CallLimits] = {
    SUBSCRIPTIONS: CallLimits(per_second=200, open_max=64, stream_max=128),
    "tandemfeed.v1.Replay": CallLimits(per_second=200, open_max=32, stream_max=32),
    "tandemfeed.v1.Contribution": CallLimits(per_second=1_000, open_max=64, stream_max=8),
}
# Of all callers without a token together: lanes limit their places, and logins are limited by address.
OF_STRANGERS = CallLimits(per_second=SECOND_NS, open_max=1 << 30, stream_max=1 << 30)
# Of the services for adapters, feed sources and operators, which are trusted: only a runaway process gets there.
OF_OTHERS = CallLimits(per_second=5_000, open_max=192, stream_max=1_024)


def of_subscribers(client_count_max: int) -> CallLimits:
    """The limits of SUBSCRIPTIONS at a server that allows so many clients: one identity may be that of many, and all of
    them may come back together."""
    usual = OF_CLIENTS[SUBSCRIPTIONS]
    rate = max(usual.per_second, client_count_max)
    return replace(usual, per_second=rate, stream_max=max(usual.stream_max, client_count_max // 2))


class Refusal(NamedTuple):
    """Attributes: text: why; pause_ns: how long to wait before the caller receives the refusal."""

    text: str
    pause_ns: int


class Share:
    """What one identity takes of a service now."""

    def __init__(self, identity: str, limits: CallLimits, now_ns: int) -> None:
        self.identity, self._limits = identity, limits
        self.open_count = self.stream_count = self.held_count = 0
        self._step_ns = SECOND_NS // limits.per_second
        self._next_ns = now_ns - BURST_S * SECOND_NS  # when the next call would be due at the rate

    def turn(self, now_ns: int) -> int | Refusal:
        """Count a call; for how long it must wait, or why it is refused."""
        due_ns = max(self._next_ns, now_ns - BURST_S * SECOND_NS)
        wait_ns = due_ns - now_ns
        if wait_ns > TURN_WAIT_NS_MAX:
            rate = f"{self._limits.per_second} a second"
            return self._refusal(f"{self.identity} makes more calls than {rate}, which is the limit; make fewer")
        self._next_ns = due_ns + self._step_ns
        return max(0, wait_ns)

    @property
    def has_all_places(self) -> bool:
        """Whether the identity has as many calls open as it may have."""
        return self.open_count >= self._limits.open_max

    def place(self, total: int, total_max: int) -> Refusal | None:
        """Why an identity gets no place for one more call; None: it gets one.

        Args:
            total: open calls of all identities.
            total_max: from then on, only identities with few open calls get a place.
        """
        if self.has_all_places:
            text = f"{self.identity} has {self.open_count} calls open, which is the limit; wait for their replies"
            return self._refusal(text)
        if total >= total_max and self.open_count >= FEW:
            return self._refusal(f"{total_max} calls are open; try again later")
        return None

    def stream(self) -> Refusal | None:
        """Why an identity may not open one more stream; None: it may."""
        if self.stream_count < self._limits.stream_max:
            return None
        text = f"{self.identity} has {self.stream_count} streams open, which is the limit; end one first"
        return self._refusal(text)

    def is_idle(self, now_ns: int) -> bool:
        """Whether a new share would be equal."""
        is_unused = not (self.open_count or self.stream_count or self.held_count)
        return is_unused and self._next_ns <= now_ns - BURST_S * SECOND_NS

    def _refusal(self, text: str) -> Refusal:
        return Refusal(text, REFUSAL_PAUSE_NS if self.held_count < HELD_MAX else 0)


class Turns(Generic[Job]):
    """Which work runs next in a number of threads: that of the identity with the least running; equals take turns.

    Args:
        count: of the threads that all share. One identity may have them all while no other has work.
        spare_count: of further threads, each for an identity that has none.
    """

    def __init__(self, count: int, spare_count: int) -> None:
        self._count, self._spare_count = count, spare_count
        self._waiting: dict[str, deque[Job]] = {}  # in the order of their turns
        self._running: dict[str, int] = {}
        self._total = 0

    def add(self, owner: str, job: Job) -> None:
        """Work of an identity has come."""
        self._waiting.setdefault(owner, deque()).append(job)

    def end(self, owner: str) -> None:
        """Some work of an identity has ended."""
        self._total -= 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    def take(self) -> tuple[str, Job] | None:
        """The next work to run, and whose it is; None: nothing may run now."""
        owner = min(self._waiting, key=lambda each: self._running.get(each, 0), default=None)
        if owner is None or not self._may_run(owner):
            return None
        jobs = self._waiting.pop(owner)
        job = jobs.popleft()
        if jobs:
            self._waiting[owner] = jobs  # its next turn is after those of all others
        self._running[owner] = self._running.get(owner, 0) + 1
        self._total += 1
        return owner, job

    def _may_run(self, owner: str) -> bool:
        own = self._running.get(owner, 0)
        if self._total >= self._count:
            return own == 0 and self._total < self._count + self._spare_count
        others = len((self._waiting.keys() | self._running.keys()) - {owner})
        return own < -(-self._count // (1 + others))
