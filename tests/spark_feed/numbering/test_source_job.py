"""The real Spark job: it writes the same journal as without Spark, even if its driver is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemfeed.journal.format.named_position import NamedPosition
from tandemfeed.journal.tailer import Tailer
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.records import COMMITS_NAME, POSITION_NAME, RecordKind
from tandemfeed.spark_feed.numbering import command
from tandemfeed.spark_feed.numbering.driver.java import JavaMissing, find_java_home
from tandemfeed.spark_feed.numbering.driver.job import JobOptions, SourceJob, numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER
from tandemfeed.spark_feed.recordings.recording import part_path, restore_file_order
from tests.kill_rounds import kill_rounds
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    ROOT,
    SOURCE_FORMAT,
    assert_gapless,
    batches_of,
    journal_without_spark,
    make_recording,
    packets_of,
    stream_records_of,
)

CLUSTER = (
    '[[feed]]\nfeed_id = 1\nname = "equities"\nsession = 20261121\n'
    "[[feed.source_stream]]\nsource_stream_id = 1\n[[feed.source_stream]]\nsource_stream_id = 2\n"
)
PATIENCE_S = 240.0
SMALL_BATCHES = ("--batch-messages-max", "800")


def start_job(folder: Path, *more: str, until_idle: bool = True) -> subprocess.Popen[str]:
    """The command, for the recording in a folder."""
    (folder / "cluster.toml").write_text(CLUSTER)
    command = [
        sys.executable,
        "-c",
        "import sys; from tandemfeed.spark_feed.numbering.command import main; sys.exit(main(sys.argv[1:]))",
    ]
    command += ["--recording", str(folder / "recording"), "--source-format", str(SOURCE_FORMAT)]
    command += ["--feed-description", f"{folder / 'cluster.toml'}#equities", "--journal", str(folder / "journal")]
    command += ["--checkpoint", str(folder / "checkpoint"), *(["--until-idle"] if until_idle else []), *more]
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)


def _finish(job: subprocess.Popen[str], folder: Path) -> list[dict[str, object]]:
    out, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, (folder / "job.log").read_text()[-4_000:]
    return [json.loads(line) for line in out.splitlines()]


def _kill_after(folder: Path, job: subprocess.Popen[str], commit_count: int) -> None:
    """SIGKILL the driver as soon as the commit log has this many micro-batches.

    A COMMIT appears before Spark records that the batch is done.
    """
    with Tailer(folder / "journal" / COMMITS_NAME) as tailer:
        seen = 0
        while seen < commit_count:
            assert tailer.wait(PATIENCE_S), (folder / "job.log").read_text()[-4_000:]
            seen += sum(record[0] == RecordKind.COMMIT for _, record in tailer)
    _kill(job)


def _kill(job: subprocess.Popen[str]) -> None:
    orphans = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.wait()
    _, alive = psutil.wait_procs(orphans, timeout=PATIENCE_S)  # Spark's JVM ends together with its driver
    assert not alive


def _assert_equal(folder: Path, record_count: int) -> None:
    """Check that the journal has the bytes of an undisturbed run."""
    assert stream_records_of(folder / "journal") == stream_records_of(folder / "expected")
    assert sum(assert_gapless(packets_of(folder / "journal")).values()) == record_count


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
def test_a_driver_that_is_killed_twice_writes_the_same_journal(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 24_000, 400)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")
    for commits in (3, 12):
        _kill_after(tmp_path, start_job(tmp_path, *SMALL_BATCHES), commits)
        for stream_id, records in stream_records_of(tmp_path / "journal").items():
            assert records == stream_records_of(tmp_path / "expected")[stream_id][: len(records)]
    events = _finish(start_job(tmp_path), tmp_path)
    assert [line["event"] for line in events] == ["ready", "journaled"]
    _assert_equal(tmp_path, 24_000)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
def test_a_job_that_lost_its_checkpoint_completes_the_journal_without_repeating_a_record(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 4_000, 400)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")
    _kill_after(tmp_path, start_job(tmp_path, *SMALL_BATCHES), 2)
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    _finish(start_job(tmp_path), tmp_path)
    _assert_equal(tmp_path, 4_000)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
def test_a_checkpoint_that_a_power_failure_damaged_is_refused_and_can_be_removed(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 8_000, 400)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")
    _kill_after(tmp_path, start_job(tmp_path, *SMALL_BATCHES), 3)
    for name in ("journal", "checkpoint", "spark-scratch"):
        stored = [tmp_path / name, *(tmp_path / name).rglob("*")]
        assert {stat.S_IMODE(each.stat().st_mode) & 0o077 for each in stored} == {0}, name
    (tmp_path / "checkpoint" / "offsets" / "0").write_bytes(b"")  # Spark flushes none of its files
    job = start_job(tmp_path)
    job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 2
    assert "after a power failure, remove the checkpoint" in (tmp_path / "job.log").read_text()
    shutil.rmtree(tmp_path / "checkpoint")
    _finish(start_job(tmp_path), tmp_path)
    _assert_equal(tmp_path, 8_000)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(3_600)
def test_drivers_and_python_workers_killed_at_random_leave_the_bytes_of_an_undisturbed_run(tmp_path: Path) -> None:
    rounds = kill_rounds(2)
    count = 20_000 + 20_000 * rounds  # more than a job commits before it is killed
    make_recording(tmp_path / "recording", count, 400)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")
    chance = random.Random(rounds)
    for number in range(rounds):
        job = start_job(tmp_path, *SMALL_BATCHES, "--master", "local[2]")
        with Tailer(tmp_path / "journal" / COMMITS_NAME) as commits:
            commits.to_end()
            assert commits.wait(PATIENCE_S), (tmp_path / "job.log").read_text()[-4_000:]
        time.sleep(chance.uniform(0, 0.5))  # so that the kill meets every part of a micro-batch
        if number % 2:
            _kill_workers(job)
            time.sleep(chance.uniform(0, 0.5))
        _kill(job)
    _finish(start_job(tmp_path, "--master", "local[2]"), tmp_path)
    _assert_equal(tmp_path, count)


def _kill_workers(job: subprocess.Popen[str]) -> None:
    """SIGKILL the Python workers of the tasks; Spark runs the tasks again."""
    for process in psutil.Process(job.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = process.parent()
            if parent is not None and parent.name().startswith("python") and parent.pid != job.pid:
                process.kill()


@pytest.mark.spark
@pytest.mark.processes
def test_a_missing_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 2_000, 400)
    (tmp_path / "recording" / "part-00000001.parquet").unlink()
    job = start_job(tmp_path)
    job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 2
    last = json.loads((tmp_path / "job.log").read_text().splitlines()[-1])
    assert "batch 0: found record 800, expected record 400: a file of the recording is missing" in last["event"]
    assert stream_records_of(tmp_path / "journal") == {1: [], 2: []}


def _options(folder: Path, ahead_messages_max: int) -> JobOptions:
    return JobOptions(
        recording=folder / "recording",
        journal=folder / "journal",
        checkpoint=folder / "checkpoint",
        source_format=SOURCE_FORMAT,
        feed=FEED,
        split=BY_LETTER,
        packet_messages_max=MESSAGES_MAX,
        until_idle=False,
        ahead_messages_max=ahead_messages_max,
    )


@pytest.mark.parametrize("restarted", [False, True])
def test_the_job_waits_when_it_is_as_far_ahead_of_the_gateway_as_allowed(tmp_path: Path, restarted: bool) -> None:
    make_recording(tmp_path / "recording", 800, 200)
    job = SourceJob(_options(tmp_path, 400))
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
    first, second, third, _ = batches_of(tmp_path / "recording")
    with contextlib.ExitStack() as open_writers:

        def start() -> SourceJournalWriter:
            return open_writers.enter_context(SourceJournalWriter(tmp_path / "journal", plan))

        writer = start()
        assert not job.is_too_far_ahead(writer)
        writer.append_batch(0, first)
        assert not job.is_too_far_ahead(writer)
        writer.append_batch(1, second)
        if restarted:
            writer.close()
            writer = start()
        assert job.is_too_far_ahead(writer)
        with contextlib.closing(NamedPosition(tmp_path / "journal" / POSITION_NAME)) as sent:
            sent.store(200)
        assert not job.is_too_far_ahead(writer)
        writer.append_batch(2, third)
        assert job.is_too_far_ahead(writer)


@pytest.mark.parametrize(("ahead", "files"), [(0, 100), (100_000, 5), (5_000, 1)])
def test_micro_batches_are_smaller_when_the_job_may_not_run_far_ahead(tmp_path: Path, ahead: int, files: int) -> None:
    assert SourceJob(_options(tmp_path, ahead)).files_per_commit(10_000) == files


@pytest.mark.parametrize("given", ["-1", "many"])
def test_an_invalid_number_of_messages_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--ahead-messages-max", given])
    assert f"{given!r} is not a number of messages" in capsys.readouterr().err


def test_without_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="openjdk-17-jre-headless"):
        find_java_home({"PATH": str(tmp_path)}, tmp_path)
    for version, modules in (("11.0.2", ""), ("17.0.1", 'MODULES="java.base java.sql"')):
        home = tmp_path / f"jdk-{version}"
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch(mode=0o755)
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n{modules}\n')
    with pytest.raises(JavaMissing, match=r"11 is too old.*jdk\.incubator\.vector"):
        find_java_home({"PATH": ""}, tmp_path)
    whole = tmp_path / "whole"
    (whole / "bin").mkdir(parents=True)
    (whole / "bin" / "java").touch(mode=0o755)
    (whole / "release").write_text('JAVA_VERSION="21.0.1"\n')
    assert find_java_home({"JAVA_HOME": os.fspath(whole)}, tmp_path) == whole.resolve()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_one_core_and_two_give_equal_numbers_and_refuse_the_same_rows(tmp_path: Path) -> None:
    found = {}
    for cores in (1, 2):
        folder = tmp_path / str(cores)
        make_recording(folder / "recording", 4_000, 400)
        path = part_path(folder / "recording", 3)
        table = pq.read_table(path)
        place = table.schema.get_field_index("symbol")
        symbols = ["TOOLONGNAME", *table.column("symbol").to_pylist()[1:]]
        pq.write_table(table.set_column(place, table.schema.field(place), pa.array(symbols)), path)
        restore_file_order(folder / "recording")
        journaled = _finish(start_job(folder, *SMALL_BATCHES, "--master", f"local[{cores}]"), folder)[-1]
        assert (journaled["record_count"], journaled["quarantined_count"]) == (4_000, 1)
        (refused,) = pq.read_table(folder / "journal" / "quarantine").to_pylist()
        assert (refused["file"], refused["row"], refused["record_index"]) == ("part-00000003.parquet", 0, 1_200)
        assert sum(assert_gapless(packets_of(folder / "journal")).values()) == 3_999
        found[cores] = stream_records_of(folder / "journal")
    assert found[1] == found[2]
