"""The source job on a standalone cluster of Spark: a master and two workers, one of which is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from tandemfeed.deploy import submitted
from tandemfeed.deploy.cluster.ports import free_ports
from tandemfeed.journal.tailer import Tailer
from tandemfeed.spark_feed.journaling.records import COMMITS_NAME, RecordKind
from tandemfeed.spark_feed.numbering.driver.java import find_java_home
from tests.spark_feed.source_material import (
    ROOT,
    SOURCE_FORMAT,
    assert_gapless,
    journal_without_spark,
    make_recording,
    packets_of,
    stream_records_of,
)

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(1_800)]
PATIENCE_S = 600.0
SPARK = Path(pyspark.__file__).parent
CLUSTER = (
    '[[feed]]\nfeed_id = 1\nname = "equities"\nsession = 20261121\n'
    "[[feed.source_stream]]\nsource_stream_id = 1\n[[feed.source_stream]]\nsource_stream_id = 2\n"
)
SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
RECORD_COUNT = 6_000


def environment(folder: Path) -> dict[str, str]:
    """Of all of Spark's processes."""
    return os.environ | {
        "JAVA_HOME": str(find_java_home()),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM,
        "SPARK_NO_DAEMONIZE": "1",
    }


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Spark's servers, and what it starts."""
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with (folder / "spark.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment(folder), stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        kill_with_children(process)


def kill_with_children(process: subprocess.Popen[Any]) -> None:
    """SIGKILL a process and all that it has started."""
    if process.poll() is None:
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A master's address, and two workers of one core each."""
    (port,) = free_ports(socket.SOCK_STREAM, 1)
    address = f"spark://127.0.0.1:{port}"
    one_core = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "600m")
    with (
        daemon(folder, "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
        daemon(folder, "worker.Worker", *one_core, "--work-dir", str(folder / "work-1"), address) as first,
        daemon(folder, "worker.Worker", *one_core, "--work-dir", str(folder / "work-2"), address) as second,
    ):
        yield address, [first, second]


def submit(folder: Path, master: str) -> subprocess.Popen[str]:
    """The job, as a user of a cluster submits it."""
    (folder / "cluster.toml").write_text(CLUSTER)
    command = [str(SPARK / "bin" / "spark-submit"), "--master", master, "--driver-memory", "512m"]
    command += ["--conf", "spark.executor.memory=512m", "--conf", f"spark.executor.extraJavaOptions={SMALL_JVM}"]
    command += [str(submitted.__file__), "source-job", "--recording", str(folder / "recording"), "--until-idle"]
    command += ["--source-format", str(SOURCE_FORMAT), "--feed-description", f"{folder / 'cluster.toml'}#equities"]
    command += ["--journal", str(folder / "journal"), "--checkpoint", str(folder / "checkpoint")]
    command += ["--batch-messages-max", "1200"]
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=log, text=True
        )


def wait_for_commits(folder: Path, count: int) -> None:
    with Tailer(folder / "journal" / COMMITS_NAME) as tailer:
        seen = 0
        while seen < count:
            assert tailer.wait(PATIENCE_S), story(folder)
            seen += sum(record[0] == RecordKind.COMMIT for _, record in tailer)


def story(folder: Path) -> str:
    return "".join((folder / name).read_text()[-4_000:] for name in ("job.log", "spark.log"))


def test_a_standalone_cluster_that_loses_a_worker_numbers_as_one_machine_does(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", RECORD_COUNT, 400)
    journal_without_spark(tmp_path / "recording", tmp_path / "expected")  # as jobs on local[1] and local[2] write it
    with standalone_cluster(tmp_path) as (master, workers):
        job = submit(tmp_path, master)
        try:
            wait_for_commits(tmp_path, 1)
            kill_with_children(workers[0])
            out, _ = job.communicate(timeout=PATIENCE_S)
        finally:
            kill_with_children(job)
    assert job.returncode == 0, story(tmp_path)
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events] == ["ready", "journaled"]
    assert events[-1]["record_count"] == RECORD_COUNT
    assert stream_records_of(tmp_path / "journal") == stream_records_of(tmp_path / "expected")
    assert sum(assert_gapless(packets_of(tmp_path / "journal")).values()) == RECORD_COUNT
