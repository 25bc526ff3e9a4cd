"""The gateway's core: schedule, order, heartbeats, and the index of sent packets."""

from __future__ import annotations

import gc
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.source_packet import SourceFlag, decode_source_packet
from tandemfeed.journal import Tailer
from tandemfeed.spark_feed.journaling.committed_records import CommittedRecord, CommittedRecords
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.records import (
    PACKET_HEAD,
    Commit,
    RecordKind,
    SourceJournalError,
    packet_numbers,
    packet_place,
    packets_in,
    stream_folder,
)
from tandemfeed.spark_feed.journaling.stream_appender import append_to_stream
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER
from tandemfeed.spark_feed.sending.fill_service import JournalReader, PreviousSession, SourceReplayService
from tandemfeed.spark_feed.sending.pacing import CATCH_UP_NS, Pacer, RatePacer, SpeedPacer
from tandemfeed.spark_feed.sending.send_core import (
    HEARTBEAT_INTERVAL_NS,
    SEND_EARLY_NS,
    AllSent,
    SendCore,
    SendHeartbeat,
    SendPacket,
    stamped,
)
from tandemfeed.spark_feed.sending.sent_index import SentIndex, SentPacket
from tandemfeed.spark_feed.sending.sessions.journals import JournalPlan
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    SOURCE_FORMAT,
    batches_of,
    frames_in,
    journal_without_spark,
    make_recording,
)

START_NS = 5_000_000_000


@pytest.fixture
def records(tmp_path: Path) -> list[CommittedRecord]:
    make_recording(tmp_path / "recording", 2_000, 500)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    return _read(tmp_path / "journal")


def _read(journal: Path) -> list[CommittedRecord]:
    with CommittedRecords(journal, FEED.source_stream_ids) as reader:
        return list(iter(reader.read, None))


def _core(pacer: Pacer) -> SendCore:
    return SendCore(FEED.feed_id, FEED.session, FEED.source_stream_ids, pacer)


def _run(core: SendCore, records: list[CommittedRecord]) -> list[tuple[int, object]]:
    """Feed the core and drive it by its deadlines until it has sent everything."""
    waiting = list(records)
    now_ns = START_NS
    happened: list[tuple[int, object]] = []
    while not any(isinstance(effect, AllSent) for _, effect in happened):
        for _ in range(core.records_needed_count):
            if waiting:
                core.on_record(*waiting.pop(0))
        happened += [(now_ns, effect) for effect in core.on_time(now_ns)]
        now_ns = max(core.next_deadline_ns(now_ns), now_ns + 1_000)
    return happened


def test_every_message_is_sent_once_in_order_on_an_absolute_schedule(records: list[CommittedRecord]) -> None:
    core = _core(RatePacer(10_000))
    core.start()
    happened = _run(core, records)
    sent = [(at_ns, effect) for at_ns, effect in happened if isinstance(effect, SendPacket)]
    before = 0
    following = dict.fromkeys(FEED.source_stream_ids, 1)
    for at_ns, packet in sent:
        due_ns = START_NS + before * 100_000  # 10,000 per second
        assert due_ns - SEND_EARLY_NS <= at_ns <= due_ns + HEARTBEAT_INTERVAL_NS
        assert packet.first_source_seq == following[packet.source_stream_id]
        following[packet.source_stream_id] += packet.message_count
        before += packet.message_count
    assert before == 2_000
    (finished,) = [effect for _, effect in happened if isinstance(effect, AllSent)]
    assert sum(finished.message_counts.values()) == 2_000
    assert core.next_source_seqs == following


def test_the_end_of_every_stream_is_announced_repeatedly(records: list[CommittedRecord]) -> None:
    core = _core(RatePacer(1e6))
    core.start()
    happened = _run(core, records)
    now_ns = happened[-1][0] + HEARTBEAT_INTERVAL_NS
    for effects in ([effect for _, effect in happened], core.on_time(now_ns)):
        ends = [effect for effect in effects if isinstance(effect, SendHeartbeat) and effect.is_end]
        assert [end.source_stream_id for end in ends] == list(FEED.source_stream_ids)
        for end in ends:
            packet = decode_source_packet(end.datagram, FEED.feed_id)
            assert packet.flags == SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM
            assert packet.first_source_seq == core.next_source_seqs[end.source_stream_id]


def test_only_heartbeats_are_sent_before_the_start(records: list[CommittedRecord]) -> None:
    core = _core(RatePacer(1e6))
    core.on_record(*records[0])
    core.on_record(*records[1])
    effects = core.on_time(START_NS)
    assert [type(effect) for effect in effects] == [SendHeartbeat, SendHeartbeat]
    assert core.on_time(START_NS + HEARTBEAT_INTERVAL_NS - 1) == []
    assert core.next_deadline_ns(START_NS) == START_NS + HEARTBEAT_INTERVAL_NS
    core.start()
    assert isinstance(core.on_time(START_NS + 1)[0], SendPacket)


def test_after_a_restart_sending_resumes_after_the_last_sent_packet(records: list[CommittedRecord]) -> None:
    core = _core(RatePacer(1e6))
    seqs = dict.fromkeys(FEED.source_stream_ids, 1)
    packets = [entry.record for entry in records[:40] if entry.record[0] == RecordKind.PACKET]
    for record in packets:
        stream_id, first, count = packet_numbers(record)
        seqs[stream_id] = first + count
    core.resume_at(packet_place(packets[-1]) + 1, seqs)
    core.start()
    happened = _run(core, records[40:])
    sent = [effect for _, effect in happened if isinstance(effect, SendPacket)]
    assert (sent[0].source_stream_id, sent[0].first_source_seq) == packet_numbers(records[40].record)[:2]
    assert core.position == 2_001, "the end of the streams counts as one more"
    assert sum(core.next_source_seqs.values()) == 2_000 + 2


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60_000_000)), min_size=1, max_size=60))
def test_a_stall_is_followed_by_a_bounded_burst(steps: list[tuple[int, int]]) -> None:
    pacer = RatePacer(10_000)
    now_ns = START_NS
    for count, delay_ns in steps:
        due_ns = pacer.due_ns(0, now_ns)
        now_ns = max(now_ns, due_ns) + delay_ns
        pacer.on_sent(count, due_ns, now_ns)
        lag_ns = now_ns + count * 100_000 - pacer.due_ns(0, now_ns)
        assert lag_ns <= CATCH_UP_NS + count * 100_000


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=60), st.floats(0.1, 1_000))
def test_recorded_time_is_scaled_by_the_factor_and_bursts_are_limited(events: list[int], factor: float) -> None:
    pacer = SpeedPacer(factor, burst_rate_max=1_000)
    last_due_ns = None
    latest = first = events[0]
    for event in events:
        latest = max(latest, event)
        due_ns = pacer.due_ns(event, START_NS)
        assert due_ns >= START_NS + int((latest - first) / factor)
        if last_due_ns is not None:
            assert due_ns >= last_due_ns + 9_999_999  # ten messages at 1,000 per second
        pacer.on_sent(10, due_ns, due_ns)
        last_due_ns = due_ns


def test_stamping_changes_only_send_time_and_flags(records: list[CommittedRecord]) -> None:
    core = _core(RatePacer(1e6))
    core.start()
    core.on_record(*records[1])
    (packet,) = [effect for effect in core.on_time(START_NS) if isinstance(effect, SendPacket)]
    before = decode_source_packet(packet.datagram, FEED.feed_id)
    after = decode_source_packet(stamped(packet.datagram, 77, SourceFlag.RETRANSMISSION), FEED.feed_id)
    assert (after.sent_at_ns, after.flags) == (77, SourceFlag.RETRANSMISSION)
    assert frames_in(after) == frames_in(before)
    assert after[:4] == before[:4]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(1, 900), st.integers(0, 900))
def test_the_index_finds_exactly_the_packets_that_cover_a_range(counts: list[int], first: int, more: int) -> None:
    index = SentIndex([1], cache_size_max=200)
    seq, firsts = 1, []
    for place, count in enumerate(counts):
        index.add(1, SentPacket(seq, bytes(10), 1_000 + place), count, place)
        firsts.append((seq, count))
        seq += count
    expected = [(a, n) for a, n in firsts if a <= first + more and a + n > first]
    found = index.covering(1, first, first + more + 1)
    assert [packet.first_source_seq for packet in found.cached] == [a for a, _ in expected if a >= found.before_seq]
    assert bool(found.stretches) == any(a < found.before_seq for a, _ in expected)
    if found.stretches:  # reading from there reaches every packet of the range
        assert firsts[found.stretches[0].begin_index][0] <= expected[0][0]
    cached = [packet.first_source_seq for packet in index.covering(1, 1, seq).cached]
    assert cached == [a for a, _ in firsts[-20:]]


def test_cached_packets_add_no_objects_for_the_garbage_collector() -> None:
    index = SentIndex([1])
    gc.collect()
    before = len(gc.get_objects())
    for seq in range(1, 3_001):
        index.add(1, SentPacket(seq, bytes(10), seq), 1, seq)
    gc.collect()
    assert len(gc.get_objects()) - before < 60
    assert len(index.covering(1, 1, 3_001).cached) == 3_000


def test_gaps_are_filled_from_the_cache_and_from_the_journal(records: list[CommittedRecord], tmp_path: Path) -> None:
    packets = [(index, record) for index, record in records if record[0] == RecordKind.PACKET]
    index = SentIndex(FEED.source_stream_ids, cache_size_max=20_000)
    for place, (journal_index, record) in enumerate(packets):
        stream_id, first, count = packet_numbers(record)
        if place < len(packets) // 4:
            index.add_journaled(stream_id, first, count, journal_index)
        else:
            index.add(stream_id, SentPacket(first, record[PACKET_HEAD.size :], 77), count, journal_index)
    reader = JournalReader(tmp_path / "journal", FEED.feed_id)
    source = random.Random(5)
    for stream_id in FEED.source_stream_ids:
        own = [(*packet_numbers(record)[1:], record) for _, record in packets if packet_numbers(record)[0] == stream_id]
        end = own[-1][0] + own[-1][1]
        for _ in range(60):
            first = source.randrange(1, end)
            last = first + source.choice((0, 3, 200, 5_000))
            wanted = [
                record[PACKET_HEAD.size :] for begin, count, record in own if begin <= last and begin + count > first
            ]
            filled = list(SourceReplayService._range(index, reader, stream_id, first, last + 1))
            assert [stamped(each, 0) for each in filled] == [
                stamped(each, 0, SourceFlag.RETRANSMISSION) for each in wanted
            ]


def test_gaps_are_filled_from_the_journal_of_the_requested_session(tmp_path: Path) -> None:
    own, before = SentIndex([1]), SentIndex([1])
    own_reader, reader_before = (
        JournalReader(tmp_path / "own", FEED.feed_id),
        JournalReader(tmp_path / "before", FEED.feed_id),
    )
    previous = PreviousSession(1, 20_261_121, before, reader_before)
    service = SourceReplayService([1], "equities")
    assert list(service._of_session(0, 1, RangeSet([(1, 100)]))) == []
    service.begin_session(20_261_122, own, own_reader, previous)
    own.add(1, SentPacket(1, b"p" * 64, 0), 3, 0)
    everything = RangeSet([(1, 100)])
    assert [len(list(service._of_session(session, 1, everything))) for session in (0, 20_261_122)] == [1, 1]
    assert list(service._of_session(20_261_120, 1, everything)) == []


def test_a_request_past_the_end_of_the_previous_session_gets_its_end(tmp_path: Path) -> None:
    before, reader = SentIndex([1]), JournalReader(tmp_path / "before", FEED.feed_id)
    previous = PreviousSession(FEED.feed_id, 20_261_121, before, reader)
    service = SourceReplayService([1], "equities")
    service.begin_session(20_261_122, SentIndex([1]), reader, previous)
    (end,) = service._of_session(20_261_121, 1, RangeSet([(1, 100)]))
    packet = decode_source_packet(end, FEED.feed_id)
    assert (packet.session, packet.first_source_seq, packet.message_count) == (20_261_121, 1, 0)
    assert packet.flags & SourceFlag.END_OF_STREAM
    assert list(service._of_session(20_261_121, 1, RangeSet())) == []


def test_the_session_is_read_from_the_source_journal(records: list[CommittedRecord], tmp_path: Path) -> None:
    assert records
    assert JournalPlan.read(tmp_path / "journal") == JournalPlan(FEED.name, FEED.session, FEED.source_stream_ids)
    assert JournalPlan.read(tmp_path / "nothing") is None


def test_packets_are_found_in_batches_of_a_streams_journal(records: list[CommittedRecord], tmp_path: Path) -> None:
    with Tailer(stream_folder(tmp_path / "journal", 2)) as tailer:
        found = [
            row for _ in range(20) if (batch := tailer.read_batch(7)) for row in zip(*packets_in(batch), strict=True)
        ]
    own = [entry.record for entry in records if entry.record[0] == RecordKind.PACKET]
    expected = [(*packet_numbers(each)[1:], packet_place(each)) for each in own if packet_numbers(each)[0] == 2]
    assert found == expected[: len(found)]
    assert len(found) == min(len(expected), 140)


def test_reading_resumes_at_every_position(records: list[CommittedRecord], tmp_path: Path) -> None:
    packets = [entry for entry in records if entry.record[0] == RecordKind.PACKET]
    for place in (0, 1, len(packets) // 2, len(packets) - 1, len(packets)):
        position = packet_place(packets[place - 1].record) + 1 if place else 0
        with CommittedRecords(tmp_path / "journal", FEED.source_stream_ids) as reader:
            skipped = [len(batch) for _, batch in reader.skip_to(position)]
            rest = list(iter(reader.read, None))
        assert sum(skipped) == place
        assert [entry for entry in rest if entry.record[0] == RecordKind.PACKET] == packets[place:]
        assert rest[-3:] == records[-3:]


def test_only_committed_packets_are_read(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 400, 200)
    first, second = batches_of(tmp_path / "recording")
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
    with (
        SourceJournalWriter(tmp_path / "journal", plan) as writer,
        CommittedRecords(tmp_path / "journal", FEED.source_stream_ids) as reader,
    ):
        writer.append_batch(0, first)
        read = list(iter(reader.read, None))
        assert [entry.record[0] for entry in read][-1] == RecordKind.COMMIT
        for place, stream_id in enumerate(FEED.source_stream_ids):
            append_to_stream(writer.continuation, stream_id, [run[place] for run in second])
        assert reader.read() is None
        writer.append_batch(1, second)
        read += iter(reader.read, None)
    assert read == _read(tmp_path / "journal")
    assert [Commit.decode(read[-1].record).next_record_index] == [400]


def test_a_committed_packet_that_is_missing_is_an_error_and_not_a_gap(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 400, 200)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    shutil.rmtree(stream_folder(tmp_path / "journal", 2))
    with pytest.raises(SourceJournalError, match="were committed but are missing"):
        _read(tmp_path / "journal")
