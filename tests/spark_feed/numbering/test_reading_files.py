"""Tasks read the files of a recording, and report what is wrong with one as a result."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.numbering.job import numbering_plan
from tandemfeed.spark_feed.numbering.reading import FileReader
from tandemfeed.spark_feed.numbering.screening import Rules
from tandemfeed.spark_feed.numbering.split import SplitRule
from tandemfeed.spark_feed.numbering.tasks import AppendAll, AppendOne, Problem, Read
from tandemfeed.spark_feed.recordings.recording import RecordingError
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    SOURCE_FORMAT,
    batches_of,
    journal_without_spark,
    make_recording,
    stream_records_of,
)


@pytest.fixture
def reader(tmp_path: Path) -> FileReader:
    return FileReader(
        load_source_format(SOURCE_FORMAT), SplitRule.LETTER, 2, Rules(), 900, tmp_path / "journal" / "quarantine"
    )


def _rows(files: Iterable[Path]) -> list[tuple[str]]:
    """What Spark gives to a task."""
    return [(file.as_uri(),) for file in files]


def test_a_file_becomes_a_block_for_each_source_stream(tmp_path: Path, reader: FileReader) -> None:
    make_recording(tmp_path / "a recording", 900, 900)
    ((expected,),) = batches_of(tmp_path / "a recording")
    ((*found,),) = reader.blocks((tmp_path / "a recording" / "part-00000000.parquet").as_uri())
    for was, now in zip(expected, found, strict=True):
        assert now[:2] == was[:2] == (0, 900)
        assert [column.tolist() for column in now[2:]] == [column.tolist() for column in was[2:]]


def test_one_task_for_all_files_and_a_task_per_stream_append_the_same_bytes(tmp_path: Path, reader: FileReader) -> None:
    make_recording(tmp_path / "recording", 3_600, 900)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, SplitRule.LETTER, MESSAGES_MAX)
    files = _rows(sorted((tmp_path / "recording").glob("part-*.parquet")))
    with CommitLog(tmp_path / "alone", plan) as log:
        alone = list(AppendAll(reader, log.continuation)(iter(files)))
    with CommitLog(tmp_path / "shared", plan) as log:
        found = [*Read(reader)(iter(files[2:])), *Read(reader)(iter(files[:2]))]
        append = AppendOne(log.continuation)
        shared = [each for place in (0, 1) for each in append(each for each in found if each[0] == place)]
    assert alone == shared
    for folder in ("alone", "shared"):
        assert stream_records_of(tmp_path / folder) == stream_records_of(tmp_path / "expected")


@pytest.mark.parametrize("one_task", [True, False])
def test_a_damaged_file_is_reported_and_nothing_is_appended(tmp_path: Path, reader: FileReader, one_task: bool) -> None:
    make_recording(tmp_path / "recording", 1_800, 900)
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, SplitRule.LETTER, MESSAGES_MAX)
    files = sorted((tmp_path / "recording").glob("part-*.parquet"))
    files[1].write_bytes(b"not Parquet")
    with CommitLog(tmp_path / "journal", plan) as log:
        if one_task:
            results = list(AppendAll(reader, log.continuation)(iter(_rows(files))))
        else:
            found = list(Read(reader)(iter(_rows(files))))
            append = AppendOne(log.continuation)
            results = [each for place in (0, 1) for each in append(each for each in found if each[0] == place)]
    for problem in results:
        assert isinstance(problem, Problem)
        assert "part-00000001.parquet: " in problem
        assert "Parquet" in problem
    assert stream_records_of(tmp_path / "journal") == {1: [], 2: []}


def test_a_file_with_a_record_missing_is_reported(tmp_path: Path, reader: FileReader) -> None:
    make_recording(tmp_path / "recording", 100, 100)
    file = tmp_path / "recording" / "part-00000000.parquet"
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table.slice(0, 40), table.slice(41)]), file)
    with pytest.raises(RecordingError, match=r"part-00000000\.parquet: found record 41, expected record 40"):
        list(reader.blocks(file.as_uri()))
