"""The layout of a source journal: its folders and its records.

A source journal is a folder with one journal per source stream and the commit log::

    stream-N/         PACKET …            appended by the task that owns source stream N
    commits/          BEGIN COMMIT … END  appended by the driver
    gateway.position                      how far the gateway has sent
    pending-batch.arrow                   a query's micro-batch that is being committed (`pending_batch`)

Only what a COMMIT covers is part of the session: the gateway sends it, and it is never numbered again. What a stream's
journal has after that is the work of a task whose micro-batch was not committed; its rerun must produce the same bytes.

Record layouts (little-endian); the first byte is the kind::

    BEGIN   kind, pad[7], JSON of the numbering plan
    PACKET  kind, pad[7], event_at_ns i64 and last_record_index u64 of the last message, source packet (sent_at_ns 0)
    COMMIT  kind, pad[3], stream_count u32, batch_id u64, next_record_index u64,
            streams: (id u64, next_source_seq u64, end_index u64)
    END     kind, pad[3], source_stream_id u32, next_source_seq u64

Invariants: the packets of a stream are gapless from source_seq 1. The packets that a COMMIT adds have the records from
the last COMMIT's next_record_index to before its own, and each stream's are those before its end_index.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, SOURCE_LAYOUT, unpack_source_header
from tandemfeed.journal import Batch
from tandemfeed.journal.format.layout import CONTROL_NAME
from tandemfeed.spark_feed.feed_plan import FeedPlan

SEGMENT_SIZE_MAX = 2 << 20  # no tailer waits long for it
BLOCK_SIZE = 16 << 20  # small, because seeking to an index reads its block from the start
assert SEGMENT_SIZE_MAX * 4 <= BLOCK_SIZE

COMMITS_NAME = "commits"
# How far the real-time gateway has sent: one past the index of the last record whose packet was sent, and one more when
# the streams have ended. Packets are sent in the order of their last record.
POSITION_NAME = "gateway.position"

PACKET_HEAD = struct.Struct("<B7xqQ")
COMMIT_HEAD = struct.Struct("<B3xIQQ")
COMMIT_STREAM = struct.Struct("<QQQ")
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
    """Everything, apart from the records, that source sequence numbers and packet bytes depend on.

    Attributes:
        packet_messages_max: a packet has at most this many messages.
        packet_records: a packet ends before each multiple of this record index, wherever micro-batches end.
        recording: its fingerprint.
        rules: which rows are refused besides those that the source format cannot hold; empty: no others.
    """

    feed: FeedPlan
    split: str
    packet_messages_max: int
    packet_records: int
    recording: str
    format_digest: str
    rules: str = ""

    def encode(self) -> bytes:
        """As the BEGIN record."""
        document = {name: value for name, value in asdict(self).items() if value or name != "rules"}
        return BEGIN_HEAD.pack(RecordKind.BEGIN) + json.dumps(document, sort_keys=True).encode()

    @classmethod
    def decode(cls, record: bytes) -> NumberingPlan:
        """From the BEGIN record.

        Raises:
            SourceJournalError: another version wrote it, or it is damaged.
        """
        try:
            document: Any = plan_document(record)
            feed = document["feed"]
            feed["source_stream_ids"] = tuple(feed["source_stream_ids"])
            return cls(**document | {"feed": FeedPlan(**feed)})
        except (KeyError, TypeError, ValueError) as error:
            raise SourceJournalError(
                f"the journal's first record is not a plan of this version ({error}): read it with the version that "
                "wrote it, or give another folder"
            ) from error


class StreamEnd(NamedTuple):
    """Where a source stream ends: its next number, and the index after the last record of its journal."""

    next_source_seq: int = 1
    end_index: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a micro-batch: the next record, and the end of each stream."""

    batch_id: int
    next_record_index: int
    streams: dict[int, StreamEnd]

    @property
    def next_source_seqs(self) -> dict[int, int]:
        """By source stream."""
        return {stream_id: end.next_source_seq for stream_id, end in self.streams.items()}

    def encode(self) -> bytes:
        """As a record."""
        head = COMMIT_HEAD.pack(RecordKind.COMMIT, len(self.streams), self.batch_id, self.next_record_index)
        return head + b"".join(COMMIT_STREAM.pack(stream_id, *end) for stream_id, end in sorted(self.streams.items()))

    @classmethod
    def decode(cls, record: bytes) -> Commit:
        """From a record of that kind."""
        _, count, batch_id, next_record_index = COMMIT_HEAD.unpack_from(record)
        streams = {each[0]: StreamEnd(*each[1:]) for each in COMMIT_STREAM.iter_unpack(record[COMMIT_HEAD.size :])}
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


def datagram_in(record: bytes, feed_id: int) -> bytes:
    """The source packet of a PACKET record, addressed to a feed: the journal's own, or one that repeats it later."""
    place = PACKET_HEAD.size + FEED_ID_OFFSET
    return b"".join((record[PACKET_HEAD.size : place], FEED_ID.pack(feed_id), record[place + FEED_ID.size :]))


def packet_numbers(record: bytes) -> tuple[int, int, int]:
    """(source_stream_id, first_source_seq, message_count) of a PACKET record."""
    header = unpack_source_header(record, PACKET_HEAD.size)
    return header.source_stream_id, header.first_source_seq, header.message_count


def packet_place(record: bytes) -> int:
    """The index of the last record of a PACKET record; it orders the packets of all streams."""
    place: int = PACKET_HEAD.unpack_from(record)[2]
    return place


# What a PACKET record has before its messages.
PACKET_FIELDS = np.dtype(
    [
        ("kind", "u1"),
        ("pad", "V7"),
        ("event_at_ns", "<i8"),
        ("last_record_index", "<u8"),
        ("packet", SOURCE_LAYOUT.dtype()),
    ]
)
assert PACKET_FIELDS.itemsize == PACKET_HEAD.size + SOURCE_HEADER_SIZE


class SentPackets(NamedTuple):
    """What packets of one stream have in their heads, as lists: one entry per packet."""

    first_source_seq: list[int]
    message_count: list[int]
    last_record_index: list[int]


def packets_in(batch: Batch) -> SentPackets:
    """The heads of a batch of a stream's journal."""
    fields = batch.heads(PACKET_FIELDS.itemsize).view(PACKET_FIELDS).reshape(-1)
    packet = fields["packet"]
    return SentPackets(
        packet["first_source_seq"].tolist(), packet["message_count"].tolist(), fields["last_record_index"].tolist()
    )


def stream_folder(journal: Path, source_stream_id: int) -> Path:
    """The folder of a source stream's journal."""
    return journal / f"stream-{source_stream_id}"


def commits_folder(journal: Path) -> Path:
    """The folder of the commit log.

    Raises:
        SourceJournalError: the source journal has the former layout, a single journal for all streams.
    """
    if (journal / CONTROL_NAME).exists():
        raise SourceJournalError(
            f"{journal} is a single journal, not a source journal with a journal per source stream: give a new folder "
            "and a new checkpoint, and number the recording again"
        )
    return journal / COMMITS_NAME


def plan_document(record: bytes) -> dict[str, object]:
    """The numbering plan in a BEGIN record."""
    document: dict[str, object] = json.loads(record[BEGIN_HEAD.size :])
    return document
