"""Commands that change which adapters serve a feed."""

from __future__ import annotations

import argparse
from typing import Any

from tandemfeed.admin_server.command.registry import CommandAdder
from tandemfeed.v1 import admin_pb2


def add_commands(adder: CommandAdder) -> None:
    """Add the commands that operate a feed."""
    failover = adder.asking(
        "failover",
        "hand over to a synchronised backup without losing a message",
        lambda arguments: admin_pb2.FailoverRequest(feed=arguments.feed, to=arguments.to),
        _print_failover,
    )
    failover.add_argument("feed", metavar="FEED", help="name of the feed")
    failover.add_argument(
        "--to", default="", metavar="ADAPTER", help="the new active adapter (default: the best backup)"
    )
    fail = adder.asking(
        "fail",
        "take an adapter out of its feed until it is readmitted; an active one hands over first",
        _fail_request,
        lambda asked, _: print(f"feed {asked.feed}: {asked.adapter} is failed: {asked.reason}"),
    )
    _add_adapter(fail)
    fail.add_argument(
        "--reason", required=True, metavar="TEXT", help="sent to the adapter, recorded, and shown by status"
    )
    fail.add_argument("--force", action="store_true", help="fail it even if no synchronised backup is left")
    readmit = adder.asking(
        "readmit",
        "return a failed adapter to its feed",
        lambda arguments: admin_pb2.ReadmitAdapterRequest(feed=arguments.feed, adapter=arguments.adapter),
        lambda asked, _: print(f"feed {asked.feed}: {asked.adapter} is readmitted"),
    )
    _add_adapter(readmit)


def _add_adapter(command: argparse.ArgumentParser) -> None:
    command.add_argument("feed", metavar="FEED", help="name of the feed")
    command.add_argument("adapter", metavar="ADAPTER", help="name of the adapter")


def _print_failover(arguments: argparse.Namespace, reply: Any) -> None:
    print(f"feed {arguments.feed}: {reply.active} is active in epoch {reply.epoch}")


def _fail_request(arguments: argparse.Namespace) -> admin_pb2.FailAdapterRequest:
    return admin_pb2.FailAdapterRequest(
        feed=arguments.feed, adapter=arguments.adapter, reason=arguments.reason, force=arguments.force
    )
