"""Repeat the history of topics: at the speed at which it was sent, at another, or as fast as possible into files."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import datetime

from tandemfeed.client_lib.commands.outputs import add_output_arguments, open_output, require_kind
from tandemfeed.client_lib.commands.running import Interruption, client_of, run_command
from tandemfeed.client_lib.stream.starts import Start, utc
from tandemfeed.transport.process_shell import add_connection_arguments, configure_logging, connection_from


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns 0, or 2 if the cluster refuses access or does not answer."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed replay", description=__doc__)
    parser.add_argument("--feed", default="", metavar="NAME", help="the feed; needed if several have the topics")
    parser.add_argument("--topic", action="append", default=[], metavar="TOPIC", help="of this topic (repeatable)")
    parser.add_argument(
        "--from",
        dest="start",
        type=_time,
        metavar="TIME",
        help="what the source sent since then: 2026-11-22T14:30Z (default: since the session's first message)",
    )
    parser.add_argument("--to", type=_time, metavar="TIME", help="what the source sent before then (default: now)")
    parser.add_argument(
        "--speed",
        type=_speed,
        default=0.0,
        metavar="N",
        help="1: as recorded, 10: ten times as fast; 0: without waiting (default)",
    )
    add_output_arguments(parser, "text")
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    connection = connection_from(parser, arguments)
    configure_logging("replay", arguments.log_level)
    start: Start = arguments.start or "first"

    def work() -> int:
        with (
            Interruption() as interruption,
            client_of(connection) as client,
            open_output(arguments) as output,
        ):
            until = arguments.to or time.time_ns()
            subscription = client.subscribe(
                arguments.topic, feed=arguments.feed, start=start, until=until, speed=arguments.speed
            )
            interruption.set_target(subscription)
            require_kind(arguments, subscription.classes)
            while not subscription.is_closed:
                output.write(subscription.poll())
            return 0

    return run_command("replay", work)


def _time(text: str) -> datetime:
    try:
        return utc(datetime.fromisoformat(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 2026-11-22T14:30:00Z") from None


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed; expected 0 or a positive number")
    return speed
