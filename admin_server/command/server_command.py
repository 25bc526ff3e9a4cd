"""`tandemfeed admin-server` runs the server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tandemfeed.admin_server.identity.token_keys import PERIOD_DAYS, PERIOD_DAYS_MAX
from tandemfeed.admin_server.metrics import FeedCollector
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.records.zookeeper_options import add_zookeeper_arguments, zookeeper_from
from tandemfeed.admin_server.server import SUBSCRIBER_COUNT_MAX, AdminServer
from tandemfeed.transport.metrics import serve_metrics
from tandemfeed.transport.process_shell import (
    StopSignal,
    add_process_arguments,
    add_reflection_argument,
    announce_ready,
    configure_logging,
)
from tandemfeed.transport.scheduling import request_short_slices, tune_for_low_latency
from tandemfeed.transport.settings_file import SettingsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the admin server until SIGTERM."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed admin-server", description=main.__doc__)
    parser.add_argument(
        "--cluster", required=True, type=Path, metavar="FILE", help="file with feeds, channels, adapters (TOML)"
    )
    parser.add_argument(
        "--policy", required=True, type=Path, metavar="FILE", help="file with identities and their rights (TOML)"
    )
    parser.add_argument(
        "--state", required=True, type=Path, metavar="DIR", help="private folder, created at first start"
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:7400",
        metavar="HOST:PORT",
        help="address to serve on; port 0 selects a free port (default %(default)s)",
    )
    parser.add_argument(
        "--subscriber-count-max",
        type=int,
        default=SUBSCRIBER_COUNT_MAX,
        metavar="N",
        help="limit of clients connected at the same time (default %(default)s)",
    )
    add_reflection_argument(parser)
    parser.add_argument(
        "--listen-mutual-tls",
        metavar="HOST:PORT",
        help="a second address, for logins by certificate; it requires one of the cluster's authority",
    )
    parser.add_argument(
        "--issuers", type=Path, metavar="FILE", help="file with outside issuers whose tokens are accepted (TOML)"
    )
    parser.add_argument(
        "--token-key-days",
        type=int,
        default=PERIOD_DAYS,
        metavar="N",
        help="how long a key signs tokens before the next one does (default %(default)s)",
    )
    add_zookeeper_arguments(parser)
    add_process_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.subscriber_count_max < 1:
        parser.error(f"--subscriber-count-max is {arguments.subscriber_count_max}; it must be at least 1")
    if not 1 <= arguments.token_key_days <= PERIOD_DAYS_MAX:
        parser.error(f"--token-key-days is {arguments.token_key_days}; it must be between 1 and {PERIOD_DAYS_MAX}")
    request_short_slices()
    configure_logging("admin-server", arguments.log_level)
    stop = StopSignal()
    try:
        server = AdminServer(
            arguments.cluster,
            arguments.policy,
            arguments.state,
            arguments.listen,
            arguments.subscriber_count_max,
            zookeeper_from(arguments),
            offers_reflection=arguments.reflection,
            listen_mutual_tls=arguments.listen_mutual_tls,
            issuers=arguments.issuers,
            token_key_days=arguments.token_key_days,
        )
    except (SettingsError, RecordsUnavailable, OSError) as refused:
        parser.exit(2, f"admin-server: {refused}\n")
    try:
        serve_metrics(arguments.metrics_port, FeedCollector(server.served))
    except OSError as refused:
        server.stop()
        parser.exit(2, f"admin-server: {refused}\n")
    tune_for_low_latency()
    announce_ready(admin=server.endpoint, mutual_tls=server.mutual_tls_endpoint, ca=str(arguments.state / "ca.pem"))
    stop.wait()
    server.stop()
    return 0
