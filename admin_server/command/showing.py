"""Commands that show feeds."""

from __future__ import annotations

from tandemfeed.admin_server.command.registry import CommandAdder
from tandemfeed.admin_server.command.status_page import print_feeds, print_status
from tandemfeed.v1 import admin_pb2


def add_commands(adder: CommandAdder) -> None:
    """Add the commands that show feeds."""
    status = adder.asking(
        "status",
        "show feeds with their adapters, epochs, positions and health",
        lambda arguments: admin_pb2.GetStatusRequest(feed=arguments.feed),
        lambda _, reply: print_status(reply),
    )
    status.add_argument("--feed", default="", metavar="NAME", help="show only this feed")
    adder.asking(
        "feeds",
        "show feeds with their channels and source streams",
        lambda _: admin_pb2.GetStatusRequest(),
        lambda _, reply: print_feeds(reply),
    )
