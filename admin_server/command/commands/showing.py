"""Commands that show feeds."""

from __future__ import annotations

import argparse
import json
import sys

from tandemfeed.admin_server.alerts import SECOND, Alert, Level, Thresholds, alerts_of
from tandemfeed.admin_server.command.output.replies import print_json
from tandemfeed.admin_server.command.registry import CommandAdder
from tandemfeed.admin_server.command.server_calls import ServerCalls
from tandemfeed.v1 import admin_pb2


def add_commands(adder: CommandAdder) -> None:
    """Add the commands that show feeds."""
    status = adder.calling("status", "show what is wrong with feeds, their adapters, sources and positions", _status)
    status.add_argument("--feed", default="", metavar="NAME", help="show only this feed")
    status.add_argument(
        "--check",
        action="store_true",
        help="for monitoring: print one line; exit status 0 ok, 1 warning, 2 critical, 3 unknown",
    )
    status.add_argument(
        "--source-silence",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="with --check, a source stream that is silent for longer is critical; 0: never (default %(default)g)",
    )
    watch = adder.calling("watch", "show the status, and show it again whenever it changes, until interrupted", _watch)
    watch.add_argument("--feed", default="", metavar="NAME", help="show only this feed")
    adder.calling("feeds", "show feeds with their channels and source streams", _feeds)
    adapters = adder.calling("adapters", "show adapters with their processes, addresses and resources", _adapters)
    adapters.add_argument("--feed", default="", metavar="NAME", help="show only this feed")
    streams = adder.calling("streams", "show channels with their addresses, positions and keys", _streams)
    streams.add_argument("--feed", default="", metavar="NAME", help="show only this feed")
    history = adder.calling("history", "show takeovers and role changes of a feed, the newest last", _history)
    history.add_argument("feed", metavar="FEED", help="name of the feed")
    history.add_argument("--last", type=int, default=40, metavar="N", help="how many; 0: all (default %(default)s)")


def _status(arguments: argparse.Namespace, server: ServerCalls) -> int:
    reply = server.call(admin_pb2.GetStatusRequest(feed=arguments.feed))
    if arguments.check:
        return _check(reply, arguments)
    if arguments.json:
        print_json(reply)
    else:
        from tandemfeed.admin_server.command.output.status_page import print_status

        print_status(reply)
    return 0


def _check(reply: admin_pb2.GetStatusReply, arguments: argparse.Namespace) -> int:
    thresholds = Thresholds(source_silence_ns=round(arguments.source_silence * SECOND))
    found = [
        alert._replace(text=f"{feed.feed.name}: {alert.text}")
        for feed in reply.feeds
        for alert in alerts_of(feed, thresholds)
    ]
    if not reply.feeds:
        found = [Alert(Level.UNKNOWN, text := "this identity may observe no feed", text)]
    worst = max((alert.level for alert in found), default=Level.OK)
    if arguments.json:
        alerts = [{"level": alert.level.name, "text": alert.text} for alert in found]
        print(json.dumps({"level": worst.name, "alerts": alerts}))
    else:
        texts = [alert.text for level in reversed(Level) for alert in found if alert.level is level]
        print(f"TANDEMFEED {worst.name} - {'; '.join(texts) or _healthy(reply)}")
    return int(worst)


def _healthy(reply: admin_pb2.GetStatusReply) -> str:
    return ", ".join(f"{feed.feed.name}: epoch {feed.epoch}, {len(feed.adapters)} adapters" for feed in reply.feeds)


def _watch(arguments: argparse.Namespace, server: ServerCalls) -> int:
    from tandemfeed.admin_server.command.commands.watching import watch

    watch(lambda: server.call(admin_pb2.GetStatusRequest(feed=arguments.feed)), is_json=arguments.json, out=sys.stdout)
    return 0


def _feeds(arguments: argparse.Namespace, server: ServerCalls) -> int:
    reply = server.call(admin_pb2.GetStatusRequest())
    if arguments.json:
        print_json(reply)
    else:
        from tandemfeed.admin_server.command.output.status_page import print_feeds

        print_feeds(reply)
    return 0


def _adapters(arguments: argparse.Namespace, server: ServerCalls) -> int:
    reply = server.call(admin_pb2.GetStatusRequest(feed=arguments.feed))
    if arguments.json:
        print_json(reply)
    else:
        from tandemfeed.admin_server.command.output.listings import print_adapters

        print_adapters(reply)
    return 0


def _streams(arguments: argparse.Namespace, server: ServerCalls) -> int:
    status = server.call(admin_pb2.GetStatusRequest(feed=arguments.feed))
    keys = server.call(admin_pb2.ListKeysRequest(feed=arguments.feed))
    if arguments.json:
        print_json(status, keys)
    else:
        from tandemfeed.admin_server.command.output.listings import print_streams

        print_streams(status, keys)
    return 0


def _history(arguments: argparse.Namespace, server: ServerCalls) -> int:
    reply = server.call(admin_pb2.GetHistoryRequest(feed=arguments.feed, count_max=max(arguments.last, 0)))
    if arguments.json:
        print_json(reply)
    else:
        from tandemfeed.admin_server.command.output.listings import print_history

        print_history(reply)
    return 0
