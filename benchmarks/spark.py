"""`tandemfeed bench spark`: the source job's rows per second, beside what Spark itself does with the same rows.

Makes its recording in a temporary folder. All rates are of rows after a warm-up. `scan_rows_per_s` is what Spark scans
of these rows on one core, and `plain_scan_rows_per_s` of rows of three integers, so that figures of machines can be
compared. `local2_per_local1` is what a second core gives the job, beside what it gives Spark's own scan and rewrite.
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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandemfeed.benchmarks import spark_tables
from tandemfeed.benchmarks.spark_alone import tree_cpu_s
from tandemfeed.journal import Tailer
from tandemfeed.spark_feed.feed_plan import FeedPlan
from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.committed_records import CommittedRecords
from tandemfeed.spark_feed.journaling.records import RecordKind, packets_in, stream_folder
from tandemfeed.spark_feed.numbering.driver.job import BATCH_COMMITS_MAX, BATCH_MESSAGES_MAX, JobOptions, SourceJob
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER
from tandemfeed.spark_feed.recordings.generator import GeneratorOptions, TickGenerator
from tandemfeed.spark_feed.recordings.recording import Manifest, write_recording

ROW_COUNT = 12_000_000
ROWS_PER_FILE = 10_000
SMALL_ROW_COUNT = 500_000  # in micro-batches of one commit of one file, for their fixed cost
PLAIN_COUNT = 5_000_000
WARM_SHARE = 0.4  # of the rows, while the JVM compiles and commits grow
POLL_S = 0.005
CLUSTER = (
    '[[feed]]\nfeed_id = 1\nname = "ticks"\nsession = 20261121\n'
    "[[feed.source_stream]]\nsource_stream_id = 1\n[[feed.source_stream]]\nsource_stream_id = 2\n"
)
FEED = FeedPlan(1, "ticks", 20261121, (1, 2))
SOURCE_FORMAT = Path(__file__).parent.parent / "deploy" / "examples" / "ticks" / "source-format.xml"


def run(_arguments: argparse.Namespace) -> dict[str, object]:
    """Measure the job on one and two cores, its fixed cost, Spark's own scan and rewrite, and reading the journal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _record(folder / "recording", ROW_COUNT)
        _record(folder / "small", SMALL_ROW_COUNT)
        for attempt in ("cold", "warm"):  # the first one may compile kernels
            first_packet_s = _first_packet_s(folder / "small", folder / attempt)
        one = _Job(folder / "recording", folder / "one", "local[1]")
        two = _Job(folder / "recording", folder / "two", "local[2]")
        small = _Job(
            folder / "small", folder / "fixed", "local[1]", batch_messages_max=ROWS_PER_FILE, batch_commits_max=1
        )
        commits = _Job(folder / "small", folder / "commits", "local[1]", batch_messages_max=ROWS_PER_FILE)
        times = _spark_alone(folder)
        alone, alone_on_two = times["local[1]"], times["local[2]"]
        return {
            "rows": ROW_COUNT,
            "rows_per_s_local1": round(one.rows_per_s),
            "rows_per_s_local2": round(two.rows_per_s),
            "scan_rows_per_s": round(ROW_COUNT / alone["scan_s"]),
            "plain_scan_rows_per_s": round(PLAIN_COUNT / alone["plain_scan_s"]),
            "local1_per_plain_scan": round(one.rows_per_s * alone["plain_scan_s"] / PLAIN_COUNT, 3),
            "local2_per_plain_scan": round(two.rows_per_s * alone["plain_scan_s"] / PLAIN_COUNT, 3),
            "local2_per_local1": round(two.rows_per_s / one.rows_per_s, 2),
            "local2_per_local1_scan": round(alone["scan_s"] / alone_on_two["scan_s"], 2),
            "local2_per_local1_rewrite": round(alone["rewrite_s"] / alone_on_two["rewrite_s"], 2),
            "rows_per_cpu_s_local1": round(one.rows_per_cpu_s),
            "rows_per_cpu_s_local2": round(two.rows_per_cpu_s),
            "vs_parquet_rewrite": round(one.rows_per_cpu_s * alone["rewrite_cpu_s"] / ROW_COUNT, 2),
            "microbatch_fixed_ms": round(1e3 * (small.batch_s - ROWS_PER_FILE / one.rows_per_s)),
            "commit_fixed_ms": round(1e3 * (commits.batch_s - ROWS_PER_FILE / one.rows_per_s)),
            "microbatch_cpu_ms": round(1e3 * small.batch_cpu_s),
            "first_packet_s": round(first_packet_s, 1),
            "stream_scan_msgs_per_s": round(_scan_stream(folder / "one")),
            **spark_tables.measure(folder / "output"),
            "gateway_read_msgs_per_s": round(_read_merged(folder / "one")),
        }


class _Job:
    """One run of the source job, measured from commit to commit."""

    def __init__(
        self,
        recording: Path,
        folder: Path,
        master: str,
        batch_messages_max: int = BATCH_MESSAGES_MAX,
        batch_commits_max: int = BATCH_COMMITS_MAX,
    ) -> None:
        self._commits: list[tuple[float, int, float]] = []  # time, next record, processor time of all processes
        options = JobOptions(
            recording=recording,
            journal=folder / "journal",
            checkpoint=folder / "checkpoint",
            source_format=SOURCE_FORMAT,
            feed=FEED,
            split=BY_LETTER,
            packet_messages_max=16,
            until_idle=True,
            ahead_messages_max=0,
            batch_messages_max=batch_messages_max,
            batch_commits_max=batch_commits_max,
            master=master,
        )
        SourceJob(options, on_commit=self._on_commit).run(lambda: None)
        warm_rows = WARM_SHARE * Manifest.read(recording).record_count
        warm = [commit for commit in self._commits if commit[1] >= warm_rows]
        seconds, rows, cpu_s = (last - first for first, last in zip(warm[0], warm[-1], strict=True))
        self.rows_per_s, self.rows_per_cpu_s = rows / seconds, rows / cpu_s
        self.batch_s = statistics.median(after[0] - before[0] for before, after in pairwise(warm))
        self.batch_cpu_s = cpu_s / (len(warm) - 1)

    def _on_commit(self, log: CommitLog) -> None:
        self._commits.append((time.perf_counter(), log.last_commit.next_record_index, tree_cpu_s()))


def _first_packet_s(recording: Path, folder: Path) -> float:
    """Seconds from the start of a source job's process until the gateway could send the first packet."""
    folder.mkdir()
    (folder / "cluster.toml").write_text(CLUSTER)
    command = [
        sys.executable,
        "-c",
        "import sys; from tandemfeed.spark_feed.numbering.command import main; sys.exit(main(sys.argv[1:]))",
    ]
    command += ["--recording", str(recording), "--source-format", str(SOURCE_FORMAT), "--until-idle"]
    command += ["--feed-description", str(folder / "cluster.toml"), "--journal", str(folder / "journal")]
    began_s = time.perf_counter()
    with subprocess.Popen([*command, "--checkpoint", str(folder / "checkpoint")], stdout=subprocess.DEVNULL) as job:
        with CommittedRecords(folder / "journal", FEED.source_stream_ids) as records:
            while (found := records.read()) is None or found.record[0] != RecordKind.PACKET:
                if job.poll():
                    raise RuntimeError(f"the source job ended with status {job.returncode}")
                time.sleep(POLL_S)
        return time.perf_counter() - began_s


def _record(folder: Path, count: int) -> None:
    tables = TickGenerator(GeneratorOptions(count, 3_000, 7)).tables()
    write_recording(folder, tables, rows_per_file=ROWS_PER_FILE, origin="generated", price_conversion="integers")


def _spark_alone(folder: Path) -> dict[str, dict[str, float]]:
    """The times of `spark_alone` by master, in a process of its own."""
    columns = {name: np.arange(PLAIN_COUNT) * step for step, name in enumerate(("a", "b", "c"), 1)}
    pq.write_table(pa.table(columns), folder / "plain.parquet")
    command = [sys.executable, "-m", "tandemfeed.benchmarks.spark_alone", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    times: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return times


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
