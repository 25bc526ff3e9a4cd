"""Shared by the tests of the feed source: a feed, small recordings, and the work of the job without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, SOURCE_HEADER_SIZE, SourcePacket, decode_source_packet
from tandemfeed.journal.tailer import Tailer
from tandemfeed.spark_feed.feed_plan import FeedPlan
from tandemfeed.spark_feed.journaling.committed_records import CommittedRecords
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.records import COMMITS_NAME, PACKET_HEAD, RecordKind, stream_folder
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER, Split
from tandemfeed.spark_feed.numbering.rows.encoding import TickEncoder
from tandemfeed.spark_feed.numbering.rows.packing import Block
from tandemfeed.spark_feed.recordings.generator import GeneratorOptions, TickGenerator
from tandemfeed.spark_feed.recordings.recording import Manifest, write_recording

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FORMAT = ROOT / "deploy" / "examples" / "ticks" / "source-format.xml"
FEED = FeedPlan(1, "equities", 20261121, (1, 2))
MESSAGES_MAX = 16


def make_recording(folder: Path, count: int, rows_per_file: int, seed: int = 5) -> Manifest:
    """A small generated recording."""
    tables = TickGenerator(GeneratorOptions(count, 60, seed)).tables()
    return write_recording(
        folder, tables, rows_per_file=rows_per_file, origin=f"generated {count} {seed}", price_conversion="integers"
    )


def batches_of(recording: Path, rule: Split = BY_LETTER) -> Iterator[list[list[Block]]]:
    """Each file of a recording as the micro-batch that Spark would make of it."""
    encoder = TickEncoder(load_source_format(SOURCE_FORMAT), rule, len(FEED.source_stream_ids))
    for part in sorted(recording.glob("part-*.parquet")):
        yield [encoder.encode(pq.read_table(part))]


def journal_without_spark(
    recording: Path, journal: Path, rule: Split = BY_LETTER, session: int = 0, *, is_ended: bool = True
) -> None:
    """Do the work of the job without Spark."""
    plan = numbering_plan(recording, SOURCE_FORMAT, FEED.in_session(session), rule, MESSAGES_MAX)
    with SourceJournalWriter(journal, plan) as writer:
        for batch_id, runs in enumerate(batches_of(recording, rule)):
            writer.append_batch(batch_id, runs)
        if is_ended:
            writer.end()


def records_of(journal: Path) -> list[bytes]:
    """Every record of a source journal that is committed, in sending order."""
    with CommittedRecords(journal, FEED.source_stream_ids) as records:
        return [entry.record for entry in iter(records.read, None)]


def stream_records_of(journal: Path) -> dict[int, list[bytes]]:
    """Every record of each stream's journal, committed or not."""
    found = {}
    for stream_id in FEED.source_stream_ids:
        with Tailer(stream_folder(journal, stream_id)) as tailer:
            found[stream_id] = [record for _, record in tailer]
    return found


def commits_of(journal: Path) -> list[bytes]:
    """Every record of the commit log."""
    with Tailer(journal / COMMITS_NAME) as tailer:
        return [record for _, record in tailer]


def packets_of(journal: Path) -> list[SourcePacket]:
    """Every source packet of a journal, decoded by the receiver's codec."""
    records = records_of(journal)
    datagrams = [record[PACKET_HEAD.size :] for record in records if record[0] == RecordKind.PACKET]
    return [decode_source_packet(datagram, FEED.feed_id) for datagram in datagrams]


def frames_in(packet: SourcePacket) -> list[bytes]:
    """The framed messages of a packet."""
    at, found = SOURCE_HEADER_SIZE, []
    while at < len(packet.datagram):
        length, _ = SOURCE_FRAME.unpack_from(packet.datagram, at)
        found.append(packet.datagram[at : at + length])
        at += length
    assert at == len(packet.datagram)
    return found


def assert_gapless(packets: list[SourcePacket]) -> dict[int, int]:
    """Check that each stream counts up from 1 without a gap; returns the number of messages per stream."""
    following = dict.fromkeys(FEED.source_stream_ids, 1)
    for packet in packets:
        assert packet.first_source_seq == following[packet.source_stream_id]
        assert packet.message_count == len(frames_in(packet))
        following[packet.source_stream_id] = packet.end_source_seq
    return {stream_id: seq - 1 for stream_id, seq in following.items()}
