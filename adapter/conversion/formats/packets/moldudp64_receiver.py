"""Receives a MoldUDP64 feed: a sans-I/O core that merges the packets of one or more lines into one gapless sequence.

The shell passes every datagram, of the multicast lines and of the request server, to `on_packet`, and calls
`on_deadline` when `next_deadline_ns` has passed. The time is the shell's monotonic clock.

Invariant: within a session, `Deliver` and `SequenceGap` together cover each sequence number exactly once, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import (
    MoldPacket,
    chunk_from,
    decode_mold_packet,
    encode_mold_request,
)
from tandemfeed.feedcore.range_set import RangeSet

MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class MoldConfig:
    """The waiting times and limits of a receiver.

    Attributes:
        reorder_wait_ns: how long to wait for a missing message before requesting it, since another line may deliver it.
        request_wait_ns: the time between two requests for the same gap.
        request_count_max: the number of requests before a gap is given up.
        messages_per_request_max: the largest number of messages in one request.
        held_messages_max: the most messages held after a gap; further ones are dropped and requested later.
        silence_ns: after this time without a packet the feed is silent; venues send heartbeats each second.
    """

    reorder_wait_ns: int = 2 * MILLISECOND_NS
    request_wait_ns: int = 50 * MILLISECOND_NS
    request_count_max: int = 10
    messages_per_request_max: int = 60_000
    held_messages_max: int = 1_000_000
    silence_ns: int = 3_000 * MILLISECOND_NS  # three heartbeats

    def __post_init__(self) -> None:
        """Check the limits against each other."""
        assert 0 < self.messages_per_request_max < 0xFFFF
        assert self.silence_ns > self.request_wait_ns > 0


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """The first packet of a session was received; the messages from `next_sequence` on follow."""

    session: bytes
    next_sequence: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Messages in sequence."""

    chunk: FrameChunk


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send this datagram to the venue's request server."""

    first_sequence: int
    count: int
    datagram: bytes


@dataclass(frozen=True, slots=True)
class SequenceGap:
    """These messages did not arrive, although they were requested as often as configured. Delivery continues."""

    session: bytes
    first_sequence: int
    count: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The venue ended the session, and every message of it was delivered or declared missing."""

    session: bytes
    next_sequence: int


@dataclass(frozen=True, slots=True)
class FeedSilent:
    """No packet arrived for the configured time. Reported once; again only after another packet arrived."""


MoldEffect: TypeAlias = SessionStarted | Deliver | SendRequest | SequenceGap | SessionEnded | FeedSilent


@dataclass(slots=True)
class MoldCounts:
    """The counts of a receiver.

    Attributes:
        packets: well-formed datagrams.
        malformed: malformed datagrams, which are dropped.
        duplicates: packets with no message that was not delivered or held before.
        foreign: packets of a session that is over.
        dropped: packets beyond the limit of messages held after a gap.
        requests: requests sent.
        lost: messages declared missing.
    """

    packets: int = 0
    malformed: int = 0
    duplicates: int = 0
    foreign: int = 0
    dropped: int = 0
    requests: int = 0
    lost: int = 0


@dataclass(slots=True)
class _Session:
    name: bytes
    next_sequence: int
    known_end: int  # one past the newest known message
    is_ending: bool = False
    is_over: bool = False
    held: dict[int, MoldPacket] = field(default_factory=dict)  # by sequence; packets may overlap
    held_numbers: RangeSet = field(default_factory=RangeSet)  # of the messages in `held`
    gap_attempts: int = 0
    gap_deadline_ns: int | None = None

    @property
    def gap_end(self) -> int:
        """One past the last message of the first gap, which begins at `next_sequence`."""
        return self.held_numbers.first if self.held_numbers else self.known_end


class MoldReceiver:
    """The receiver of one MoldUDP64 feed.

    Args:
        session, next_sequence: the durable position to continue from. Without a session, the first packet received
            determines it; then `next_sequence` is the first message to deliver, and None begins with that packet.
    """

    def __init__(
        self, config: MoldConfig | None = None, session: bytes | None = None, next_sequence: int | None = None
    ) -> None:
        assert session is None or next_sequence is not None, "a session to continue needs a position in it"
        self.config = config or MoldConfig()
        self.counts = MoldCounts()
        self._begin = next_sequence
        self._session = None if session is None else _Session(session.ljust(10), next_sequence or 1, next_sequence or 1)
        self._before: bytes | None = None
        self._silent_at_ns: int | None = None

    def next_deadline_ns(self) -> int | None:
        """When `on_deadline` is due; None: not before the next packet."""
        gap = self._session.gap_deadline_ns if self._session is not None else None
        return min((each for each in (gap, self._silent_at_ns) if each is not None), default=None)

    def start(self, now_ns: int) -> None:
        """The shell is listening: silence counts from now on."""
        self._silent_at_ns = now_ns + self.config.silence_ns

    def on_packet(self, datagram: bytes, now_ns: int) -> list[MoldEffect]:
        """Take a datagram of any line or of the request server."""
        try:
            packet = decode_mold_packet(datagram)
        except FormatError:
            self.counts.malformed += 1
            return []
        self.counts.packets += 1
        self._silent_at_ns = now_ns + self.config.silence_ns
        effects: list[MoldEffect] = []
        session = self._session_of(packet, effects)
        if session is None or session.is_over:
            self.counts.foreign += 1
            return effects
        self._take(session, packet, effects)
        self._settle(session, now_ns, effects)
        return effects

    def on_deadline(self, now_ns: int) -> list[MoldEffect]:
        """Take the actions that are due: report silence, request the gap again, or give it up."""
        effects: list[MoldEffect] = []
        if self._silent_at_ns is not None and now_ns >= self._silent_at_ns:
            self._silent_at_ns = None
            effects.append(FeedSilent())
        session = self._session
        if session is None or session.gap_deadline_ns is None or now_ns < session.gap_deadline_ns:
            return effects
        if session.gap_attempts < self.config.request_count_max:
            session.gap_attempts += 1
            session.gap_deadline_ns = now_ns + self.config.request_wait_ns
            effects += self._requests(session)
        else:
            self._give_up(session, effects)
            self._settle(session, now_ns, effects)
        return effects

    def _session_of(self, packet: MoldPacket, effects: list[MoldEffect]) -> _Session | None:
        """The session of a packet; begins it if it is new. None if the packet is of the previous session."""
        session = self._session
        if session is not None and packet.session == session.name:
            return session
        if packet.session == self._before:
            return None
        if session is not None:
            if not session.is_over:  # the old session did not end properly: its missing messages will never come
                while session.next_sequence < session.known_end:
                    self._give_up(session, effects)
                    self._drain(session, effects)
                effects.append(SessionEnded(session.name, session.next_sequence))
            self._before = session.name
        first = 1 if session is not None else self._begin
        start = packet.sequence if first is None else first
        self._session = _Session(packet.session, start, start)
        effects.append(SessionStarted(packet.session, start))
        return self._session

    def _take(self, session: _Session, packet: MoldPacket, effects: list[MoldEffect]) -> None:
        """Deliver, hold or drop the messages of a packet."""
        end = packet.sequence + packet.message_count
        session.known_end = max(session.known_end, end)
        session.is_ending |= packet.is_end
        if packet.message_count == 0:
            return
        held = session.held_numbers
        if end <= session.next_sequence or held.covers(packet.sequence, end):
            self.counts.duplicates += 1
        elif packet.sequence <= session.next_sequence:
            effects.append(Deliver(chunk_from(packet, session.next_sequence)))
            session.next_sequence = end
            self._drain(session, effects)
        elif held.count + packet.message_count > self.config.held_messages_max:
            self.counts.dropped += 1
        else:
            held.add(packet.sequence, end)
            session.held[packet.sequence] = packet

    def _drain(self, session: _Session, effects: list[MoldEffect]) -> None:
        """Deliver the held messages that are now in sequence."""
        if session.next_sequence < session.gap_end:
            return
        for sequence in sorted(session.held):
            if sequence > session.next_sequence:
                break
            packet = session.held.pop(sequence)
            if sequence + packet.message_count > session.next_sequence:
                effects.append(Deliver(chunk_from(packet, session.next_sequence)))
                session.next_sequence = sequence + packet.message_count
        session.held_numbers.truncate_before(session.next_sequence)

    def _settle(self, session: _Session, now_ns: int, effects: list[MoldEffect]) -> None:
        """Set or clear the deadline of the gap; end the session if no message is missing."""
        if session.next_sequence < session.known_end:
            moved = any(isinstance(effect, Deliver | SequenceGap) for effect in effects)
            if session.gap_deadline_ns is None or moved:  # another gap, or an answer is arriving: restart the wait
                session.gap_attempts = 0
                session.gap_deadline_ns = now_ns + self.config.reorder_wait_ns
            return
        session.gap_attempts = 0
        session.gap_deadline_ns = None
        if session.is_ending and not session.is_over:
            session.is_over = True
            effects.append(SessionEnded(session.name, session.next_sequence))

    def _requests(self, session: _Session) -> list[MoldEffect]:
        """One request for the first gap, which ends at the first held message."""
        count = min(session.gap_end - session.next_sequence, self.config.messages_per_request_max)
        self.counts.requests += 1
        datagram = encode_mold_request(session.name, session.next_sequence, count)
        return [SendRequest(session.next_sequence, count, datagram)]

    def _give_up(self, session: _Session, effects: list[MoldEffect]) -> None:
        """Declare the first gap missing and continue after it."""
        end = session.gap_end
        count = end - session.next_sequence
        if count > 0:
            self.counts.lost += count
            effects.append(SequenceGap(session.name, session.next_sequence, count))
        session.next_sequence = end
        session.gap_deadline_ns = None
        self._drain(session, effects)
