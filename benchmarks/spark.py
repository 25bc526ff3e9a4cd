"""`tandemfeed bench spark`: the source job's rows per second, beside what Spark itself does with the same rows.

Makes its recording in a temporary folder. All rates are of rows after a warm-up; `scan_rows_per_s` is what Spark scans
on one core, so that figures of machines can be compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from tandemfeed.benchmarks import spark_tables
from tandemfeed.benchmarks.spark_alone import tree_cpu_s
from tandemfeed.journal import Tailer
from tandemfeed.spark_feed.feed_plan import FeedPlan
from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.committed_records import CommittedRecords
from tandemfeed.spark_feed.journaling.records import packets_in, stream_folder
from tandemfeed.spark_feed.numbering.job import JobOptions, SourceJob
from tandemfeed.spark_feed.numbering.split import SplitRule
from tandemfeed.spark_feed.recordings.generator import GeneratorOptions, TickGenerator
from tandemfeed.spark_feed.recordings.recording import write_recording

ROW_COUNT = 2_000_000
ROWS_PER_FILE = 10_000
SMALL_ROW_COUNT = 100_000  # in micro-batches of one file, for their fixed cost
WARM_SHARE = 0.4  # of the micro-batches, while the JVM compiles
FEED = FeedPlan(1, "ticks", 20261121, (1, 2))
SOURCE_FORMAT = Path(__file__).parent.parent / "deploy" / "examples" / "ticks" / "source-format.xml"


def run(_arguments: argparse.Namespace) -> dict[str, object]:
    """Measure the job on one and two cores, its fixed cost, Spark's own scan and rewrite, and reading the journal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _record(folder / "recording", ROW_COUNT)
        _record(folder / "small", SMALL_ROW_COUNT)
        one = _Job(folder / "recording", folder / "one", "local[1]")
        two = _Job(folder / "recording", folder / "two", "local[2]")
        small = _Job(folder / "small", folder / "fixed", "local[1]", batch_messages_max=ROWS_PER_FILE)
        rewrite_per_cpu_s, scan_per_s = _spark_alone(folder)
        return {
            "rows": ROW_COUNT,
            "rows_per_s_local1": round(one.rows_per_s),
            "rows_per_s_local2": round(two.rows_per_s),
            "scan_rows_per_s": round(scan_per_s),
            "local1_per_scan": round(one.rows_per_s / scan_per_s, 3),
            "rows_per_cpu_s_local1": round(one.rows_per_cpu_s),
            "vs_parquet_rewrite": round(one.rows_per_cpu_s / rewrite_per_cpu_s, 2),
            "microbatch_fixed_ms": round(1e3 * (small.batch_s - ROWS_PER_FILE / one.rows_per_s)),
            "start_s": round(small.started_s, 1),
            "first_commit_s": round(small.first_commit_s, 1),
            "stream_scan_msgs_per_s": round(_scan_stream(folder / "one")),
            **spark_tables.measure(folder / "output"),
            "gateway_read_msgs_per_s": round(_read_merged(folder / "one")),
        }


class _Job:
    """One run of the source job, measured from commit to commit."""

    def __init__(self, recording: Path, folder: Path, master: str, batch_messages_max: int = 200_000) -> None:
        self._began_s = time.perf_counter()
        self._commits: list[tuple[float, float, int]] = []  # time, processor time of all processes, next record
        options = JobOptions(
            recording=recording,
            journal=folder / "journal",
            checkpoint=folder / "checkpoint",
            source_format=SOURCE_FORMAT,
            feed=FEED,
            split=SplitRule.LETTER,
            packet_messages_max=16,
            until_idle=True,
            ahead_messages_max=0,
            batch_messages_max=batch_messages_max,
            master=master,
        )
        report = SourceJob(options, on_commit=self._on_commit).run(lambda: None)
        self.started_s, self.first_commit_s = report.start_s, self._commits[0][0]
        warm = self._commits[int(WARM_SHARE * len(self._commits)) :]
        seconds, cpu_s, rows = (last - first for first, last in zip(warm[0], warm[-1], strict=True))
        self.rows_per_s, self.rows_per_cpu_s = rows / seconds, rows / cpu_s
        times = [commit[0] for commit in warm]
        self.batch_s = statistics.median(after - before for before, after in pairwise(times))

    def _on_commit(self, log: CommitLog) -> None:
        self._commits.append((time.perf_counter() - self._began_s, tree_cpu_s(), log.last_commit.next_record_index))


def _record(folder: Path, count: int) -> None:
    tables = TickGenerator(GeneratorOptions(count, 3_000, 7)).tables()
    write_recording(folder, tables, rows_per_file=ROWS_PER_FILE, origin="generated", price_conversion="integers")


def _spark_alone(folder: Path) -> tuple[float, float]:
    """(rows per CPU second of Spark's Parquet rewrite, rows per second of its scan) on one core, in its own process."""
    command = [sys.executable, "-m", "tandemfeed.benchmarks.spark_alone", str(folder)]
    figures = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    return ROW_COUNT / figures["rewrite_cpu_s"], ROW_COUNT / figures["scan_s"]


def _scan_stream(folder: Path) -> float:
    """Messages per second that one reader finds in a stream's journal."""
    count, began_s = 0, time.perf_counter()
    with Tailer(stream_folder(folder / "journal", FEED.source_stream_ids[0])) as tailer:
        while (batch := tailer.read_batch(65_536)) is not None:
            count += sum(packets_in(batch).message_count)
    return count / (time.perf_counter() - began_s)


def _read_merged(folder: Path) -> float:
    """Messages per second that the gateway could read in sending order."""
    began_s = time.perf_counter()
    with CommittedRecords(folder / "journal", FEED.source_stream_ids) as records:
        for _ in iter(records.read, None):
            pass
    return ROW_COUNT / (time.perf_counter() - began_s)
