"""What has been sent: (source stream, source_seq) -> place in the journal and first send time, and the newest packets.

One thread adds, others look up. Twenty-four bytes a packet; the packets themselves only as far as the cache holds.
Invariant: a packet is found if and only if it was added.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

CACHE_SIZE_MAX = 64 << 20  # about half a minute of full speed; older packets come from the journal, more slowly


class Sent(NamedTuple):
    """A packet that was sent. `sent_at_ns` is 0 if an earlier start of the gateway sent it."""

    journal_index: int
    sent_at_ns: int


class _StreamIndex:
    def __init__(self) -> None:
        self.first_seqs = array("Q")
        self.indices = array("Q")
        self.sent_at = array("Q")
        self.next_source_seq = 1


class SentIndex:
    """The index of every source stream."""

    def __init__(self, source_stream_ids: Sequence[int], cache_size_max: int = CACHE_SIZE_MAX) -> None:
        self._streams = {stream_id: _StreamIndex() for stream_id in source_stream_ids}
        self._cache: dict[int, bytes] = {}
        self._cache_order: deque[int] = deque()
        self._cache_size = 0
        self._cache_size_max = cache_size_max

    @property
    def source_stream_ids(self) -> tuple[int, ...]:
        """The streams there are."""
        return tuple(self._streams)

    def add(self, stream_id: int, first_source_seq: int, message_count: int, sent: Sent, datagram: bytes) -> None:
        """Note a packet; packets of a stream come in order."""
        stream = self._streams[stream_id]
        assert first_source_seq == stream.next_source_seq
        # A reader bisects first_seqs, so that array grows last.
        stream.indices.append(sent.journal_index)
        stream.sent_at.append(sent.sent_at_ns)
        stream.next_source_seq += message_count
        stream.first_seqs.append(first_source_seq)
        self._cache[sent.journal_index] = datagram
        self._cache_order.append(sent.journal_index)
        self._cache_size += len(datagram)
        while self._cache_size > self._cache_size_max:
            self._cache_size -= len(self._cache.pop(self._cache_order.popleft()))

    def covering(self, stream_id: int, first_seq: int, last_seq: int) -> list[Sent]:
        """The packets that hold any of `first_seq` … `last_seq` (inclusive), in order."""
        stream = self._streams[stream_id]
        last_seq = min(last_seq, stream.next_source_seq - 1)
        if last_seq < first_seq:
            return []
        begin = max(bisect_right(stream.first_seqs, first_seq) - 1, 0)
        end = bisect_right(stream.first_seqs, last_seq)
        return [Sent(stream.indices[place], stream.sent_at[place]) for place in range(begin, end)]

    def cached(self, index: int) -> bytes | None:
        """The packet at a place in the journal, if it is among the newest."""
        return self._cache.get(index)
