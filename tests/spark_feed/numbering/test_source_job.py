"""The real Spark job: it writes the same journal as without Spark, even if its driver is killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tandemfeed.journal.format.named_position import NamedPosition
from tandemfeed.journal.tailer import Tailer
from tandemfeed.spark_feed import cli
from tandemfeed.spark_feed.numbering.java import JavaMissing, find_java_home
from tandemfeed.spark_feed.numbering.job import JobOptions, SourceJob, numbering_plan
from tandemfeed.spark_feed.numbering.split import SplitRule
from tandemfeed.spark_feed.source_journal import POSITION_NAME, RecordKind, SourceJournalWriter
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    ROOT,
    SOURCE_FORMAT,
    assert_gapless,
    batches_of,
    commit_indices_of,
    journal_without_spark,
    make_recording,
    packets_of,
    records_of,
)

CLUSTER = (
    '[[feed]]\nfeed_id = 1\nname = "equities"\nsession = 20261121\n'
    "[[feed.source_stream]]\nsource_stream_id = 1\n[[feed.source_stream]]\nsource_stream_id = 2\n"
)
PATIENCE_S = 120.0


def _start_job(folder: Path, *more: str) -> subprocess.Popen[str]:
    (folder / "cluster.toml").write_text(CLUSTER)
    command = [
        sys.executable,
        "-c",
        "import sys; from tandemfeed.spark_feed.cli import job; sys.exit(job(sys.argv[1:]))",
    ]
    command += ["--recording", str(folder / "recording"), "--source-format", str(SOURCE_FORMAT)]
    command += ["--feed-description", f"{folder / 'cluster.toml'}#equities", "--journal", str(folder / "journal")]
    command += ["--checkpoint", str(folder / "checkpoint"), "--until-idle", *more]
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)


def _finish(job: subprocess.Popen[str], folder: Path) -> list[dict[str, object]]:
    out, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, (folder / "job.log").read_text()[-4_000:]
    return [json.loads(line) for line in out.splitlines()]


def _kill_after(folder: Path, job: subprocess.Popen[str], reached: Callable[[list[int]], bool]) -> None:
    """SIGKILL the driver as soon as the journal's record kinds satisfy the condition."""
    tailer = Tailer(folder / "journal")
    kinds: list[int] = []
    while not reached(kinds):
        assert tailer.wait(PATIENCE_S), (folder / "job.log").read_text()[-4_000:]
        kinds += [record[0] for _, record in tailer]
    tailer.close()
    orphans = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.wait()
    _, alive = psutil.wait_procs(orphans, timeout=PATIENCE_S)  # Spark's JVM ends together with its driver
    assert not alive


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
def test_a_driver_that_is_killed_twice_writes_the_same_journal(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 24_000, 400)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")
    for commits in (3, 12):
        # A commit appears as soon as its batch is appended, before Spark records that the batch is done.
        _kill_after(
            tmp_path,
            _start_job(tmp_path),
            lambda kinds, commits=commits: kinds.count(RecordKind.COMMIT) >= commits,  # type: ignore[misc]
        )
        so_far = records_of(tmp_path / "journal")
        assert so_far == records_of(tmp_path / "expected")[: len(so_far)]
    events = _finish(_start_job(tmp_path), tmp_path)
    assert [line["event"] for line in events] == ["ready", "journaled"]
    assert records_of(tmp_path / "journal") == records_of(tmp_path / "expected")
    assert sum(assert_gapless(packets_of(tmp_path / "journal")).values()) == 24_000


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
def test_a_job_that_lost_its_checkpoint_completes_the_journal_without_repeating_a_record(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 4_000, 400)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")
    _kill_after(tmp_path, _start_job(tmp_path), lambda kinds: kinds.count(RecordKind.COMMIT) >= 2)
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    _finish(_start_job(tmp_path), tmp_path)
    assert records_of(tmp_path / "journal") == records_of(tmp_path / "expected")


@pytest.mark.parametrize("restarted", [False, True])
def test_the_job_waits_when_it_is_as_far_ahead_of_the_gateway_as_allowed(tmp_path: Path, restarted: bool) -> None:
    make_recording(tmp_path / "recording", 800, 200)
    options = JobOptions(
        recording=tmp_path / "recording",
        journal=tmp_path / "journal",
        checkpoint=tmp_path / "checkpoint",
        source_format=SOURCE_FORMAT,
        feed=FEED,
        split=SplitRule.LETTER,
        packet_messages_max=MESSAGES_MAX,
        until_idle=False,
        ahead_batches_max=2,
    )
    plan = numbering_plan(options.recording, SOURCE_FORMAT, FEED, SplitRule.LETTER, MESSAGES_MAX)
    first, second, third, _ = batches_of(options.recording)
    job = SourceJob(options)
    with contextlib.ExitStack() as open_writers:

        def start() -> SourceJournalWriter:
            writer = SourceJournalWriter(options.journal, plan, commits_kept=2, segment_size_max=2_000)
            return open_writers.enter_context(writer)

        writer = start()
        assert not job.is_too_far_ahead(writer)
        writer.append_batch(0, first)
        assert not job.is_too_far_ahead(writer), "one micro-batch, though of several segments"
        (first_commit,) = commit_indices_of(options.journal)
        writer.append_batch(1, second)
        if restarted:
            writer.close()
            writer = start()
        assert job.is_too_far_ahead(writer)
        with contextlib.closing(NamedPosition(options.journal / POSITION_NAME)) as sent:
            sent.store(first_commit + 1)
        assert not job.is_too_far_ahead(writer)
        writer.append_batch(2, third)
        assert job.is_too_far_ahead(writer)


@pytest.mark.parametrize("given", ["-1", "many"])
def test_an_invalid_number_of_micro_batches_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.job(["--ahead-batches-max", given])
    assert f"{given!r} is not a number of micro-batches" in capsys.readouterr().err


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
