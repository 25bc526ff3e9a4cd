"""The prepared source journal: it equals the Spark job's, and the drill can measure how much of it was sent."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tandemfeed.deploy.cluster.processes import ManagedProcess
from tandemfeed.deploy.cluster.topology import EXAMPLES, FeedLayout, Shape, host_names, render_cluster
from tandemfeed.deploy.drills.source import JournalLead, make_recording, packet_size, prepare_journal, sent_counts
from tandemfeed.journal import NamedPosition
from tandemfeed.spark_feed.journaling.committed_records import CommittedRecords
from tandemfeed.spark_feed.journaling.records import POSITION_NAME, RecordKind, packet_numbers, packet_place

MESSAGES, PER_PACKET = 23_456, 7


def settings_of(shape: Shape, folder: Path) -> Path:
    ports = itertools.count(5_000)
    addresses = dict.fromkeys(host_names(shape), "127.0.0.1")
    source_ports = {feed.gateway: next(ports) for feed in shape.feed_layouts()}
    path = folder / "cluster.toml"
    path.write_text(render_cluster(shape, addresses, source_ports, lambda: next(ports)))
    return path


def packets_of(journal: Path, feed: FeedLayout) -> list[bytes]:
    """Every committed packet, in sending order."""
    with CommittedRecords(journal, range(1, feed.shape.stream_count + 1)) as records:
        return [entry.record for entry in iter(records.read, None) if entry.record[0] == RecordKind.PACKET]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_prepared_journal_has_the_same_packets_as_the_spark_jobs(tmp_path: Path) -> None:
    feed = Shape().feed_layouts()[0]
    settings = settings_of(Shape(), tmp_path)
    recording = make_recording(tmp_path, source=None, message_count=MESSAGES)
    prepare_journal(recording, feed, settings, tmp_path / "prepared", PER_PACKET)
    arguments = ["source-job", "--recording", str(recording.folder), "--until-idle", "--split", recording.split]
    arguments += ["--source-format", str(EXAMPLES / "source-format.xml")]
    arguments += ["--feed-description", f"{settings}#{feed.name}", "--journal", str(tmp_path / "spark")]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--packet-messages-max", str(PER_PACKET)]
    job = ManagedProcess("source-job", arguments, tmp_path)
    assert job.wait(150) == 0, job.failed("failed")
    assert packets_of(tmp_path / "prepared", feed) == packets_of(tmp_path / "spark", feed)


def test_sent_messages_are_those_before_the_gateways_position(tmp_path: Path) -> None:
    feed = Shape(channels=2, streams_per_channel=2).feed_layouts()[0]
    settings = settings_of(feed.shape, tmp_path)
    recording = make_recording(tmp_path, source=None, message_count=MESSAGES)
    journal = tmp_path / "journal"
    prepare_journal(recording, feed, settings, journal, PER_PACKET)
    assert sent_counts(journal, feed) == {1: 0, 2: 0, 3: 0, 4: 0}
    with JournalLead(journal) as early:
        assert early.message_count() == MESSAGES
        packets = packets_of(journal, feed)
        for place in (len(packets) // 3, len(packets)):
            expected = dict.fromkeys((1, 2, 3, 4), 0)
            for record in packets[:place]:
                stream, first, count = packet_numbers(record)
                expected[stream] = first + count - 1
            position = NamedPosition(journal / POSITION_NAME)
            position.store(packet_place(packets[place - 1]) + 1)
            position.close()
            assert sent_counts(journal, feed) == expected
            with JournalLead(journal) as lead:
                assert lead.message_count() == early.message_count()
            # A packet is sent after the records before its last one, of which other packets may still hold some.
            unsent = MESSAGES - sum(expected.values())
            assert early.message_count() <= unsent <= early.message_count() + 4 * PER_PACKET
    assert sum(sent_counts(journal, feed).values()) == MESSAGES


@pytest.mark.parametrize(("rate", "streams", "expected"), [(20_000, 2, 20), (1_000, 8, 1), (500_000, 2, 36)])
def test_packet_size_limits_the_wait_to_two_milliseconds_and_fits_a_datagram(
    rate: float, streams: int, expected: int
) -> None:
    assert packet_size(rate, streams) == expected
