"""The source job's progress: a bar that says what is left, and metrics from its commits and from Spark's listener."""

from __future__ import annotations

import io
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tandemfeed.deploy.cluster.ports import free_ports
from tandemfeed.spark_feed.numbering.driver.progress import COUNTERS, PREFIX, JobMetric, JobProgress
from tests.spark_feed.numbering.test_source_job import PATIENCE_S, start_job
from tests.spark_feed.source_material import make_recording


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def shown(progress: JobProgress) -> dict[str, float]:
    """The metrics as Prometheus reads them, without the prefix."""
    registry = CollectorRegistry()
    registry.register(progress)
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.split() for line in lines if line.startswith(PREFIX) and "_created" not in line]
    return {name.removeprefix(PREFIX): float(value) for name, value in pairs}


def test_the_bar_counts_from_where_the_job_continued() -> None:
    clock, terminal = Clock(), io.StringIO()
    progress = JobProgress(1_000, terminal, clock)
    clock.now_s += 7  # until Spark has started
    progress.on_start(400)
    clock.now_s += 2
    progress.on_commit(600)
    assert progress.line() == "[##################............]  60 %  600 of 1,000 records, 100/s, 4 s left"
    clock.now_s += 0.01
    progress.on_commit(700)
    assert terminal.getvalue().count("\r") == 1, "it is not drawn more often than one can read"
    clock.now_s += 1
    progress.on_commit(1_000)
    progress.on_end()
    assert terminal.getvalue().endswith("100 %  1,000 of 1,000 records, 199/s\x1b[K\n")


def test_a_recording_that_grows_is_never_more_than_done() -> None:
    progress = JobProgress(100)
    progress.on_start(0)
    progress.on_commit(250)
    assert "] 100 %  250 of 250 records" in progress.line()


def test_every_metric_is_exported_under_its_name() -> None:
    progress = JobProgress(1_000)
    progress.on_start(0)
    progress.on_commit(300)
    progress.on_micro_batch({"triggerExecution": 250, "addBatch": 210, "walCommit": 9})
    names = {metric: metric.name.lower() + ("_total" if metric in COUNTERS else "") for metric in JobMetric}
    found = shown(progress)
    assert found.keys() == set(names.values())
    assert {metric: found[names[metric]] for metric in JobMetric} == {
        JobMetric.RECORDS: 300, JobMetric.RECORDING_RECORDS: 1_000, JobMetric.COMMITS: 1, JobMetric.MICRO_BATCHES: 1,
        JobMetric.MICRO_BATCH_SECONDS: 0.25, JobMetric.MICRO_BATCH_PLANNING_SECONDS: 0.04,
    }  # fmt: skip


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_running_job_serves_its_progress_until_a_signal_stops_it(tmp_path: Path, number: signal.Signals) -> None:
    make_recording(tmp_path / "recording", 2_000, 400)
    (port,) = free_ports(socket.SOCK_STREAM, 1)
    job = start_job(tmp_path, "--metrics-port", str(port), until_idle=False)
    wanted = {"records": 2_000.0, "recording_records": 2_000.0, "micro_batches_total": 1.0}
    found: dict[str, float] = {}
    give_up_at_s = time.monotonic() + PATIENCE_S
    while {name: found.get(name) for name in wanted} != wanted:
        assert time.monotonic() < give_up_at_s, (found, (tmp_path / "job.log").read_text()[-4_000:])
        assert job.poll() is None, (tmp_path / "job.log").read_text()[-4_000:]
        time.sleep(0.1)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                lines = page.read().decode().splitlines()
        except OSError:
            continue  # it has not started
        pairs = [line.split() for line in lines if line.startswith(PREFIX)]
        found = {name.removeprefix(PREFIX): float(value) for name, value in pairs}
    assert 0 < found["micro_batch_planning_seconds"] < found["micro_batch_seconds"]
    job.send_signal(number)
    assert job.wait(PATIENCE_S) == 0
