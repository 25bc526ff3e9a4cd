"""Merges both lines of each numbered stream of a capture: each message once, in order. Finds what is missing.

A venue sends each stream on two lines with the same numbers. Packets are early when their predecessors are still to
come on the other line; they are held for a while, by the capture's own times. Pure.

Invariant: the messages of a stream are delivered in ascending order, each once.
"""

from __future__ import annotations

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
    end: int = 0  # as far as any packet shows the stream to go
    held: dict[int, tuple[FrameChunk, int]] = field(default_factory=dict)  # by first number; when to give up


class LineMerge:
    """The streams of one capture, by the protocol's name of the session.

    Args:
        later_part: the part of a chunk from a message on; both numbers are the venue's.

    Attributes:
        missing: what was given up.
        duplicate_count: the messages that were dropped because they had been delivered.
    """

    def __init__(self, later_part: Callable[[FrameChunk, int], FrameChunk]) -> None:
        self._later_part = later_part
        self._streams: dict[bytes, _Stream] = {}
        self.missing: list[Missing] = []
        self.duplicate_count = 0

    def on_chunk(self, chunk: FrameChunk, captured_at_ns: int) -> Iterator[FrameChunk]:
        """Take a packet's messages; yields what is next in its stream."""
        stream = self._streams.get(chunk.session)
        if stream is None:
            name = chunk.session.decode("latin-1").strip()
            stream = self._streams[chunk.session] = _Stream(name, chunk.sequence)
        yield from self._give_up(stream, captured_at_ns)
        end = chunk.sequence + chunk.message_count
        early = stream.held.get(chunk.sequence)
        if end <= stream.next or (early is not None and _end(early[0]) >= end):
            self.duplicate_count += chunk.message_count
            return
        if early is not None:  # a part of this packet
            self.duplicate_count += early[0].message_count
        stream.held[chunk.sequence] = chunk, captured_at_ns + HOLD_NS
        yield from self._release(stream)
        while len(stream.held) > HELD_MAX:
            yield from self._skip(stream)

    def note_end(self, session: bytes, end: int) -> None:
        """Note that a stream, if it is known, goes up to this number, exclusive; heartbeats say so, too."""
        if (stream := self._streams.get(session)) is not None:
            stream.end = max(stream.end, end)

    def finish(self) -> Iterator[FrameChunk]:
        """The capture has ended; yields what was held."""
        for stream in self._streams.values():
            while stream.held:
                yield from self._skip(stream)
            if stream.end > stream.next:
                self.missing.append(Missing(stream.name, stream.next, stream.end))

    def _release(self, stream: _Stream) -> Iterator[FrameChunk]:
        while stream.held:
            first = min(stream.held)
            if first > stream.next:
                return
            chunk, _ = stream.held.pop(first)
            end = _end(chunk)
            self.duplicate_count += min(end, stream.next) - first
            if end > stream.next:
                yield chunk if first == stream.next else self._later_part(chunk, stream.next)
                stream.next = end

    def _give_up(self, stream: _Stream, now_ns: int) -> Iterator[FrameChunk]:
        while stream.held and stream.held[min(stream.held)][1] <= now_ns:
            yield from self._skip(stream)

    def _skip(self, stream: _Stream) -> Iterator[FrameChunk]:
        """Give up what is missing before the first held packet."""
        first = min(stream.held)
        self.missing.append(Missing(stream.name, stream.next, first))
        stream.next = first
        yield from self._release(stream)


def _end(chunk: FrameChunk) -> int:
    return chunk.sequence + chunk.message_count
