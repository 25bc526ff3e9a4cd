"""One source stream as one adapter hears it: puts packets in `source_seq` order and finds what is missing.

Takes decoded source packets in arrival order, from multicast and from the source journal alike, and passes slices on
gaplessly: each source message once, in order. It decides nothing about `message_seq`. Until it is anchored (an adapter
that is still joining does not know where its conversion state will begin) it only holds packets.

Invariant: the slices passed on since `anchor(n)` cover n, n+1, … up to `next_source_seq - 1` exactly once, in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.hold_queue import HoldQueue
from tandemfeed.feedcore.replica.effects import RequestSource
from tandemfeed.feedcore.wire.source_packet import SourceFlag, SourcePacket

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """Timers and limits of gap repair.

    Attributes:
        request_after_ns: how long a gap may be mere reordering before the source journal is asked.
        retry_every_ns: pause between requests for the same hole.
        declare_after_ns: how long a gap may stay before the active may declare it lost. Longer than a feed source
            takes to come back from a crash: losing data must be the last resort.
        held_count_max: packets held out of order; beyond it the newest are dropped and asked back later.
        request_count_max, request_range_count_max: source messages, and gaps, asked for at once; progress asks for the
            rest.
    """

    request_after_ns: int = 2 * MS
    retry_every_ns: int = 50 * MS
    declare_after_ns: int = 60_000 * MS
    held_count_max: int = 65_536
    request_count_max: int = 50_000
    request_range_count_max: int = 1_000

    def __post_init__(self) -> None:
        assert self.request_after_ns < self.retry_every_ns < self.declare_after_ns

    @property
    def give_up_after_ns(self) -> int:
        """How long a gap may stay before the active declares it lost although a backup has the messages: whoever has
        them has gaps of its own, and so no hand-over comes about."""
        return 2 * self.declare_after_ns


class Slice(NamedTuple):
    """Messages `skip` … `skip + message_count - 1` of a source packet: the next ones of their stream.

    `arrival` orders slices of different streams as they became available at this adapter.
    """

    packet: SourcePacket
    skip: int
    message_count: int
    arrival: int

    @property
    def first_source_seq(self) -> int:
        """Of the slice's first message."""
        return self.packet.first_source_seq + self.skip


class SourceTracker:
    """Order and gaps of one source stream.

    Args:
        source_stream_id: the stream.
        config: timers and limits.
        session: the session whose messages are tracked.
    """

    def __init__(self, source_stream_id: int, config: TrackerConfig, session: int = 0) -> None:
        self.source_stream_id = source_stream_id
        self.next_source_seq: int | None = None  # None until anchored
        self.known_end = 1  # one past the newest source_seq anybody mentioned
        self.ended_at: int | None = None  # one past the last source_seq of the session, once the source says so
        self._config, self._session = config, session
        self._tail_request_at_ns: int | None = None
        self._given_up_at_ns: int | None = None  # once the session must be concluded
        self._held: HoldQueue[SourcePacket] = HoldQueue(config.held_count_max)
        self._gap_since_ns: int | None = None
        self._request_at_ns: int | None = None
        self._arrivals = 0

    def anchor(self, next_source_seq: int, now_ns: int) -> list[Slice]:
        """Start (again) at `next_source_seq`; returns what is already here in order from there."""
        self.next_source_seq = next_source_seq
        self.known_end = max(self.known_end, next_source_seq)
        self._gap_since_ns = None
        return self._release(now_ns)

    def unanchor(self, unused: Iterable[Slice] = ()) -> None:
        """Forget the place in the stream; from now on only hold: what is held already, and what was passed on and not
        used."""
        self.next_source_seq = None
        self._gap_since_ns = self._request_at_ns = None
        for piece in unused:
            self._hold(piece.packet)

    def on_packet(self, packet: SourcePacket, arrival: int, now_ns: int) -> list[Slice]:
        """Take a packet; returns the slices it makes available, in order; empty for a duplicate or an early one."""
        self._arrivals = arrival
        end = packet.end_source_seq
        self.known_end = max(self.known_end, end)
        if packet.message_count == 0:
            if packet.flags & SourceFlag.END_OF_STREAM:
                self.ended_at = packet.first_source_seq
            self._watch_gap(now_ns)
            return []
        expected = self.next_source_seq
        if expected == packet.first_source_seq and not self._held.items:  # the hot path
            self.next_source_seq = end
            if self._gap_since_ns is not None:
                self._gap_since_ns = None  # progress: what is missing now is another gap
                self._watch_gap(now_ns)
            return [Slice(packet, 0, packet.message_count, arrival)]
        if expected is not None and end <= expected:
            return []
        self._hold(packet)
        return self._release(now_ns)

    def note_end(self, end_source_seq: int, now_ns: int) -> None:
        """Somebody (the active, in a decision) mentioned source messages up to here: miss them if they do not come."""
        if end_source_seq > self.known_end:
            self.known_end = end_source_seq
            self._watch_gap(now_ns)

    def skip_to(self, next_source_seq: int, now_ns: int) -> list[Slice]:
        """The messages before `next_source_seq` were declared lost: go on behind them."""
        assert self.next_source_seq is not None
        if next_source_seq <= self.next_source_seq:
            return []
        return self.anchor(next_source_seq, now_ns)

    def next_deadline_ns(self) -> int | None:
        """When to ask the source journal (again)."""
        return earliest(self._request_at_ns, self._tail_request_at_ns)

    def on_timer(self, now_ns: int) -> list[RequestSource]:
        """The requests that are due."""
        requests = self._tail_request(now_ns)
        if self._request_at_ns is None or now_ns < self._request_at_ns:
            return requests
        assert self.next_source_seq is not None
        self._request_at_ns = now_ns + self._config.retry_every_ns
        limits = self._config.request_range_count_max, self._config.request_count_max
        gaps = self._held.missing(self.next_source_seq, self.known_end, *limits)
        return requests + [RequestSource(self.source_stream_id, first, end - 1, self._session) for first, end in gaps]

    def lost(self, now_ns: int) -> tuple[int, int] | None:
        """The first gap, (first, last) inclusive, if it has been open for so long that the active may declare it
        lost."""
        if self._gap_since_ns is None or self.next_source_seq is None:
            return None
        if self._given_up_at_ns is None and now_ns - self._gap_since_ns < self._config.declare_after_ns:
            return None
        for first, end in self._held.missing(self.next_source_seq, self.known_end, 1, self.known_end):
            return first, end - 1
        return None

    def is_given_up(self, now_ns: int) -> bool:
        """True if the first gap has been open for so long that it matters no more who has the messages."""
        if self._given_up_at_ns is not None and now_ns >= self._given_up_at_ns:
            return True
        return self._gap_since_ns is not None and now_ns - self._gap_since_ns >= self._config.give_up_after_ns

    # ---- the end of the session ----

    def seek_end(self, now_ns: int) -> None:
        """The source has begun a later session: it multicasts no more of this one, so what the source journal has
        after the newest known message is asked for, until it is known where the stream ends."""
        if self.ended_at is None and self._tail_request_at_ns is None:
            self._tail_request_at_ns = now_ns

    def conclude(self, given_up_at_ns: int) -> None:
        """The source journal has had its time: what is still missing is lost, and the stream ends after the newest
        message known. From `given_up_at_ns` on also what another adapter has."""
        if self._given_up_at_ns is None:
            self._given_up_at_ns = given_up_at_ns
        if self.next_source_seq is not None and self.next_source_seq >= self.known_end:
            self.ended_at, self._tail_request_at_ns = self.next_source_seq, None

    def _tail_request(self, now_ns: int) -> list[RequestSource]:
        if self._tail_request_at_ns is None or now_ns < self._tail_request_at_ns:
            return []
        if self.ended_at is not None or self.next_source_seq is None:
            self._tail_request_at_ns = None
            return []
        self._tail_request_at_ns = now_ns + self._config.retry_every_ns
        first = self.known_end
        last = first + self._config.request_count_max - 1
        return [RequestSource(self.source_stream_id, first, last, self._session)]

    def _hold(self, packet: SourcePacket) -> None:
        is_newest_wanted = self.next_source_seq is None  # a snapshot will begin near the newest
        self._held.add(packet.first_source_seq, packet.end_source_seq, packet, is_newest_wanted=is_newest_wanted)

    def _release(self, now_ns: int) -> list[Slice]:
        if self.next_source_seq is None:
            return []
        slices = []
        while (packet := self._held.pop_reaching(self.next_source_seq)) is not None:
            if packet.end_source_seq > self.next_source_seq:
                skip = self.next_source_seq - packet.first_source_seq
                slices.append(Slice(packet, skip, packet.message_count - skip, self._arrivals))
                self.next_source_seq = packet.end_source_seq
        if slices:
            self._gap_since_ns = None  # progress: what is missing now is another gap
        self._watch_gap(now_ns)
        return slices

    def _watch_gap(self, now_ns: int) -> None:
        if self.next_source_seq is None or (not self._held and self.known_end <= self.next_source_seq):
            self._gap_since_ns = self._request_at_ns = None
        elif self._gap_since_ns is None:
            self._gap_since_ns = now_ns
            if self._request_at_ns is None:
                self._request_at_ns = now_ns + self._config.request_after_ns
