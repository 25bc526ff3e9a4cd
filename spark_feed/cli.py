"""The commands of the feed source that run processes: `source-job` and `source-gateway`."""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import grpc

from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.journal.errors import JournalError
from tandemfeed.spark_feed.feed_plan import read_feed_plan
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.numbering.driver.java import JavaMissing
from tandemfeed.spark_feed.numbering.rows.column_split import LETTER, SYMBOL, SplitError, parse_split
from tandemfeed.spark_feed.recordings.recording import Manifest, RecordingError
from tandemfeed.transport.calls.reachability import failure_text
from tandemfeed.transport.metrics import serve_metrics
from tandemfeed.transport.process_shell import (
    StopSignal,
    add_connection_arguments,
    add_process_arguments,
    add_reflection_argument,
    announce,
    announce_ready,
    configure_logging,
    connection_from,
)
from tandemfeed.transport.scheduling import request_short_slices
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


def job(argv: Sequence[str] | None = None) -> int:
    """`tandemfeed source-job`: the Spark driver."""
    from tandemfeed.spark_feed.numbering.driver.session import launch_jvm, scratch_of

    arguments = _job_parser().parse_args(argv)
    launch_jvm(arguments.master, arguments.driver_memory, scratch_of(arguments.checkpoint))
    from tandemfeed.spark_feed.numbering.driver.job import JobOptions, SourceJob
    from tandemfeed.spark_feed.numbering.driver.progress import JobProgress
    from tandemfeed.spark_feed.numbering.rows.screening import Rules
    from tandemfeed.spark_feed.progress_bar import terminal

    configure_logging("source-job", arguments.log_level)
    logging.getLogger("py4j").setLevel(logging.WARNING)
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
            master=arguments.master,
            driver_memory=arguments.driver_memory,
        )
        progress = JobProgress(Manifest.read(arguments.recording).record_count, terminal())
        source_job = SourceJob(options, progress=progress)

        def stop(_number: int, _frame: FrameType | None) -> None:
            source_job.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        serve_metrics(arguments.metrics_port, progress)
        report = source_job.run(lambda: announce_ready(journal=str(arguments.journal)))
    except USER_ERRORS as error:
        LOG.error("%s", error)
        return 2
    announce("journaled", **asdict(report))
    return 0


def _job_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed source-job",
        description="Number the ticks of a recording, pack them and append them to the source journal, using Spark "
        "Structured Streaming. If the job is killed, start it again with the same options: the numbers stay the same.",
    )
    parser.add_argument(
        "--recording", type=Path, required=True, metavar="DIR", help="recording made by `tandemfeed ticks`"
    )
    parser.add_argument("--source-format", type=Path, required=True, metavar="XML", help="source format document")
    parser.add_argument(
        "--feed-description", required=True, metavar="TOML#FEED", help="cluster file, and the feed in it to number"
    )
    parser.add_argument("--journal", type=Path, required=True, metavar="DIR", help="folder of the source journal")
    parser.add_argument(
        "--session",
        type=_session,
        default=0,
        metavar="YYYYMMDD",
        help="session to number (default: the one in the cluster file)",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="folder of Spark's checkpoint")
    parser.add_argument(
        "--split",
        default=LETTER,
        metavar="RULE",
        help="how rows are assigned to source streams: letter (first letter of the ticker), hash (of the ticker), "
        "index (in turn), ranges:FIRST,… (the first ticker of each stream but the first) or table:FILE (CSV of tickers "
        "and source_stream_id, * for all others) (default %(default)s)",
    )
    parser.add_argument(
        "--split-column",
        default=SYMBOL,
        metavar="NAME",
        help="column of the recording whose values the split assigns, instead of the ticker (default %(default)s)",
    )
    parser.add_argument(
        "--packet-messages-max", type=int, default=16, metavar="N", help="messages per packet (default %(default)s)"
    )
    parser.add_argument(
        "--until-idle",
        action="store_true",
        help="stop after the whole recording is journaled, and mark the end of each stream",
    )
    parser.add_argument(
        "--ahead-messages-max",
        type=_message_count,
        default=0,
        metavar="N",
        help="begin no micro-batch while N messages are journaled and not yet sent (default 0: no limit)",
    )
    parser.add_argument(
        "--batch-messages-max",
        type=_message_count,
        default=1_000_000,
        metavar="N",
        help="messages per micro-batch when the job is behind; a micro-batch has at least one file (default "
        "%(default)s)",
    )
    parser.add_argument(
        "--symbols",
        type=Path,
        metavar="FILE",
        help="the known symbols, one a line; rows with others go to the quarantine table (default: all are known)",
    )
    parser.add_argument(
        "--late-ms",
        type=_message_count,
        default=0,
        metavar="MS",
        help="rows whose time is more than this before that of a row above them in their file go to the quarantine "
        "table (default 0: never)",
    )
    parser.add_argument(
        "--quarantine",
        type=Path,
        metavar="DIR",
        help="folder of the quarantine table, with the rows that make no message (default: quarantine in the journal)",
    )
    parser.add_argument(
        "--archive-classes",
        action=_ArchiveClasses,
        nargs=0,
        help="only let the JVM store Spark's classes beside the compiled kernels (160 MB), so that later jobs start in "
        "half the time; once for each user, Java and Spark",
    )
    parser.add_argument("--master", default="", help="Spark master (default: that of spark-submit, or local[1])")
    parser.add_argument("--driver-memory", default="512m", help="memory of the JVM (default %(default)s)")
    add_process_arguments(parser)
    return parser


class _ArchiveClasses(argparse.Action):
    """Archives the classes and ends the command, so that no other option is required."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Archive them."""
        from tandemfeed.spark_feed.numbering.driver.archiving import ArchiveError, archive_classes

        try:
            announce("archived", archive=str(archive_classes()))
        except (ArchiveError, *USER_ERRORS) as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        parser.exit()


def _session(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 19_700_101 <= int(text) <= 99_991_231):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a session; expected a trading day as YYYYMMDD, such as 20261121"
        )
    return int(text)


def _symbols_in(file: Path | None) -> frozenset[bytes]:
    return frozenset() if file is None else frozenset(file.read_bytes().split())


def _message_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages; expected 0, 1, 2, …")
    return int(text)


def gateway(argv: Sequence[str] | None = None) -> int:
    """`tandemfeed source-gateway`: sends the packets of source journals."""
    from tandemfeed.spark_feed.sending.faults import FaultPlan
    from tandemfeed.spark_feed.sending.gateway import (
        GatewayCollector,
        GatewayOptions,
        SourceGateway,
        describe_feed,
        listen_address,
    )
    from tandemfeed.spark_feed.sending.pacing import Pacer, RatePacer, SpeedPacer
    from tandemfeed.spark_feed.sending.sessions.sent_session import GatewayError
    from tandemfeed.spark_feed.sending.source_keys import sealer_of
    from tandemfeed.spark_feed.sending.source_reports import SourceReporter
    from tandemfeed.transport.calls.login import AuthenticationRefused

    parser = _gateway_parser()
    arguments = parser.parse_args(argv)
    if arguments.journals is not None and arguments.former_journal is not None:
        parser.error(
            "--former-journal belongs to --journal; with --journals the gateway finds the former journal itself"
        )
    connection = connection_from(parser, arguments)
    request_short_slices()
    configure_logging("source-gateway", arguments.log_level)
    stop = StopSignal()

    def make_pacer() -> Pacer:
        return SpeedPacer(arguments.speed) if arguments.speed is not None else RatePacer(arguments.rate)

    try:
        make_pacer()  # refuses a bad rate before anything else
        description = describe_feed(connection, arguments.feed)
        options = GatewayOptions(
            feed=arguments.feed,
            journal=arguments.journal,
            journals=arguments.journals,
            rpc_listen=listen_address(arguments.rpc_listen, description),
            tls_certificate=arguments.tls_cert.read_bytes(),
            tls_key=arguments.tls_key.read_bytes(),
            wait_for_start=arguments.wait_for_start,
            session=arguments.session,
            former_journal=arguments.former_journal,
            reflection=arguments.reflection,
            faults=FaultPlan.parse(arguments.fault),
            fault_seed=arguments.fault_seed,
        )
        sealer = sealer_of(connection, description)
        source_gateway = SourceGateway(options, description, connection.interface, make_pacer, sealer)
        serve_metrics(arguments.metrics_port, GatewayCollector(source_gateway))
        reporter = SourceReporter(
            connection,
            arguments.feed,
            source_gateway.describe,
            source_gateway.verifier,
            sealer,
            on_answer=source_gateway.on_answer,
        )
        reporter.start()
        try:
            source_gateway.run(stop)
        finally:
            reporter.stop()
    except (GatewayError, SourceJournalError, AuthenticationRefused, JournalError, ValueError, OSError) as error:
        LOG.error("%s", error)
        return 2
    except grpc.RpcError as error:
        LOG.error("admin server %s", failure_text(error, connection.admin, connection.ca_pem))
        return 2
    return 0


def _gateway_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed source-gateway",
        description="Multicast the packets of source journals at a set pace, and serve the packets that adapters "
        "missed.",
    )
    parser.add_argument("--feed", required=True, metavar="NAME", help="name of the feed at the admin server")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--journal", type=Path, metavar="DIR", help="folder of the source journal of one session")
    source.add_argument(
        "--journals",
        type=Path,
        metavar="DIR",
        help="folder with a source journal for each session, which are sent one after another, also those that are "
        "created later",
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--rate", type=float, default=20_000.0, metavar="N", help="messages per second (default %(default)g)"
    )
    pace.add_argument(
        "--speed", type=float, metavar="X", help="replay at X times the recorded pace, instead of a fixed rate"
    )
    parser.add_argument(
        "--session",
        type=_session,
        default=0,
        metavar="YYYYMMDD",
        help="session to send, or with --journals to begin with (default: the session of the journal; with --journals "
        "the earliest that is not over)",
    )
    parser.add_argument(
        "--former-journal",
        type=Path,
        metavar="DIR",
        help="with --journal, the journal of the previous session, from which adapters fill gaps in that session",
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME=X",
        help="make faults to test consumers with: loss, duplicate or reorder=SHARE of packets, burst=MILLISECONDS a "
        "second, reset=SECONDS between repetitions; repeatable",
    )
    parser.add_argument(
        "--fault-seed",
        type=int,
        default=1,
        metavar="S",
        help="the same seed makes the same faults (default %(default)s)",
    )
    parser.add_argument(
        "--wait-for-start", action="store_true", help='send nothing until the line "start" arrives on standard input'
    )
    parser.add_argument(
        "--rpc-listen",
        metavar="HOST:PORT",
        help="address that serves gap fills (default: source_replay_endpoint of the cluster file, where adapters ask "
        "for them)",
    )
    parser.add_argument("--tls-cert", type=Path, required=True, metavar="FILE", help="TLS certificate (PEM)")
    parser.add_argument("--tls-key", type=Path, required=True, metavar="FILE", help="TLS private key (PEM)")
    add_reflection_argument(parser)
    add_connection_arguments(parser)
    return parser
