"""What the gateway sends, and when: journal records and time in, datagrams out. Sans-I/O.

The shell feeds records in journal order and performs the effects in order. A packet counts as sent when `on_time` has
returned it. Never renumbers, never reorders, never sends a packet that is not in the journal.

Invariant: the packets of each stream leave in `source_seq` order without a gap; heartbeats carry the next `source_seq`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tandemfeed.feedcore.wire.source_packet import SOURCE_LAYOUT, SourceFlag, encode_source_header
from tandemfeed.spark_feed.sending.pacing import Pacer
from tandemfeed.spark_feed.source_journal import PACKET_HEAD, Commit, End, RecordKind, datagram_in, packet_numbers

HEARTBEAT_INTERVAL_NS = 10_000_000
LOOKAHEAD_COUNT_MAX = 256  # records waiting to become due; more would only take memory
SEND_EARLY_NS = 50_000  # so short a wait costs more than sending early
PACKETS_PER_TURN_MAX = 64  # so that heartbeats and the stop signal get a turn during a burst
FLAGS_OFFSET = SOURCE_LAYOUT.offsets["flags"]
FLAGS = SOURCE_LAYOUT.part("flags")
SENT_AT_OFFSET = SOURCE_LAYOUT.offsets["sent_at_ns"]
SENT_AT = SOURCE_LAYOUT.part("sent_at_ns")


class SendPacket(NamedTuple):
    """Stamp and multicast the packet, and add it to the index of sent packets."""

    source_stream_id: int
    first_source_seq: int
    message_count: int
    journal_index: int
    datagram: bytes


class SendHeartbeat(NamedTuple):
    """Stamp and multicast a heartbeat."""

    source_stream_id: int
    next_source_seq: int
    is_end: bool
    datagram: bytes


class AllSent(NamedTuple):
    """Every stream has ended; heartbeats continue and carry the end-of-stream flag."""

    message_counts: dict[int, int]


SendEffect: TypeAlias = SendPacket | SendHeartbeat | AllSent


@dataclass(slots=True)
class _Stream:
    next_source_seq: int = 1
    last_sent_at_ns: int | None = None
    is_ended: bool = False


class SendCore:
    """The gateway's core.

    Args:
        feed_id, session, source_stream_ids: of the feed.
        pacer: the schedule.
    """

    def __init__(self, feed_id: int, session: int, source_stream_ids: Sequence[int], pacer: Pacer) -> None:
        self._feed_id = feed_id
        self._session = session
        self._streams = {stream_id: _Stream() for stream_id in source_stream_ids}
        self._pacer = pacer
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._is_started = False
        self._all_sent = False
        self.position = 0  # journal index after the last record processed

    @property
    def next_source_seqs(self) -> dict[int, int]:
        """By source stream."""
        return {stream_id: stream.next_source_seq for stream_id, stream in self._streams.items()}

    @property
    def all_sent(self) -> bool:
        """True once every stream has ended."""
        return self._all_sent

    @property
    def records_needed_count(self) -> int:
        """How many more records the shell may feed before the next `on_time`."""
        return LOOKAHEAD_COUNT_MAX - len(self._waiting)

    @property
    def is_starved(self) -> bool:
        """True while no records wait and more may come."""
        return not self._waiting and not self._all_sent

    def start(self) -> None:
        """Send packets from now on; until then only heartbeats are sent."""
        self._is_started = True

    def resume_at(self, position: int, ended: Iterable[int], next_source_seqs: Mapping[int, int]) -> None:
        """Take over where the gateway was before it restarted.

        Args:
            position: journal index after the last record sent.
            ended: the source streams that have ended.
            next_source_seqs: by source stream.
        """
        self.position = position
        for stream_id, next_source_seq in next_source_seqs.items():
            self._streams[stream_id].next_source_seq = next_source_seq
        for stream_id in ended:
            self._streams[stream_id].is_ended = True

    def on_record(self, index: int, record: bytes) -> None:
        """The next record of the journal. At most `records_needed_count` may be fed."""
        assert self.records_needed_count > 0, f"{len(self._waiting)} records are already waiting"
        self._waiting.append((index, record))

    def on_time(self, now_ns: int) -> list[SendEffect]:
        """The effects that are due now, in order."""
        effects: list[SendEffect] = []
        if self._is_started:
            self._send_due(now_ns, effects)
        for stream_id, stream in self._streams.items():
            if stream.last_sent_at_ns is None or now_ns - stream.last_sent_at_ns >= HEARTBEAT_INTERVAL_NS:
                stream.last_sent_at_ns = now_ns
                effects.append(self._heartbeat(stream_id, stream))
        return effects

    def next_deadline_ns(self, now_ns: int) -> int:
        """When to call `on_time` again; never later than the next heartbeat."""
        due = min(
            now_ns if stream.last_sent_at_ns is None else stream.last_sent_at_ns + HEARTBEAT_INTERVAL_NS
            for stream in self._streams.values()
        )
        if self._is_started and self._waiting:
            due = min(due, self._due_ns(self._waiting[0][1], now_ns))
        return due

    def _due_ns(self, record: bytes, now_ns: int) -> int:
        if record[0] != RecordKind.PACKET:
            return now_ns
        return self._pacer.due_ns(PACKET_HEAD.unpack_from(record)[1], now_ns)

    def _send_due(self, now_ns: int, effects: list[SendEffect]) -> None:
        while self._waiting and len(effects) < PACKETS_PER_TURN_MAX:
            index, record = self._waiting[0]
            due_ns = self._due_ns(record, now_ns)
            if due_ns > now_ns + SEND_EARLY_NS:
                return
            self._waiting.popleft()
            self.position = index + 1
            if record[0] == RecordKind.PACKET:
                stream_id, first, count = packet_numbers(record)
                self._advance(stream_id, first, count)
                self._streams[stream_id].last_sent_at_ns = now_ns
                self._pacer.on_sent(count, due_ns, now_ns)
                effects.append(SendPacket(stream_id, first, count, index, datagram_in(record, self._feed_id)))
            else:
                self._on_other(record)
        if not self._all_sent and all(stream.is_ended for stream in self._streams.values()):
            self._all_sent = True
            # Announce the end now instead of one heartbeat interval later.
            for stream_id, stream in self._streams.items():
                stream.last_sent_at_ns = now_ns
                effects.append(self._heartbeat(stream_id, stream))
            counts = {stream_id: stream.next_source_seq - 1 for stream_id, stream in self._streams.items()}
            effects.append(AllSent(counts))

    def _advance(self, stream_id: int, first: int, count: int) -> None:
        stream = self._streams[stream_id]
        assert first == stream.next_source_seq, f"stream {stream_id}: got {first}, expected {stream.next_source_seq}"
        assert not stream.is_ended, f"stream {stream_id}: a packet after the end of the stream"
        stream.next_source_seq += count

    def _on_other(self, record: bytes) -> None:
        if record[0] == RecordKind.COMMIT:
            for stream_id, seq in Commit.decode(record).next_source_seqs.items():
                assert self._streams[stream_id].next_source_seq == seq, f"stream {stream_id}: COMMIT has {seq}"
        elif record[0] == RecordKind.END:
            self._streams[End.decode(record).source_stream_id].is_ended = True

    def _heartbeat(self, stream_id: int, stream: _Stream) -> SendHeartbeat:
        flags = SourceFlag.HEARTBEAT | (SourceFlag.END_OF_STREAM if stream.is_ended else 0)
        datagram = encode_source_header(
            feed_id=self._feed_id,
            source_stream_id=stream_id,
            message_count=0,
            session=self._session,
            first_source_seq=stream.next_source_seq,
            sent_at_ns=0,
            flags=flags,
        )
        return SendHeartbeat(stream_id, stream.next_source_seq, stream.is_ended, datagram)


def stamped(datagram: bytes, sent_at_ns: int, added_flags: int = 0) -> bytes:
    """The packet with its send time set and flags added."""
    return b"".join(
        (
            datagram[:FLAGS_OFFSET],
            FLAGS.pack(datagram[FLAGS_OFFSET] | added_flags),
            datagram[FLAGS_OFFSET + FLAGS.size : SENT_AT_OFFSET],
            SENT_AT.pack(sent_at_ns),
            datagram[SENT_AT_OFFSET + SENT_AT.size :],
        )
    )
