"""The feed source of a run: sends prepared packets on a schedule, sends heartbeats, and fills gaps from its journal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, SourceFlag
from tests.simulation.plan import MS, JournalGap, Plan
from tests.simulation.toy_feed import FIRST_SESSION, SOURCE_MESSAGE_SIZE, encode_source
from tests.simulation.world import SOURCE, START_NS, World

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor

PACKET_MESSAGES_MAX = 6
HEARTBEAT_INTERVAL_NS = 40 * MS
BURST_NS = 8 * MS
FOREIGN_EVERY_NS = 7 * MS
FINAL_HEARTBEATS = 5  # heartbeats that announce the end of a session after the next one has begun
SessionMessages = dict[int, dict[int, list[tuple[int, int]]]]  # by session and stream


class SourceActor:
    """Numbers and sends the messages of every stream.

    Args:
        messages: by session and stream: (symbol, value) of each message, from source_seq 1.
        adapters: the receivers; the cluster fills this in.
    """

    name = SOURCE

    def __init__(
        self,
        world: World,
        plan: Plan,
        messages: SessionMessages,
        adapters: Sequence[AdapterActor],
    ) -> None:
        self._world, self._plan, self._messages, self._adapters = world, plan, messages, adapters
        self._session = FIRST_SESSION
        self._next = {(session, stream): 1 for session, streams in messages.items() for stream in streams}
        self._journal: dict[tuple[int, int], list[tuple[int, int, bytes]]] = {place: [] for place in self._next}
        self._final_heartbeats: list[tuple[int, int]] = []  # (session, how many more times to announce its end)
        self._stopped_until_ns = 0
        self.sent_at_ns: dict[tuple[int, int, int], int] = {}  # (session, stream, source_seq) -> first send time

    def start(self) -> None:
        """Schedule every packet of every session."""
        begin, plan = START_NS + self._plan.source_start_ns, self._plan
        borders = [0, *(each.begin_ns for each in plan.new_sessions), plan.storm_ns]
        for number, (session, streams) in enumerate(self._messages.items()):
            if number:
                self._world.at(begin + borders[number], self._begin_session, session)
            for stream, messages in streams.items():
                chance = random.Random((plan.seed << 8) ^ stream ^ number << 40)
                journal_gaps = [gap for gap in plan.journal_gaps if gap.source_stream_id == stream and not number]
                packets = _cut(len(messages), journal_gaps, chance)
                span = borders[number], borders[number + 1]
                times = sorted(self._draw_time(chance, *span) for _ in packets)
                for count, at_ns in zip(packets, times, strict=True):
                    self._world.at(begin + at_ns, self._send_next, (session, stream, count))
        self._world.at(begin, self._beat)

    def _draw_time(self, chance: random.Random, begin_ns: int, end_ns: int) -> int:
        bursts = self._plan.bursts_ns
        if self._plan.new_sessions:
            bursts = tuple(burst for burst in bursts if begin_ns <= burst < end_ns - BURST_NS)
        if not bursts or chance.random() < 0.5:
            return begin_ns + int(chance.random() * (end_ns - begin_ns))
        return chance.choice(bursts) + chance.randrange(BURST_NS)

    def stop_for(self, length_ns: int) -> None:
        """Pause the source; packets that fall due are sent when it resumes."""
        self._stopped_until_ns = max(self._stopped_until_ns, self._world.now_ns + length_ns)

    def number_foreign_session(self, until_ns: int) -> None:
        """Send packets of an old session with other content; adapters may neither use nor follow them."""
        for stream, messages in self._messages[FIRST_SESSION].items():
            foreign = [(symbol, value + 1) for symbol, value in messages[:3]]
            datagram = encode_source(stream, 1, foreign, self._world.now_ns, 0, session=FIRST_SESSION - 1)
            self._multicast(datagram, None)
            flags = SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM
            self._multicast(encode_source(stream, 4, [], self._world.now_ns, flags, session=FIRST_SESSION - 1), None)
        if self._world.now_ns + FOREIGN_EVERY_NS < until_ns:
            self._world.after(FOREIGN_EVERY_NS, self.number_foreign_session, until_ns)

    @property
    def session(self) -> int:
        """The session that it is in."""
        return self._session

    def fill(self, session: int, stream: int, first: int, end: int) -> list[bytes]:
        """The packets in the source journal with messages [first, end) of a session, and its end if it is over."""
        if self._is_stopped():
            return []
        found = [
            datagram
            for packet_first, packet_end, datagram in self._journal.get((session, stream), [])
            if packet_first < end and packet_end > first
        ]
        session_end = self._next[session, stream]
        if session < self._session and end > session_end:
            flags = SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM
            found.append(encode_source(stream, session_end, [], self._world.now_ns, flags, session))
        return found

    # ---- inside ----

    def _is_stopped(self) -> bool:
        return self._world.now_ns < self._stopped_until_ns

    def _postpone(self, action: Callable[..., object], argument: object) -> bool:
        if not self._is_stopped():
            return False
        self._world.at(self._stopped_until_ns, action, argument)
        return True

    def _begin_session(self, session: int) -> None:
        if self._postpone(self._begin_session, session):
            return
        self._world.log("the source begins session {}", session)
        if self._plan.new_sessions[session - FIRST_SESSION - 1].is_end_said:
            self._final_heartbeats.append((self._session, FINAL_HEARTBEATS))
        self._session = session

    def _send_next(self, packet: tuple[int, int, int]) -> None:
        if self._postpone(self._send_next, packet):
            return
        session, stream, count = packet
        first = self._next[session, stream]
        messages = self._messages[session][stream][first - 1 : first - 1 + count]
        datagram = encode_source(stream, first, messages, self._world.now_ns, 0, session)
        assert len(datagram) == SOURCE_HEADER_SIZE + count * SOURCE_MESSAGE_SIZE
        self._next[session, stream] = first + count
        self.sent_at_ns.update(((session, stream, first + place), self._world.now_ns) for place in range(count))
        is_first = session == FIRST_SESSION
        gap = next((gap for gap in self._plan.journal_gaps if is_first and _covers(gap, stream, first)), None)
        if gap is None:
            self._journal[session, stream].append((first, first + count, datagram))
        self._multicast(datagram, gap)

    def _beat(self, _: object) -> None:
        if self._postpone(self._beat, None):
            return
        for session, _ in self._final_heartbeats:
            self._beat_session(session, is_over=True)
        self._final_heartbeats = [(session, count - 1) for session, count in self._final_heartbeats if count > 1]
        self._beat_session(self._session, is_over=self._session == max(self._messages))
        self._world.after(HEARTBEAT_INTERVAL_NS, self._beat)

    def _beat_session(self, session: int, *, is_over: bool) -> None:
        for stream, messages in self._messages[session].items():
            next_seq, flags = self._next[session, stream], int(SourceFlag.HEARTBEAT)
            if is_over and next_seq > len(messages):
                flags |= SourceFlag.END_OF_STREAM
            self._multicast(encode_source(stream, next_seq, [], self._world.now_ns, flags, session), None)

    def _multicast(self, datagram: bytes, gap: JournalGap | None) -> None:
        world = self._world
        for adapter in self._adapters:
            if gap is None or adapter.adapter_id in gap.heard_by:
                world.multicast(adapter.from_source, adapter.on_source, datagram)


def _covers(gap: JournalGap, stream: int, source_seq: int) -> bool:
    return gap.source_stream_id == stream and 0 <= source_seq - gap.first_source_seq < gap.count


def _cut(message_count: int, journal_gaps: list[JournalGap], chance: random.Random) -> list[int]:
    """The message counts of a stream's packets; journal gaps begin and end at packet boundaries."""
    borders = {gap.first_source_seq for gap in journal_gaps} | {
        gap.first_source_seq + gap.count for gap in journal_gaps
    }
    counts, first = [], 1
    while first <= message_count:
        count = min(chance.randint(1, PACKET_MESSAGES_MAX), message_count - first + 1)
        count = min([count, *(border - first for border in borders if border > first)])
        counts.append(count)
        first += count
    return counts
