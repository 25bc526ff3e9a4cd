"""Tasks read the files of a recording, and report what is wrong with one as a result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.stream_appender import Appended, Continuation
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER
from tandemfeed.spark_feed.numbering.rows.screening import Rules
from tandemfeed.spark_feed.numbering.tasks import reading, running
from tandemfeed.spark_feed.numbering.tasks.reading import FileReader
from tandemfeed.spark_feed.numbering.tasks.running import AppendAll, AppendOne, Problem, Read, Tasks
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
        load_source_format(SOURCE_FORMAT), BY_LETTER, 2, Rules(), 900, tmp_path / "journal" / "quarantine"
    )


def _uris(recording: Path) -> list[str]:
    return [file.as_uri() for file in sorted(recording.glob("part-*.parquet"))]


def _append_by_shares(reader: FileReader, files: list[str], continued: Continuation) -> list[Appended] | Problem:
    """The results of two tasks that read, and of those that append if they found no problem."""
    with TemporaryDirectory(dir=continued.journal) as folder:
        shares = [Read(reader, files[:1], 0, Path(folder)), Read(reader, files[1:], 1, Path(folder))]
        if problem := next(filter(None, (shares[share]() for share in (1, 0, 1))), None):  # one of them twice
            return problem
        return [each for place in (0, 1) for each in _appended(AppendOne(continued, place, Path(folder), 2)())]


def _appended(result: list[Appended] | Problem) -> list[Appended]:
    assert not isinstance(result, Problem), result
    return result


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
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
    files = _uris(tmp_path / "recording")
    with CommitLog(tmp_path / "alone", plan) as log:
        alone = AppendAll(reader, files, log.continuation)()
    with CommitLog(tmp_path / "shared", plan) as log:
        shared = _append_by_shares(reader, files, log.continuation)
    assert alone == shared
    for folder in ("alone", "shared"):
        assert stream_records_of(tmp_path / folder) == stream_records_of(tmp_path / "expected")


def test_parts_with_dictionaries_of_numbers_give_the_same_bytes(tmp_path: Path, reader: FileReader) -> None:
    make_recording(tmp_path / "recording", 1_800, 900)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")
    for part in (tmp_path / "recording").glob("part-*.parquet"):
        pq.write_table(pq.read_table(part), part, compression="zstd")  # as recordings were written before
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
    with CommitLog(tmp_path / "journal", plan) as log:
        log.commit(0, _appended(AppendAll(reader, _uris(tmp_path / "recording"), log.continuation)()))
    assert stream_records_of(tmp_path / "journal") == stream_records_of(tmp_path / "expected")


@pytest.mark.parametrize("one_task", [True, False])
def test_a_damaged_file_is_reported_and_nothing_is_appended(tmp_path: Path, reader: FileReader, one_task: bool) -> None:
    make_recording(tmp_path / "recording", 1_800, 900)
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
    files = _uris(tmp_path / "recording")
    (tmp_path / "recording" / "part-00000001.parquet").write_bytes(b"not Parquet")
    with CommitLog(tmp_path / "journal", plan) as log:
        if one_task:
            problem = AppendAll(reader, files, log.continuation)()
        else:
            problem = _append_by_shares(reader, files, log.continuation)
    assert isinstance(problem, Problem)
    assert "part-00000001.parquet: " in problem
    assert "Parquet" in problem
    assert stream_records_of(tmp_path / "journal") == {1: [], 2: []}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """In place of the tasks: remembers the work, and does nothing."""
    pool = Mock()
    pool.run.return_value = []
    monkeypatch.setattr(running, "TaskPool", lambda *_: pool)
    return pool


@pytest.mark.parametrize(("rows_per_file", "counts"), [(10_000, [1, 1, 6, 6]), (200_000, [1, 6, 6, 6])])
def test_few_rows_are_the_work_of_one_task(
    tmp_path: Path, reader: FileReader, pool: Mock, rows_per_file: int, counts: list[int]
) -> None:
    (tmp_path / "blocks-of-a-killed-driver").mkdir()
    tasks = Tasks(Mock(defaultParallelism=2), replace(reader, rows_per_file=rows_per_file), tmp_path, 50_000)
    assert not list(tmp_path.iterdir())
    continued = Mock(journal=tmp_path)
    for file_count, expected in zip((1, 9, 10, 40), counts, strict=True):
        pool.reset_mock()
        tasks.append([f"part-{number}" for number in range(file_count)], continued)
        first = pool.run.call_args_list[0].args[0]
        assert len(first) == expected
        assert [uri for work in first for uri in work.files] == [f"part-{number}" for number in range(file_count)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("master", "free", "place"),
    [
        ("local[2,4]", 1 << 30, "memory"),
        ("local[2,4]", 1 << 20, "journal"),
        ("spark://10.0.0.5:7077", 1 << 30, "journal"),
    ],
)
def test_blocks_are_handed_over_in_memory_if_it_is_this_machines_and_has_room(
    tmp_path: Path, reader: FileReader, pool: Mock, monkeypatch: pytest.MonkeyPatch, master: str, free: int, place: str
) -> None:
    folders = {name: tmp_path / name for name in ("memory", "journal")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setattr(running, "IN_MEMORY", folders["memory"])
    monkeypatch.setattr(running.shutil, "disk_usage", lambda _: Mock(free=free))
    spark = Mock(defaultParallelism=2, master=master)
    Tasks(spark, replace(reader, rows_per_file=10_000), folders["journal"], 50_000).append(["a"] * 10, Mock())
    read, append = (call.args[0] for call in pool.run.call_args_list)
    (folder,) = {work.folder for work in (*read, *append)}
    assert folder.parent == folders[place]
    (folders[place] / folder.name).mkdir()  # as a killed driver leaves it
    Tasks(spark, reader, folders["journal"], 50_000)
    assert not any(list(folder.iterdir()) for folder in folders.values())


def test_a_commit_is_appended_in_parts_with_the_bytes_of_a_whole(
    tmp_path: Path, reader: FileReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_recording(tmp_path / "recording", 5_400, 900)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")
    monkeypatch.setattr(running, "APPEND_COUNT", 1_000)
    monkeypatch.setattr(reading, "READ_COUNT", 400)  # packets must not end where a part of a file does
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
    files = _uris(tmp_path / "recording")
    with CommitLog(tmp_path / "journal", plan) as log:
        (tmp_path / "recording" / "part-00000003.parquet").rename(tmp_path / "away")
        assert isinstance(AppendAll(reader, files, log.continuation)(), Problem)
        for stream_id, records in stream_records_of(tmp_path / "journal").items():
            assert records, "what is before the problem is appended"
            assert records == stream_records_of(tmp_path / "expected")[stream_id][: len(records)]
        (tmp_path / "away").rename(tmp_path / "recording" / "part-00000003.parquet")
        for _ in range(2):  # a task that runs again finds it all
            done = _appended(AppendAll(reader, files, log.continuation)())
        log.commit(0, done)
    assert stream_records_of(tmp_path / "journal") == stream_records_of(tmp_path / "expected")


def test_a_file_with_a_record_missing_is_reported(tmp_path: Path, reader: FileReader) -> None:
    make_recording(tmp_path / "recording", 100, 100)
    file = tmp_path / "recording" / "part-00000000.parquet"
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table.slice(0, 40), table.slice(41)]), file)
    with pytest.raises(RecordingError, match=r"part-00000000\.parquet: found record 41, expected record 40"):
        list(reader.blocks(file.as_uri()))
