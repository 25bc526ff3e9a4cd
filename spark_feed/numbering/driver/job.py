"""The feed source's Spark job: recording → source streams → numbers → packets → source journal.

Spark finds the files, cuts micro-batches, remembers what is done, and runs the tasks (`numbering.tasks`), which read
the files, split them by source stream, number, pack and append. The driver only commits what the tasks appended
(`foreachBatch`): of a micro-batch with many files, one part after another. Another process sends the packets
(`spark_feed.sending.gateway`). So driver, executors and Python workers may die at any instant without changing the
numbers or the streams on the wire.

Never: derives a number from a batch id, a partition or a clock; runs further ahead of the gateway than allowed.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.journal.format.named_position import NamedPosition
from tandemfeed.spark_feed.feed_plan import FeedPlan
from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.records import POSITION_NAME, NumberingPlan, SourceJournalError
from tandemfeed.spark_feed.numbering.driver.found_files import REMEDY, FoundFiles
from tandemfeed.spark_feed.numbering.driver.progress import JobProgress, listen
from tandemfeed.spark_feed.numbering.driver.session import Spark, scratch_of, start_session
from tandemfeed.spark_feed.numbering.rows.column_split import Split
from tandemfeed.spark_feed.numbering.rows.screening import Rules
from tandemfeed.spark_feed.numbering.tasks.quarantine import quarantined_count
from tandemfeed.spark_feed.numbering.tasks.reading import FileReader
from tandemfeed.spark_feed.numbering.tasks.running import Tasks
from tandemfeed.spark_feed.recordings.format_columns import recording_schema
from tandemfeed.spark_feed.recordings.recording import Manifest, part_number, restore_file_order
from tandemfeed.spark_feed.sharing import access_in, make

LOG = logging.getLogger(__name__)
BACK_PRESSURE_POLL_S = 0.02
NO_RULES = Rules()
QUARANTINE_NAME = "quarantine"
BATCH_MESSAGES_MAX = 1_000_000  # a commit's fixed cost is then small beside its work, and it takes a second or two
FIRST_BATCH_MESSAGES = 20_000  # so that the gateway can begin; each commit after it may have twice as many
TASK_MESSAGES_MIN = 50_000  # fewer are not worth another task
BATCH_COMMITS_MAX = 10  # Spark's planning of a micro-batch, too, is then small beside its work
# Spark's own source of whole files, of which the job takes only the names (`found_files`): it finds the files, cuts
# micro-batches and remembers what is done. The tasks read the files themselves (`numbering.tasks.reading`).
FILES_FORMAT = "binaryFile"
FILES_DDL = "path string, modificationTime timestamp, length bigint, content binary"


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of one run.

    Attributes:
        until_idle: stop after the whole recording is journaled, and mark the end of each stream; otherwise wait for
            more files.
        ahead_messages_max: no micro-batch begins while this many messages are journaled and not yet sent by the
            gateway; 0: no limit.
        rules: which rows are refused besides those that the source format cannot hold.
        quarantine: the folder of the quarantine table; None: `quarantine` in the journal's folder.
        group: with which the journal and the quarantine table are shared; None: as they are, or as their parents.
        batch_messages_max: of a commit, unless a single file has more; fewer if `ahead_messages_max` is small.
        batch_commits_max: of a micro-batch.
    """

    recording: Path
    journal: Path
    checkpoint: Path
    source_format: Path
    feed: FeedPlan
    split: Split
    packet_messages_max: int
    until_idle: bool
    ahead_messages_max: int
    batch_messages_max: int = BATCH_MESSAGES_MAX
    batch_commits_max: int = BATCH_COMMITS_MAX
    rules: Rules = NO_RULES
    quarantine: Path | None = None
    group: str | None = None
    master: str = "local[1]"
    driver_memory: str = "512m"


@dataclass(slots=True)
class JobReport:
    """The result of one run. `quarantined_count` counts all records of the journal that made no message."""

    record_count: int = 0
    quarantined_count: int = 0
    batch_count: int = 0
    start_s: float = 0.0
    run_s: float = 0.0


class SourceJob:
    """One run of the job in this process. `stop` may be called from any thread.

    Args:
        on_commit: called after each commit.
        progress: receives how far the job is.
    """

    def __init__(
        self,
        options: JobOptions,
        on_commit: Callable[[CommitLog], None] = lambda log: None,
        progress: JobProgress | None = None,
    ) -> None:
        self._options, self._on_commit = options, on_commit
        self._progress = progress or JobProgress(0)
        self._stopping = threading.Event()
        self._growing = FIRST_BATCH_MESSAGES  # the messages of the next commit, if there are enough
        self.report = JobReport()

    def stop(self) -> None:
        """Finish after the current commit."""
        self._stopping.set()

    def run(self, on_started: Callable[[], None]) -> JobReport:
        """Run until stopped, or with `until_idle` until the recording is journaled.

        Raises:
            JavaMissing, RecordingError, SplitError, SourceJournalError, DocumentError, OSError: the text says what to
                do.
        """
        options = self._options
        began_at = time.monotonic()
        manifest = Manifest.read(options.recording)
        if restore_file_order(options.recording):
            LOG.info("restored the modification times that order the recording's files")
        source_format = load_source_format(options.source_format)
        recording_schema(source_format)  # refuses what rows cannot make
        if first := next(iter(sorted(options.recording.glob("part-*.parquet"))), None):
            options.split.check(pq.read_schema(first))
        plan = numbering_plan(
            options.recording,
            options.source_format,
            options.feed,
            options.split,
            options.packet_messages_max,
            options.rules,
        )
        with CommitLog(options.journal, plan, group=options.group) as log:
            if options.quarantine is not None:
                make(options.quarantine, options.group)
            if options.until_idle and log.is_ended:
                on_started()
                self._count_quarantined(log)
                return self.report
            make(options.checkpoint)
            spark = start_session(options.master, options.driver_memory, scratch_of(options.checkpoint))
            self.report.start_s = time.monotonic() - began_at
            listen(spark, self._progress)
            self._progress.on_start(log.last_commit.next_record_index)
            try:
                self._stream(spark, source_format, log, manifest, on_started)
            finally:
                spark.stop()
                self._progress.on_end()
            if options.until_idle and log.last_commit.next_record_index >= manifest.record_count:
                log.end()
            self._count_quarantined(log)
        self.report.run_s = time.monotonic() - began_at
        return self.report

    def _stream(
        self,
        spark: Spark,
        source_format: SourceFormat,
        log: CommitLog,
        manifest: Manifest,
        on_started: Callable[[], None],
    ) -> None:
        options = self._options
        rows_per_file = manifest.rows_per_file
        stream_count, quarantine = len(options.feed.source_stream_ids), self._quarantine.absolute()
        reader = FileReader(source_format, options.split, stream_count, options.rules, rows_per_file, quarantine)
        # First, because a task imports for seconds before it can work, and meanwhile Spark plans the query.
        tasks = Tasks(spark.sparkContext, reader, options.journal.absolute(), min(TASK_MESSAGES_MIN, self._wanted))
        with closing(tasks):
            self._run_query(spark, log, tasks, rows_per_file, on_started)

    def _run_query(
        self, spark: Spark, log: CommitLog, tasks: Tasks, rows_per_file: int, on_started: Callable[[], None]
    ) -> None:
        options = self._options
        files = (
            spark.readStream.format(FILES_FORMAT)
            .schema(FILES_DDL)
            .option("maxFilesPerTrigger", options.batch_commits_max * self.files_per_commit(rows_per_file))
            .option("pathGlobFilter", "part-*.parquet")
            .load(str(options.recording.absolute()))
        )
        failure: list[BaseException] = []

        def take(_: Any, batch_id: int) -> None:
            try:
                self._take_batch(log, tasks, found.new(), rows_per_file, batch_id)
            except BaseException as error:
                failure.append(error)  # Spark passes on only the text of an error
                raise

        found = FoundFiles(options.checkpoint)
        checkpoint = str(options.checkpoint.absolute())
        stream = files.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        stream = stream.trigger(availableNow=True) if options.until_idle else stream.trigger(processingTime="0 seconds")
        query = stream.start()
        on_started()
        try:
            while not self._stopping.is_set() and not query.awaitTermination(0.1):
                pass
        except Exception as error:
            if not failure:
                raise SourceJournalError(f"Spark ended the query of {checkpoint}: {error}\n{REMEDY}") from error
            if not isinstance(failure[0], _Stopped):
                raise failure[0] from None
        finally:
            query.stop()

    @property
    def _quarantine(self) -> Path:
        return self._options.quarantine or self._options.journal / QUARANTINE_NAME

    def _count_quarantined(self, log: CommitLog) -> None:
        self.report.quarantined_count = quarantined_count(self._quarantine, log.last_commit.next_record_index)
        if self.report.quarantined_count:
            extra = {"rows": self.report.quarantined_count, "table": str(self._quarantine)}
            LOG.warning("rows that made no message are in the quarantine table", extra=extra)

    @property
    def _wanted(self) -> int:
        """The messages of a commit when the job is behind."""
        wanted = self._options.batch_messages_max
        if allowed := self._options.ahead_messages_max:
            wanted = min(wanted, allowed // 2)  # so that the job refills before the gateway has sent everything
        return wanted

    def files_per_commit(self, rows_per_file: int) -> int:
        """How many files a commit has at most when the job is behind; fewer when there are fewer."""
        return max(1, self._wanted // rows_per_file)

    def _take_batch(self, log: CommitLog, tasks: Tasks, found: list[str], rows_per_file: int, batch_id: int) -> None:
        """Append and commit the files that Spark has found, except those that are committed."""
        first = log.last_commit.next_record_index // rows_per_file
        numbered = sorted((part_number(uri.rsplit("/", 1)[-1]), uri) for uri in found)
        files = [uri for number, uri in numbered if number >= first]
        while files:
            self._wait_for_gateway(log)
            step = min(self.files_per_commit(rows_per_file), max(1, self._growing // rows_per_file))
            self._growing *= 2 if len(files) > step else 1
            taken, files = files[:step], files[step:]
            try:
                appended = tasks.append(taken, log.continuation)
            except SourceJournalError as error:
                raise SourceJournalError(f"batch {batch_id}: {error}") from error
            added = log.commit(batch_id, appended)
            self.report.record_count += added
            self.report.batch_count += 1
            self._on_commit(log)
            self._progress.on_commit(log.last_commit.next_record_index)
            LOG.debug("files journaled", extra={"batch_id": batch_id, "record_count": added})

    def _wait_for_gateway(self, log: CommitLog) -> None:
        """Wait until the gateway is close enough behind."""
        while self.is_too_far_ahead(log):
            if self._stopping.wait(BACK_PRESSURE_POLL_S):
                raise _Stopped
        if self._stopping.is_set():
            raise _Stopped

    def is_too_far_ahead(self, log: CommitLog) -> bool:
        """True if at least `ahead_messages_max` messages are journaled and not yet sent by the gateway."""
        allowed = self._options.ahead_messages_max
        return allowed > 0 and log.last_commit.next_record_index - self._sent_position() >= allowed

    def _sent_position(self) -> int:
        access = access_in(self._options.journal)
        with closing(NamedPosition(self._options.journal / POSITION_NAME, access=access)) as position:
            return position.load() or 0


class _Stopped(Exception):
    """The job was stopped before it took the micro-batch."""


def numbering_plan(
    recording: Path,
    source_format: Path,
    feed: FeedPlan,
    split: Split,
    packet_messages_max: int,
    rules: Rules = NO_RULES,
) -> NumberingPlan:
    """Everything that the numbers and bytes of this session depend on."""
    manifest = Manifest.read(recording)
    return NumberingPlan(
        feed=feed,
        split=split.value,
        packet_messages_max=packet_messages_max,
        packet_records=manifest.rows_per_file,
        recording=_fingerprint(manifest),
        format_digest=hashlib.sha256(source_format.read_bytes()).hexdigest()[:16],
        rules=rules.text,
    )


def _fingerprint(manifest: Manifest) -> str:
    """Identifies a recording; does not change while the recording grows."""
    identity = f"{manifest.origin}|{manifest.rows_per_file}|{manifest.first_event_at_ns}|{manifest.size_exponent}"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]
