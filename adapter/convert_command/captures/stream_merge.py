"""The messages of a capture's streams, in order, in chunks of many packets; both lines of a stream become one.

The compiled walks do what is usual. A datagram that they do not understand goes to the protocol's decoder, and a stream
in which packets wait for earlier ones goes to `LineMerge`, until none wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tandemfeed.adapter.conversion.formats.captures.line_merge import LineMerge, Missing
from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.frames.frame_walk import part_of_chunk
from tandemfeed.adapter.conversion.formats.packets.framed_packets import VenuePacket
from tandemfeed.adapter.convert_command.captures.capture_walk import TIME_MAX, Datagrams
from tandemfeed.adapter.convert_command.captures.content_kernels import compare_contents, memory
from tandemfeed.adapter.convert_command.captures.header_kernels import (
    GROUP_SIZE,
    HAS_UNNUMBERED,
    SEQUENCE_MAX,
    UNNUMBERED_SEQUENCE,
    read_headers,
)
from tandemfeed.adapter.convert_command.captures.keys import FLAG, KEYS_FIRST, KeyTable
from tandemfeed.adapter.convert_command.captures.protocols import Protocol
from tandemfeed.adapter.convert_command.captures.rows import (
    APART,
    AT_NS,
    COLUMNS,
    COUNT,
    FLOW,
    FRAMES,
    READ,
    SENT_NS,
    SEQUENCE,
    SIZE,
    SKIPPED,
    START,
    STATUS,
    STREAM,
    UNREAD,
    Bytes,
    Words,
)
from tandemfeed.adapter.convert_command.captures.stream_kernels import (
    CHUNK_COUNT,
    CHUNK_SENT_NS,
    CHUNK_SIZE,
    CHUNK_SPANS,
    DELIVERED,
    DONE,
    DUPLICATES,
    END,
    FIRST,
    FULL,
    GAPS_END,
    IS_BEGUN,
    IS_HELD,
    LEFT,
    NEWEST_NS,
    NEXT,
    PROGRESS,
    SPAN_COLUMNS,
    SPAN_INDEX,
    SPAN_SEQUENCE,
    SPAN_STREAM,
    STREAM_COLUMNS,
    UNNUMBERED,
    merge_rows,
)
from tandemfeed.adapter.convert_command.input.inputs import StreamReport, VenueNumbers
from tandemfeed.feedcore.documents.source_layout import SourceFormat

MESSAGES_MAX = 20_000  # of a chunk; the progress bar moves after each
BYTES_MAX = 2 << 20
SPANS_MAX = MESSAGES_MAX  # each has a message
DATAGRAM_MAX = 65_535
SIGN_64 = (1 << 64) - 1
assert BYTES_MAX > DATAGRAM_MAX


class Chunk(NamedTuple):
    """Messages of one or several streams, in the order of the capture.

    Attributes:
        frames: as source packets carry them; numbered from 1.
        origins: (place in the chunk, stream, venue's number) of each message that does not continue the one before it;
            if packets are numbered, of the first message of each.
    """

    frames: FrameChunk
    origins: Words


class StreamMerge:
    """The streams of one or several captures that continue each other.

    Args:
        keeps_times, keeps_streams: the messages of a chunk were all sent at the same time, or are of the same stream.
        group_name: the name of a group of destinations; empty: the protocol's session is enough.
        refuse: called with the row of a datagram that does not follow the protocol, and the reason.

    Attributes:
        restarts: the streams whose numbers started again, once for each time.
    """

    def __init__(
        self,
        protocol: Protocol,
        source_format: SourceFormat,
        *,
        keeps_times: bool,
        keeps_streams: bool,
        group_name: Callable[[int], str],
        refuse: Callable[[Words, str], None],
    ) -> None:
        self._protocol, self._group_name, self._refuse = protocol, group_name, refuse
        self._keys = KeyTable()
        self._streams: Words = np.zeros((KEYS_FIRST, STREAM_COLUMNS), np.int64)
        self._merge = LineMerge(
            part_of_chunk(source_format.framing),
            hold_ns=protocol.hold_ns,
            is_by_packet=protocol.is_by_packet,
            name=lambda session: self.name(_stream(session)),
            compare=self._compare,
            on_restart=self._on_restart,
        )
        self._known = memory()
        self._limits: Words = np.array([MESSAGES_MAX, keeps_times, keeps_streams, protocol.is_by_packet], np.int64)
        self._out: Bytes = np.empty(BYTES_MAX, np.uint8)
        self._spans: Words = np.zeros((SPANS_MAX, SPAN_COLUMNS), np.int64)
        self._progress: Words = np.zeros(PROGRESS, np.int64)
        self._apart: set[tuple[int, int]] = set()  # (stream, end) of parts of datagrams with status APART
        self._ends: list[Missing] = []  # what is missing at the end of a stream
        self.restarts: list[str] = []

    @property
    def missing(self) -> list[Missing]:
        """Messages that no line has brought so far; packets, if the protocol numbers these."""
        return self._merge.missing + self._ends

    @property
    def duplicate_count(self) -> int:
        """The messages, or packets, that were dropped because they had been delivered."""
        return int(self._streams[:, DUPLICATES].sum()) + self._merge.duplicate_count

    @property
    def late_count(self) -> int:
        """The messages, or packets, that follow later ones, because they came after they had been given up."""
        return self._merge.late_count

    @property
    def conflicts(self) -> list[Missing]:
        """The messages, or packets, that were dropped because other ones had been delivered under their numbers."""
        return self._merge.conflicts

    @property
    def forgotten_count(self) -> int:
        """The messages, or packets, that were dropped as duplicates without being compared."""
        return self._merge.forgotten_count

    @property
    def unnumbered_count(self) -> int:
        """The messages without a number."""
        return int(self._progress[UNNUMBERED])

    def reports(self) -> list[StreamReport]:
        """What is known of each stream that has messages."""
        lost = Counter[str]()
        for stream, first, end in self.missing:
            lost[stream] += end - first
        found = []
        conflicting = Counter[str]()
        for stream, first, end in self.conflicts:
            conflicting[stream] += end - first
        for number, state in enumerate(self._streams[: len(self._keys)]):
            if state[IS_BEGUN]:
                name = self.name(number)
                duplicates = int(state[DUPLICATES]) + self._merge.duplicates_in(_session(number))
                found.append(
                    StreamReport(
                        name, int(state[FIRST]), int(state[NEXT]) - 1, int(state[DELIVERED]), duplicates, lost[name],
                        self.restarts.count(name), self._merge.late_in(_session(number)), conflicting[name],
                    )
                )  # fmt: skip
        return found

    def name(self, stream: int) -> str:
        """A stream's name, for reports: its session, and its destinations if there is more than one such stream."""
        key = self._keys[stream]
        session = self._protocol.session(key[GROUP_SIZE : GROUP_SIZE + self._protocol.stream_name_size])
        group = self._group_name(int.from_bytes(key[:GROUP_SIZE], "little"))
        unnumbered = "(unnumbered)" if key[FLAG] else ""
        return " ".join(part for part in (session, group, unnumbered) if part)

    def origin(self, chunk: Chunk, number: int) -> str:
        """The venue's name of a message, from its number in a chunk."""
        index, stream, sequence = chunk.origins[np.searchsorted(chunk.origins[:, 0], number - 1, "right") - 1].tolist()
        if self._protocol.is_by_packet:
            return f"of packet {sequence} {self.name(stream)}".rstrip()
        return f"{sequence + number - 1 - index} of {self.name(stream)}".removesuffix(" of ")

    def numbers(self, chunk: Chunk) -> VenueNumbers:
        """The venue's stream and number of each message of a chunk."""
        count = chunk.frames.message_count
        firsts, streams, numbers = chunk.origins.T
        counts = np.diff(firsts, append=count)
        numbers = np.repeat(numbers, counts)
        if not self._protocol.is_by_packet:
            numbers += np.arange(count) - np.repeat(firsts, counts)
        return VenueNumbers(np.repeat(streams, counts), numbers, self.name)

    def take(self, datagrams: Datagrams, groups: Words) -> Iterator[Chunk]:
        """Take the next datagrams; yields each chunk that is complete.

        Args:
            groups: by flow, the group of its destination; -1: it is not read.
        """
        if self._protocol.packet is not None:
            datagrams = self._measured(self._protocol.packet, datagrams, groups)
        else:
            self._read_headers(datagrams, groups)
        data, rows = datagrams
        for number in np.flatnonzero(rows[:, STATUS] == UNREAD).tolist():
            self._refuse(rows[number], self._reason(data, rows[number]))
            rows[number, STATUS] = SKIPPED
        yield from self._merge_rows(data, rows)

    def finish(self) -> Iterator[Chunk]:
        """The captures have ended; yields the last chunks."""
        for stream in range(len(self._keys)):
            if self._streams[stream, IS_HELD]:
                yield from self._put(stream, self._merge.flush(_session(stream)))
            first, end = int(self._streams[stream, NEXT]), int(self._streams[stream, END])
            if self._streams[stream, IS_BEGUN] and end > first:
                self._ends.append(Missing(self.name(stream), first, end))
        if self._progress[CHUNK_COUNT]:
            yield self._take_chunk()

    def _read_headers(self, datagrams: Datagrams, groups: Words) -> None:
        protocol, keys, done = self._protocol, self._keys, -1
        while done < len(datagrams.rows):
            keys.make_room()
            done = read_headers(
                *datagrams, max(done, 0), groups, protocol.parts, protocol.settings, keys.keys, keys.slots, keys.counts
            )
        self._make_room()

    def _measured(self, packet: Callable[[bytes], VenuePacket], datagrams: Datagrams, groups: Words) -> Datagrams:
        """The same datagrams with a length before each message, as Python reads them."""
        rows, parts, size = datagrams.rows.copy(), list[bytes](), 0
        for row in rows:
            if groups[row[FLOW]] < 0:
                row[STATUS] = SKIPPED
                continue
            payload = datagrams.data[row[START] : row[START] + row[SIZE]].tobytes()
            try:
                found = packet(payload)
            except FormatError as reason:
                self._refuse(row, str(reason))
                row[STATUS] = SKIPPED
                continue
            key = int(groups[row[FLOW]]).to_bytes(GROUP_SIZE, "little") + self._protocol.stream_name(payload)
            is_unnumbered = self._protocol.settings[HAS_UNNUMBERED] and found.sequence == 0
            sequence = UNNUMBERED_SEQUENCE if is_unnumbered else min(found.sequence, SEQUENCE_MAX)
            row[STREAM] = self._keys.add(key.ljust(FLAG, b"\0") + bytes([is_unnumbered]))
            row[STATUS] = SKIPPED if is_unnumbered and not found.message_count else READ
            row[[SEQUENCE, COUNT]] = sequence, found.message_count
            row[SENT_NS] = min(found.sent_at_ns, TIME_MAX)
            row[[START, FRAMES, SIZE]] = size, size, len(found.frames)
            parts.append(found.frames)
            size += len(found.frames)
        self._make_room()
        return Datagrams(np.frombuffer(bytearray(b"".join(parts)), np.uint8), rows)

    def _make_room(self) -> None:
        """Have a state for each stream."""
        if len(self._keys) > len(self._streams):
            more = np.zeros((len(self._keys.keys) - len(self._streams), STREAM_COLUMNS), np.int64)
            self._streams = np.concatenate((self._streams, more))

    def _reason(self, data: Bytes, row: Words) -> str:
        payload = data[row[START] : row[START] + row[SIZE]].tobytes()
        try:
            self._protocol.decode(payload)
        except FormatError as reason:
            return str(reason)
        return "its number has more than 62 bits"

    def _merge_rows(self, data: Bytes, rows: Words) -> Iterator[Chunk]:
        done, why, state = 0, FULL, (self._streams, self._limits, self._protocol.settings, self._known)
        while why != DONE:
            done, why = merge_rows(data, rows, done, *state, self._out, self._spans, self._progress)
            if why == FULL:
                yield self._take_chunk()
            elif why == LEFT:
                yield from self._take_apart(data, rows[done])
                done += 1

    def _take_apart(self, data: Bytes, row: Words) -> Iterator[Chunk]:
        """Take a datagram that is neither the next of its stream nor a duplicate."""
        stream, merge = int(row[STREAM]), self._merge
        session, state = _session(stream), self._streams[stream]
        merge.continue_at(session, int(state[NEXT]), int(state[FIRST]))
        sent_ns, sequence = int(row[SENT_NS]), int(row[SEQUENCE])
        if self._protocol.is_by_packet and sequence == 1 and state[NEXT] > 2 and sent_ns > state[NEWEST_NS]:
            yield from self._put(stream, merge.start_again(session))
        frames = data[row[FRAMES] : row[START] + row[SIZE]].tobytes()
        chunk = FrameChunk(frames, int(row[COUNT]), sequence, sent_ns, session)
        if row[STATUS] == APART:
            self._apart.update((stream, sequence + number) for number in range(1, chunk.message_count + 1))
        yield from self._put(stream, merge.on_chunk(chunk, int(row[AT_NS]), int(row[FLOW])))
        if not self._protocol.is_by_packet:
            state[END] = max(int(state[END]), sequence + chunk.message_count)

    def _compare(self, chunk: FrameChunk) -> list[int]:
        """Compare a packet's messages, or the packet, with what was delivered under their numbers."""
        is_by_packet = self._protocol.is_by_packet
        found: Words = np.empty(1 if is_by_packet else chunk.message_count, np.int64)
        frames = np.frombuffer(chunk.frames, np.uint8)
        compare_contents(
            frames, _stream(chunk.session), chunk.sequence, is_by_packet, self._protocol.settings, self._known, found
        )
        return found.tolist()  # type: ignore[no-any-return]

    def _on_restart(self, session: bytes) -> None:
        """The numbers of a stream start again."""
        name, state = self.name(_stream(session)), self._streams[_stream(session)]
        if state[END] > state[NEXT]:
            self._ends.append(Missing(name, int(state[NEXT]), int(state[END])))
        state[END] = 0
        self.restarts.append(name)

    def _put(self, stream: int, parts: Iterator[FrameChunk]) -> Iterator[Chunk]:
        """Put what is next in a stream into the chunk."""
        state, row = self._streams[stream], np.zeros((1, COLUMNS), np.int64)
        newest_ns = int(state[NEWEST_NS])
        for part in parts:
            state[[NEXT, IS_HELD, GAPS_END]] = part.sequence, False, 0
            state[FIRST] = min(int(state[FIRST]), part.sequence)
            row[0, [STREAM, SIZE, COUNT]] = stream, len(part.frames), part.message_count
            row[0, [SEQUENCE, SENT_NS]] = part.sequence, part.sent_at_ns
            row[0, STATUS] = APART if (stream, part.sequence + part.message_count) in self._apart else READ
            yield from self._merge_rows(np.frombuffer(bytearray(part.frames), np.uint8), row)
            newest_ns = state[NEWEST_NS] = max(int(state[NEWEST_NS]), newest_ns)
        state[[NEXT, IS_HELD, GAPS_END]] = self._merge.state(_session(stream))

    def _take_chunk(self) -> Chunk:
        progress = self._progress
        frames, count = self._out[: progress[CHUNK_SIZE]].tobytes(), int(progress[CHUNK_COUNT])
        origins = self._spans[: progress[CHUNK_SPANS], [SPAN_INDEX, SPAN_STREAM, SPAN_SEQUENCE]]
        session = _session(int(self._spans[0, SPAN_STREAM]))
        chunk = FrameChunk(frames, count, 1, int(progress[CHUNK_SENT_NS]) & SIGN_64, session)
        progress[[CHUNK_SIZE, CHUNK_COUNT, CHUNK_SPANS]] = 0
        return Chunk(chunk, origins)


def _session(stream: int) -> bytes:
    """A stream's session in the merge: its number."""
    return stream.to_bytes(8, "little")


def _stream(session: bytes) -> int:
    return int.from_bytes(session, "little")
