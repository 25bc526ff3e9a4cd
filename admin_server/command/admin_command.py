"""`tandemfeed admin` shows and operates feeds: it parses, runs a command, and says why a call failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import grpc

from tandemfeed.admin_server.command.registry import CommandAdder, add_commands
from tandemfeed.admin_server.command.server_calls import ServerCalls
from tandemfeed.transport.calls.credentials import CredentialUnusable
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.reachability import Unreachable, failure_text
from tandemfeed.transport.process_shell import connection_from


def main(argv: Sequence[str] | None = None) -> int:
    """Show the state of feeds and adapters, hand over between adapters, fail and readmit them, manage the policy."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed admin", description=main.__doc__)
    add_commands(CommandAdder(parser), wanted=words[0] if words else None)
    arguments = parser.parse_args(words)
    if hasattr(arguments, "run_locally"):
        status: int = arguments.run_locally(arguments)
        return status
    connection = connection_from(parser, arguments)
    try:
        status = arguments.run(arguments, ServerCalls(connection))
    except (AuthenticationRefused, CredentialUnusable, Unreachable) as refused:
        parser.exit(2, f"admin: {refused}\n")
    except grpc.RpcError as error:
        parser.exit(2, f"admin: {failure_text(error, connection.admin, connection.ca_pem)}\n")
    return status
