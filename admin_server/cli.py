"""`tandemfeed admin-server` runs the server; `tandemfeed admin` asks it."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.table import Table

from admin_server.metrics import FeedCollector
from admin_server.server import SUBSCRIBER_COUNT_MAX, AdminServer
from admin_server.settings import SettingsError
from admin_server.state_folder import hash_secret
from admin_server.zookeeper_options import add_zookeeper_arguments, zookeeper_from
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from transport.admin_servers import AdminServers, ask_active
from transport.login import AuthenticationRefused, login
from transport.process_shell import (
    Connection,
    StopSignal,
    add_connection_arguments,
    add_process_arguments,
    announce_ready,
    configure_logging,
    connection_from,
    serve_metrics,
)
from transport.rpc import open_channel


def serve(argv: Sequence[str] | None = None) -> int:
    """Run the stream administration server until SIGTERM."""
    parser = argparse.ArgumentParser(prog="tandemfeed admin-server", description=serve.__doc__)
    parser.add_argument("--cluster", required=True, type=Path, metavar="FILE", help="feeds, channels, adapters (TOML)")
    parser.add_argument("--policy", required=True, type=Path, metavar="FILE", help="who may do what (TOML)")
    parser.add_argument("--state", required=True, type=Path, metavar="DIR", help="private folder, made at first start")
    parser.add_argument(
        "--listen", default="127.0.0.1:7400", metavar="HOST:PORT", help="default %(default)s; port 0: any"
    )
    parser.add_argument(
        "--subscriber-count-max", type=int, default=SUBSCRIBER_COUNT_MAX, metavar="N", help="default %(default)s"
    )
    add_zookeeper_arguments(parser)
    add_process_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.subscriber_count_max < 1:
        parser.error(f"--subscriber-count-max: {arguments.subscriber_count_max} is less than 1")
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
        )
    except (SettingsError, OSError) as refused:
        parser.exit(2, f"admin-server: {refused}\n")
    try:
        serve_metrics(arguments.metrics_port, FeedCollector(server.served))
    except OSError as refused:
        server.stop()
        parser.exit(2, f"admin-server: --metrics-port {arguments.metrics_port}: {refused}\n")
    announce_ready(admin=server.endpoint, ca=str(arguments.state / "ca.pem"))
    stop.wait()
    server.stop()
    return 0


def admin(argv: Sequence[str] | None = None) -> int:
    """Ask the stream administration server."""
    parser = argparse.ArgumentParser(prog="tandemfeed admin", description=admin.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="feeds, adapters, epochs and positions")
    status.add_argument("--feed", default="", metavar="NAME", help="just this feed")
    status.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    add_connection_arguments(status)
    feeds = commands.add_parser("feeds", help="feeds, their channels and source streams")
    feeds.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    feeds.set_defaults(feed="")
    add_connection_arguments(feeds)
    commands.add_parser("hash-secret", help="read a secret, print the salted verifier to keep at rest")
    arguments = parser.parse_args(argv)
    if arguments.command == "hash-secret":
        return _hash_secret()
    connection = connection_from(status, arguments)
    try:
        reply = _ask_status(connection, arguments.feed)
    except AuthenticationRefused as refused:
        parser.exit(2, f"admin: {refused}\n")
    except grpc.RpcError as error:
        parser.exit(2, f"admin: {error.code().name}: {error.details()}\n")
    if arguments.json:
        print(json.dumps(MessageToDict(reply, preserving_proto_field_name=True)))
    elif arguments.command == "feeds":
        _print_feeds(reply)
    else:
        _print_status(reply)
    return 0


def _ask_status(connection: Connection, feed: str) -> admin_pb2.GetStatusReply:
    servers = AdminServers(connection.admin)
    token = login(servers, connection.ca_pem, connection.identity, connection.secret).token

    def ask(address: str, timeout_s: float) -> admin_pb2.GetStatusReply:
        with open_channel(address, connection.ca_pem, token) as channel:
            stub = admin_pb2_grpc.OperationsStub(channel)
            return stub.GetStatus(admin_pb2.GetStatusRequest(feed=feed), timeout=timeout_s)

    return ask_active(servers, ask, timeout_s=10)


def _print_status(reply: admin_pb2.GetStatusReply) -> None:
    console = Console()
    for feed in reply.feeds:
        table = Table(title=f"feed {feed.feed.name}: epoch {feed.epoch}, {feed.subscriber_count} subscribers")
        for heading in ("adapter", "state", "attending", "next message_seq", "health", "incarnation"):
            table.add_column(heading)
        for row in feed.adapters:
            positions = " ".join(str(channel.position.next_message_seq) for channel in row.state.channels)
            mark = " *" if row.adapter.adapter_id == feed.active_adapter_id else ""
            table.add_row(
                row.adapter.name + mark,
                row.adapter.replica_state,
                "yes" if row.attending else "no",
                positions,
                f"{row.state.health.score:.2f}",
                str(row.adapter.incarnation),
            )
        console.print(table)


def _print_feeds(reply: admin_pb2.GetStatusReply) -> None:
    console = Console()
    for row in reply.feeds:
        feed = row.feed
        table = Table(title=f"feed {feed.name} (id {feed.feed_id}), session {feed.session}")
        for heading in ("channel", "topic", "source stream", "group"):
            table.add_column(heading)
        streams = {stream.source_stream_id: stream for stream in feed.source_streams}
        for channel in feed.channels:
            for place, stream_id in enumerate(channel.source_stream_ids):
                names = ("", "") if place else (str(channel.channel_id), channel.topic)
                table.add_row(*names, f"{stream_id} {streams[stream_id].name}", streams[stream_id].group)
        console.print(table)


def _hash_secret() -> int:
    secret = getpass.getpass("secret: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not secret:
        print("admin: the secret is empty", file=sys.stderr)
        return 2
    print(json.dumps(hash_secret(secret)))
    return 0
