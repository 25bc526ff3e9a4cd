"""The command `contribution-gateway`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc

from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.journal import JournalError
from tandemfeed.spark_feed.contributions.book import Limits
from tandemfeed.spark_feed.contributions.gateway import ContributionCollector, ContributionGateway
from tandemfeed.spark_feed.contributions.options import ContributionOptions
from tandemfeed.spark_feed.contributions.recovery import JournalOfOtherStream
from tandemfeed.spark_feed.sending.gateway import describe_feed, listen_address
from tandemfeed.spark_feed.sending.sessions.sent_session import GatewayError
from tandemfeed.spark_feed.sending.source_keys import sealer_of
from tandemfeed.spark_feed.sending.source_reports import SourceReporter
from tandemfeed.spark_feed.sharing import add_group_argument, make, restrict
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.reachability import failure_text
from tandemfeed.transport.metrics import serve_metrics
from tandemfeed.transport.process_shell import (
    StopSignal,
    add_connection_arguments,
    add_reflection_argument,
    alone_with,
    configure_logging,
    connection_from,
)
from tandemfeed.transport.scheduling import request_short_slices
from tandemfeed.v1 import common_pb2

LOG = logging.getLogger(__name__)
EXIT_REFUSED = 2
REPORT_INTERVAL_S = 0.25  # the answers say which tokens are revoked: a right that is lost ends within a second
REFUSALS = (
    GatewayError, JournalOfOtherStream, DocumentError, AuthenticationRefused, JournalError, ValueError, OSError,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns 2 if the gateway cannot serve, or its disk fails."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    connection = connection_from(parser, arguments)
    restrict(arguments.group)
    request_short_slices()
    configure_logging("contribution-gateway", arguments.log_level)
    stop, defaults = StopSignal(), Limits()
    try:
        description = describe_feed(connection, arguments.feed)
        endpoint, listen = _addresses(arguments.rpc_listen, description)
        options = ContributionOptions(
            feed=arguments.feed,
            folder=arguments.folder,
            source_format=arguments.source_format,
            endpoint=endpoint,
            rpc_listen=listen,
            log_listen=arguments.log_listen or f"{endpoint.rpartition(':')[0]}:0",
            tls_certificate=arguments.tls_cert.read_bytes(),
            tls_key=arguments.tls_key.read_bytes(),
            messages_per_second=arguments.rate,
            limits=Limits(
                pending_count_max=arguments.pending_max or defaults.pending_count_max,
                messages_per_second=arguments.contributor_rate or defaults.messages_per_second,
            ),
            session=arguments.session,
            former_folder=arguments.former_folder,
            reflection=arguments.reflection,
        )
        sealer = sealer_of(connection, description)
        make(arguments.folder, arguments.group)
        taken = f"another contribution gateway uses {arguments.folder}; stop that one first"
        with alone_with(arguments.folder / "gateway.lock", taken):
            gateway = ContributionGateway(options, description, connection.multicast, sealer)
            serve_metrics(arguments.metrics_port, ContributionCollector(gateway))
            reporter = SourceReporter(
                connection, arguments.feed, gateway.describe, gateway.verifier, sealer, REPORT_INTERVAL_S,
                gateway.on_answer,
            )  # fmt: skip
            gateway.report_with(reporter.hurry)
            reporter.start()
            try:
                gateway.run(stop)
            finally:
                reporter.stop()
    except REFUSALS as error:
        LOG.error("%s", error)
        return EXIT_REFUSED
    except grpc.RpcError as error:
        LOG.error("admin server %s", failure_text(error, connection.admin, connection.ca_pem))
        return EXIT_REFUSED
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = Limits()
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed contribution-gateway",
        description="Accept messages that clients contribute to a feed, and multicast them as its source streams.",
    )
    parser.add_argument("--feed", required=True, metavar="NAME", help="name of the feed at the admin server")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="folder of a session's log")
    parser.add_argument(
        "--source-format",
        type=Path,
        required=True,
        metavar="FILE",
        help="source format that messages must fit: the one that the cluster file names",
    )
    parser.add_argument(
        "--rate",
        type=_positive,
        default=20_000,
        metavar="N",
        help="messages per second of each source stream; more stay pending (default %(default)d)",
    )
    parser.add_argument(
        "--contributor-rate",
        type=_positive,
        metavar="N",
        help=f"messages per second that an identity may contribute (default {defaults.messages_per_second})",
    )
    parser.add_argument(
        "--pending-max",
        type=_positive,
        metavar="N",
        help=f"messages that an identity may have pending (default {defaults.pending_count_max})",
    )
    parser.add_argument(
        "--session", type=_positive, default=0, metavar="YYYYMMDD", help="session to send (default: the feed's)"
    )
    parser.add_argument(
        "--former-folder",
        type=Path,
        metavar="DIR",
        help="folder of the session before: what is pending there, and the numbers of its producers, continue",
    )
    parser.add_argument(
        "--rpc-listen",
        metavar="HOST:PORT",
        help="address that serves contributors and gap fills (default: that of the cluster file, if it names one)",
    )
    parser.add_argument(
        "--log-listen",
        metavar="HOST:PORT",
        help="address at which the second gateway gets the log (default: any port of the host of --rpc-listen)",
    )
    parser.add_argument("--tls-cert", type=Path, required=True, metavar="FILE", help="TLS certificate (PEM)")
    parser.add_argument("--tls-key", type=Path, required=True, metavar="FILE", help="TLS private key (PEM)")
    add_group_argument(parser)
    add_reflection_argument(parser)
    add_connection_arguments(parser)
    return parser


def _addresses(asked: str | None, description: common_pb2.FeedDescription) -> tuple[str, str]:
    """(this gateway's address in the cluster file, where it listens); empty if the feed takes no contributions.

    Raises:
        GatewayError: the options do not say which of the feed's gateways this one is.
    """
    contributed = [each for each in description.source_streams if each.contribution_endpoints]
    endpoints = list(contributed[0].contribution_endpoints) if contributed else []
    if not endpoints:
        return "", ""
    if asked is None and len(endpoints) > 1:
        raise GatewayError(
            f"feed {description.name} has two contribution gateways, {' and '.join(endpoints)}; give the address of "
            "this one as --rpc-listen"
        )
    for endpoint in endpoints[:-1]:
        with suppress(GatewayError):
            return endpoint, listen_address(asked, description, endpoint)
    return endpoints[-1], listen_address(asked, description, endpoints[-1])


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)
