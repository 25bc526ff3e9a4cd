"""Merges both lines of each numbered stream of a capture: each message once, in order. Finds what is missing.

A venue sends each stream on two lines with the same numbers. Packets are early when their predecessors are still to
come on the other line; they are held for a while, by the capture's own times. Pure.

What comes even later, as when captures were joined in the wrong order, is delivered then: late is better than lost.

A number that comes again is a copy only if its content is the same. With other content, the numbers have started again
if it is number 1, or if the line's next packet continues from there; otherwise it is a conflict, which is counted.

Invariant: each message of a stream is delivered once; in ascending order, except what was given up before. What is not
delivered is a copy, a conflict, or was forgotten since, and each is counted.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from tandemfeed.adapter.conversion.formats.chunks import FrameChunk

HOLD_NS = 1_000_000_000  # lines differ by milliseconds; a capture is not in a hurry
HELD_MAX = 10_000  # packets of a stream; beyond this what is missing is given up


class Missing(NamedTuple):
    """Messages that no line of the capture has. Attributes: end: the number after the last one."""

    stream: str
    first: int
    end: int


class Known(IntEnum):
    """What came under a number, compared with what was delivered under it."""

    SAME = 0
    OTHER = 1
    UNKNOWN = 2  # nothing was delivered under this number, or it has been forgotten


Compare: TypeAlias = Callable[[FrameChunk], Sequence[int]]


def nothing_known(chunk: FrameChunk) -> Sequence[int]:
    """Compare with no memory of what was delivered."""
    return [Known.UNKNOWN] * chunk.message_count


class Suspect(NamedTuple):
    """A packet whose numbers were delivered with other content. Its line's next packet shows what it is."""

    chunk: FrameChunk
    captured_at_ns: int


@dataclass(slots=True)
class _Stream:
    """What is known of a stream.

    Attributes:
        lowest: the first number that was delivered.
        gaps: (first, end) of what was given up, in order; also what precedes the first packet that was captured.
        lost: gaps that nothing can fill, because the numbers started again.
        former_end: the end of the numbers before they started again; their last packets may still come on other lines.
        suspects: by line.
    """

    name: str
    next: int
    lowest: int
    gaps: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    late_count: int = 0
    duplicate_count: int = 0
    forgotten_count: int = 0
    former_end: int = 0
    conflicts: list[tuple[int, int]] = field(default_factory=list)
    suspects: dict[int, Suspect] = field(default_factory=dict)
    end: int = 0  # as far as any packet shows the stream to go
    held: dict[int, tuple[FrameChunk, int]] = field(default_factory=dict)  # by first number; when to give up
    order: list[int] = field(default_factory=list)  # a heap of the numbers in `held`

    def lacks(self, number: int) -> bool:
        """True if a number was given up, and has not come since."""
        place = bisect_left(self.gaps, (number + 1, 0)) - 1  # of the last gap that begins by this number
        return place >= 0 and number < self.gaps[place][1]


class LineMerge:
    """The streams of one capture, by the protocol's name of the session.

    Args:
        part: the messages of a chunk from a number up to another one, exclusive; both are the venue's.
        hold_ns: how long a packet waits for earlier ones, by the capture's times.
        is_by_packet: the venue numbers packets, not messages.
        name: the name of a stream, from its session.
        compare: compares a packet's messages, or the packet, with what was delivered under their numbers.
        on_restart: called with a session whose numbers start again, when all messages before have been yielded.
    """

    def __init__(
        self,
        part: Callable[[FrameChunk, int, int], FrameChunk],
        *,
        hold_ns: int = HOLD_NS,
        is_by_packet: bool = False,
        name: Callable[[bytes], str] = lambda session: session.decode("latin-1").strip(),
        compare: Compare = nothing_known,
        on_restart: Callable[[bytes], None] = lambda session: None,
    ) -> None:
        self._compare, self._on_restart = compare, on_restart
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

    @property
    def conflicts(self) -> list[Missing]:
        """The messages, or packets, that came under numbers that were delivered with other content, and are dropped."""
        return [
            Missing(stream.name, *each)
            for stream in self._streams.values()
            for each in (*stream.conflicts, *(self._numbers(suspect.chunk) for suspect in stream.suspects.values()))
        ]

    @property
    def forgotten_count(self) -> int:
        """The messages, or packets, that were dropped by their numbers: what was delivered under these is forgotten."""
        return sum(stream.forgotten_count for stream in self._streams.values())

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

    def _numbers(self, chunk: FrameChunk) -> tuple[int, int]:
        return chunk.sequence, self._end(chunk)

    def _stream(self, session: bytes, first: int) -> _Stream:
        if session not in self._streams:
            self._streams[session] = _Stream(self._name(session), first, first, [(0, first)] if first > 1 else [])
        return self._streams[session]

    def continue_at(self, session: bytes, number: int, first: int) -> None:
        """The messages of a stream from `first` up to this number, exclusive, were delivered elsewhere."""
        self._stream(session, first).next = number

    def start_again(self, session: bytes, first: int = 1) -> Iterator[FrameChunk]:
        """The numbers of a stream start again; yields what was held. What is missing stays so."""
        yield from self.flush(session)
        stream = self._streams[session]
        stream.lost, stream.gaps = _missing_in(stream), []
        if stream.end > stream.next:
            stream.lost.append((stream.next, stream.end))
        stream.end = 0
        stream.former_end = max(stream.next, stream.former_end)
        stream.lowest = stream.next = first
        self._on_restart(session)

    def state(self, session: bytes) -> tuple[int, bool, int]:
        """(number of the next message, True if packets wait for it, end of the last gap) of a stream that is known."""
        stream = self._streams[session]
        return stream.next, bool(stream.held), stream.gaps[-1][1] if stream.gaps else 0

    def on_chunk(self, chunk: FrameChunk, captured_at_ns: int, line: int = 0) -> Iterator[FrameChunk]:
        """Take a packet's messages; yields what is next in its stream.

        Args:
            line: where the packet was sent.
        """
        stream = self._stream(chunk.session, chunk.sequence)
        yield from self._give_up(stream, captured_at_ns)
        found = self._again(stream, chunk)
        if Known.OTHER in found:
            yield from self._suspect(stream, Suspect(chunk, captured_at_ns), line)
            return
        yield from self._fill_gaps(stream, chunk)
        if self._end(chunk) <= stream.next or (chunk.sequence > stream.next and Known.SAME in found):
            stream.duplicate_count += self._count(chunk)
        else:
            yield from self._hold(stream, chunk, captured_at_ns)

    def _again(self, stream: _Stream, chunk: FrameChunk) -> list[int]:
        """What a packet has under numbers that come again, compared with what was delivered; empty: none come again."""
        first, end = self._numbers(chunk)
        if not chunk.message_count or first >= max(stream.next, stream.former_end):
            return []
        found = self._compare(chunk)
        if first > stream.next:  # numbers from before the restart, if all are the same; otherwise the new ones
            return [Known.SAME] if end <= stream.former_end and set(found) == {Known.SAME} else []
        again = [each for number, each in enumerate(found[: stream.next - first], first) if not stream.lacks(number)]
        stream.forgotten_count += again.count(Known.UNKNOWN)
        return again

    def _suspect(self, stream: _Stream, suspect: Suspect, line: int) -> Iterator[FrameChunk]:
        """Take a packet whose numbers were delivered with other content."""
        first, before = suspect.chunk.sequence, stream.suspects.pop(line, None)
        begin = [suspect]
        if before is not None and self._end(before.chunk) == first:
            begin.insert(0, before)
        elif before is not None:
            stream.conflicts.append(self._numbers(before.chunk))
        if len(begin) == 1 and first != 1:
            stream.suspects[line] = suspect
            return
        others, stream.suspects = stream.suspects, {}
        yield from self.start_again(suspect.chunk.session, begin[0].chunk.sequence)
        for number, each in [*((line, each) for each in begin), *others.items()]:
            yield from self.on_chunk(*each, number)

    def _hold(self, stream: _Stream, chunk: FrameChunk, captured_at_ns: int) -> Iterator[FrameChunk]:
        """Hold a packet until it is the next one."""
        early = stream.held.get(chunk.sequence)
        if early is not None:
            shorter, longer = sorted((early[0], chunk), key=self._end)
            if not longer.frames.startswith(shorter.frames):
                stream.conflicts.append(self._numbers(chunk))
                return
            stream.duplicate_count += self._count(shorter)
            if longer is early[0]:
                return
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
            if first < stream.next and Known.OTHER in self._again(stream, chunk):
                stream.conflicts.append((first, min(end, stream.next)))
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
