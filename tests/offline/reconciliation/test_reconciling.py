"""Reconciliation: what it proves, and what it names, of journals with takeovers, gaps and different content."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.feedcore.wire.output_packet import (
    FROM_ACTIVE_BIT,
    HEARTBEAT_BIT,
    PROVISIONAL_BIT,
    OutputPacket,
    encode_runs,
)
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.offline.reconciliation import cli
from tandemfeed.offline.reconciliation.output_copy import BUCKET, read_copy, survey
from tandemfeed.offline.reconciliation.reconciling import reconcile
from tandemfeed.offline.reconciliation.result import Reconciliation
from tandemfeed.offline.reconciliation.source_copy import SourceCopy, read_source
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    SOURCE_FORMAT,
    batches_of,
    journal_without_spark,
    make_recording,
    packets_of,
)
from tests.spark_feed.spark.output_material import BLOCK, SESSION, frame_of

assert FEED.session == SESSION
COUNT = 3 * BUCKET  # messages


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SourceCopy:
    """A source journal of COUNT messages."""
    folder: Path = tmp_path_factory.mktemp("source")
    make_recording(folder / "recording", COUNT, 2_000)
    journal_without_spark(folder / "recording", folder / "journal")
    return read_source(folder / "journal", folder / "journal" / "quarantine")


@pytest.fixture(scope="module")
def decided(source: SourceCopy) -> list[OutputPacket]:
    """What an active adapter makes of it: a packet of each source packet, a message of each source message."""
    packets, input_seq = [], 1
    for each in packets_of(source.journal):
        packets.append(made(input_seq, each.source_stream_id, each.first_source_seq, each.message_count))
        input_seq += each.message_count
    return packets


def made(
    input_seq: int, stream: int, first_source: int, count: int, *, epoch: int = 1, is_gap: bool = False
) -> OutputPacket:
    """A packet whose `message_seq` equals its `input_seq`."""
    runs = (Run(epoch, input_seq, input_seq, stream, first_source, count, count, is_source_gap=is_gap),)
    frames = b"".join(frame_of(input_seq + place, place) for place in range(count))
    return OutputPacket(
        FROM_ACTIVE_BIT, 1, 1, 1, SESSION, epoch, input_seq, input_seq, count, runs, 0, 0, encode_runs(runs) + frames
    )


def halved(packet: OutputPacket) -> Iterable[OutputPacket]:
    """The same messages in two packets."""
    (run,) = packet.runs
    half = run.source_count // 2
    if not half:
        return [packet]
    first = made(run.first_input_seq, run.source_stream_id, run.first_source_seq, half, epoch=packet.epoch)
    rest = run.first_input_seq + half, run.source_stream_id, run.first_source_seq + half, run.source_count - half
    return [first, made(*rest, epoch=packet.epoch)]


def journal_of(folder: Path, packets: Iterable[OutputPacket], adapter_id: int = 1) -> Path:
    """An adapter's output journal."""
    journal = OutputJournal(folder, block_size=BLOCK)
    for each in packets:
        is_active = adapter_id == 1
        journal.append(each._replace(adapter_id=adapter_id, flags=each.flags if is_active else 0))
    journal.close()
    return folder


def test_equal_journals_are_reconciled_however_their_messages_are_packed(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path
) -> None:
    active = journal_of(tmp_path / "a", decided)
    backup = journal_of(tmp_path / "b", [part for each in decided for part in halved(each)], 2)
    found = reconcile(source, [active, backup])
    (channel,) = found.channels
    first, second = channel.adapters
    assert (found.problems, found.is_absent_somewhere, channel.compared_count) == ([], False, COUNT)
    assert first.digest == second.digest
    assert (first.message_count, second.message_count, channel.end_seq) == (COUNT, COUNT, COUNT + 1)
    assert [(each.epoch, each.first_input_seq, each.adapter_id) for each in channel.epochs] == [(1, 1, 1)]
    assert [each.end_seq - 1 for each in found.streams] == [each.message_count for each in source.streams]


def test_messages_that_one_adapter_lacks_are_named_but_are_not_a_problem(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path
) -> None:
    away = decided[20:600]
    found = reconcile(
        source, [journal_of(tmp_path / "a", decided), journal_of(tmp_path / "b", decided[:20] + decided[600:], 2)]
    )
    (channel,) = found.channels
    first_lost, end = away[0].first_message_seq, away[-1].end_message_seq
    assert (found.problems, found.is_absent_somewhere) == ([], True)
    assert list(channel.adapters[1].missing) == [(first_lost, end)]
    assert channel.compared_count == COUNT - (end - first_lost)
    missing = [each.missing_by_journal[tmp_path / "b"].count for each in found.streams]
    assert sum(missing) == end - first_lost


def test_messages_that_no_adapter_has_are_a_problem(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path
) -> None:
    kept = decided[:30] + decided[31:-1]
    found = reconcile(source, [journal_of(tmp_path / "a", kept), journal_of(tmp_path / "b", kept, 2)])
    lost, last = decided[30].runs[0], decided[-1].runs[0]
    by_stream = {each.source_stream_id: each.missing for each in found.streams}
    for run in (lost, last):
        assert by_stream[run.source_stream_id].covers(run.first_source_seq, run.first_source_seq + run.source_count)
    (channel,) = found.channels
    assert list(channel.missing) == [(decided[30].first_message_seq, decided[30].end_message_seq)]
    assert any("no adapter has source messages" in each for each in found.problems)


def test_the_one_message_that_differs_is_named(source: SourceCopy, decided: list[OutputPacket], tmp_path: Path) -> None:
    packet = decided[333]
    changed = packet._replace(payload=packet.payload[:-1] + bytes([packet.payload[-1] ^ 1]))
    copies = [*decided[:333], changed, *decided[334:]]
    found = reconcile(source, [journal_of(tmp_path / "a", decided), journal_of(tmp_path / "b", copies, 2)])
    (channel,) = found.channels
    assert list(channel.different) == [(packet.end_message_seq - 1, packet.end_message_seq)]
    assert found.problems == [f"channel 1: adapters have different messages {packet.end_message_seq - 1:,}"]


def test_what_a_newer_epoch_numbered_again_is_replaced_in_every_journal(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path
) -> None:
    """The dead active had transmitted three packets that no other adapter saw; epoch 2 orders them differently."""
    begin = 500
    last_source = {1: 0, 2: 0}
    for each in decided[:begin]:
        last_source[each.runs[0].source_stream_id] += each.message_count
    renumbered, input_seq = [], decided[begin].first_input_seq
    for stream in (2, 1):  # first all of one stream, then all of the other
        for each in decided[begin:]:
            run = each.runs[0]
            if run.source_stream_id == stream:
                renumbered.append(made(input_seq, stream, run.first_source_seq, run.source_count, epoch=2))
                input_seq += run.source_count
    dead = journal_of(tmp_path / "a", decided[: begin + 3])
    active = journal_of(tmp_path / "b", decided[:begin] + renumbered, 2)
    found = reconcile(source, [dead, active])
    (channel,) = found.channels
    assert found.problems == []
    assert channel.adapters[0].replaced_count == sum(each.message_count for each in decided[begin : begin + 3])
    assert channel.adapters[0].message_count == decided[begin].first_message_seq - 1
    starts = [(each.epoch, each.first_input_seq) for each in channel.epochs]
    assert starts == [(1, 1), (2, decided[begin].first_input_seq)]


def test_provisional_packets_count_if_they_were_committed(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path
) -> None:
    journal = OutputJournal(tmp_path / "a", block_size=BLOCK)
    for each in decided[:100]:
        journal.append(each)
    for each in decided[100:]:
        journal.append(each._replace(flags=PROVISIONAL_BIT, epoch=0))
    first, end = decided[100].first_input_seq, decided[-1].end_input_seq
    journal.commit_provisional(1, 2, first, end)
    journal.close()
    assert reconcile(source, [tmp_path / "a"]).problems == []
    forwarded = [each._replace(flags=PROVISIONAL_BIT, epoch=0) for each in decided[100:]]
    other = journal_of(tmp_path / "b", decided[:100] + forwarded)
    assert any("no adapter has source messages" in each for each in reconcile(source, [other]).problems)


def test_repeated_packets_and_heartbeats_count_once(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path
) -> None:
    beat = decided[40]._replace(flags=HEARTBEAT_BIT, runs=(), message_count=0, payload=b"")
    found = reconcile(source, [journal_of(tmp_path / "a", [*decided[:40], beat, *decided[37:]])])
    (channel,) = found.channels
    assert found.problems == []
    assert channel.adapters[0].repeated_count == sum(each.message_count for each in decided[37:40])


def test_lost_invented_and_twice_numbered_source_messages_are_problems(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path
) -> None:
    gap, end = decided[50], decided[-1].end_input_seq
    run = gap.runs[0]
    declared = made(gap.first_input_seq, run.source_stream_id, run.first_source_seq, run.source_count, is_gap=True)
    again = made(end, 1, 1, 5)
    beyond = made(end + 5, 2, source.streams[1].message_count + 1, 4)
    found = reconcile(source, [journal_of(tmp_path / "a", [*decided[:50], declared, *decided[51:], again, beyond])])
    stories = " | ".join(found.problems)
    assert "declared source messages" in stories
    assert "5 source messages in two places" in stories
    assert "the source journal does not" in stories


def test_damage_is_a_problem_and_the_rest_is_compared(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path
) -> None:
    damaged = journal_of(tmp_path / "a", decided)
    block = sorted(damaged.glob("*.tfj"))[1]
    with block.open("r+b") as file:
        file.seek(BLOCK // 2)
        file.write(b"\xa5" * 8)
    found = reconcile(source, [damaged, journal_of(tmp_path / "b", decided, 2)])
    assert any("damaged records" in each for each in found.problems)
    assert found.is_absent_somewhere
    assert not any(each.missing for each in found.streams)


def test_what_an_adapter_appends_meanwhile_does_not_count(decided: list[OutputPacket], tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path / "a", block_size=BLOCK)
    for each in decided[:50]:
        journal.append(each)
    found = survey(tmp_path / "a", SESSION)
    for each in decided[50:90]:
        journal.append(each)
    journal.close()
    copy = read_copy(found, found.epoch_starts)
    assert list(copy.channels[1].messages) == [(1, decided[50].first_message_seq)]


def test_rows_that_made_no_message_are_compared_with_the_quarantine_table(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 1_000, 1_000)
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
    with SourceJournalWriter(tmp_path / "journal", plan) as writer:
        for batch_id, runs in enumerate(batches_of(tmp_path / "recording")):
            writer.append_batch(batch_id, runs)
    (tmp_path / "quarantine").mkdir()
    copy = read_source(tmp_path / "journal", tmp_path / "quarantine")
    assert (copy.is_ended, list(copy.problems())) == (False, [])
    lacking = SourceCopy(copy.journal, copy.feed, copy.session, copy.streams, copy.record_count + 2, 0, is_ended=False)
    assert "2 of 1,002 rows made no message, but the quarantine table has 0" in next(lacking.problems())


# ---- source streams that several channels read ----


def in_channel(packets: Iterable[OutputPacket], channel_id: int) -> list[OutputPacket]:
    """The same decisions in another channel."""
    return [packet._replace(channel_id=channel_id) for packet in packets]


def test_a_source_stream_is_compared_with_each_channel_that_reads_it(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path
) -> None:
    both = [*decided, *in_channel(decided, 2)]
    found = reconcile(source, [journal_of(tmp_path / "a", both), journal_of(tmp_path / "b", both, 2)])
    assert found.problems == []
    readers = [(channel_id, each.source_stream_id) for channel_id in (1, 2) for each in source.streams]
    assert [(each.channel_id, each.source_stream_id) for each in found.streams] == readers
    lacking = [*decided, *in_channel(decided[:-1], 2)]
    found = reconcile(source, [journal_of(tmp_path / "c", lacking), journal_of(tmp_path / "d", lacking, 2)])
    (run,) = decided[-1].runs
    (problem,) = found.problems
    assert problem.startswith(f"channel 2, source stream {run.source_stream_id}: no adapter has source messages ")
    assert {each.channel_id: each.missing.count for each in found.streams if each.missing} == {2: run.source_count}


def test_without_a_source_journal_a_stream_ends_where_its_furthest_channel_ends(
    decided: list[OutputPacket], tmp_path: Path
) -> None:
    found = reconcile(None, [journal_of(tmp_path / "a", [*decided[:90], *in_channel(decided[:80], 2)])])
    missing = {each.channel_id: 0 for each in found.streams}
    for each in found.streams:
        missing[each.channel_id] += each.missing.count
    assert missing == {1: 0, 2: decided[90].first_input_seq - decided[80].first_input_seq}


def test_a_channel_that_took_nothing_of_a_stream_is_found_with_the_cluster_file(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = tmp_path / "cluster.toml"
    ids = [each.source_stream_id for each in source.streams]
    streams = "".join(f"[[feed.source_stream]]\nsource_stream_id = {each}\n" for each in ids)
    cluster.write_text(
        f'[[feed]]\nfeed_id = 1\nname = "ticks"\nsession = {SESSION}\n{streams}'
        f"[[feed.channel]]\nchannel_id = 1\nsource_stream_ids = {ids}\n"
        f"[[feed.channel]]\nchannel_id = 2\nalso_reads = [{ids[0]}]\n"
    )
    journal = journal_of(tmp_path / "a", decided)
    options = ["--source-journal", str(source.journal), "--output", str(journal)]
    assert run(options, capsys)[0] == 0
    status, text, _ = run([*options, "--feed-description", str(cluster)], capsys)
    lost = f"channel 2, source stream {ids[0]}: no adapter has source messages 1–{source.streams[0].message_count:,}"
    assert (status, f"PROBLEM: {lost}\n" in text) == (1, True)
    status, _, error = run([*options, "--feed-description", f"{cluster}#fx"], capsys)
    assert (status, "has entries named ticks; choose one" in error) == (2, True)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run the command; its status, output and errors."""
    status = cli.main(arguments)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_the_command_prints_a_report_and_says_by_its_status_whether_all_agree(
    source: SourceCopy, decided: list[OutputPacket], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    active = journal_of(tmp_path / "a", decided)
    backup = journal_of(tmp_path / "b", decided[1:], 2)
    options = ["--source-journal", str(source.journal), "--output", str(active), "--output", str(backup)]
    status, text, _ = run(options, capsys)
    assert status == 0
    assert f"{COUNT:,} messages of {COUNT:,} rows (0 made none); ended" in text
    assert f"lacks 1–{decided[0].message_count}\n" in text
    assert text.splitlines()[-1].startswith("RECONCILED: every source message in at least one adapter's journal")
    assert run([*options, "--every-adapter"], capsys)[0] == 1
    status, text, _ = run(["--source-journal", str(source.journal), "--output", str(backup)], capsys)
    assert (status, text.splitlines()[-1]) == (1, "NOT RECONCILED: 2 problems")
    status, text, _ = run([*options, "--json"], capsys)
    document = json.loads(text)
    assert document["is_reconciled"]
    assert document["channels"][0]["adapters"][1]["missing"] == [[1, decided[0].message_count]]
    status, _, error = run(["--output", str(tmp_path / "none")], capsys)
    assert (status, "no such folder" in error) == (2, True)
    status, _, error = run(["--output", str(source.journal / "commits")], capsys)
    assert (status, "has no output packets" in error) == (2, True)
    status, _, error = run([*options, "--session", "20261120"], capsys)
    assert (status, "has session 20261121" in error) == (2, True)


def test_without_a_source_journal_the_adapters_are_compared_with_each_other(
    decided: list[OutputPacket], tmp_path: Path
) -> None:
    found: Reconciliation = reconcile(
        None, [journal_of(tmp_path / "a", decided[:90]), journal_of(tmp_path / "b", decided[:80], 2)]
    )
    assert (found.session, found.problems, found.is_absent_somewhere) == (SESSION, [], True)
