"""`tandemfeed admin` shows and operates feeds: it parses, runs a command, and says why a call failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import grpc

from tandemfeed.admin_server.alerts import Level
from tandemfeed.admin_server.command.confirmation import NotConfirmed
from tandemfeed.admin_server.command.registry import CommandAdder, add_commands
from tandemfeed.admin_server.command.server_calls import ServerCalls
from tandemfeed.transport.calls.credentials import CredentialUnusable
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.reachability import Unreachable, failure_text
from tandemfeed.transport.process_shell import connection_from


def main(argv: Sequence[str] | None = None) -> int:
    """Show what feeds, adapters and clients do, operate them, and manage the policy."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--check" not in words:
        return _run(words)
    try:
        return _run(words)
    except SystemExit as ended:  # a monitoring system must not take a failed call for a critical state of the feed
        raise SystemExit(int(Level.UNKNOWN) if ended.code else 0) from None


def _run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed admin", description=main.__doc__)
    add_commands(CommandAdder(parser), wanted=words[0] if words else None)
    arguments = parser.parse_args(words)
    if hasattr(arguments, "run_locally"):
        status: int = arguments.run_locally(arguments)
        return status
    connection = connection_from(parser, arguments)
    try:
        status = arguments.run(arguments, ServerCalls(connection))
    except (AuthenticationRefused, CredentialUnusable, Unreachable, NotConfirmed) as refused:
        _refuse(arguments, str(refused))
    except grpc.RpcError as error:
        _refuse(arguments, failure_text(error, connection.admin, connection.ca_pem))
    return status


def _refuse(arguments: argparse.Namespace, text: str) -> NoReturn:
    """Say why a command was not done, and end the process."""
    if getattr(arguments, "check", False):
        print(f"TANDEMFEED {Level.UNKNOWN.name} - {text}")
    else:
        print(f"admin: {text}", file=sys.stderr)
    raise SystemExit(2)  # with --check, `main` makes it unknown
