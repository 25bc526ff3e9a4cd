"""`tandemfeed end-session`: the session of a journal whose writer does not know when the day is over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandemfeed.spark_feed.journaling.end_session import end_session, main
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.pending_batch import store_pending
from tandemfeed.spark_feed.journaling.records import BEGIN_HEAD, End, NumberingPlan, RecordKind, SourceJournalError
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    SOURCE_FORMAT,
    batches_of,
    journal_without_spark,
    make_recording,
    records_of,
)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    make_recording(tmp_path / "recording", 300, 100)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal", is_ended=False)
    return tmp_path / "journal"


def plan_of(journal: Path) -> NumberingPlan:
    return numbering_plan(journal.parent / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)


def test_a_plan_decodes_to_what_was_encoded(journal: Path) -> None:
    assert NumberingPlan.decode(plan_of(journal).encode()) == plan_of(journal)


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b"{}", b'{"feed": {"source_stream_ids": [1]}}', b'{"feed": {"source_stream_ids": 1}}']
)
def test_a_plan_of_another_version_is_refused_with_what_to_do(text: bytes) -> None:
    with pytest.raises(SourceJournalError, match=r"not a plan of this version .* the version that wrote it"):
        NumberingPlan.decode(BEGIN_HEAD.pack(RecordKind.BEGIN) + text)


def test_the_command_ends_every_stream_once_however_often_it_runs(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = records_of(journal)
    for _ in range(2):
        assert main(["--journal", str(journal)]) == 0
        ended = json.loads(capsys.readouterr().out)
        assert (ended["event"], ended["session"]) == ("ended", FEED.session)
        numbers = {int(stream): seq for stream, seq in ended["next_source_seqs"].items()}
        assert sum(numbers.values()) - len(numbers) == 300
        after = records_of(journal)
        assert after[: len(before)] == before
        ends = [End.decode(record) for record in after[len(before) :]]
        assert {end.source_stream_id: end.next_source_seq for end in ends} == numbers


def test_what_comes_after_the_end_is_refused(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 400, 100)
    *before, after = batches_of(tmp_path / "recording", BY_LETTER)
    journal = tmp_path / "journal"
    with SourceJournalWriter(journal, plan_of(journal)) as writer:
        for batch_id, parts in enumerate(before):
            writer.append_batch(batch_id, parts)
    end_session(journal)
    writer = SourceJournalWriter(journal, plan_of(journal))
    with writer, pytest.raises(SourceJournalError, match="record 300 comes after the end of the streams"):
        writer.append_batch(len(before), after)


def test_a_journal_that_is_written_to_is_not_ended(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SourceJournalWriter(journal, plan_of(journal)):
        assert main(["--journal", str(journal)]) == 2
    assert "stop its source job or query first" in capsys.readouterr().err
    assert all(record[0] != RecordKind.END for record in records_of(journal))


def test_a_half_committed_batch_keeps_a_session_open_and_a_committed_one_does_not(journal: Path) -> None:
    store_pending(journal, 3, [])
    with pytest.raises(SourceJournalError, match="micro-batch 3 of its query is half committed; start the query again"):
        end_session(journal)
    store_pending(journal, 2, [])  # its driver died before it removed the file
    assert end_session(journal)[0].feed == FEED


def test_a_folder_without_a_journal_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(SourceJournalError, match="give the folder of a source journal"):
        end_session(tmp_path)
