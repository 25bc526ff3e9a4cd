"""Faults that the gateway makes on request, so that a consumer can be tested: loss, duplication, reordering, bursts and
repetitions as after a restart. Pure; equal seeds and datagrams give equal faults.

Gap fills are never disturbed: what is lost here can be requested. Invariant: every datagram that is not lost is sent,
at the latest after some more, and idle streams have heartbeats.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, fields
from typing import NamedTuple

REORDER_COUNT_MAX = 8  # datagrams that overtake one that is held back
BURST_EVERY_NS = 1_000_000_000
REPEATED_COUNT_MAX = 64  # what a gateway that was killed sends again when it restarts


class Sent(NamedTuple):
    """A datagram and its multicast group."""

    group: bytes
    datagram: bytes


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How often each fault happens.

    Attributes:
        loss, duplicate, reorder: share of datagrams, 0 to 1.
        burst: once a second, hold back everything for so many milliseconds.
        reset: every so many seconds, send again what a gateway that was killed would repeat; 0: never.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    burst: float = 0.0
    reset: float = 0.0

    def __post_init__(self) -> None:
        for name, limit in (("loss", 1), ("duplicate", 1), ("reorder", 1), ("burst", 1_000), ("reset", 86_400)):
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise ValueError(f"the fault {name} is {value:g}; it must be from 0 to {limit:,}")

    @classmethod
    def parse(cls, texts: list[str]) -> FaultPlan:
        """Read `NAME=VALUE` texts.

        Raises:
            ValueError: a text is something else.
        """
        known = [each.name for each in fields(cls)]
        values: dict[str, float] = {}
        for text in texts:
            name, _, value = text.partition("=")
            try:
                values[name] = float(value)
            except ValueError:
                name = ""
            if name not in known:
                raise ValueError(f"--fault {text}: expected NAME=NUMBER, with one of the names {', '.join(known)}")
        return cls(**values)

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


NO_FAULTS = FaultPlan()


class FaultInjector:
    """Decides what becomes of each datagram.

    Args:
        seed: of the random choices.
        now_ns: monotonic, when sending begins.
    """

    def __init__(self, plan: FaultPlan, seed: int, now_ns: int) -> None:
        self._plan, self._random = plan, random.Random(seed)
        self._began_at_ns = self._reset_at_ns = now_ns
        self._held: list[tuple[int, Sent]] = []  # how many datagrams have yet to overtake it
        self._burst: list[Sent] = []
        self._recent: deque[Sent] = deque(maxlen=REPEATED_COUNT_MAX)
        self.counts = {each.name: 0 for each in fields(plan)}

    def on_datagram(self, sent: Sent, now_ns: int) -> list[Sent]:
        """What to send now instead of a datagram."""
        passed = self._burst_of(self._choose(sent), now_ns)
        if self._plan.reset and now_ns - self._reset_at_ns >= self._plan.reset * 1e9:
            self._reset_at_ns = now_ns
            self.counts["reset"] += 1
            passed += self._recent
        self._recent.append(sent)
        return passed

    def rest(self) -> list[Sent]:
        """What is still held back; sending ends."""
        rest = [*self._burst, *(sent for _, sent in self._held)]
        self._burst, self._held = [], []
        return rest

    def _choose(self, sent: Sent) -> list[Sent]:
        """Loss, duplication and reordering."""
        due = [each for count, each in self._held if count <= 1]
        self._held = [(count - 1, each) for count, each in self._held if count > 1]
        drawn = self._random.random()
        for name in ("loss", "duplicate", "reorder"):
            if (drawn := drawn - getattr(self._plan, name)) >= 0:
                continue
            self.counts[name] += 1
            if name == "reorder":
                self._held.append((self._random.randint(1, REORDER_COUNT_MAX), sent))
            return [sent, sent, *due] if name == "duplicate" else due
        return [sent, *due]

    def _burst_of(self, passed: list[Sent], now_ns: int) -> list[Sent]:
        """Hold everything back in the first part of each second."""
        if (now_ns - self._began_at_ns) % BURST_EVERY_NS < self._plan.burst * 1e6:
            self.counts["burst"] += not self._burst
            self._burst += passed
            return []
        held, self._burst = self._burst, []
        return held + passed
