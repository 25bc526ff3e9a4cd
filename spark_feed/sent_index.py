"""What has been sent: the newest packets themselves, and for the older ones where in the source journal to read them.

One thread adds, others look up. A quarter byte a packet (`SequenceMarks`) besides the newest packets, as far as the
cache holds, in lists of plain values: tens of thousands of tuples would be looked at by every full collection of cyclic
garbage. Invariant: a packet is found if and only if it was added.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from journal.sequence_marks import SequenceMarks, Stretch

CACHE_SIZE_MAX = 64 << 20  # about half a minute of full speed; older packets come from the journal, more slowly
TRIM_COUNT = 4_096  # evicted packets are dropped from a stream's lists so many at a time


class SentPacket(NamedTuple):
    """A packet that was sent in this life of the gateway, and when first (wall clock, ns)."""

    first_source_seq: int
    datagram: bytes
    sent_at_ns: int


class Covering(NamedTuple):
    """Where the packets are that hold a range: first those to be read from the journal, then those at hand.

    Attributes:
        stretches: of the journal.
        before_seq: packets from this one on are at hand, not to be read.
        at_hand: in order.
    """

    stretches: list[Stretch]
    before_seq: int
    at_hand: list[SentPacket]


class _Stream:
    def __init__(self) -> None:
        self.marks = SequenceMarks()
        self.next_source_seq = 1
        self.first_seqs: list[int] = []  # of the packets at hand, and of some evicted ones before them
        self.datagrams: list[bytes | None] = []
        self.sent_at_ns: list[int] = []
        self.evicted_count = 0

    def keep(self, packet: SentPacket) -> None:
        """Have the newest packet at hand."""
        self.first_seqs.append(packet.first_source_seq)
        self.datagrams.append(packet.datagram)
        self.sent_at_ns.append(packet.sent_at_ns)

    def kept(self, begin: int, end: int) -> list[SentPacket]:
        """Those at hand in a part of the lists."""
        rows = zip(self.first_seqs[begin:end], self.datagrams[begin:end], self.sent_at_ns[begin:end], strict=True)
        return [SentPacket(first, datagram, at_ns) for first, datagram, at_ns in rows if datagram is not None]

    def evict(self) -> int:
        """Let the oldest packet at hand go; returns its size."""
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
        """The streams there are."""
        return tuple(self._streams)

    @property
    def next_source_seqs(self) -> dict[int, int]:
        """By source stream: what has not been sent yet."""
        return {stream_id: stream.next_source_seq for stream_id, stream in self._streams.items()}

    def add(self, stream_id: int, packet: SentPacket, message_count: int, journal_index: int) -> None:
        """Note a packet that was sent; packets of a stream come in order."""
        with self._lock:
            stream = self._streams[stream_id]
            self._note(stream, packet.first_source_seq, message_count, journal_index)
            stream.keep(packet)
            self._cache_order.append(stream_id)
            self._cache_size += len(packet.datagram)
            while self._cache_size > self._cache_size_max:
                self._cache_size -= self._streams[self._cache_order.popleft()].evict()

    def add_former(self, stream_id: int, first_source_seq: int, message_count: int, journal_index: int) -> None:
        """Note a packet that an earlier life of the gateway sent."""
        with self._lock:
            self._note(self._streams[stream_id], first_source_seq, message_count, journal_index)

    def covering(self, stream_id: int, first_seq: int, end_seq: int) -> Covering:
        """The packets that hold any of `[first_seq, end_seq)`, in order."""
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
            found = stream.kept(start, bisect_left(stream.first_seqs, end_seq))
            return Covering(stretches, before_seq, found)

    def has_at_hand(self, stream_id: int, first_source_seq: int) -> bool:
        """True if the packet that begins there need not be read from the journal."""
        stream = self._streams[stream_id]
        place = bisect_left(stream.first_seqs, first_source_seq)
        return place < len(stream.first_seqs) and stream.datagrams[place] is not None

    @staticmethod
    def _note(stream: _Stream, first_source_seq: int, message_count: int, journal_index: int) -> None:
        assert first_source_seq == stream.next_source_seq
        stream.next_source_seq += message_count
        stream.marks.note(first_source_seq, stream.next_source_seq, journal_index)
