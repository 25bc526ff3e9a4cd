"""Commands that change which adapters serve a feed."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from tandemfeed.admin_server.command.registry import CommandAdder
from tandemfeed.v1 import admin_pb2

MEGABYTES_PER_S_END = 1e9  # the server's limit is lower; this only keeps the number in its field


def add_commands(adder: CommandAdder) -> None:
    """Add the commands that operate a feed."""
    failover = adder.asking(
        "failover",
        "hand over to a synchronised backup without losing a message",
        lambda arguments: admin_pb2.FailoverRequest(feed=arguments.feed, to=arguments.to),
        _print_failover,
        hurts=lambda asked: f"hand feed {asked.feed} over to {asked.to or 'its best backup'}",
    )
    failover.add_argument("feed", metavar="FEED", help="name of the feed")
    failover.add_argument(
        "--to", default="", metavar="ADAPTER", help="the new active adapter (default: the best backup)"
    )
    fail = adder.asking(
        "fail",
        "take an adapter out of its feed until it is readmitted; an active one hands over first",
        lambda asked: admin_pb2.FailAdapterRequest(**_of_adapter(asked), reason=asked.reason, force=asked.force),
        lambda asked, _: print(f"feed {asked.feed}: {asked.adapter} is failed: {asked.reason}"),
        hurts=lambda asked: f"take {asked.adapter} out of feed {asked.feed}",
    )
    drain = adder.asking(
        "drain",
        "keep an adapter out of leases for planned maintenance; an active one hands over first",
        lambda asked: admin_pb2.DrainAdapterRequest(**_of_adapter(asked), reason=asked.reason, force=asked.force),
        lambda asked, _: print(f"feed {asked.feed}: {asked.adapter} is drained: {asked.reason}"),
        hurts=lambda asked: f"drain {asked.adapter} of feed {asked.feed}, so that it cannot become active",
    )
    for command in (fail, drain):
        _add_adapter(command)
        command.add_argument("--reason", required=True, metavar="TEXT", help="recorded, and shown by status")
        command.add_argument("--force", action="store_true", help="do it even if no synchronised backup is left")
    undrain = adder.asking(
        "undrain",
        "let a drained adapter become active again",
        lambda asked: admin_pb2.UndrainAdapterRequest(**_of_adapter(asked)),
        lambda asked, _: print(f"feed {asked.feed}: {asked.adapter} is no longer drained"),
    )
    readmit = adder.asking(
        "readmit",
        "return a failed or drained adapter to its feed",
        lambda asked: admin_pb2.ReadmitAdapterRequest(**_of_adapter(asked)),
        lambda asked, _: print(f"feed {asked.feed}: {asked.adapter} is readmitted"),
    )
    for command in (undrain, readmit):
        _add_adapter(command)
    grant = adder.asking(
        "grant-contributions",
        "let a contribution gateway begin the next session although its copy of this one may lack messages",
        lambda asked: admin_pb2.GrantContributionsRequest(feed=asked.feed, gateway=asked.gateway, reason=asked.reason),
        lambda asked, _: print(f"feed {asked.feed}: {asked.gateway} may begin the next session when it reports"),
        hurts=lambda asked: f"give up what the gateway at {asked.gateway} lacks of the contributions to {asked.feed}",
    )
    grant.add_argument("feed", metavar="FEED", help="name of the feed")
    grant.add_argument("gateway", metavar="HOST:PORT", help="the gateway's address in the cluster file")
    grant.add_argument("--reason", required=True, metavar="TEXT", help="recorded in the feed's history")
    throttle = adder.asking(
        "throttle",
        "limit what adapters spend on replays, so that clients that catch up leave the network to the live streams",
        _throttle_request,
        _print_throttled,
    )
    throttle.add_argument("feed", metavar="FEED", help="name of the feed")
    throttle.add_argument(
        "adapter", nargs="?", default="", metavar="ADAPTER", help="name of the adapter (default: every adapter)"
    )
    limit = throttle.add_mutually_exclusive_group(required=True)
    limit.add_argument(
        "--replay-mb-per-s",
        type=_bytes_of_megabytes,
        dest="bytes_per_s",
        metavar="N",
        help="each adapter sends all its clients together so many MB/s",
    )
    limit.add_argument("--off", action="store_const", const=0, dest="bytes_per_s", help="remove the limit")


def _add_adapter(command: argparse.ArgumentParser) -> None:
    command.add_argument("feed", metavar="FEED", help="name of the feed")
    command.add_argument("adapter", metavar="ADAPTER", help="name of the adapter")


def _of_adapter(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"feed": arguments.feed, "adapter": arguments.adapter}


def _bytes_of_megabytes(text: str) -> int:
    try:
        return int(float(text) * 1e6) if 0 < float(text) < MEGABYTES_PER_S_END else _refuse(text)
    except ValueError:
        return _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"it is {text!r}; it must be a number of MB/s (--off removes the limit)")


def _throttle_request(arguments: argparse.Namespace) -> admin_pb2.ThrottleAdapterRequest:
    return admin_pb2.ThrottleAdapterRequest(**_of_adapter(arguments), replay_bytes_per_s=arguments.bytes_per_s)


def _print_throttled(arguments: argparse.Namespace, reply: admin_pb2.ThrottleAdapterReply) -> None:
    limit = f"at most {arguments.bytes_per_s / 1e6:g} MB/s each" if arguments.bytes_per_s else "no limit"
    print(f"feed {arguments.feed}: replays by {', '.join(reply.adapters)}: {limit}")


def _print_failover(arguments: argparse.Namespace, reply: Any) -> None:
    print(f"feed {arguments.feed}: {reply.active} is active in epoch {reply.epoch}")
