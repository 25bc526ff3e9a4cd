"""Show every loss that subscriptions of this user observed, also those that were made good."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import rich.box
from rich.console import Console
from rich.table import Table

from tandemfeed.client_lib.losses.loss import Loss, Outcome
from tandemfeed.client_lib.losses.loss_report import read_losses
from tandemfeed.client_lib.state_folder import state_folder

EXIT_REFUSED = 2
WIDTH_MIN = 190  # output that is not a terminal's must not be cut off


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns 0, or 2 if there is no report to read."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed losses", description=__doc__)
    folder = state_folder() / "losses"
    parser.add_argument("--folder", type=Path, default=folder, help="of the loss reports (default %(default)s)")
    parser.add_argument("--feed", default="", metavar="NAME", help="only losses of this feed")
    parser.add_argument("--since", type=_time, default=0, metavar="TIME", help="only since then: 2026-11-22T14:30Z")
    parser.add_argument("--lost", action="store_true", help="only what was not delivered")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each entry")
    arguments = parser.parse_args(argv)
    try:
        if not arguments.folder.is_dir():
            if arguments.folder != folder:
                raise FileNotFoundError(f"{arguments.folder} is not a folder")
            losses = []  # no subscription has observed one yet
        else:
            losses = read_losses(arguments.folder, arguments.feed)
    except OSError as refused:
        print(f"tandemfeed losses: {refused}", file=sys.stderr)
        return EXIT_REFUSED
    losses = [each for each in losses if each.last_at_ns >= arguments.since]
    if arguments.lost:
        losses = [each for each in losses if each.outcome == Outcome.LOST]
    if arguments.json:
        for each in losses:
            print(json.dumps(each.to_json()))
    elif losses:
        console = Console()
        console.width = console.width if console.is_terminal else max(console.width, WIDTH_MIN)
        console.print(_table(losses))
    else:
        print("no losses")
    return 0


def _table(losses: Sequence[Loss]) -> Table:
    headings = ("from (UTC)", "for", "feed", "topic", "what", "first", "last", "count", "cause", "adapter", "outcome")
    table = Table(*headings, box=rich.box.SIMPLE_HEAD, show_edge=False)
    for each in losses:
        at = datetime.fromtimestamp(each.first_at_ns // 1_000_000_000, UTC)
        unit = f"{each.unit} of stream {each.source_stream_id}" if each.source_stream_id else each.unit
        table.add_row(
            f"{at:%Y-%m-%d %H:%M:%S}.{each.first_at_ns // 1_000_000 % 1_000:03}",
            f"{(each.last_at_ns - each.first_at_ns) / 1e9:.3f} s",
            each.feed,
            each.topic,
            unit if each.times == 1 else f"{unit}, {each.times} times",
            f"{each.first}",
            f"{each.end - 1}",
            f"{each.count:,}",
            f"{each.cause}: {each.detail}" if each.detail else each.cause,
            each.adapter,
            each.outcome,
        )
    return table


def _time(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 2026-11-22T14:30:00Z") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * 1_000_000_000
