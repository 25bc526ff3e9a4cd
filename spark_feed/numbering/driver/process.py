"""The process of the source job, from its arguments to its report."""

from __future__ import annotations

import argparse
import logging
from dataclasses import asdict
from pathlib import Path

from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.journal.errors import JournalError
from tandemfeed.runtime.threads import end_process, start_thread
from tandemfeed.spark_feed.feed_plan import read_feed_plan
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.numbering.driver.java import JavaMissing
from tandemfeed.spark_feed.numbering.driver.job import JobOptions, SourceJob
from tandemfeed.spark_feed.numbering.driver.progress import JobProgress
from tandemfeed.spark_feed.numbering.rows.column_split import SplitError, parse_split
from tandemfeed.spark_feed.numbering.rows.screening import Rules
from tandemfeed.spark_feed.progress_bar import terminal
from tandemfeed.spark_feed.recordings.recording import Manifest, RecordingError
from tandemfeed.transport.metrics import serve_metrics
from tandemfeed.transport.process_shell import StopSignal, announce, announce_ready, configure_logging
from tandemfeed.transport.settings_file import SettingsError

LOG = logging.getLogger(__name__)
USER_ERRORS = (
    RecordingError,
    SourceJournalError,
    SplitError,
    SettingsError,
    JavaMissing,
    DocumentError,
    JournalError,
    OSError,
)


def run(arguments: argparse.Namespace) -> int:
    """Run the job until it ends or is stopped; returns the exit status."""
    configure_logging("source-job", arguments.log_level)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = StopSignal()
    try:
        feed = read_feed_plan(arguments.feed_description).in_session(arguments.session)
        options = JobOptions(
            recording=arguments.recording,
            journal=arguments.journal,
            checkpoint=arguments.checkpoint,
            source_format=arguments.source_format,
            feed=feed,
            split=parse_split(arguments.split, feed.source_stream_ids, arguments.split_column),
            packet_messages_max=arguments.packet_messages_max,
            until_idle=arguments.until_idle,
            ahead_messages_max=arguments.ahead_messages_max,
            batch_messages_max=arguments.batch_messages_max,
            rules=Rules(_symbols_in(arguments.symbols), arguments.late_ms),
            quarantine=arguments.quarantine,
            group=arguments.group,
            master=arguments.master,
            driver_memory=arguments.driver_memory,
        )
        progress = JobProgress(Manifest.read(arguments.recording).record_count, terminal())
        source_job = SourceJob(options, progress=progress)

        def stop_job() -> None:
            stop.wait()
            source_job.stop()

        start_thread(stop_job, "stop", end_process)
        serve_metrics(arguments.metrics_port, progress)

        def on_started() -> None:
            stop.install()
            announce_ready(journal=str(arguments.journal))

        report = source_job.run(on_started)
    except USER_ERRORS as error:
        LOG.error("%s", error)
        return 2
    announce("journaled", **asdict(report))
    return 0


def _symbols_in(file: Path | None) -> frozenset[bytes]:
    return frozenset() if file is None else frozenset(file.read_bytes().split())
