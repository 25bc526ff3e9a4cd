"""A day in the life of one reader's trust: two adapters, a network and a reader, each of which misbehaves by chance.

The adapters send the same messages in bursts, sign them as adapters do, pause between any two steps, and have clocks
that step. The network loses, repeats, delays and reorders. The reader takes a portion of each queue at a time, and
pauses between portions, as a busy application does. Time is virtual.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tandemfeed.client_lib.stream.trust.stream_trust import Distrusted, StreamTrust, VerifyMode
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.pause_free_clock import PauseFreeClock
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.transport.sealing.opening import ReceivedPacket
from tests.client_lib.toy_cluster import CHANNEL_ID, FEED_ID, heartbeat, packet
from tests.simulation.signed_line import GenuineSignature, SignedLine

MS = 1_000_000
HOUR = 3_600_000 * MS
PORTION = 32  # datagrams of one path that a reader takes at a time
SIGNING_NS = 120_000
Datagram = ReceivedPacket | GenuineSignature


@dataclass(frozen=True)
class Weather:
    """What may go wrong, and how often.

    Attributes:
        jitter_ns: of the network: later datagrams overtake earlier ones by up to this.
        reader_pause, adapter_pause: shares of their steps after which they pause, for up to the longest.
        clock_step: the share of an adapter's turns before which its wall clock steps.
        digest_count_max: of one signature.
        is_by_two_paths: each adapter is received by multicast and unicast, with delays of their own.
    """

    loss: float = 0.0
    duplication: float = 0.0
    jitter_ns: int = 0
    reader_pause: float = 0.0
    adapter_pause: float = 0.0
    longest_pause_ns: int = 2_000 * MS
    clock_step: float = 0.0
    burst_max: int = 3
    busy: float = 0.9
    digest_count_max: int = 80
    is_by_two_paths: bool = False


class Adapter:
    """One start of an adapter: makes turns of packets, a heartbeat every 10 or 25 ms, and signatures."""

    def __init__(self, story: Story, adapter_id: int) -> None:
        self._story, self._chance, self._weather = story, story.chance, story.weather
        self.line = SignedLine(FEED_ID, CHANNEL_ID, adapter_id, 10 + adapter_id, story.weather.digest_count_max)
        self._wall_offset_ns = 1_700_000_000 * 1_000 * MS
        self._sent = 0  # application messages
        self._beat_at_ns = 0
        story.at(self._chance.randrange(5 * MS), self._turn)

    def _turn(self) -> None:
        story, chance, weather = self._story, self._chance, self._weather
        if chance.random() < weather.clock_step:
            self._wall_offset_ns += chance.choice((-HOUR, HOUR, -130 * MS, 130 * MS, chance.randrange(-200, 200) * MS))
        steps: list[Callable[[], None]] = []
        count = min(chance.randint(0, weather.burst_max), story.written - self._sent)
        for _ in range(count):
            steps.append(lambda: self._send(packet(self._sent + 1, self._sent + 1, 1)))
        if story.now_ns >= self._beat_at_ns:
            self._beat_at_ns = story.now_ns + (10 if count else 25) * MS
            steps.append(lambda: self._send(heartbeat(self._sent + 1)))
        at_ns = story.now_ns
        for step in steps:
            at_ns += self._pause() + 3_000
            story.at(at_ns, step)
        story.at(at_ns, self._sign)

    def _sign(self) -> None:
        story = self._story
        if self.line.is_signature_due:
            story.send(self.line.start.adapter_id, self.line.sign(self.wall_ns()))
            story.at(story.now_ns + SIGNING_NS + self._pause(), self._sign)
        else:
            story.at(story.now_ns + self._pause() + self._chance.randrange(2 * MS), self._turn)

    def _send(self, made: OutputPacket) -> None:
        self._sent += bool(made.runs)
        self._story.send(self.line.start.adapter_id, self.line.seal(made, self.wall_ns()))

    def wall_ns(self) -> int:
        """Its wall clock."""
        return self._story.now_ns + self._wall_offset_ns

    def _pause(self) -> int:
        if self._chance.random() >= self._weather.adapter_pause:
            return 0
        return self._chance.randrange(self._weather.longest_pause_ns)


class Story:
    """One run.

    Attributes:
        written: messages that the source has sent, of which adapters send.
        alarms: with the time of each.
        accepted: the packets, in order.

    Args:
        stops_clock: the reader's time stands still while it pauses.
    """

    def __init__(self, seed: int, weather: Weather, verify: VerifyMode = "alarm", *, stops_clock: bool = True) -> None:
        self.chance, self.weather = Random(seed), weather
        self.now_ns, self.written = 0, 0
        self.alarms: list[tuple[int, Distrusted]] = []
        self.accepted: list[OutputPacket] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._queues: dict[tuple[int, str], deque[Datagram]] = {}
        self._clock, self._stops_clock = PauseFreeClock(0), stops_clock
        self.trust = StreamTrust(CHANNEL_ID, CounterSet(), verify)
        self.adapters = {number: Adapter(self, number) for number in (1, 2)}
        self.trust.announce([each.line.start for each in self.adapters.values()])
        self.at(0, self._write)
        self.at(0, self._look)

    def at(self, when_ns: int, action: Callable[[], None]) -> None:
        """Call this then."""
        self._number += 1
        heapq.heappush(self._events, (when_ns, self._number, action))

    def run(self, until_ns: int) -> None:
        """Run until then."""
        while self._events and self._events[0][0] <= until_ns:
            self.now_ns, _, action = heapq.heappop(self._events)
            action()

    def send(self, adapter_id: int, datagram: Datagram) -> None:
        """A datagram leaves an adapter."""
        for path in ("multicast", "") if self.weather.is_by_two_paths else ("multicast",):
            for _ in range(2 if self.chance.random() < self.weather.duplication else 1):
                if self.chance.random() >= self.weather.loss:
                    delay_ns = 50_000 + self.chance.randrange(self.weather.jitter_ns + 1)
                    self.at(self.now_ns + delay_ns, lambda path=path: self._arrive(adapter_id, path, datagram))  # type: ignore[misc]

    def forge(self, adapter_id: int, ahead: int, claim_ns: int = 0) -> int:
        """Another reader sends the next message in an adapter's name; returns when.

        Args:
            ahead: packet counters.
            claim_ns: when it claims to have been sent, after the true time.
        """
        adapter, place = self.adapters[adapter_id], max((each.end_message_seq for each in self.accepted), default=1)
        made = packet(place, place, 1)
        made = made._replace(payload=made.payload[:-1] + b"!")
        forged = adapter.line.forge(made, adapter.line.next_counter + ahead, adapter.wall_ns() + claim_ns)
        self._arrive(adapter_id, "multicast", forged)
        return self.now_ns

    # ---- inside ----

    def _write(self) -> None:
        if self.chance.random() < self.weather.busy:
            self.written += self.chance.randint(0, self.weather.burst_max)
        self.at(self.now_ns + self.chance.randrange(1, 3 * MS), self._write)

    def _arrive(self, adapter_id: int, path: str, datagram: Datagram) -> None:
        self._queues.setdefault((adapter_id, path), deque()).append(datagram)

    def _look(self) -> None:
        """The reader takes a portion of each queue."""
        now_ns = self._clock.look(self.now_ns) if self._stops_clock else self.now_ns
        for (_, path), queue in self._queues.items():
            for _ in range(min(PORTION, len(queue))):
                self._take(queue.popleft(), path, now_ns)
        for proved_at_ns, verdict in self.trust.on_timer(now_ns):
            assert proved_at_ns <= now_ns
            self._note(verdict)
        pause_ns = self.chance.randrange(10_000, 2 * MS)
        if self.chance.random() < self.weather.reader_pause:
            pause_ns = self.chance.randrange(self.weather.longest_pause_ns)
        self.at(self.now_ns + pause_ns, self._look)

    def _take(self, datagram: Any, path: str, now_ns: int) -> None:
        try:
            if isinstance(datagram, GenuineSignature):
                verdicts = self.trust.on_signature(datagram, now_ns, path)  # type: ignore[arg-type]
            else:
                verdicts = self.trust.on_packet(datagram, now_ns, path)
        except PacketRefused:
            return
        for verdict in verdicts:
            self._note(verdict)

    def _note(self, verdict: OutputPacket | Distrusted) -> None:
        if isinstance(verdict, Distrusted):
            self.alarms.append((self.now_ns, verdict))
        else:
            self.accepted.append(verdict)
