"""Virtual time: one heap of events, one random generator, no real clock. Everything else in a run hangs off it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

MS = 1_000_000
US = 1_000


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """Weather on the multicast links, while the storm lasts."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_min_ns: int = 20 * US
    delay_max_ns: int = 200 * US


@dataclass(slots=True)
class World:
    """Time, chance and the timeline of one run."""

    seed: int
    now_ns: int = 1_000 * MS
    timeline: list[str] = field(default_factory=list)
    faults: LinkFaults = field(default_factory=LinkFaults)
    random: random.Random = field(init=False)
    _heap: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0
    _arrivals: dict[tuple[str, str], int] = field(default_factory=dict)
    blocked: set[tuple[str, str]] = field(default_factory=set)  # (sender, receiver) that hear nothing of each other

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def at(self, when_ns: int, action: Callable[[], None]) -> None:
        """Run `action` at a virtual time; equal times in the order of their scheduling."""
        self._count += 1
        heapq.heappush(self._heap, (max(when_ns, self.now_ns), self._count, action))

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Run `action` after a virtual pause."""
        self.at(self.now_ns + delay_ns, action)

    def tell(self, line: str) -> None:
        """Add a line to the timeline that a failed run prints."""
        self.timeline.append(f"{(self.now_ns - 1_000 * MS) / 1e6:10.3f} ms  {line}")

    def run_until(self, end_ns: int, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass up to `end_ns`; True as soon as `is_done` says so."""
        while self._heap and self._heap[0][0] <= end_ns:
            self.now_ns, _, action = heapq.heappop(self._heap)
            action()
            if is_done():
                return True
        self.now_ns = max(self.now_ns, end_ns)
        return is_done()

    def multicast(self, sender: str, receiver: str, deliver: Callable[[], None]) -> None:
        """One datagram to one receiver: perhaps lost, late, out of order or twice."""
        if (sender, receiver) in self.blocked:
            return
        chance, faults = self.random, self.faults
        copies = 0 if chance.random() < faults.loss else 1
        if faults.duplication and chance.random() < faults.duplication:
            copies += 1
        for _ in range(copies):
            self.after(chance.randint(faults.delay_min_ns, faults.delay_max_ns), deliver)

    def call(self, sender: str, receiver: str, action: Callable[[], None]) -> None:
        """One message over a connection: never lost or reordered by itself, but gone if the two are partitioned."""
        if (sender, receiver) in self.blocked:
            return
        arrival_ns = max(
            self.now_ns + self.random.randint(100 * US, 400 * US), self._arrivals.get((sender, receiver), 0)
        )
        self._arrivals[sender, receiver] = arrival_ns
        self.at(arrival_ns, action)
