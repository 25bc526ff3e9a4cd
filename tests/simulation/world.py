"""Virtual time and the virtual network: one heap of events, links with chances of their own, no real clock.

Every link draws from its own generator, seeded by the run and the link's two ends. So leaving out an adapter, a client
or a fault changes nothing on links that it does not touch, which is what lets a failing plan be shrunk.
"""

from __future__ import annotations

import heapq
import random
import string
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.plan import CALM, MS, US, Weather

START_NS = 1_000 * MS
CALL_DELAY_MIN_NS = 100 * US
CALL_DELAY_SPAN_NS = 300 * US
EVENTS_AT_ONCE_MAX = 20_000  # no run has a tenth of them
SOURCE = "source"
ADMIN = "admin"


class Livelock(AssertionError):
    """Events bring forth events, and time stands still."""


class Link:
    """One direction between two processes; carries datagrams (which may be lost) and a connection (which may not).

    Attributes:
        cuts: partitions that lie on it now; partitions may overlap.
        holds: as `cuts`, but the connection outlives them: what was said is heard late, at the end of the last one.
    """

    __slots__ = ("_arrival_ns", "_waiting", "chance", "cuts", "holds")

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed).random
        self.cuts = 0
        self.holds = 0
        self._arrival_ns = 0
        self._waiting: deque[tuple[Callable[[Any], object], Any]] = deque()


class World:
    """Time, chance, links and the timeline of one run.

    Args:
        seed: of the links' chances.
        is_verbose: the timeline has every packet and request, not only what changes the course of a run.
    """

    def __init__(self, seed: int, *, is_verbose: bool = False) -> None:
        self.seed = seed
        self.now_ns = START_NS
        self.is_verbose = is_verbose
        self.weather: Weather = CALM
        self._timeline: list[tuple[int, str, tuple[object, ...]]] = []
        self._links: dict[tuple[str, str], Link] = {}
        self._heap: list[tuple[int, int, Callable[[Any], object], Any]] = []
        self._count = 0

    # ---- time ----

    def at(self, when_ns: int, action: Callable[[Any], object], argument: Any = None) -> None:
        """Call `action(argument)` at a virtual time; equal times in the order of their scheduling."""
        self._count += 1
        heapq.heappush(self._heap, (max(when_ns, self.now_ns), self._count, action, argument))

    def after(self, delay_ns: int, action: Callable[[Any], object], argument: Any = None) -> None:
        """Call `action(argument)` after a virtual pause."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._count, action, argument))

    def run_until(self, end_ns: int) -> None:
        """Let time pass up to `end_ns`.

        Raises:
            Livelock: it does not pass.
        """
        heap, pop, count = self._heap, heapq.heappop, 0
        while heap and heap[0][0] <= end_ns:
            count = count + 1 if heap[0][0] == self.now_ns else 0
            if count > EVENTS_AT_ONCE_MAX:
                raise Livelock(f"more than {EVENTS_AT_ONCE_MAX:,} events and no time passes")
            self.now_ns, _, action, argument = pop(heap)
            action(argument)
        self.now_ns = max(self.now_ns, end_ns)

    # ---- what happened ----

    def tell(self, text: str, *values: object) -> None:
        """Add a line to the timeline; formatted only when it is read."""
        self._timeline.append((self.now_ns, text, values))

    def timeline(self) -> list[str]:
        """What happened, a line each."""
        return [
            f"{(at_ns - START_NS) / 1e6:10.3f} ms  {text.format(*values)}" for at_ns, text, values in self._timeline
        ]

    # ---- network ----

    def link(self, sender: str, receiver: str) -> Link:
        """The direction from one process to another."""
        known = self._links.get((sender, receiver))
        if known is None:
            known = Link((self.seed << 16) ^ (_number(sender) << 8) ^ _number(receiver))
            self._links[sender, receiver] = known
        return known

    def multicast(self, link: Link, deliver: Callable[[Any], object], datagram: Any) -> None:
        """One datagram to one receiver: perhaps lost, late, out of order or twice."""
        if link.cuts or link.holds:
            return
        chance, weather = link.chance, self.weather
        if weather.duplication and chance() < weather.duplication:
            self.after(weather.delay_min_ns + int(chance() * weather.delay_span_ns), deliver, datagram)
        if not weather.loss or chance() >= weather.loss:
            self.after(weather.delay_min_ns + int(chance() * weather.delay_span_ns), deliver, datagram)

    def call(self, link: Link, action: Callable[[Any], object], argument: Any = None) -> None:
        """One message over a connection: never reordered; lost if a cut lies on it, late if a hold does."""
        if link.cuts:
            return
        if link.holds:
            link._waiting.append((action, argument))
            return
        arrival_ns = self.now_ns + CALL_DELAY_MIN_NS + int(link.chance() * CALL_DELAY_SPAN_NS)
        link._arrival_ns = arrival_ns = max(arrival_ns, link._arrival_ns)
        self.at(arrival_ns, action, argument)

    def cut(self, link: Link, *, is_held: bool) -> None:
        """A partition begins."""
        if is_held:
            link.holds += 1
        else:
            link.cuts += 1
            link._waiting.clear()  # that connection is broken now

    def mend(self, link: Link, *, is_held: bool) -> None:
        """A partition ends; what waited on the connection comes through, in order."""
        if is_held:
            link.holds = max(0, link.holds - 1)
        else:
            link.cuts = max(0, link.cuts - 1)
        if not link.holds:
            while link._waiting:
                self.call(link, *link._waiting.popleft())

    def mend_all(self) -> None:
        """Every partition ends."""
        for link in self._links.values():
            link.cuts, link.holds = 0, min(link.holds, 1)
            self.mend(link, is_held=True)


def _number(name: str) -> int:
    """A process's place among link seeds: the same in every run, whoever else takes part."""
    if name == SOURCE:
        return 0
    if name == ADMIN:
        return 1
    number = int(name.lstrip(string.ascii_lowercase))
    return number + (16 if name.startswith("adapter") else 64)
