"""`tandemfeed source-gateway`: sends the packets of source journals."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import grpc

from tandemfeed.journal.errors import JournalError
from tandemfeed.spark_feed.journaling.records import SourceJournalError
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
from tandemfeed.spark_feed.session_argument import session
from tandemfeed.spark_feed.sharing import add_group_argument, restrict
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.reachability import failure_text
from tandemfeed.transport.metrics import serve_metrics
from tandemfeed.transport.process_shell import (
    StopSignal,
    add_connection_arguments,
    add_reflection_argument,
    configure_logging,
    connection_from,
)
from tandemfeed.transport.scheduling import request_short_slices

LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.journals is not None and arguments.former_journal is not None:
        parser.error(
            "--former-journal belongs to --journal; with --journals the gateway finds the former journal itself"
        )
    connection = connection_from(parser, arguments)
    restrict(arguments.group)
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
            group=arguments.group,
            former_journal=arguments.former_journal,
            reflection=arguments.reflection,
            faults=FaultPlan.parse(arguments.fault),
            fault_seed=arguments.fault_seed,
        )
        sealer = sealer_of(connection, description)
        source_gateway = SourceGateway(options, description, connection.multicast, make_pacer, sealer)
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


def _parser() -> argparse.ArgumentParser:
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
        type=session,
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
    add_group_argument(parser)
    add_reflection_argument(parser)
    add_connection_arguments(parser)
    return parser
