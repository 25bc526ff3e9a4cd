"""The feed source of a run: sends prepared packets on schedule, heartbeats, and fills gaps from its journal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from feedcore.wire.source_packet import SOURCE_HEADER_SIZE, SourceFlag
from tests.simulation.plan import MS, Plan, SourceHole
from tests.simulation.toy_feed import SESSION, SOURCE_MESSAGE_SIZE, encode_source
from tests.simulation.world import SOURCE, START_NS, World

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor

PACKET_MESSAGES_MAX = 6
HEARTBEAT_INTERVAL_NS = 40 * MS
BURST_NS = 8 * MS
FOREIGN_EVERY_NS = 7 * MS


class SourceActor:
    """Numbers and sends the messages of every stream.

    Args:
        messages: per stream (symbol, value) of each message, the first one having source_seq 1.
        adapters: filled in by the cluster; who hears.
    """

    name = SOURCE

    def __init__(
        self,
        world: World,
        plan: Plan,
        messages: dict[int, list[tuple[int, int]]],
        adapters: Sequence[AdapterActor],
    ) -> None:
        self._world, self._plan, self._messages, self._adapters = world, plan, messages, adapters
        self._next = dict.fromkeys(messages, 1)
        self._journal: dict[int, list[tuple[int, int, bytes]]] = {stream: [] for stream in messages}
        self._stopped_until_ns = 0
        self.sent_at_ns: dict[tuple[int, int], int] = {}  # (stream, source_seq) -> when it was sent first

    def start(self) -> None:
        """Put every packet of the session on the schedule."""
        begin = START_NS + self._plan.source_start_ns
        for stream, messages in self._messages.items():
            chance = random.Random((self._plan.seed << 8) ^ stream)
            packets = _cut(
                len(messages), [hole for hole in self._plan.holes if hole.source_stream_id == stream], chance
            )
            for count, at_ns in zip(packets, sorted(self._draw_time(chance) for _ in packets), strict=True):
                self._world.at(begin + at_ns, self._send_next, (stream, count))
        self._world.at(begin, self._beat)

    def _draw_time(self, chance: random.Random) -> int:
        bursts = self._plan.bursts_ns
        if not bursts or chance.random() < 0.5:
            return int(chance.random() * self._plan.storm_ns)
        return chance.choice(bursts) + chance.randrange(BURST_NS)

    def stop_for(self, length_ns: int) -> None:
        """The source's host stands still; what it had to send comes when it goes on."""
        self._stopped_until_ns = max(self._stopped_until_ns, self._world.now_ns + length_ns)

    def number_foreign_session(self, until_ns: int) -> None:
        """Packets of the next session, numbered from 1 with other content: nobody may take them for this one's."""
        for stream in self._messages:
            foreign = [(symbol, value + 1) for symbol, value in self._messages[stream][:3]]
            datagram = encode_source(stream, 1, foreign, self._world.now_ns, 0, session=SESSION + 1)
            self._multicast(datagram, None)
            flags = SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM
            self._multicast(encode_source(stream, 4, [], self._world.now_ns, flags, session=SESSION + 1), None)
        if self._world.now_ns + FOREIGN_EVERY_NS < until_ns:
            self._world.after(FOREIGN_EVERY_NS, self.number_foreign_session, until_ns)

    def fill(self, stream: int, first: int, last: int) -> list[bytes]:
        """What the source journal has of source_seq first…last."""
        if self._is_stopped():
            return []
        return [datagram for begin, end, datagram in self._journal[stream] if begin <= last and end > first]

    # ---- inside ----

    def _is_stopped(self) -> bool:
        return self._world.now_ns < self._stopped_until_ns

    def _postpone(self, action: Callable[..., object], argument: object) -> bool:
        if not self._is_stopped():
            return False
        self._world.at(self._stopped_until_ns, action, argument)
        return True

    def _send_next(self, packet: tuple[int, int]) -> None:
        if self._postpone(self._send_next, packet):
            return
        stream, count = packet
        first = self._next[stream]
        messages = self._messages[stream][first - 1 : first - 1 + count]
        datagram = encode_source(stream, first, messages, self._world.now_ns, 0)
        assert len(datagram) == SOURCE_HEADER_SIZE + count * SOURCE_MESSAGE_SIZE
        self._next[stream] = first + count
        self.sent_at_ns.update(((stream, first + place), self._world.now_ns) for place in range(count))
        hole = next((hole for hole in self._plan.holes if _covers(hole, stream, first)), None)
        if hole is None:
            self._journal[stream].append((first, first + count, datagram))
        self._multicast(datagram, hole)

    def _beat(self, _: object) -> None:
        if self._postpone(self._beat, None):
            return
        for stream, next_seq in self._next.items():
            flags = int(SourceFlag.HEARTBEAT)
            if next_seq > len(self._messages[stream]):
                flags |= SourceFlag.END_OF_STREAM
            self._multicast(encode_source(stream, next_seq, [], self._world.now_ns, flags), None)
        self._world.after(HEARTBEAT_INTERVAL_NS, self._beat)

    def _multicast(self, datagram: bytes, hole: SourceHole | None) -> None:
        world = self._world
        for adapter in self._adapters:
            if hole is None or adapter.adapter_id in hole.heard_by:
                world.multicast(adapter.from_source, adapter.on_source, datagram)


def _covers(hole: SourceHole, stream: int, source_seq: int) -> bool:
    return hole.source_stream_id == stream and 0 <= source_seq - hole.first_source_seq < hole.count


def _cut(message_count: int, holes: list[SourceHole], chance: random.Random) -> list[int]:
    """Message counts of a stream's packets; a hole begins and ends with a packet."""
    borders = {hole.first_source_seq for hole in holes} | {hole.first_source_seq + hole.count for hole in holes}
    counts, first = [], 1
    while first <= message_count:
        count = min(chance.randint(1, PACKET_MESSAGES_MAX), message_count - first + 1)
        count = min([count, *(border - first for border in borders if border > first)])
        counts.append(count)
        first += count
    return counts
