"""Splitting, numbering and packing, which are pure, and the journal that makes numbering survive crashes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, SOURCE_FRAME_SIZE, decode_source_packet
from tandemfeed.journal.store import Journal
from tandemfeed.spark_feed.feed_plan import FeedPlan, read_feed_plan
from tandemfeed.spark_feed.numbering.job import numbering_plan
from tandemfeed.spark_feed.numbering.packing import Frames, pack_batch
from tandemfeed.spark_feed.numbering.split import SplitRule, assign_streams, stream_of_letter
from tandemfeed.spark_feed.source_journal import RecordKind, SourceJournalError, SourceJournalWriter
from tandemfeed.transport.settings_file import SettingsError
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    SOURCE_FORMAT,
    assert_gapless,
    batches_of,
    commit_indices_of,
    frames_in,
    journal_without_spark,
    make_recording,
    packets_of,
    records_of,
)


@st.composite
def _frames(draw: st.DrawFn) -> Frames:
    streams = draw(st.lists(st.sampled_from(FEED.source_stream_ids), max_size=120))
    sizes = draw(st.lists(st.integers(0, 400), min_size=len(streams), max_size=len(streams)))
    first = draw(st.integers(0, 1 << 40))
    bodies = [
        SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + size, 1) + bytes([place % 256]) * size for place, size in enumerate(sizes)
    ]
    index = np.arange(first, first + len(streams))
    offsets = np.cumsum([0, *map(len, bodies)])
    data = np.frombuffer(b"".join(bodies), np.uint8)
    return Frames(index, np.array(streams, np.int64), index * 10, offsets, data)


@given(_frames(), st.integers(1, 40), st.integers(1, 1 << 50))
def test_packing_keeps_each_message_once_and_in_order_within_the_limits(
    frames: Frames, messages_max: int, next_seq: int
) -> None:
    packets, after = pack_batch(FEED, messages_max, dict.fromkeys(FEED.source_stream_ids, next_seq), frames)
    for stream_id in FEED.source_stream_ids:
        seq = next_seq
        messages: list[bytes] = []
        for packed in (packed for packed in packets if packed.source_stream_id == stream_id):
            packet = decode_source_packet(packed.datagram, FEED.feed_id)
            assert len(packed.datagram) <= FEED.datagram_size_max
            assert packet.message_count <= messages_max
            assert packet.sent_at_ns == 0
            assert packet.first_source_seq == seq == packed.first_source_seq
            seq = packet.end_source_seq
            messages += frames_in(packet)
        assert after[stream_id] == seq
        rows = np.flatnonzero(frames.stream_id == stream_id)
        assert messages == [bytes(frames.data[frames.offsets[row] : frames.offsets[row + 1]]) for row in rows]
    order = [packed.last_record_index for packed in packets]
    assert order == sorted(order)
    assert (packets, after) == pack_batch(FEED, messages_max, dict.fromkeys(FEED.source_stream_ids, next_seq), frames)


def test_a_message_that_fits_no_packet_is_refused_with_its_record_number() -> None:
    size = FEED.datagram_size_max
    frames = Frames(np.array([7]), np.array([1]), np.array([0]), np.array([0, size]), np.zeros(size, np.uint8))
    with pytest.raises(ValueError, match="record 7"):
        pack_batch(FEED, 16, {1: 1, 2: 1}, frames)


@given(st.integers(1, 26), st.text(min_size=1, max_size=5))
def test_the_alphabet_is_divided_into_ascending_ranges(count: int, text: str) -> None:
    alphabet = [stream_of_letter(bytes([letter]), count) for letter in range(ord("A"), ord("Z") + 1)]
    assert alphabet == sorted(alphabet)
    assert set(alphabet) == set(range(count))
    assert 0 <= stream_of_letter(text.encode(), count) < count


def test_two_streams_divide_the_alphabet_between_m_and_n() -> None:
    assert [stream_of_letter(ticker, 2) for ticker in (b"A", b"MZZ", b"N", b"ZZZ", b"m", b"n")] == [0, 0, 1, 1, 0, 1]


@given(st.sampled_from(SplitRule), st.lists(st.integers(0, 2), min_size=1, max_size=50), st.data())
def test_a_rows_stream_does_not_depend_on_its_neighbours(
    rule: SplitRule, codes: list[int], data: st.DataObject
) -> None:
    symbols = [b"ACME", b"ESH4", b"ZZZ"]
    index = np.arange(100, 100 + len(codes))
    whole = assign_streams(rule, symbols, np.array(codes), index, 2)
    row = data.draw(st.integers(0, len(codes) - 1))
    alone = assign_streams(rule, [symbols[codes[row]]], np.array([0]), index[row : row + 1], 2)
    assert whole[row] == alone[0]


def test_a_journal_written_batch_by_batch_is_gapless_and_ends(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 3_000, 500)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    counts = assert_gapless(packets_of(tmp_path / "journal"))
    assert sum(counts.values()) == 3_000
    assert min(counts.values()) > 500
    kinds = [record[0] for record in records_of(tmp_path / "journal")]
    assert kinds[0] == RecordKind.BEGIN
    assert kinds.count(RecordKind.COMMIT) == 6
    assert kinds[-2:] == [RecordKind.END, RecordKind.END]


@settings(max_examples=25)
@given(st.data())
def test_a_half_written_batch_is_completed_with_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("half")
    make_recording(folder / "recording", 600, 200)
    journal_without_spark(folder / "recording", folder / "whole")
    whole = records_of(folder / "whole")
    keep = data.draw(st.integers(0, len(whole) - 3), label="records that reached the journal")
    if keep:
        with Journal.open(folder / "journal", block_size=16 << 20) as torn:
            torn.append_batch(whole[:keep])
    journal_without_spark(folder / "recording", folder / "journal")
    assert records_of(folder / "journal") == whole


def test_a_rerun_batch_adds_nothing(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 200)
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, SplitRule.LETTER, MESSAGES_MAX)
    batches = list(batches_of(tmp_path / "recording"))
    with SourceJournalWriter(tmp_path / "journal", plan) as writer:
        assert writer.append_batch(0, batches[0]) == 200
        before = records_of(tmp_path / "journal")
        assert writer.append_batch(0, batches[0]) == 0
        assert records_of(tmp_path / "journal") == before
    with SourceJournalWriter(tmp_path / "journal", plan) as writer:
        assert writer.append_batch(0, batches[0]) == 0
        assert writer.append_batch(1, batches[1]) == 200


def test_a_batch_larger_than_a_segment_gives_the_same_records(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 600)
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, SplitRule.LETTER, MESSAGES_MAX)
    (batch,) = batches_of(tmp_path / "recording")
    with SourceJournalWriter(tmp_path / "journal", plan, segment_size_max=2_000) as writer:
        assert writer.append_batch(0, batch) == 600
    journal_without_spark(tmp_path / "recording", tmp_path / "whole")
    assert records_of(tmp_path / "journal") == records_of(tmp_path / "whole")[:-2]


def test_unsent_micro_batches_are_counted_however_many_segments_each_takes(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 1_000, 200)
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, SplitRule.LETTER, MESSAGES_MAX)
    with SourceJournalWriter(tmp_path / "journal", plan, commits_kept=3, segment_size_max=2_000) as writer:
        for batch_id, batch in enumerate(list(batches_of(tmp_path / "recording"))[:2]):
            writer.append_batch(batch_id, batch)
            assert writer.unsent_batch_count(None) == batch_id + 1
        first, second = commit_indices_of(tmp_path / "journal")
        assert writer.unsent_batch_count(first) == 2, "the gateway has reached the commit but not passed it"
        assert writer.unsent_batch_count(first + 1) == 1
        assert writer.unsent_batch_count(second + 1) == 0


def test_a_writer_counts_at_most_the_configured_number_of_micro_batches(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 1_000, 100)
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, SplitRule.LETTER, MESSAGES_MAX)
    for kept in (0, 3):
        with SourceJournalWriter(tmp_path / f"journal-{kept}", plan, commits_kept=kept) as writer:
            for batch_id, batch in enumerate(batches_of(tmp_path / "recording")):
                writer.append_batch(batch_id, batch)
            assert writer.unsent_batch_count(None) == kept


def test_a_restarted_writer_counts_the_micro_batches_of_earlier_runs(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 1_000, 200)
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, SplitRule.LETTER, MESSAGES_MAX)
    with SourceJournalWriter(tmp_path / "journal", plan) as writer:
        for batch_id, batch in enumerate(batches_of(tmp_path / "recording")):
            writer.append_batch(batch_id, batch)
    with SourceJournalWriter(tmp_path / "journal", plan, commits_kept=4) as writer:
        assert writer.unsent_batch_count(None) == 4


def test_missing_records_are_refused_with_their_number(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 200)
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, SplitRule.LETTER, MESSAGES_MAX)
    batches = list(batches_of(tmp_path / "recording"))
    with SourceJournalWriter(tmp_path / "journal", plan) as writer:
        writer.append_batch(0, batches[0])
        with pytest.raises(SourceJournalError, match="found record 400, expected record 200"):
            writer.append_batch(1, batches[2])


def test_different_options_for_an_existing_journal_are_refused_by_name(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 200, 200)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, SplitRule.HASH, MESSAGES_MAX)
    with pytest.raises(SourceJournalError, match="split was 'letter', is 'hash'"):
        SourceJournalWriter(tmp_path / "journal", plan)


def test_a_feed_is_read_from_the_cluster_file(tmp_path: Path) -> None:
    document = tmp_path / "cluster.toml"
    document.write_text(
        '[[feed]]\nfeed_id = 3\nname = "fx"\nsession = 20261121\n'
        "[[feed.source_stream]]\nsource_stream_id = 4\n[[feed.source_stream]]\nsource_stream_id = 9\n"
    )
    assert read_feed_plan(f"{document}#fx") == FeedPlan(3, "fx", 20261121, (4, 9))
    assert read_feed_plan(str(document)).name == "fx"
    with pytest.raises(SettingsError, match=r"line 1: feed has entries named fx; choose one of them with .*#NAME"):
        read_feed_plan(f"{document}#equities")
    with pytest.raises(SettingsError, match="no such file"):
        read_feed_plan(str(tmp_path / "none.toml"))
    document.write_text(document.read_text().replace("source_stream_id = 9", 'source_stream_id = "nine"'))
    with pytest.raises(SettingsError, match=r'line 8: .*source_stream_id is "nine"; it must be an integer'):
        read_feed_plan(str(document))
