"""A simulation of one leader and some followers: a seed determines its clock, its network and its faults.

It runs the production cores with journals in memory. Connections behave like TCP: nothing is reordered, lost or
repeated on one connection, but a connection can break at any moment, with or without an event, and lose what is in
flight.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tandemfeed.journal.format.control import Settings
from tandemfeed.journal.replication import effects as do
from tandemfeed.journal.replication.comparison import first_difference, is_same
from tandemfeed.journal.replication.follower.follower_core import FollowerCore
from tandemfeed.journal.replication.leader.leader_core import LeaderCore
from tandemfeed.journal.replication.limits import PIECE_SIZE_MAX, Limits
from tandemfeed.journal.replication.segments import digest_of
from tandemfeed.journal.replication.states import FINAL, FollowerState
from tandemfeed.journal.replication.wire.codec import decode, encode
from tandemfeed.journal.replication.wire.messages import NO_ID, Acknowledge, Position, Segment
from tests.journal.replication.replication_memory import BITS, MemoryJournal

MS = 1_000_000
SETTINGS = Settings("SECONDLY", 0, "UTC", 1 << 18, 0, "", "journal")
LIMITS = Limits(
    heartbeat_interval_ns=100 * MS,
    silence_ns_max=400 * MS,
    backoff_ns_min=10 * MS,
    backoff_ns_max=200 * MS,
    window_size=3_000,
    followers_max=8,
)
HEAL_NS = 20_000 * MS


@dataclass
class Link:
    """A connection."""

    key: bytes
    follower: FollowerNode
    is_up: bool = True
    due_ns: list[int] = field(default_factory=lambda: [0, 0])  # of the last message each way, to keep the order


class FollowerNode:
    """A follower's shell in the simulation."""

    def __init__(self, world: World, number: int, *, durable: bool) -> None:
        self.world = world
        self.number = number
        self.durable = durable
        self.leader_id = NO_ID
        self.journal: MemoryJournal | None = None
        self.synced = 0  # segments that are durable
        self.link: Link | None = None
        self.core: FollowerCore | None = None
        self.queue: deque[do.FollowerEffect] = deque()

    def start(self) -> None:
        self.core = FollowerCore(
            self.world.chance.random, leader_id=self.leader_id, durable=self.durable, limits=LIMITS
        )

    def crash(self) -> None:
        """Kill the follower; a power loss also removes all or some unsynced records."""
        self.core = None
        self.queue.clear()
        self.cut()
        if self.journal is not None and self.world.chance.random() < 0.5:
            kept = self.world.chance.randint(self.synced, len(self.journal.segments))
            self.journal.truncate(kept)

    def cut(self) -> None:
        if self.link is not None:
            self.link.is_up = False
            self.link = None

    def perform(self, effects: list[do.FollowerEffect]) -> None:
        self.queue.extend(effects)
        while self.queue:
            self.queue.extend(self._perform_one(self.queue.popleft()))

    def _perform_one(self, effect: do.FollowerEffect) -> list[do.FollowerEffect]:
        world, core = self.world, self.core
        assert core is not None
        match effect:
            case do.Connect():
                self.cut()
                self.link = world.connect(self)
            case do.Disconnect():
                self.cut()
            case do.Send():
                self._check_claim(effect.message)
                if self.link is not None:
                    world.send(self.link, 0, encode(effect.message))
            case do.OpenJournal():
                return self._open(core, effect.welcome.leader_id, effect.welcome.oldest_index)
            case do.LookUp():
                assert self.journal is not None
                found = self.journal.segment_at(effect.index)
                return core.on_looked_up(effect.index, digest_of(found, BITS) if found else None)
            case do.Append() | do.Sync():
                if world.chance.random() < world.failure_rate:
                    self.queue.clear()
                    return core.on_append_failed("the disk is full", world.now_ns)
                self._append(effect)
        return []

    def _open(self, core: FollowerCore, leader_id: bytes, oldest_index: int) -> list[do.FollowerEffect]:
        self.leader_id = leader_id
        if self.journal is None:
            self.journal = MemoryJournal(oldest_index >> BITS, bytes([self.number + 1]) * 16)
        if self.durable:
            self.synced = len(self.journal.segments)
        return core.on_opened(self.journal.id, self.journal.end_index(), self.journal.tail(), self.world.now_ns)

    def _append(self, effect: do.Append | do.Sync) -> None:
        assert self.journal is not None
        if isinstance(effect, do.Sync):
            self.synced = len(self.journal.segments)
            return
        assert effect.index == effect.segment.first_index(BITS) >= self.journal.end_index()
        self.journal.append(effect.segment)

    def _check_claim(self, message: object) -> None:
        """Check that it never acknowledges records that it does not have."""
        if isinstance(message, (Acknowledge, Position)):
            assert self.journal is not None
            assert message.next_index == self.journal.end_index()
            assert not self.durable or self.synced == len(self.journal.segments)
            claimed = self.world.claimed
            claimed[self.journal.id] = max(claimed.get(self.journal.id, 0), message.next_index)


class World:
    """The simulation.

    Args:
        seed: determines the whole run.
        power_loss_at_leader, tampering: faults after which a follower may report divergence.
        losing: the leader releases old segments, and loses some to damage.
    """

    def __init__(
        self, seed: int, *, power_loss_at_leader: bool = False, tampering: bool = False, losing: bool = False
    ) -> None:
        self.chance = random.Random(seed)
        self.now_ns = 0
        self.acks = self.chance.randint(1, 2)
        self.followers = [
            FollowerNode(self, number, durable=self.chance.random() < 0.5)
            for number in range(self.chance.randint(self.acks, 3))
        ]
        self.journal = MemoryJournal(5, b"L" * 16)
        self.removed: dict[int, Segment] = {}
        self.claimed: dict[bytes, int] = {}
        self.visible = self.journal.end_index()
        self.failure_rate = 0.002
        self.delay_ms_max = self.chance.choice([1, 20, 120])
        self.log: list[object] = []
        self._power_loss, self._tampering, self._losing = power_loss_at_leader, tampering, losing
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._links: dict[bytes, Link] = {}
        self._queue: deque[do.LeaderEffect] = deque()
        self.core: LeaderCore | None = None
        self.start_leader()
        for node in self.followers:
            node.start()

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Run with faults and appends for a while, then without faults until nothing happens any more."""
        for _ in range(steps):
            self._advance(self.now_ns + self.chance.randint(1, 60) * MS)
            self._fault()
        self.failure_rate = 0.0
        if self.core is None:
            self.start_leader()
        for node in self.followers:
            if node.core is None:
                node.start()
        self._advance(self.now_ns + HEAL_NS, until=self.is_settled)

    def is_settled(self) -> bool:
        """Whether every follower has all records on a working connection, or is in a final state."""
        assert self.core is not None
        end = self.journal.end_index()
        reached = {peer.follower_id for peer in self.core.peers.values() if peer.acked_index == end}
        return all(
            node.core is not None
            and (
                node.core.state in FINAL
                or (
                    node.core.state is FollowerState.FOLLOWING
                    and node.link is not None
                    and node.link.is_up
                    and node.journal is not None
                    and node.journal.id in reached
                )
            )
            for node in self.followers
        )

    def at(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._number, action))

    def _advance(self, until_ns: int, until: Callable[[], bool] = lambda: False) -> None:
        while not until():
            deadlines = [(core.next_deadline_ns(), core) for core in self._cores()]
            due = min((at_ns for at_ns, _ in deadlines if at_ns is not None), default=until_ns)
            event_ns = self._heap[0][0] if self._heap else until_ns
            now_ns = max(min(due, event_ns, until_ns), self.now_ns)
            self.now_ns = now_ns
            if now_ns >= until_ns:
                return
            if event_ns <= due:
                heapq.heappop(self._heap)[2]()
            else:
                self._tick()

    def _cores(self) -> list[Any]:
        return [core for core in (self.core, *(node.core for node in self.followers)) if core is not None]

    def _tick(self) -> None:
        if self.core is not None:
            self.perform(self.core.on_timer(self.now_ns))
        for node in self.followers:
            if node.core is not None:
                node.perform(node.core.on_timer(self.now_ns))

    # -- network -----------------------------------------------------------------------------------------------------

    def connect(self, node: FollowerNode) -> Link | None:
        if self.core is None or self.chance.random() < 0.1:
            self._report_broken(node, None)
            return None
        self._number += 1
        link = Link(self._number.to_bytes(5, "big"), node)
        self._links[link.key] = link
        return link

    def _report_broken(self, node: FollowerNode, link: Link | None) -> None:
        def report() -> None:
            if node.core is not None and node.link is link:
                node.cut()
                node.perform(node.core.on_disconnected("broken", self.now_ns))

        self.at(MS, report)

    def send(self, link: Link, way: int, frame: bytes) -> None:
        delay_ns = self.chance.randint(0, self.delay_ms_max * MS)
        link.due_ns[way] = max(link.due_ns[way], self.now_ns + delay_ns)
        self.log.append((self.now_ns, link.key, way, frame[:30]))
        self.at(link.due_ns[way] - self.now_ns, lambda: self._deliver(link, way, frame))

    def _deliver(self, link: Link, way: int, frame: bytes) -> None:
        if not link.is_up:
            return
        message = decode(frame)
        if way == 0 and self.core is not None:
            self.perform(self.core.on_message(link.key, message, self.now_ns))
        elif way == 1 and link.follower.core is not None:
            node, core = link.follower, link.follower.core
            node.perform(core.on_message(message, self.now_ns))
            if self.chance.random() < 0.7:
                node.perform(core.on_drained(self.now_ns))

    # -- the leader's shell ------------------------------------------------------------------------------------------

    def start_leader(self) -> None:
        self.visible = min(self.visible, self.journal.end_index())
        self.core = LeaderCore(self.journal.id, SETTINGS, start_index=self.visible, acks=self.acks, limits=LIMITS)

    def perform(self, effects: list[do.LeaderEffect]) -> None:
        self._queue.extend(effects)
        while self._queue:
            self._queue.extend(self._perform_one(self._queue.popleft()))

    def _perform_one(self, effect: do.LeaderEffect) -> list[do.LeaderEffect]:
        core, journal = self.core, self.journal
        assert core is not None
        match effect:
            case do.SendTo():
                self.send(self._links[effect.peer], 1, encode(effect.message))
            case do.ReadFrom():
                return core.on_read(effect.peer, journal.read(effect.from_index, effect.size_max), self.now_ns)
            case do.ShowUntil():
                assert effect.index > self.visible
                assert sum(index >= effect.index for index in self.claimed.values()) >= self.acks
                self.visible = effect.index
            case do.LookUpOldest():
                return core.on_oldest(effect.peer, journal.oldest_index(), self.now_ns)
            case do.CompareTail():
                differs_at = first_difference(journal, effect.next_index, effect.tail)
                return core.on_tail_compared(effect.peer, differs_at, self.now_ns)
            case do.CompareOne():
                return core.on_one_compared(effect.peer, effect.found, is_same(journal, effect.found))
            case do.Forget():
                pass
        return []

    # -- faults ------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        chance = self.chance.random()
        node = self.chance.choice(self.followers)
        if chance < 0.6:
            for _ in range(self.chance.randint(1, 5)):
                self._append()
            if self.core is not None:
                self.perform(self.core.on_appended(self.journal.end_index(), self.now_ns))
        elif chance < 0.72:
            self._cut(node, silently=self.chance.random() < 0.4)
        elif chance < 0.8:
            if node.core is None:
                node.start()
            else:
                node.crash()
        elif chance < 0.86:
            if self.core is None:
                self.start_leader()
            else:
                self._crash_leader()
        elif chance < 0.9 and self._losing:
            self._lose()
        elif chance < 0.93 and self._tampering and node.core is None and node.journal is not None:
            self._tamper(node.journal)
            node.synced = min(node.synced, len(node.journal.segments))

    def _append(self) -> None:
        end = self.journal.end_index()
        cycle = (end >> BITS) + (self.chance.random() < 0.1)
        first = 0 if cycle > end >> BITS else end & (1 << BITS) - 1
        count, size = self.chance.randint(1, 4), self.chance.randint(0, 300)
        if self.chance.random() < 0.01:
            count, size = 1, PIECE_SIZE_MAX + self.chance.randint(1, PIECE_SIZE_MAX)
        body = self.chance.randbytes(8).ljust(count * size, b".")[: count * size]
        self.journal.append(Segment(cycle, first, self.now_ns + self._number, count, size, body))

    def _cut(self, node: FollowerNode, *, silently: bool) -> None:
        if (link := node.link) is not None:
            link.is_up = False
            if not silently:
                self._report_broken(node, link)

    def _crash_leader(self) -> None:
        self.core = None
        self._queue.clear()
        for node in self.followers:
            self._cut(node, silently=self.chance.random() < 0.3)
        if self._power_loss and self.chance.random() < 0.4:
            kept = max(len(self.journal.segments) - self.chance.randint(0, 4), 0)
            self.journal.truncate(kept)

    def _lose(self) -> None:
        segments = self.journal.segments
        if len(segments) > 12:
            place = self.chance.choice([0, self.chance.randrange(len(segments) - 1)])
            lost = segments.pop(place)
            self.removed[lost.first_index(BITS)] = lost

    def _tamper(self, journal: MemoryJournal) -> None:
        """Append to a follower's journal from outside, or rewrite its last segments."""
        journal.truncate(max(len(journal.segments) - self.chance.randint(0, 3), 0))
        for _ in range(self.chance.randint(0, 3)):
            end = journal.end_index()
            journal.append(Segment(end >> BITS, end & (1 << BITS) - 1, self.now_ns, 2, 4, b"tampered"))
