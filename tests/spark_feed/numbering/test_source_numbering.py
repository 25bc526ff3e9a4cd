"""Splitting, numbering and packing, which are pure, and the journal that makes numbering survive crashes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, SOURCE_FRAME_SIZE, decode_source_packet
from tandemfeed.journal.store import Journal
from tandemfeed.spark_feed.feed_plan import FeedPlan, read_feed_plan
from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.committed_records import begin_record, last_commit
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.records import (
    BLOCK_SIZE,
    COMMITS_NAME,
    PACKET_FIELDS,
    PACKET_HEAD,
    Commit,
    NumberingPlan,
    RecordKind,
    SourceJournalError,
    StreamEnd,
    packet_numbers,
    packet_place,
    stream_folder,
)
from tandemfeed.spark_feed.journaling.stream_appender import Appended, append_to_stream
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_HASH, BY_LETTER, IN_TURN, Split, streams_of_rows
from tandemfeed.spark_feed.numbering.rows.columns import RecordedRows
from tandemfeed.spark_feed.numbering.rows.packing import Block, Packed, pack_stream
from tandemfeed.spark_feed.numbering.rows.split import streams_of_letters
from tandemfeed.transport.sealing.source_sealing import SOURCE_SEAL_SIZE
from tandemfeed.transport.settings_file import SettingsError
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    SOURCE_FORMAT,
    assert_gapless,
    batches_of,
    commits_of,
    frames_in,
    journal_without_spark,
    make_recording,
    packets_of,
    records_of,
    stream_records_of,
)


def _plan(messages_max: int = MESSAGES_MAX, packet_records: int = 1_000) -> NumberingPlan:
    return NumberingPlan(FEED, "letter", messages_max, packet_records, "recording", "format")


@st.composite
def _blocks(draw: st.DrawFn) -> Block:
    sizes = draw(st.lists(st.integers(0, 400), max_size=120))
    first = draw(st.integers(0, 1 << 40))
    steps = draw(st.lists(st.integers(1, 3), min_size=len(sizes), max_size=len(sizes)))
    bodies = [
        SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + size, 1) + bytes([place % 256]) * size for place, size in enumerate(sizes)
    ]
    index = first + np.cumsum(steps, dtype=np.int64)
    data = np.frombuffer(b"".join(bodies), np.uint8)
    end = int(index[-1]) + 1 if sizes else first
    return Block(first, end, index, index * 10, np.array([*map(len, bodies)], np.uint32), data)


def _datagrams(packed: Packed) -> list[bytes]:
    starts = [0, *packed.ends.tolist()]
    records = [packed.data[start:end].tobytes() for start, end in pairwise(starts)]
    return [record[PACKET_HEAD.size :] for record in records]


@given(_blocks(), st.integers(1, 40), st.integers(1, 60), st.integers(1, 1 << 50))
def test_packing_keeps_each_message_once_and_in_order_within_the_limits(
    block: Block, messages_max: int, packet_records: int, next_seq: int
) -> None:
    packed = pack_stream(_plan(messages_max, packet_records), 2, next_seq, block)
    seq, messages, heads = next_seq, [], np.zeros(0, PACKET_FIELDS)
    for place, datagram in enumerate(_datagrams(packed)):
        packet = decode_source_packet(datagram, FEED.feed_id)
        assert len(datagram) <= FEED.datagram_size_max - SOURCE_SEAL_SIZE
        assert packet.message_count <= messages_max
        assert (packet.source_stream_id, packet.session, packet.sent_at_ns) == (2, FEED.session, 0)
        assert packet.first_source_seq == seq
        messages += frames_in(packet)
        start = int(packed.ends[place - 1]) if place else 0
        heads = packed.data[start : start + PACKET_FIELDS.itemsize].view(PACKET_FIELDS)
        members = block.record_index[seq - next_seq : packet.end_source_seq - next_seq]
        assert heads["last_record_index"][0] == members[-1]
        assert heads["event_at_ns"][0] == members[-1] * 10
        assert len(set((members // packet_records).tolist())) == 1, "a packet ends before each multiple"
        seq = packet.end_source_seq
    assert seq == next_seq + block.sizes.size
    assert b"".join(messages) == block.data.tobytes()


def test_a_message_that_fits_no_packet_is_refused_with_its_record_number() -> None:
    size = FEED.datagram_size_max
    columns = np.array([7]), np.array([0]), np.array([size], np.uint32), np.zeros(size, np.uint8)
    with pytest.raises(SourceJournalError, match="record 7"):
        pack_stream(_plan(), 1, 1, Block(7, 8, *columns))


@given(st.integers(1, 26), st.text(min_size=1, max_size=5))
def test_the_alphabet_is_divided_into_ascending_ranges(count: int, text: str) -> None:
    alphabet = streams_of_letters(np.arange(ord("A"), ord("Z") + 1, dtype=np.uint8), count).tolist()
    assert alphabet == sorted(alphabet)
    assert set(alphabet) == set(range(count))
    assert 0 <= streams_of_letters(np.frombuffer(text.encode()[:1], np.uint8), count)[0] < count


def test_two_streams_divide_the_alphabet_between_m_and_n() -> None:
    tickers = [b"A", b"MZZ", b"N", b"ZZZ", b"m", b"n", b"", b"{", b"1"]
    assert streams_of_letters(np.array(tickers, "S1").view(np.uint8), 2).tolist() == [0, 0, 1, 1, 0, 1, 0, 1, 0]


@given(st.sampled_from([BY_LETTER, BY_HASH, IN_TURN]), st.lists(st.integers(0, 2), min_size=1, max_size=50), st.data())
def test_a_rows_stream_does_not_depend_on_its_neighbours(rule: Split, codes: list[int], data: st.DataObject) -> None:
    symbols = [["ACME", "ESH4", "ZZZ"][code] for code in codes]
    index = np.arange(100, 100 + len(codes))
    whole = streams_of_rows(rule, RecordedRows(pa.table({"symbol": symbols})), index, 2)
    row = data.draw(st.integers(0, len(codes) - 1))
    alone = streams_of_rows(rule, RecordedRows(pa.table({"symbol": [symbols[row]]})), index[row : row + 1], 2)
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
    places = [packet_place(record) for record in records_of(tmp_path / "journal") if record[0] == RecordKind.PACKET]
    assert places == sorted(places)


@pytest.mark.parametrize("files_per_batch", [2, 5])
def test_the_bytes_do_not_depend_on_how_many_files_a_micro_batch_has(tmp_path: Path, files_per_batch: int) -> None:
    make_recording(tmp_path / "recording", 3_000, 500)
    journal_without_spark(tmp_path / "recording", tmp_path / "one")
    files = list(batches_of(tmp_path / "recording"))
    with SourceJournalWriter(tmp_path / "several", _recording_plan(tmp_path)) as writer:
        for first in range(0, len(files), files_per_batch):
            together = [run for file in reversed(files[first : first + files_per_batch]) for run in file]
            writer.append_batch(first, together)
    assert stream_records_of(tmp_path / "several") == stream_records_of(tmp_path / "one")


def _recording_plan(folder: Path, rule: Split = BY_LETTER) -> NumberingPlan:
    return numbering_plan(folder / "recording", SOURCE_FORMAT, FEED, rule, MESSAGES_MAX)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_half_written_batch_is_completed_with_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("half")
    make_recording(folder / "recording", 600, 200)
    journal_without_spark(folder / "recording", folder / "whole")
    whole, commits = stream_records_of(folder / "whole"), commits_of(folder / "whole")
    done = data.draw(st.integers(0, 3), label="micro-batches committed")
    with Journal.open(folder / "journal" / COMMITS_NAME, block_size=BLOCK_SIZE) as log:
        log.append_batch(commits[: done + 1])
    for stream_id, records in whole.items():
        committed = Commit.decode(commits[done]).streams[stream_id].end_index if done else 0
        first = Commit.decode(commits[3]).streams[stream_id].end_index - len(records)
        kept = data.draw(st.integers(committed and committed - first, len(records)), label=f"packets of {stream_id}")
        if kept:
            with Journal.open(stream_folder(folder / "journal", stream_id), block_size=BLOCK_SIZE) as torn:
                torn.append_batch(records[:kept])
    journal_without_spark(folder / "recording", folder / "journal")
    assert stream_records_of(folder / "journal") == whole
    assert commits_of(folder / "journal") == commits


def test_a_rerun_that_differs_from_the_journal_is_refused(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 200)
    (run,), *_ = batches_of(tmp_path / "recording")
    with SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path)) as writer:
        append_to_stream(writer.continuation, 1, [run[0]])
        before = stream_records_of(tmp_path / "journal")
        changed = run[0]._replace(data=run[0].data ^ np.uint8(1))
        with pytest.raises(SourceJournalError, match="differs from what is already in the journal"):
            append_to_stream(writer.continuation, 1, [changed])
        assert stream_records_of(tmp_path / "journal") == before


def test_a_task_on_a_host_without_the_drivers_commit_log_appends_nothing(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 200, 200)
    ((run,),) = batches_of(tmp_path / "recording")
    with SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path)) as writer:
        elsewhere = replace(writer.continuation, journal=tmp_path / "elsewhere")
        with pytest.raises(SourceJournalError, match="does not have the driver's commit log"):
            append_to_stream(elsewhere, 1, [run[0]])
    assert not (tmp_path / "elsewhere").exists()


def test_a_rerun_after_a_larger_micro_batch_commits_its_own_end(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 200)
    (first,), (second,), _ = batches_of(tmp_path / "recording")
    with SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path)) as writer:
        for place, stream_id in enumerate(FEED.source_stream_ids):
            append_to_stream(writer.continuation, stream_id, [first[place], second[place]])
        whole = stream_records_of(tmp_path / "journal")
        assert writer.append_batch(0, [first]) == 200
        assert sum(assert_gapless(packets_of(tmp_path / "journal")).values()) == 200
        assert writer.append_batch(1, [second]) == 200
        assert sum(assert_gapless(packets_of(tmp_path / "journal")).values()) == 400
    assert stream_records_of(tmp_path / "journal") == whole


def test_a_second_task_of_a_stream_waits_for_the_first(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 200)
    (run,), *_ = batches_of(tmp_path / "recording")
    with SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path)) as writer, ThreadPoolExecutor(8) as pool:
        tasks = [pool.submit(append_to_stream, writer.continuation, 1, [run[0]]) for _ in range(8)]
        assert len({task.result() for task in tasks}) == 1
    assert sum(packet_numbers(record)[2] for record in stream_records_of(tmp_path / "journal")[1]) == run[0].sizes.size


def test_a_rerun_batch_adds_nothing(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 200)
    batches = list(batches_of(tmp_path / "recording"))
    with SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path)) as writer:
        assert writer.append_batch(0, batches[0]) == 200
        before = records_of(tmp_path / "journal")
        assert writer.append_batch(0, batches[0]) == 0
        assert records_of(tmp_path / "journal") == before
    with SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path)) as writer:
        assert writer.append_batch(0, batches[0]) == 0
        assert writer.append_batch(1, [*batches[0], *batches[1]]) == 200


def test_a_batch_larger_than_a_segment_gives_the_same_records(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 600)
    (batch,) = batches_of(tmp_path / "recording")
    with SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path), segment_size_max=2_000) as writer:
        assert writer.append_batch(0, batch) == 600
    journal_without_spark(tmp_path / "recording", tmp_path / "whole")
    assert records_of(tmp_path / "journal") == records_of(tmp_path / "whole")[:-2]


def test_missing_records_are_refused_with_their_number_and_nothing_is_written(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 200)
    batches = list(batches_of(tmp_path / "recording"))
    with SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path)) as writer:
        writer.append_batch(0, batches[0])
        before = stream_records_of(tmp_path / "journal")
        with pytest.raises(SourceJournalError, match="found record 400, expected record 200"):
            writer.append_batch(1, batches[2])
        assert stream_records_of(tmp_path / "journal") == before


def test_records_after_the_end_of_the_streams_are_refused(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 600, 200)
    batches = list(batches_of(tmp_path / "recording"))
    with SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path)) as writer:
        writer.append_batch(0, batches[0])
        writer.end()
        assert writer.append_batch(0, batches[0]) == 0
        with pytest.raises(SourceJournalError, match="record 200 comes after the end of the streams"):
            writer.append_batch(1, batches[1])


def test_a_commit_needs_a_task_of_every_stream(tmp_path: Path) -> None:
    with CommitLog(tmp_path / "journal", _plan()) as log:
        alone = Appended(1, StreamEnd(5, 1), 4)
        for tasks in ([alone], [alone, Appended(2, StreamEnd(1, 0), 3)]):
            with pytest.raises(SourceJournalError, match="every stream must have one task"):
                log.commit(0, tasks)
        assert log.commit(0, [alone, Appended(2, StreamEnd(1, 0), 4)]) == 4


def test_a_journal_of_the_former_layout_is_refused(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal") as former:
        former.append(_plan().encode())
    for use in (lambda journal: CommitLog(journal, _plan()), last_commit, begin_record):
        with pytest.raises(SourceJournalError, match="number the recording again"):
            use(tmp_path / "journal")


def test_different_options_for_an_existing_journal_are_refused_by_name(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 200, 200)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    with pytest.raises(SourceJournalError, match="split was 'letter', is 'hash'"):
        SourceJournalWriter(tmp_path / "journal", _recording_plan(tmp_path, BY_HASH))


def test_a_feed_is_read_from_the_cluster_file(tmp_path: Path) -> None:
    document = tmp_path / "cluster.toml"
    document.write_text(
        '[[feed]]\nfeed_id = 3\nname = "fx"\nsession = 20261121\n'
        "[[feed.source_stream]]\nsource_stream_id = 4\n[[feed.source_stream]]\nsource_stream_id = 9\n"
        '[[feed.source_stream]]\nsource_stream_id = 10\ncontributions = "127.0.0.1:7412"\n'
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
