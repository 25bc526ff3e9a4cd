"""One source stream as one adapter receives it: puts packets in `source_seq` order and finds gaps.

Takes decoded source packets in arrival order, from multicast and from the source journal alike, and returns slices
without gaps: each source message once, in order. It assigns no `message_seq`. Until it is anchored it only holds
packets, because an adapter that is still joining does not know where its conversion state will begin.

Invariant: the slices returned since `anchor(n)` cover n, n+1, … up to `next_source_seq - 1` exactly once, in order.
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
_new_tuple = tuple.__new__  # a named tuple's own constructor takes three times as long, and this runs for every packet


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """Timers and limits of gap repair.

    Attributes:
        request_after_ns: a gap is requested from the source journal after this time, because at first it may be mere
            reordering.
        retry_every_ns: pause between requests for the same gap.
        declare_after_ns: the active may declare a gap lost that has been open for this long. A feed source must be able
            to recover from a crash in less: losing data is the last resort.
        held_count_max: how many early packets are held; beyond it the newest are dropped and requested later.
        request_count_max, request_range_count_max: how many source messages, and how many gaps, are requested together;
            the rest is requested later.
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
        """When a gap has been open for this long, the active declares it lost although a backup has the messages: that
        backup has gaps too, so no hand-over to it succeeds."""
        return 2 * self.declare_after_ns


class Slice(NamedTuple):
    """Messages `skip` … `skip + message_count - 1` of a source packet, the next ones of their stream.

    `arrival` orders slices of different streams by when they became available at this adapter.
    """

    packet: SourcePacket
    skip: int
    message_count: int
    arrival: int

    @property
    def first_source_seq(self) -> int:
        """The `source_seq` of the slice's first message."""
        return self.packet.first_source_seq + self.skip


class SourceTracker:
    """Order and gaps of one source stream in one session."""

    def __init__(self, source_stream_id: int, config: TrackerConfig, session: int = 0) -> None:
        self.source_stream_id = source_stream_id
        self.next_source_seq: int | None = None  # None until anchored
        self.known_end = 1  # one past the newest source_seq known to exist
        self.ended_at: int | None = None  # one past the last source_seq of the session, once known
        self._config, self._session = config, session
        self._tail_request_at_ns: int | None = None
        self._given_up_at_ns: int | None = None  # once the session must be concluded
        self._held: HoldQueue[SourcePacket] = HoldQueue(config.held_count_max)
        self._gap_since_ns: int | None = None
        self._request_at_ns: int | None = None
        self._arrivals = 0

    def anchor(self, next_source_seq: int, now_ns: int) -> list[Slice]:
        """Start or restart at `next_source_seq`; returns the held slices that follow from there without a gap."""
        self.next_source_seq = next_source_seq
        self.known_end = max(self.known_end, next_source_seq)
        self._gap_since_ns = None
        return self._release(now_ns)

    def unanchor(self, unused: Iterable[Slice] = ()) -> None:
        """Forget the place in the stream; from now on only hold packets. `unused`: slices that were returned earlier
        and not used, to be held again."""
        self.next_source_seq = None
        self._gap_since_ns = self._request_at_ns = None
        for piece in unused:
            self._hold(piece.packet)

    def on_packet(self, packet: SourcePacket, arrival: int, now_ns: int) -> list[Slice]:
        """Take a packet and return the slices that it makes available, in order: none if it is a duplicate or early."""
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
            return [_new_tuple(Slice, (packet, 0, packet.message_count, arrival))]
        if expected is not None and end <= expected:
            return []
        self._hold(packet)
        return self._release(now_ns)

    def note_end(self, end_source_seq: int, now_ns: int) -> None:
        """Note that source messages before `end_source_seq` exist, as a decision shows; those not here are a gap."""
        if end_source_seq > self.known_end:
            self.known_end = end_source_seq
            self._watch_gap(now_ns)

    def skip_to(self, next_source_seq: int, now_ns: int) -> list[Slice]:
        """Skip the messages before `next_source_seq`, which were declared lost."""
        assert self.next_source_seq is not None
        if next_source_seq <= self.next_source_seq:
            return []
        return self.anchor(next_source_seq, now_ns)

    def next_deadline_ns(self) -> int | None:
        """When the next request to the source journal is due."""
        return earliest(self._request_at_ns, self._tail_request_at_ns)

    def on_timer(self, now_ns: int) -> RequestSource | None:
        """The request that is due."""
        ranges: tuple[tuple[int, int], ...] = ()
        if self._request_at_ns is not None and now_ns >= self._request_at_ns:
            assert self.next_source_seq is not None
            self._request_at_ns = now_ns + self._config.retry_every_ns
            limits = self._config.request_range_count_max, self._config.request_count_max
            ranges = self._held.missing(self.next_source_seq, self.known_end, *limits)
        ranges += self._due_tail(now_ns)
        return RequestSource(self.source_stream_id, ranges, self._session) if ranges else None

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused, and what is missing may wait in its queues."""
        if self._gap_since_ns is not None:
            self._gap_since_ns += pause_ns
        if self._given_up_at_ns is not None:
            self._given_up_at_ns += pause_ns

    def lost(self, now_ns: int) -> tuple[int, int] | None:
        """The first gap, (first, last) inclusive, if it has been open for long enough to be declared lost."""
        if self._gap_since_ns is None or self.next_source_seq is None:
            return None
        if self._given_up_at_ns is None and now_ns - self._gap_since_ns < self._config.declare_after_ns:
            return None
        for first, end in self._held.missing(self.next_source_seq, self.known_end, 1, self.known_end):
            return first, end - 1
        return None

    def is_given_up(self, now_ns: int) -> bool:
        """True if the first gap has been open for so long that it is lost even if another adapter has the messages."""
        if self._given_up_at_ns is not None and now_ns >= self._given_up_at_ns:
            return True
        return self._gap_since_ns is not None and now_ns - self._gap_since_ns >= self._config.give_up_after_ns

    # ---- the end of the session ----

    def seek_end(self, now_ns: int) -> None:
        """The source has begun a later session and multicasts nothing more of this one. So request what follows the
        newest known message from the source journal, until the end of the stream is known."""
        if self.ended_at is None and self._tail_request_at_ns is None:
            self._tail_request_at_ns = now_ns

    def conclude(self, given_up_at_ns: int) -> None:
        """The time for gap repair is over: what is still missing is lost, and the stream ends after the newest known
        message. From `given_up_at_ns` on, messages that only another adapter has are lost as well."""
        if self._given_up_at_ns is None:
            self._given_up_at_ns = given_up_at_ns
        if self.next_source_seq is not None and self.next_source_seq >= self.known_end:
            self.ended_at, self._tail_request_at_ns = self.next_source_seq, None

    def _due_tail(self, now_ns: int) -> tuple[tuple[int, int], ...]:
        if self._tail_request_at_ns is None or now_ns < self._tail_request_at_ns:
            return ()
        if self.ended_at is not None or self.next_source_seq is None:
            self._tail_request_at_ns = None
            return ()
        self._tail_request_at_ns = now_ns + self._config.retry_every_ns
        return ((self.known_end, self.known_end + self._config.request_count_max),)

    def _hold(self, packet: SourcePacket) -> None:
        prefer_newest = self.next_source_seq is None  # a snapshot will begin near the newest
        self._held.add(packet.first_source_seq, packet.end_source_seq, packet, prefer_newest=prefer_newest)

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
        if self.next_source_seq is None or self.known_end <= self.next_source_seq:
            self._gap_since_ns = self._request_at_ns = None
        elif self._gap_since_ns is None:
            self._gap_since_ns = now_ns
            if self._request_at_ns is None:
                self._request_at_ns = now_ns + self._config.request_after_ns
