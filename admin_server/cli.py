"""`tandemfeed admin-server` runs the server; `tandemfeed admin` queries and operates it."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from tandemfeed.admin_server.metrics import FeedCollector
from tandemfeed.admin_server.policy.commands import add_policy_commands
from tandemfeed.admin_server.policy.commands import check as check_policy
from tandemfeed.admin_server.policy.commands import request_of as policy_request
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.records.state_folder import hash_secret
from tandemfeed.admin_server.records.zookeeper_options import add_zookeeper_arguments, zookeeper_from
from tandemfeed.admin_server.server import SUBSCRIBER_COUNT_MAX, AdminServer
from tandemfeed.admin_server.tables import print_feeds, print_status
from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import AuthenticationRefused, login
from tandemfeed.transport.calls.reachability import Unreachable, call_or_explain, failure_text
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.process_shell import (
    Connection,
    StopSignal,
    add_connection_arguments,
    add_process_arguments,
    announce_ready,
    configure_logging,
    connection_from,
    serve_metrics,
)
from tandemfeed.transport.scheduling import request_short_slices, tune_for_low_latency
from tandemfeed.transport.settings_file import SettingsError
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

ANSWER_TIMEOUT_S = 70  # a hand-over succeeds or fails within one lease term, which is at most a minute
LOGIN_TIMEOUT_S = 10.0  # a server that cannot be reached at all is reported within three seconds


def serve(argv: Sequence[str] | None = None) -> int:
    """Run the admin server until SIGTERM."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed admin-server", description=serve.__doc__)
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
    add_zookeeper_arguments(parser)
    add_process_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.subscriber_count_max < 1:
        parser.error(f"--subscriber-count-max is {arguments.subscriber_count_max}; it must be at least 1")
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
        )
    except (SettingsError, RecordsUnavailable, OSError) as refused:
        parser.exit(2, f"admin-server: {refused}\n")
    try:
        serve_metrics(arguments.metrics_port, FeedCollector(server.served))
    except OSError as refused:
        server.stop()
        parser.exit(2, f"admin-server: {refused}\n")
    tune_for_low_latency()
    announce_ready(admin=server.endpoint, ca=str(arguments.state / "ca.pem"))
    stop.wait()
    server.stop()
    return 0


def admin(argv: Sequence[str] | None = None) -> int:
    """Show the state of feeds and adapters, hand over between adapters, fail and readmit them, manage the policy."""
    parser = _admin_parser()
    arguments = parser.parse_args(argv)
    if arguments.command == "hash-secret":
        return _hash_secret()
    if (arguments.command, getattr(arguments, "step", "")) == ("policy", "check"):
        return check_policy(arguments)
    connection = connection_from(parser, arguments)
    request, show = _request(arguments)
    try:
        reply = _call(connection, request)
    except (AuthenticationRefused, Unreachable) as refused:
        parser.exit(2, f"admin: {refused}\n")
    except grpc.RpcError as error:
        parser.exit(2, f"admin: {failure_text(error, connection.admin, connection.ca_pem)}\n")
    if arguments.json:
        print(json.dumps(_as_dict(reply)))
    else:
        show(reply)
    return 0


def _as_dict(reply: Message) -> dict[str, Any]:
    """Protocol Buffers' JSON mapping, with the fields that are zero or empty: programs should find every field."""
    found: dict[str, Any] = MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def _admin_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed admin", description=admin.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, summary: str, commands: Any = commands) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(
            name, allow_abbrev=False, help=summary, description=summary
        )
        added.add_argument("--json", action="store_true", help="print the reply as one JSON object")
        add_connection_arguments(added)
        return added

    status = command("status", "show feeds with their adapters, epochs, positions and health")
    status.add_argument("--feed", default="", metavar="NAME", help="show only this feed")
    command("feeds", "show feeds with their channels and source streams").set_defaults(feed="")
    failover = command("failover", "hand over to a synchronised backup without losing a message")
    failover.add_argument("feed", metavar="FEED", help="name of the feed")
    failover.add_argument(
        "--to", default="", metavar="ADAPTER", help="the new active adapter (default: the best backup)"
    )
    fail = command("fail", "take an adapter out of its feed until it is readmitted; an active one hands over first")
    readmit = command("readmit", "return a failed adapter to its feed")
    for one in (fail, readmit):
        one.add_argument("feed", metavar="FEED", help="name of the feed")
        one.add_argument("adapter", metavar="ADAPTER", help="name of the adapter")
    fail.add_argument(
        "--reason", required=True, metavar="TEXT", help="sent to the adapter, recorded, and shown by status"
    )
    fail.add_argument("--force", action="store_true", help="fail it even if no synchronised backup is left")
    add_policy_commands(commands, command)
    commands.add_parser("hash-secret", allow_abbrev=False, help="read a secret and print the salted verifier to store")
    return parser


def _request(arguments: argparse.Namespace) -> tuple[Message, Callable[[Any], None]]:
    """The request for the server, and the function that prints its reply."""
    if arguments.command == "policy":
        return policy_request(arguments)
    feed: str = arguments.feed
    match arguments.command:
        case "failover":
            return admin_pb2.FailoverRequest(feed=feed, to=arguments.to), lambda reply: print(
                f"feed {feed}: {reply.active} is active in epoch {reply.epoch}"
            )
        case "fail":
            request = admin_pb2.FailAdapterRequest(
                feed=feed, adapter=arguments.adapter, reason=arguments.reason, force=arguments.force
            )
            return request, lambda _reply: print(f"feed {feed}: {arguments.adapter} is failed: {arguments.reason}")
        case "readmit":
            readmitted = admin_pb2.ReadmitAdapterRequest(feed=feed, adapter=arguments.adapter)
            return readmitted, lambda _reply: print(f"feed {feed}: {arguments.adapter} is readmitted")
        case "feeds":
            return admin_pb2.GetStatusRequest(), print_feeds
        case _:
            return admin_pb2.GetStatusRequest(feed=feed), print_status


def _call(connection: Connection, request: Message) -> Message:
    servers = AdminServers(connection.admin)
    known = servers, connection.ca_pem, connection.identity, connection.secret
    session = call_or_explain(
        lambda timeout_s: login(*known, timeout_s=timeout_s),
        servers.addresses,
        connection.ca_pem,
        timeout_s=LOGIN_TIMEOUT_S,
    )

    def ask(address: str, timeout_s: float) -> Message:
        with open_channel(address, connection.ca_pem, ADMIN_SERVER, session.bearer) as channel:
            operations = admin_pb2_grpc.OperationsStub(channel)
            policy = admin_pb2_grpc.PolicyAdministrationStub(channel)
            methods: dict[type[Message], Callable[..., Message]] = {
                admin_pb2.GetStatusRequest: operations.GetStatus,
                admin_pb2.FailoverRequest: operations.Failover,
                admin_pb2.FailAdapterRequest: operations.FailAdapter,
                admin_pb2.ReadmitAdapterRequest: operations.ReadmitAdapter,
                admin_pb2.ReloadPolicyRequest: policy.ReloadPolicy,
                admin_pb2.ExplainPolicyRequest: policy.ExplainPolicy,
                admin_pb2.ShowPolicyRequest: policy.ShowPolicy,
            }
            return methods[type(request)](request, timeout=timeout_s)

    return ask_active(servers, ask, timeout_s=ANSWER_TIMEOUT_S)


def _hash_secret() -> int:
    secret = getpass.getpass("secret: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not secret:
        print("admin: the secret is empty; enter one", file=sys.stderr)
        return 2
    print(json.dumps(hash_secret(secret)))
    return 0
