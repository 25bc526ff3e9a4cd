"""The feed source's Spark job: recording → source streams → numbers → packets → source journal.

Executors parse, split and encode (`mapInArrow`). The driver takes each micro-batch in record order, numbers and packs
it, and appends it to the source journal in `foreachBatch`. Another process sends the packets
(`spark_feed.sending.gateway`), so the driver may die at any instant without changing the numbers or the streams on
the wire.

Never: derives a number from a batch id, a partition or a clock; runs further ahead of the gateway than allowed.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.journal.format.named_position import NamedPosition
from tandemfeed.spark_feed.feed_plan import FeedPlan
from tandemfeed.spark_feed.numbering.encoding import ENCODED_DDL, TickEncoder, frames_of
from tandemfeed.spark_feed.numbering.session import Spark, start_session
from tandemfeed.spark_feed.numbering.split import SplitRule
from tandemfeed.spark_feed.recordings.recording import Manifest, restore_file_order
from tandemfeed.spark_feed.source_journal import POSITION_NAME, NumberingPlan, SourceJournalWriter

LOG = logging.getLogger(__name__)
BACK_PRESSURE_POLL_S = 0.02
TICKS_DDL = (
    "record_index bigint, kind string, symbol string, event_at_ns bigint, price bigint, size bigint, side string, "
    "flags smallint, bid_price bigint, ask_price bigint, bid_size bigint, ask_size bigint, received_at_ns bigint, "
    "order_id bigint, sequence bigint, received_delta_ns int, action string, venue_channel smallint"
)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of one run.

    Attributes:
        until_idle: stop after the whole recording is journaled, and mark the end of each stream; otherwise wait for
            more files.
        ahead_batches_max: limit on the micro-batches that are journaled and not yet sent by the gateway; 0: no limit.
    """

    recording: Path
    journal: Path
    checkpoint: Path
    source_format: Path
    feed: FeedPlan
    split: SplitRule
    packet_messages_max: int
    until_idle: bool
    ahead_batches_max: int
    master: str = "local[1]"
    driver_memory: str = "512m"


@dataclass(slots=True)
class JobReport:
    """The result of one run."""

    record_count: int = 0
    batch_count: int = 0
    start_s: float = 0.0
    run_s: float = 0.0


class SourceJob:
    """One run of the job in this process. `stop` may be called from any thread."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._stopping = threading.Event()
        self.report = JobReport()

    def stop(self) -> None:
        """Finish after the current micro-batch."""
        self._stopping.set()

    def run(self, on_started: Callable[[], None]) -> JobReport:
        """Run until stopped, or with `until_idle` until the recording is journaled.

        Raises:
            JavaMissing, RecordingError, SourceJournalError, DocumentError, OSError: the text says what to do.
        """
        options = self._options
        began_at = time.monotonic()
        manifest = Manifest.read(options.recording)
        if restore_file_order(options.recording):
            LOG.info("restored the modification times that order the recording's files")
        source_format = load_source_format(options.source_format)
        plan = numbering_plan(
            options.recording, options.source_format, options.feed, options.split, options.packet_messages_max
        )
        with SourceJournalWriter(options.journal, plan, commits_kept=options.ahead_batches_max) as writer:
            if options.until_idle and writer.is_ended:
                on_started()
                return self.report
            options.checkpoint.mkdir(parents=True, exist_ok=True)
            spark = start_session(options.master, options.driver_memory, options.checkpoint.parent / "spark-scratch")
            self.report.start_s = time.monotonic() - began_at
            try:
                self._stream(spark, source_format, writer, on_started)
            finally:
                spark.stop()
            if options.until_idle and writer.last_commit.next_record_index >= manifest.record_count:
                writer.end()
        self.report.run_s = time.monotonic() - began_at
        return self.report

    def _stream(
        self, spark: Spark, source_format: SourceFormat, writer: SourceJournalWriter, on_started: Callable[[], None]
    ) -> None:
        options = self._options
        encode = _executor_function(source_format, options.split, options.feed.source_stream_ids)
        ticks = (
            spark.readStream.schema(TICKS_DDL)
            .option("maxFilesPerTrigger", 1)
            .option("pathGlobFilter", "part-*.parquet")
            .parquet(str(options.recording.absolute()))
        )
        failure: list[BaseException] = []

        def take(batch: Any, batch_id: int) -> None:
            try:
                self._take_batch(writer, batch, batch_id)
            except BaseException as error:
                failure.append(error)  # Spark passes on only the text of an error
                raise

        stream = (
            ticks.mapInArrow(encode, ENCODED_DDL)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(options.checkpoint.absolute()))
        )
        stream = stream.trigger(availableNow=True) if options.until_idle else stream.trigger(processingTime="0 seconds")
        query = stream.start()
        on_started()
        try:
            while not self._stopping.is_set() and not query.awaitTermination(0.1):
                pass
        except Exception:
            if failure and not isinstance(failure[0], _Stopped):
                raise failure[0] from None
            if not failure:
                raise
        finally:
            query.stop()

    def _take_batch(self, writer: SourceJournalWriter, batch: Any, batch_id: int) -> None:
        self._wait_for_gateway(writer)
        added = writer.append_batch(batch_id, frames_of(batch.toArrow()))
        self.report.record_count += added
        self.report.batch_count += 1
        LOG.debug("micro-batch journaled", extra={"batch_id": batch_id, "record_count": added})

    def _wait_for_gateway(self, writer: SourceJournalWriter) -> None:
        """Wait until the gateway is close enough behind."""
        while self.is_too_far_ahead(writer):
            if self._stopping.wait(BACK_PRESSURE_POLL_S):
                raise _Stopped
        if self._stopping.is_set():
            raise _Stopped

    def is_too_far_ahead(self, writer: SourceJournalWriter) -> bool:
        """True if at least `ahead_batches_max` micro-batches are journaled and not yet sent by the gateway."""
        allowed = self._options.ahead_batches_max
        return allowed > 0 and writer.unsent_batch_count(self._sent_position()) >= allowed

    def _sent_position(self) -> int | None:
        with closing(NamedPosition(self._options.journal / POSITION_NAME)) as position:
            return position.load()


class _Stopped(Exception):
    """The job was stopped before it took the micro-batch."""


def _executor_function(
    source_format: SourceFormat, rule: SplitRule, source_stream_ids: tuple[int, ...]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    encoder = TickEncoder(source_format, rule, source_stream_ids)

    def encode(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            yield from encoder.encode(pa.Table.from_batches([batch])).to_batches()

    return encode


def numbering_plan(
    recording: Path, source_format: Path, feed: FeedPlan, split: SplitRule, packet_messages_max: int
) -> NumberingPlan:
    """Everything that the numbers and bytes of this session depend on."""
    return NumberingPlan(
        feed=feed,
        split=split.value,
        packet_messages_max=packet_messages_max,
        recording=_fingerprint(recording),
        format_digest=hashlib.sha256(source_format.read_bytes()).hexdigest()[:16],
    )


def _fingerprint(recording: Path) -> str:
    """Identifies a recording; does not change while the recording grows."""
    manifest = Manifest.read(recording)
    identity = f"{manifest.origin}|{manifest.rows_per_file}|{manifest.first_event_at_ns}|{manifest.size_exponent}"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]
