"""`tandemfeed adapter`: run one feed adapter."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import grpc

from adapter.feed_settings import FeedSettingsUnknown
from adapter.process import AdapterOptions, AdapterProcess
from feedcore.documents import DocumentError
from journal import JournalError
from transport.dgram import BadGroup
from transport.login import AuthenticationRefused
from transport.process_shell import StopSignal, add_connection_arguments, configure_logging, connection_from


def main(argv: Sequence[str] | None = None) -> int:
    """Run a feed adapter until SIGTERM: it registers, joins as backup, and is active when the lease is granted."""
    parser = argparse.ArgumentParser(prog="tandemfeed adapter", description=main.__doc__)
    parser.add_argument("--feed", required=True, metavar="NAME", help="the feed, as the admin server knows it")
    parser.add_argument("--name", required=True, metavar="NAME", help="this adapter's name in the feed")
    parser.add_argument("--source-format", required=True, type=Path, metavar="FILE", help="source format (XML)")
    parser.add_argument("--table", required=True, type=Path, metavar="FILE", help="converter table (XML)")
    parser.add_argument("--journal", required=True, type=Path, metavar="DIR", help="output journal, made if missing")
    parser.add_argument(
        "--rpc-listen", default="127.0.0.1:0", metavar="HOST:PORT", help="default %(default)s: any port"
    )
    parser.add_argument("--tls-cert", required=True, type=Path, metavar="FILE", help="certificate to serve with (PEM)")
    parser.add_argument("--tls-key", required=True, type=Path, metavar="FILE", help="its private key (PEM)")
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    configure_logging(f"adapter-{arguments.name}", arguments.log_level)
    connection = connection_from(parser, arguments)
    stop = StopSignal()
    try:
        options = AdapterOptions(
            arguments.feed,
            arguments.name,
            arguments.source_format,
            arguments.table,
            arguments.journal,
            arguments.rpc_listen,
            arguments.tls_cert.read_bytes(),
            arguments.tls_key.read_bytes(),
            arguments.metrics_port,
        )
        AdapterProcess(options, connection, stop).run()
    except grpc.RpcError as error:
        parser.exit(2, f"adapter: the admin server refused: {error.code().name}: {error.details()}\n")
    except (DocumentError, FeedSettingsUnknown, JournalError, BadGroup, AuthenticationRefused, OSError) as refused:
        parser.exit(2, f"adapter: {refused}\n")
    return 0
