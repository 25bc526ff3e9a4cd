"""Merges both lines of each numbered stream of a capture: each message once, in order. Finds what is missing.

A venue sends each stream on two lines with the same numbers. Packets are early when their predecessors are still to
come on the other line; they are held for a while, by the capture's own times. Pure.

Invariant: the messages of a stream are delivered in ascending order, each once.
"""

from __future__ import annotations

import heapq
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
    name: str
    next: int
    duplicate_count: int = 0
    end: int = 0  # as far as any packet shows the stream to go
    held: dict[int, tuple[FrameChunk, int]] = field(default_factory=dict)  # by first number; when to give up
    order: list[int] = field(default_factory=list)  # a heap of the numbers in `held`


class LineMerge:
    """The streams of one capture, by the protocol's name of the session.

    Args:
        later_part: the part of a chunk from a message on; both numbers are the venue's.
        hold_ns: how long a packet waits for earlier ones, by the capture's times.
        is_by_packet: the venue numbers packets, not messages.
        name: the name of a stream, from its session.

    Attributes:
        missing: what was given up.
    """

    def __init__(
        self,
        later_part: Callable[[FrameChunk, int], FrameChunk],
        *,
        hold_ns: int = HOLD_NS,
        is_by_packet: bool = False,
        name: Callable[[bytes], str] = lambda session: session.decode("latin-1").strip(),
    ) -> None:
        self._later_part, self._hold_ns, self._is_by_packet, self._name = later_part, hold_ns, is_by_packet, name
        self._streams: dict[bytes, _Stream] = {}
        self.missing: list[Missing] = []

    @property
    def duplicate_count(self) -> int:
        """The messages, or packets, that were dropped because they had been delivered."""
        return sum(stream.duplicate_count for stream in self._streams.values())

    def duplicates_in(self, session: bytes) -> int:
        """Those of one stream."""
        return self._streams[session].duplicate_count if session in self._streams else 0

    def _count(self, chunk: FrameChunk) -> int:
        """How many numbers a chunk takes."""
        return 1 if self._is_by_packet else chunk.message_count

    def _end(self, chunk: FrameChunk) -> int:
        return chunk.sequence + self._count(chunk)

    def _stream(self, session: bytes, first: int) -> _Stream:
        if session not in self._streams:
            self._streams[session] = _Stream(self._name(session), first)
        return self._streams[session]

    def continue_at(self, session: bytes, number: int) -> None:
        """The messages of a stream before this number were delivered, or are of no interest."""
        self._stream(session, number).next = number

    def state(self, session: bytes) -> tuple[int, bool]:
        """(number of the next message, True if packets wait for it) of a stream that is known."""
        stream = self._streams[session]
        return stream.next, bool(stream.held)

    def on_chunk(self, chunk: FrameChunk, captured_at_ns: int) -> Iterator[FrameChunk]:
        """Take a packet's messages; yields what is next in its stream."""
        stream = self._stream(chunk.session, chunk.sequence)
        yield from self._give_up(stream, captured_at_ns)
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

    def note_end(self, session: bytes, end: int) -> None:
        """Note that a stream, if it is known, goes up to this number, exclusive; heartbeats say so, too."""
        if (stream := self._streams.get(session)) is not None:
            stream.end = max(stream.end, end)

    def finish(self) -> Iterator[FrameChunk]:
        """The capture has ended; yields what was held."""
        for session, stream in self._streams.items():
            yield from self.flush(session)
            if stream.end > stream.next:
                self.missing.append(Missing(stream.name, stream.next, stream.end))

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
                yield chunk if first == stream.next else self._later_part(chunk, stream.next)
                stream.next = end

    def _give_up(self, stream: _Stream, now_ns: int) -> Iterator[FrameChunk]:
        while stream.order and stream.held[stream.order[0]][1] <= now_ns:
            yield from self._skip(stream)

    def _skip(self, stream: _Stream) -> Iterator[FrameChunk]:
        """Give up what is missing before the first held packet."""
        first = stream.order[0]
        self.missing.append(Missing(stream.name, stream.next, first))
        stream.next = first
        yield from self._release(stream)
