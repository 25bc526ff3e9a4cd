"""The source job's progress: metrics, declared once, and a bar on a terminal.

Records count when they are committed, so the commit log says how far the job is. Spark's own listener of streaming
queries says how many micro-batches are done, and where their time went. Its events come later, from a thread of Spark.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TextIO

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

DRAW_INTERVAL_S = 0.1
BAR_WIDTH = 30
MS_PER_S = 1_000
LISTENED_INTERVAL_S = 1.0  # how often the JVM is asked how long a micro-batch took
WHOLE, TASKS_AND_COMMITS = "triggerExecution", "addBatch"  # Spark's names for parts of a micro-batch


class JobMetric(Enum):
    """The value is the sentence shown as metric help; `PREFIX` and the name in lower case are the metric's name."""

    RECORDS = "Records of the recording that are committed, quarantined ones included."
    RECORDING_RECORDS = "Records in the recording when the job started."
    COMMITS = "Commits of this start of the job."
    MICRO_BATCHES = "Micro-batches that Spark has finished in this start of the job."
    MICRO_BATCH_SECONDS = "How long a micro-batch took; one is measured each second."
    MICRO_BATCH_PLANNING_SECONDS = "Of this, what Spark took besides the job's tasks and commits."


PREFIX = "tandemfeed_source_job_"
COUNTERS = frozenset({JobMetric.COMMITS, JobMetric.MICRO_BATCHES})  # the others are gauges


class JobProgress(Collector):
    """How far a job is. Its methods may be called from any thread.

    Args:
        record_count: in the recording.
        terminal: where to draw a bar; None: nowhere.
    """

    def __init__(
        self, record_count: int, terminal: TextIO | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.values: dict[JobMetric, float] = dict.fromkeys(JobMetric, 0)
        self.values[JobMetric.RECORDING_RECORDS] = record_count
        self._terminal, self._clock_s = terminal, clock_s
        self._began_s, self._first_record, self._drawn_s = clock_s(), -1, 0.0

    def on_start(self, next_record_index: int) -> None:
        """The job continues at a record."""
        self.values[JobMetric.RECORDS] = self._first_record = next_record_index
        self._began_s = self._clock_s()

    def on_commit(self, next_record_index: int) -> None:
        """The records before this one are committed."""
        self.values[JobMetric.RECORDS] = next_record_index
        self.values[JobMetric.COMMITS] += 1
        now_s = self._clock_s()
        if self._terminal is not None and now_s - self._drawn_s >= DRAW_INTERVAL_S:
            self._drawn_s = now_s
            self._draw(self._terminal)

    def on_micro_batch(self, durations_ms: dict[str, int]) -> None:
        """Spark has finished a micro-batch.

        Args:
            durations_ms: of its parts, by Spark's names; empty if they were not asked for.
        """
        self.values[JobMetric.MICRO_BATCHES] += 1
        if durations_ms:
            planning_ms = durations_ms[WHOLE] - durations_ms[TASKS_AND_COMMITS]
            self.values[JobMetric.MICRO_BATCH_SECONDS] = durations_ms[WHOLE] / MS_PER_S
            self.values[JobMetric.MICRO_BATCH_PLANNING_SECONDS] = planning_ms / MS_PER_S

    def on_end(self) -> None:
        """Draw the bar for the last time."""
        if self._terminal is not None and self._drawn_s:
            self._draw(self._terminal)
            self._terminal.write("\n")
            self._terminal.flush()

    def line(self) -> str:
        """The bar."""
        done, count = int(self.values[JobMetric.RECORDS]), int(self.values[JobMetric.RECORDING_RECORDS])
        count = max(count, done, 1)  # a recording may grow
        seconds = self._clock_s() - self._began_s
        rate = (done - self._first_record) / seconds if seconds > 0 else 0.0
        filled = BAR_WIDTH * done // count
        left = f", {(count - done) / rate:.0f} s left" if rate > 0 and done < count else ""
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        return f"[{bar}] {100 * done // count:3d} %  {done:,} of {count:,} records, {rate:,.0f}/s{left}"

    def collect(self) -> Iterator[Metric]:
        """The current values, for Prometheus."""
        for metric, value in self.values.items():
            kind = CounterMetricFamily if metric in COUNTERS else GaugeMetricFamily
            yield kind(PREFIX + metric.name.lower(), metric.value, value=value)

    def _draw(self, terminal: TextIO) -> None:
        terminal.write(f"\r{self.line()}\x1b[K")
        terminal.flush()


def terminal() -> TextIO | None:
    """Standard error, if it is a terminal."""
    return sys.stderr if sys.stderr.isatty() else None


def listen(spark: Any, progress: JobProgress) -> None:
    """Tell a job's progress what Spark reports about its streaming query."""
    from pyspark.java_gateway import ensure_callback_server_started  # takes a second, so import it only here

    context = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    wrapper = context._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
    spark._jsparkSession.streams().addListener(wrapper(_Listener(progress)))


class _Listener:
    """A StreamingQueryListener, as the JVM calls it.

    Spark's Python class of this name copies all of a micro-batch's report by calls to the JVM, which nearly doubles the
    processor time of a small micro-batch. This one asks for two numbers, once a second.
    """

    def __init__(self, progress: JobProgress) -> None:
        self._progress, self._asked_s = progress, -LISTENED_INTERVAL_S

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  # Spark's names
        now_s, durations = time.monotonic(), {}
        if now_s - self._asked_s >= LISTENED_INTERVAL_S:
            self._asked_s, found = now_s, event.progress().durationMs()
            durations = {name: int(found.get(name) or 0) for name in (WHOLE, TASKS_AND_COMMITS)}
        self._progress.on_micro_batch(durations)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
