"""Merges both lines of each numbered stream of a capture: each message once, in order. Finds what is missing.

A venue sends each stream on two lines with the same numbers. Packets are early when their predecessors are still to
come on the other line; they are held for a while, by the capture's own times. Pure.

What comes even later, as when captures were joined in the wrong order, is delivered then: late is better than lost.

Invariant: each message of a stream is delivered once; in ascending order, except what was given up before.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemfeed.adapter.conversion.formats.chunks import FrameChunk

HOLD_NS = 1_000_000_000  # lines differ by milliseconds; a capture is not in a hurry
HELD_MAX = 10_000  # packets of a stream; beyond this what is missing is given up


class Missing(NamedTuple):
    """Messages that no line of the capture has. Attributes: end: the number after the last one."""

    stream: str
    first: int
    end: int


@dataclass(slots=True)
class _Stream:
    """What is known of a stream.

    Attributes:
        lowest: the first number that was delivered.
        gaps: (first, end) of what was given up, in order; also what precedes the first packet that was captured.
        lost: gaps that nothing can fill, because the numbers started again.
    """

    name: str
    next: int
    lowest: int
    gaps: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    late_count: int = 0
    duplicate_count: int = 0
    end: int = 0  # as far as any packet shows the stream to go
    held: dict[int, tuple[FrameChunk, int]] = field(default_factory=dict)  # by first number; when to give up
    order: list[int] = field(default_factory=list)  # a heap of the numbers in `held`


class LineMerge:
    """The streams of one capture, by the protocol's name of the session.

    Args:
        part: the messages of a chunk from a number up to another one, exclusive; both are the venue's.
        hold_ns: how long a packet waits for earlier ones, by the capture's times.
        is_by_packet: the venue numbers packets, not messages.
        name: the name of a stream, from its session.
    """

    def __init__(
        self,
        part: Callable[[FrameChunk, int, int], FrameChunk],
        *,
        hold_ns: int = HOLD_NS,
        is_by_packet: bool = False,
        name: Callable[[bytes], str] = lambda session: session.decode("latin-1").strip(),
    ) -> None:
        self._part, self._hold_ns, self._is_by_packet, self._name = part, hold_ns, is_by_packet, name
        self._streams: dict[bytes, _Stream] = {}

    @property
    def missing(self) -> list[Missing]:
        """What no line has brought so far, although later messages were delivered."""
        return [Missing(stream.name, *gap) for stream in self._streams.values() for gap in _missing_in(stream)]

    @property
    def late_count(self) -> int:
        """The messages, or packets, that were delivered after later ones."""
        return sum(stream.late_count for stream in self._streams.values())

    @property
    def duplicate_count(self) -> int:
        """The messages, or packets, that were dropped because they had been delivered."""
        return sum(stream.duplicate_count for stream in self._streams.values())

    def duplicates_in(self, session: bytes) -> int:
        """Those of one stream."""
        return self._streams[session].duplicate_count if session in self._streams else 0

    def late_in(self, session: bytes) -> int:
        """As `late_count`, of one stream."""
        return self._streams[session].late_count if session in self._streams else 0

    def _count(self, chunk: FrameChunk) -> int:
        """How many numbers a chunk takes."""
        return 1 if self._is_by_packet else chunk.message_count

    def _end(self, chunk: FrameChunk) -> int:
        return chunk.sequence + self._count(chunk)

    def _stream(self, session: bytes, first: int) -> _Stream:
        if session not in self._streams:
            self._streams[session] = _Stream(self._name(session), first, first, [(0, first)] if first > 1 else [])
        return self._streams[session]

    def continue_at(self, session: bytes, number: int, first: int) -> None:
        """The messages of a stream from `first` up to this number, exclusive, were delivered elsewhere."""
        self._stream(session, first).next = number

    def start_again(self, session: bytes) -> None:
        """The numbers of a stream start again at 1; what is missing stays so."""
        stream = self._streams[session]
        stream.lost, stream.gaps, stream.lowest, stream.next = _missing_in(stream), [], 1, 1

    def state(self, session: bytes) -> tuple[int, bool, int]:
        """(number of the next message, True if packets wait for it, end of the last gap) of a stream that is known."""
        stream = self._streams[session]
        return stream.next, bool(stream.held), stream.gaps[-1][1] if stream.gaps else 0

    def on_chunk(self, chunk: FrameChunk, captured_at_ns: int) -> Iterator[FrameChunk]:
        """Take a packet's messages; yields what is next in its stream."""
        stream = self._stream(chunk.session, chunk.sequence)
        yield from self._give_up(stream, captured_at_ns)
        yield from self._fill_gaps(stream, chunk)
        end = self._end(chunk)
        early = stream.held.get(chunk.sequence)
        if end <= stream.next or (early is not None and self._end(early[0]) >= end):
            stream.duplicate_count += self._count(chunk)
            return
        if early is not None:  # a part of this packet
            stream.duplicate_count += self._count(early[0])
        else:
            heapq.heappush(stream.order, chunk.sequence)
        stream.held[chunk.sequence] = chunk, captured_at_ns + self._hold_ns
        yield from self._release(stream)
        while len(stream.held) > HELD_MAX:
            yield from self._skip(stream)

    def _fill_gaps(self, stream: _Stream, chunk: FrameChunk) -> Iterator[FrameChunk]:
        """Deliver what had been given up."""
        gaps, first, end = stream.gaps, chunk.sequence, min(self._end(chunk), stream.next)
        number = max(bisect_left(gaps, (first, 0)) - 1, 0)
        while number < len(gaps) and gaps[number][0] < end:
            gap_first, gap_end = gaps[number]
            found, found_end = max(gap_first, first), min(gap_end, end)
            if found >= found_end:
                number += 1
                continue
            gaps[number : number + 1] = [gap for gap in ((gap_first, found), (found_end, gap_end)) if gap[0] < gap[1]]
            stream.lowest = min(stream.lowest, found)
            stream.late_count += found_end - found
            stream.duplicate_count -= found_end - found  # all of the packet that precedes `next` is counted afterwards
            yield chunk if self._is_by_packet else self._part(chunk, found, found_end)

    def note_end(self, session: bytes, end: int) -> None:
        """Note that a stream, if it is known, goes up to this number, exclusive; heartbeats say so, too."""
        if (stream := self._streams.get(session)) is not None:
            stream.end = max(stream.end, end)

    def finish(self) -> Iterator[FrameChunk]:
        """The capture has ended; yields what was held."""
        for session, stream in self._streams.items():
            yield from self.flush(session)
            if stream.end > stream.next:
                stream.gaps.append((stream.next, stream.end))

    def flush(self, session: bytes) -> Iterator[FrameChunk]:
        """Nothing earlier can come in this stream; yields what was held."""
        stream = self._streams[session]
        while stream.held:
            yield from self._skip(stream)

    def _release(self, stream: _Stream) -> Iterator[FrameChunk]:
        while stream.order and stream.order[0] <= stream.next:
            first = heapq.heappop(stream.order)
            chunk, _ = stream.held.pop(first)
            end = self._end(chunk)
            stream.duplicate_count += min(end, stream.next) - first
            if end > stream.next:
                yield chunk if first == stream.next else self._part(chunk, stream.next, end)
                stream.next = end

    def _give_up(self, stream: _Stream, now_ns: int) -> Iterator[FrameChunk]:
        while stream.order and stream.held[stream.order[0]][1] <= now_ns:
            yield from self._skip(stream)

    def _skip(self, stream: _Stream) -> Iterator[FrameChunk]:
        """Give up what is missing before the first held packet."""
        first = stream.order[0]
        stream.gaps.append((stream.next, first))
        stream.next = first
        yield from self._release(stream)


def _missing_in(stream: _Stream) -> list[tuple[int, int]]:
    """The gaps of a stream, without what precedes its first message."""
    gaps = [(max(first, stream.lowest), end) for first, end in stream.gaps if end > stream.lowest]
    return stream.lost + gaps
