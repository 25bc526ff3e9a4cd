"""`tandemfeed adapter`: run one feed adapter."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import grpc

from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.documents import ConversionFiles, DocumentsMissing
from tandemfeed.adapter.feed_settings import FeedSettingsUnknown
from tandemfeed.adapter.process import AdapterOptions, AdapterProcess
from tandemfeed.adapter.reporting.registry import AnotherProcessRuns
from tandemfeed.adapter.venue_source import VenueLines
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.journal import JournalError
from tandemfeed.runtime.threads import exit_status
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.reachability import failure_text
from tandemfeed.transport.multicast.groups import BadGroup
from tandemfeed.transport.process_shell import (
    StopSignal,
    add_connection_arguments,
    add_reflection_argument,
    configure_logging,
    connection_from,
)
from tandemfeed.transport.scheduling import call_in_background, request_short_slices

REPLACED_STATUS = 3  # another process runs as this adapter; restarting this one does not help


def main(argv: Sequence[str] | None = None) -> int:
    """Run a feed adapter until SIGTERM. It registers, joins as a backup, and becomes active when granted the lease."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed adapter", description=main.__doc__)
    parser.add_argument("--feed", required=True, metavar="NAME", help="the feed's name in the cluster file")
    parser.add_argument("--name", required=True, metavar="NAME", help="this adapter's name in the feed")
    parser.add_argument(
        "--source-format", type=Path, metavar="FILE", help="source format (XML) (default: that of the cluster file)"
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="converter table (XML) for all channels (default: as --source-format)",
    )
    parser.add_argument(
        "--journal", required=True, type=Path, metavar="DIR", help="folder of the output journal, created if missing"
    )
    parser.add_argument(
        "--dead-letters",
        type=Path,
        metavar="DIR",
        help="folder of the journal of refused source messages (default: the folder of --journal plus -dead-letters)",
    )
    parser.add_argument(
        "--rpc-listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="address to serve gRPC on; port 0 means any free port (default: %(default)s)",
    )
    parser.add_argument("--tls-cert", required=True, type=Path, metavar="FILE", help="this adapter's certificate (PEM)")
    parser.add_argument("--tls-key", required=True, type=Path, metavar="FILE", help="the certificate's key (PEM)")
    parser.add_argument(
        "--venue-lines",
        action="store_true",
        help="receive the source streams from the venue's own lines, by <packet> and <framing> of the source format",
    )
    parser.add_argument(
        "--line",
        action="append",
        default=[],
        metavar="STREAM=GROUP",
        help="a second or further line of a source stream",
    )
    parser.add_argument(
        "--request-server",
        action="append",
        default=[],
        metavar="STREAM=HOST:PORT",
        help="the venue's request server for a source stream",
    )
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="STREAM=NUMBER",
        help="the channel that a source stream consists of, if the venue's packet header has one",
    )
    parser.add_argument(
        "--replace", action="store_true", help="replace the process that runs as this adapter now; that process ends"
    )
    add_reflection_argument(parser)
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    request_short_slices()
    configure_logging(f"adapter-{arguments.name}", arguments.log_level)
    connection = connection_from(parser, arguments)
    venue = _venue_options(parser, arguments)
    if (arguments.source_format is None) is not (arguments.table is None):
        parser.error(
            "--source-format and --table belong together; give both, or neither to use those of the cluster file"
        )
    own_files = None if arguments.table is None else ConversionFiles(arguments.source_format, arguments.table)
    stop = StopSignal()
    try:
        options = AdapterOptions(
            arguments.feed,
            arguments.name,
            own_files,
            arguments.journal,
            arguments.rpc_listen,
            arguments.tls_cert.read_bytes(),
            arguments.tls_key.read_bytes(),
            arguments.metrics_port,
            venue,
            arguments.dead_letters,
            arguments.replace,
            arguments.reflection,
        )
        # In the background, like its imports: it loads kernels and reads the journal's end.
        process = call_in_background(lambda: AdapterProcess(options, connection, stop))
        process.run()
    except AnotherProcessRuns as refused:
        parser.exit(REPLACED_STATUS, f"adapter: {refused}\n")
    except grpc.RpcError as error:
        parser.exit(2, f"adapter: admin server {failure_text(error, connection.admin, connection.ca_pem)}\n")
    except (
        DocumentError,
        DocumentsMissing,
        FeedSettingsUnknown,
        JournalError,
        BadGroup,
        AuthenticationRefused,
        FormatError,
        OSError,
    ) as refused:
        parser.exit(2, f"adapter: {refused}\n")
    return exit_status()


def _venue_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> VenueLines | None:
    given = {"--line": arguments.line, "--request-server": arguments.request_server, "--channel": arguments.channel}
    if not arguments.venue_lines:
        if any(given.values()):
            parser.error(f"{', '.join(given)} apply to a venue's own lines only; add --venue-lines")
        return None
    return VenueLines(*(tuple(_of_stream(parser, option, text) for text in texts) for option, texts in given.items()))


def _of_stream(parser: argparse.ArgumentParser, option: str, text: str) -> tuple[int, str]:
    stream, separator, place = text.partition("=")
    if not separator or not stream.isdigit():
        parser.error(f"{option} is {text!r}; it must be STREAM=VALUE, such as 1=239.192.1.1:5001")
    return int(stream), place
