"""The records of the source journal, and the writer that makes numbering survive crashes.

A micro-batch is its packets followed by one COMMIT. Together they are one segment of the journal, so that they are
written completely or not at all. (A micro-batch that is too large for one segment takes several. After a crash, the
records after the last COMMIT are then a partial batch. Its rerun must produce the same bytes; they are checked, and not
written twice.) Numbers depend only on the journal and the order of records. Spark's batch ids are stored for people to
read; no decision uses them.

Record layouts (little-endian); the first byte is the kind::

    BEGIN   kind, pad[7], JSON of the numbering plan
    PACKET  kind, pad[7], event_at_ns i64 of the last message, source packet (sent_at_ns 0)
    COMMIT  kind, pad[3], stream_count u32, batch_id u64, next_record_index u64, streams: (id u64, next_source_seq u64)
    END     kind, pad[3], source_stream_id u32, next_source_seq u64

Invariant: the packets of a stream are gapless from source_seq 1, and a COMMIT has the next source_seq of each stream.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from tandemfeed.feedcore.wire.source_packet import SOURCE_LAYOUT, unpack_source_header
from tandemfeed.journal import Batch, Journal
from tandemfeed.spark_feed.feed_plan import FeedPlan
from tandemfeed.spark_feed.numbering.packing import Frames, PackedPacket, pack_batch

SEGMENT_SIZE_MAX = 2 << 20  # a micro-batch of 10,000 rows fits, and no tailer waits long for it
BLOCK_SIZE = 16 << 20  # small, because seeking to an index reads its block from the start
assert SEGMENT_SIZE_MAX * 4 <= BLOCK_SIZE

POSITION_NAME = "gateway.position"  # a file in the journal's folder: how far the real-time gateway has sent

PACKET_HEAD = struct.Struct("<B7xq")
COMMIT_HEAD = struct.Struct("<B3xIQQ")
COMMIT_STREAM = struct.Struct("<QQ")
END_RECORD = struct.Struct("<B3xIQ")
BEGIN_HEAD = struct.Struct("<B7x")
FEED_ID_OFFSET = SOURCE_LAYOUT.offsets["feed_id"]
FEED_ID = SOURCE_LAYOUT.part("feed_id")


class RecordKind(IntEnum):
    """The first byte of a record."""

    BEGIN = 1
    PACKET = 2
    COMMIT = 3
    END = 4


class SourceJournalError(Exception):
    """The journal contradicts what the job would append; the text says what differs and what to do."""


@dataclass(frozen=True, slots=True)
class NumberingPlan:
    """Everything, apart from the records, that source sequence numbers and packet bytes depend on."""

    feed: FeedPlan
    split: str
    packet_messages_max: int
    recording: str  # its fingerprint
    format_digest: str

    def encode(self) -> bytes:
        """As the BEGIN record."""
        return BEGIN_HEAD.pack(RecordKind.BEGIN) + json.dumps(asdict(self), sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a micro-batch: the next record, and the next number in each stream."""

    batch_id: int
    next_record_index: int
    next_source_seqs: dict[int, int]

    def encode(self) -> bytes:
        """As a record."""
        head = COMMIT_HEAD.pack(RecordKind.COMMIT, len(self.next_source_seqs), self.batch_id, self.next_record_index)
        return head + b"".join(COMMIT_STREAM.pack(*pair) for pair in sorted(self.next_source_seqs.items()))

    @classmethod
    def decode(cls, record: bytes) -> Commit:
        """From a record of that kind."""
        _, count, batch_id, next_record_index = COMMIT_HEAD.unpack_from(record)
        streams = dict(COMMIT_STREAM.iter_unpack(record[COMMIT_HEAD.size :]))
        assert len(streams) == count, "a COMMIT record's stream count"
        return cls(batch_id, next_record_index, streams)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a stream in this session."""

    source_stream_id: int
    next_source_seq: int

    def encode(self) -> bytes:
        """As a record."""
        return END_RECORD.pack(RecordKind.END, self.source_stream_id, self.next_source_seq)

    @classmethod
    def decode(cls, record: bytes) -> End:
        """From a record of that kind."""
        _, source_stream_id, next_source_seq = END_RECORD.unpack(record)
        return cls(source_stream_id, next_source_seq)


def encode_packet(packet: PackedPacket) -> bytes:
    """A PACKET record."""
    return PACKET_HEAD.pack(RecordKind.PACKET, packet.event_at_ns) + packet.datagram


def datagram_in(record: bytes, feed_id: int) -> bytes:
    """The source packet of a PACKET record, addressed to a feed: the journal's own, or one that repeats it later."""
    place = PACKET_HEAD.size + FEED_ID_OFFSET
    return b"".join((record[PACKET_HEAD.size : place], FEED_ID.pack(feed_id), record[place + FEED_ID.size :]))


def packet_numbers(record: bytes) -> tuple[int, int, int]:
    """(source_stream_id, first_source_seq, message_count) of a PACKET record."""
    header = unpack_source_header(record, PACKET_HEAD.size)
    return header.source_stream_id, header.first_source_seq, header.message_count


# Kind and numbers of a PACKET record.
PACKET_FIELDS = np.dtype(
    {
        "names": ["kind", "packet"],
        "formats": ["u1", SOURCE_LAYOUT.dtype(("source_stream_id", "message_count", "first_source_seq"))],
        "offsets": [0, PACKET_HEAD.size],
        "itemsize": PACKET_HEAD.size + SOURCE_LAYOUT.size,
    }
)


def packets_in(batch: Batch) -> Iterator[tuple[int, int, int, int]]:
    """(index, source_stream_id, first_source_seq, message_count) of the PACKET records in a batch."""
    fields = batch.heads(PACKET_FIELDS.itemsize).view(PACKET_FIELDS).reshape(-1)
    chosen = np.flatnonzero(fields["kind"] == RecordKind.PACKET)
    packets = fields["packet"][chosen]
    numbers = (packets[name] for name in ("source_stream_id", "first_source_seq", "message_count"))
    columns = (chosen + batch.first_index, *numbers)
    return zip(*(column.tolist() for column in columns), strict=True)


def streams_ended_in(batch: Batch) -> list[int]:
    """The source streams that have an END record in a batch."""
    kinds = batch.heads(1).reshape(-1)
    ends = np.flatnonzero(kinds == RecordKind.END).tolist()
    return [End.decode(batch[place].tobytes()).source_stream_id for place in ends]


class SourceJournalWriter:
    """Numbers and appends micro-batches, with each record of the recording exactly once.

    Args:
        folder: the journal's folder; created if it does not exist.
        plan: must equal the plan that the journal was started with.
        commits_kept: how many of the newest micro-batches `unsent_batch_count` can count, including those of earlier
            runs.

    Raises:
        SourceJournalError: if the journal was started with a different plan.
    """

    def __init__(
        self, folder: Path, plan: NumberingPlan, *, commits_kept: int = 0, segment_size_max: int = SEGMENT_SIZE_MAX
    ) -> None:
        self._plan = plan
        self._commit_indices: deque[int] = deque(maxlen=commits_kept)
        self._segment_size_max = segment_size_max
        self._journal = Journal.open(folder, block_size=BLOCK_SIZE, exclusive=True)
        try:
            self.last_commit, self._uncommitted, self.is_ended = self._recover()
        except BaseException:
            self._journal.close()
            raise

    def unsent_batch_count(self, position: int | None) -> int:
        """How many of the newest `commits_kept` micro-batches the gateway has not sent completely.

        Args:
            position: of the gateway: one past the last record it has processed; None if it has processed none.
        """
        return sum(position is None or position <= index for index in self._commit_indices)

    def append_batch(self, batch_id: int, frames: Frames) -> int:
        """Number, pack and append a micro-batch; returns how many of its records were new.

        Raises:
            SourceJournalError: if records are missing, or a rerun differs from the journal.
        """
        frames = _from_record(frames, self.last_commit.next_record_index)
        if not frames.record_index.size:
            return 0
        self._check_gapless(batch_id, frames)
        plan = self._plan
        packets, after = pack_batch(plan.feed, plan.packet_messages_max, self.last_commit.next_source_seqs, frames)
        commit = Commit(batch_id, int(frames.record_index[-1]) + 1, after)
        records = [encode_packet(packet) for packet in packets]
        records = records[self._match_uncommitted(batch_id, records) :]
        records.append(commit.encode())
        for segment in _segments(records, self._segment_size_max):
            first_index = self._journal.append_batch(segment)
        self._commit_indices.append(first_index + len(segment) - 1)  # the last record of the last segment
        self._journal.sync()  # before Spark considers the batch done, because it will not offer these records again
        self.last_commit = commit
        return int(frames.record_index.size)

    def end(self) -> None:
        """Mark the end of every stream; a second call does nothing."""
        if not self.is_ended:
            ends = [End(stream, seq).encode() for stream, seq in sorted(self.last_commit.next_source_seqs.items())]
            self._journal.append_batch(ends)
            self._journal.sync()
            self.is_ended = True

    def close(self) -> None:
        """Release the journal."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _recover(self) -> tuple[Commit, list[bytes], bool]:
        commit = Commit(0, 0, dict.fromkeys(self._plan.feed.source_stream_ids, 1))
        uncommitted: list[bytes] = []
        is_ended = is_begun = False
        for index, record in self._journal.records():
            kind = record[0]
            if not is_begun:
                self._check_plan(record)
                is_begun = True
            elif kind == RecordKind.PACKET:
                uncommitted.append(record)
            elif kind == RecordKind.COMMIT:
                commit = Commit.decode(record)
                self._commit_indices.append(index)
                uncommitted = []
            elif kind == RecordKind.END:
                is_ended = True
        if not is_begun:
            self._journal.append(self._plan.encode())
            self._journal.sync()
        return commit, uncommitted, is_ended

    def _check_plan(self, record: bytes) -> None:
        if record == self._plan.encode():
            return
        if record[0] != RecordKind.BEGIN:
            raise SourceJournalError(f"{self._journal.folder} is not a source journal; give another folder")
        was = json.loads(record[BEGIN_HEAD.size :])
        now = json.loads(self._plan.encode()[BEGIN_HEAD.size :])
        changed = {key: (was.get(key), now[key]) for key in now if was.get(key) != now[key]}
        text = "; ".join(f"{key} was {before!r}, is {after!r}" for key, (before, after) in changed.items())
        raise SourceJournalError(
            f"{self._journal.folder} was started with other options, on which its numbers depend ({text}): give the "
            "same options, or a new journal and checkpoint"
        )

    def _check_gapless(self, batch_id: int, frames: Frames) -> None:
        expected = self.last_commit.next_record_index
        index = frames.record_index
        wrong = np.flatnonzero(index != np.arange(expected, expected + index.size))
        if wrong.size:
            raise SourceJournalError(
                f"batch {batch_id}: found record {index[wrong[0]]}, expected record {expected + int(wrong[0])}: a file "
                "of the recording is missing, or the files were not read in order"
            )
        if self.is_ended:
            raise SourceJournalError(
                f"batch {batch_id}: record {expected} comes after the end of the streams in the journal: give the new "
                "session a new journal and checkpoint"
            )

    def _match_uncommitted(self, batch_id: int, records: Sequence[bytes]) -> int:
        """How many of the batch's packets a crashed run has already written; their bytes must be the same."""
        written = self._uncommitted
        if written != list(records[: len(written)]):
            raise SourceJournalError(
                f"batch {batch_id}: the rerun differs from the part that is already in the journal, because the "
                "recording has changed: give a new journal and checkpoint"
            )
        self._uncommitted = []
        return len(written)


def _from_record(frames: Frames, next_record_index: int) -> Frames:
    """The frames without those that are already in the journal."""
    if not frames.record_index.size or frames.record_index[0] >= next_record_index:
        return frames
    skip = int(np.searchsorted(frames.record_index, next_record_index))
    start = int(frames.offsets[skip])
    return Frames(
        frames.record_index[skip:],
        frames.stream_id[skip:],
        frames.event_at_ns[skip:],
        frames.offsets[skip:] - start,
        frames.data[start:],
    )


def _segments(records: Sequence[bytes], size_max: int) -> Iterator[Sequence[bytes]]:
    first = size = 0
    for place, record in enumerate(records):
        if size and size + len(record) > size_max:
            yield records[first:place]
            first, size = place, 0
        size += len(record)
    yield records[first:]
