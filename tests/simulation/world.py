"""Virtual time and a virtual network: one heap of events, links with their own random numbers, no real clock.

Each link has its own generator, seeded by the run and the two ends of the link. Removing an adapter, a client or a
fault therefore changes nothing on other links, which makes it possible to shrink a failing plan.
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
EVENTS_AT_ONCE_MAX = 20_000  # more than ten times the maximum of any run
SOURCE = "source"
ADMIN = "admin"


class Livelock(AssertionError):
    """Events keep causing events while time does not advance."""


class Link:
    """One direction between two processes; it carries datagrams, which may be lost, and a reliable connection.

    Attributes:
        cuts: number of partitions in force; partitions may overlap.
        holds: number of partitions that the connection survives; its messages arrive when the last one ends.
    """

    __slots__ = ("_arrival_ns", "_waiting", "chance", "cuts", "holds")

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed).random
        self.cuts = 0
        self.holds = 0
        self._arrival_ns = 0
        self._waiting: deque[tuple[Callable[[Any], object], Any]] = deque()


class World:
    """Time, links and the timeline of one run.

    Args:
        seed: determines the links' random numbers.
        is_verbose: include every packet and request in the timeline, not only important events.
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
        """Call `action(argument)` at a virtual time; calls at equal times run in the order of scheduling."""
        self._count += 1
        heapq.heappush(self._heap, (max(when_ns, self.now_ns), self._count, action, argument))

    def after(self, delay_ns: int, action: Callable[[Any], object], argument: Any = None) -> None:
        """Call `action(argument)` after a virtual delay."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._count, action, argument))

    def run_until(self, end_ns: int) -> None:
        """Run all events until `end_ns`.

        Raises:
            Livelock: time does not advance.
        """
        heap, pop, count = self._heap, heapq.heappop, 0
        while heap and heap[0][0] <= end_ns:
            count = count + 1 if heap[0][0] == self.now_ns else 0
            if count > EVENTS_AT_ONCE_MAX:
                raise Livelock(f"more than {EVENTS_AT_ONCE_MAX:,} events while time does not advance")
            self.now_ns, _, action, argument = pop(heap)
            action(argument)
        self.now_ns = max(self.now_ns, end_ns)

    # ---- timeline ----

    def log(self, text: str, *values: object) -> None:
        """Add a line to the timeline; it is formatted only when it is read."""
        self._timeline.append((self.now_ns, text, values))

    def timeline(self) -> list[str]:
        """What happened, as lines."""
        return [
            f"{(at_ns - START_NS) / 1e6:10.3f} ms  {text.format(*values)}" for at_ns, text, values in self._timeline
        ]

    # ---- network ----

    def link(self, sender: str, receiver: str) -> Link:
        """The link from one process to another."""
        known = self._links.get((sender, receiver))
        if known is None:
            known = Link((self.seed << 16) ^ (_number(sender) << 8) ^ _number(receiver))
            self._links[sender, receiver] = known
        return known

    def multicast(self, link: Link, deliver: Callable[[Any], object], datagram: Any) -> None:
        """Send one datagram to one receiver; it may be lost, late, out of order or duplicated."""
        if link.cuts or link.holds:
            return
        chance, weather = link.chance, self.weather
        if weather.duplication and chance() < weather.duplication:
            self.after(weather.delay_min_ns + int(chance() * weather.delay_span_ns), deliver, datagram)
        if not weather.loss or chance() >= weather.loss:
            self.after(weather.delay_min_ns + int(chance() * weather.delay_span_ns), deliver, datagram)

    def call(self, link: Link, action: Callable[[Any], object], argument: Any = None) -> None:
        """Send one message over a connection: never reordered, but lost during a cut, and late after a hold."""
        if link.cuts:
            return
        if link.holds:
            link._waiting.append((action, argument))
            return
        arrival_ns = self.now_ns + CALL_DELAY_MIN_NS + int(link.chance() * CALL_DELAY_SPAN_NS)
        link._arrival_ns = arrival_ns = max(arrival_ns, link._arrival_ns)
        self.at(arrival_ns, action, argument)

    def cut(self, link: Link, *, is_held: bool) -> None:
        """Begin a partition."""
        if is_held:
            link.holds += 1
        else:
            link.cuts += 1
            link._waiting.clear()  # the connection is broken

    def heal(self, link: Link, *, is_held: bool) -> None:
        """End a partition; held messages arrive in order."""
        if is_held:
            link.holds = max(0, link.holds - 1)
        else:
            link.cuts = max(0, link.cuts - 1)
        if not link.holds:
            while link._waiting:
                self.call(link, *link._waiting.popleft())

    def heal_all(self) -> None:
        """End all partitions."""
        for link in self._links.values():
            link.cuts, link.holds = 0, min(link.holds, 1)
            self.heal(link, is_held=True)


def _number(name: str) -> int:
    """A number for a process, used in link seeds; it does not depend on the other processes of the run."""
    if name == SOURCE:
        return 0
    if name == ADMIN:
        return 1
    number = int(name.lstrip(string.ascii_lowercase))
    return number + (16 if name.startswith("adapter") else 64)
