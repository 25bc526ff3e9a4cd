"""Index of sent packets: the newest are cached, the older ones can be found in the source journal.

One thread adds, others look up. The index takes a quarter byte per packet (`SequenceMarks`) plus the cache. The cache
consists of lists of plain values, because every full garbage collection would visit tens of thousands of tuples.
Invariant: a packet is found if and only if it was added.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tandemfeed.journal.read.sequence_marks import SequenceMarks, Stretch

CACHE_SIZE_MAX = 64 << 20  # about half a minute at full speed; older packets come more slowly, from the journal
TRIM_COUNT = 4_096  # evicted packets are removed from a stream's lists in batches of this size


class SentPacket(NamedTuple):
    """A packet that this run of the gateway sent, and when it was first sent (wall clock, ns)."""

    first_source_seq: int
    datagram: bytes
    sent_at_ns: int


class Covering(NamedTuple):
    """Where to find the packets of a range: first those to read from the journal, then the cached ones.

    Attributes:
        stretches: of the journal.
        before_seq: packets from this one on are cached and need no reading.
        cached: in order.
    """

    stretches: list[Stretch]
    before_seq: int
    cached: list[SentPacket]


class _Stream:
    def __init__(self) -> None:
        self.marks = SequenceMarks()
        self.next_source_seq = 1
        self.first_seqs: list[int] = []  # of the cached packets, after those of some evicted ones
        self.datagrams: list[bytes | None] = []
        self.sent_at_ns: list[int] = []
        self.evicted_count = 0

    def cache(self, packet: SentPacket) -> None:
        """Cache the newest packet."""
        self.first_seqs.append(packet.first_source_seq)
        self.datagrams.append(packet.datagram)
        self.sent_at_ns.append(packet.sent_at_ns)

    def cached(self, begin: int, end: int) -> list[SentPacket]:
        """The cached packets in a part of the lists."""
        rows = zip(self.first_seqs[begin:end], self.datagrams[begin:end], self.sent_at_ns[begin:end], strict=True)
        return [SentPacket(first, datagram, at_ns) for first, datagram, at_ns in rows if datagram is not None]

    def evict(self) -> int:
        """Remove the oldest cached packet; returns its size."""
        datagram = self.datagrams[self.evicted_count]
        assert datagram is not None
        self.datagrams[self.evicted_count] = None
        self.evicted_count += 1
        if self.evicted_count == TRIM_COUNT:
            del self.first_seqs[:TRIM_COUNT], self.datagrams[:TRIM_COUNT], self.sent_at_ns[:TRIM_COUNT]
            self.evicted_count = 0
        return len(datagram)


class SentIndex:
    """The index of every source stream."""

    def __init__(self, source_stream_ids: Sequence[int], cache_size_max: int = CACHE_SIZE_MAX) -> None:
        self._streams = {stream_id: _Stream() for stream_id in source_stream_ids}
        self._lock = threading.Lock()
        self._cache_order: deque[int] = deque()
        self._cache_size = 0
        self._cache_size_max = cache_size_max

    @property
    def source_stream_ids(self) -> tuple[int, ...]:
        """The source streams of the index."""
        return tuple(self._streams)

    @property
    def next_source_seqs(self) -> dict[int, int]:
        """By source stream: the first `source_seq` that has not been sent."""
        return {stream_id: stream.next_source_seq for stream_id, stream in self._streams.items()}

    def add(self, stream_id: int, packet: SentPacket, message_count: int, journal_index: int) -> None:
        """Add a packet that was just sent; the packets of a stream must come in order."""
        with self._lock:
            stream = self._streams[stream_id]
            self._note(stream, packet.first_source_seq, message_count, journal_index)
            stream.cache(packet)
            self._cache_order.append(stream_id)
            self._cache_size += len(packet.datagram)
            while self._cache_size > self._cache_size_max:
                self._cache_size -= self._streams[self._cache_order.popleft()].evict()

    def add_journaled(self, stream_id: int, first_source_seq: int, message_count: int, journal_index: int) -> None:
        """Add a packet that an earlier run of the gateway sent; it is not cached."""
        with self._lock:
            self._note(self._streams[stream_id], first_source_seq, message_count, journal_index)

    def covering(self, stream_id: int, first_seq: int, end_seq: int) -> Covering:
        """Where to find the packets that contain any of `[first_seq, end_seq)`."""
        with self._lock:
            stream = self._streams[stream_id]
            end_seq = min(end_seq, stream.next_source_seq)
            begin = stream.evicted_count
            before_seq = stream.first_seqs[begin] if begin < len(stream.first_seqs) else stream.next_source_seq
            if end_seq <= first_seq:
                return Covering([], before_seq, [])
            journaled_end_seq = min(end_seq, before_seq)
            stretches = stream.marks.stretches(first_seq, journaled_end_seq - 1) if first_seq < before_seq else []
            start = max(bisect_right(stream.first_seqs, first_seq) - 1, begin)
            found = stream.cached(start, bisect_left(stream.first_seqs, end_seq))
            return Covering(stretches, before_seq, found)

    @staticmethod
    def _note(stream: _Stream, first_source_seq: int, message_count: int, journal_index: int) -> None:
        assert first_source_seq == stream.next_source_seq
        stream.next_source_seq += message_count
        stream.marks.note(first_source_seq, stream.next_source_seq, journal_index)
