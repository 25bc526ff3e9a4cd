"""The commands of `tandemfeed admin`, and the modules that add them.

To add commands, write a module with a function `add_commands(adder: CommandAdder) -> None`, and list it in ROOMS with
the names of its commands. Only the module of the command that runs is imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

from google.protobuf.message import Message

from tandemfeed.admin_server.command.confirmation import add_confirmation, confirm
from tandemfeed.admin_server.command.output.replies import print_json
from tandemfeed.admin_server.command.server_calls import ServerCalls
from tandemfeed.transport.process_shell import add_login_arguments

# Module -> the commands that it adds.
ROOMS = {
    "tandemfeed.admin_server.command.commands.showing": ("status", "watch", "feeds", "adapters", "streams", "history"),
    "tandemfeed.admin_server.command.commands.operating": (
        "failover",
        "fail",
        "drain",
        "undrain",
        "readmit",
        "grant-contributions",
        "throttle",
    ),
    "tandemfeed.admin_server.command.commands.access": ("clients", "grants", "keys"),
    "tandemfeed.admin_server.policy.commands": ("policy",),
    "tandemfeed.admin_server.audit.commands": ("audit",),
    "tandemfeed.admin_server.identity.commands": ("identity", "cert"),
    "tandemfeed.admin_server.command.commands.secrets": ("hash-secret",),
}

Run = Callable[[argparse.Namespace, ServerCalls], int]
RunLocally = Callable[[argparse.Namespace], int]


class CommandAdder:
    """Adds commands to the parser of `tandemfeed admin`, or sub-commands to one of its commands."""

    def __init__(self, parser: argparse.ArgumentParser, dest: str = "command") -> None:
        self._commands = parser.add_subparsers(dest=dest, required=True, metavar="COMMAND")

    def group(self, name: str, summary: str) -> CommandAdder:
        """Add a command that has sub-commands; return what adds them."""
        return CommandAdder(self._add(name, summary), dest="step")

    def local(self, name: str, summary: str, run: RunLocally) -> argparse.ArgumentParser:
        """Add a command that does not call the server."""
        added = self._add(name, summary)
        added.set_defaults(run_locally=run)
        return added

    def calling(self, name: str, summary: str, run: Run) -> argparse.ArgumentParser:
        """Add a command that calls the server as it needs; `run` returns the exit status."""
        added = self._add(name, summary)
        added.add_argument("--json", action="store_true", help="print the reply as one JSON object")
        add_login_arguments(added)
        added.set_defaults(run=run)
        return added

    def asking(
        self,
        name: str,
        summary: str,
        request: Callable[[argparse.Namespace], Message],
        show: Callable[[argparse.Namespace, Any], object],
        hurts: Callable[[argparse.Namespace], str] | None = None,
    ) -> argparse.ArgumentParser:
        """Add a command that sends one request and prints the reply.

        Args:
            request: makes the request; the server's contracts say which method takes it.
            show: prints the reply for a person; `--json` prints every field of it.
            hurts: says what the command is about to do, so that a person, or `--yes`, confirms it; empty: with these
                arguments, it hurts nothing.
        """

        def run(arguments: argparse.Namespace, server: ServerCalls) -> int:
            if hurts is not None and (what := hurts(arguments)):
                confirm(arguments, what)
            reply = server.call(request(arguments))
            if arguments.json:
                print_json(reply)
            else:
                show(arguments, reply)
            return 0

        added = self.calling(name, summary, run)
        if hurts is not None:
            add_confirmation(added)
        return added

    def _add(self, name: str, summary: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = self._commands.add_parser(
            name, allow_abbrev=False, help=summary, description=summary
        )
        return added


def add_commands(adder: CommandAdder, wanted: str | None = None) -> None:
    """Add the commands of the module that has the wanted one; of every module if none has it."""
    chosen = [module for module, names in ROOMS.items() if wanted in names]
    for module in chosen or ROOMS:
        import_module(module).add_commands(adder)
