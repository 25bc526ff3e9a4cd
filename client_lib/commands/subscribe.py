"""Subscribe to a feed: show a live view, statistics, or the messages in a format; optionally record them."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.live import Live as LiveDisplay

from tandemfeed.client_lib.commands.live_view import LiveFigures, alarm_text, render
from tandemfeed.client_lib.commands.outputs import add_output_arguments, open_output, require_kind
from tandemfeed.client_lib.commands.running import EXIT_REFUSED, Interruption, client_of, run_command
from tandemfeed.client_lib.items import Batch, Filled, Item, Revoked
from tandemfeed.client_lib.reading.lag import OnLag
from tandemfeed.client_lib.recording.recorder import DeliveryRecorder
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.client_lib.stream.starts import Start, utc
from tandemfeed.client_lib.stream.subscription import Subscription
from tandemfeed.client_lib.stream.trust.stream_trust import Distrusted, VerifyMode
from tandemfeed.feedcore.merge.config import CompareMode
from tandemfeed.feedcore.merge.effects import Diverged
from tandemfeed.transport.metrics import CounterCollector, serve_metrics
from tandemfeed.transport.process_shell import (
    add_connection_arguments,
    alone_with,
    announce_ready,
    configure_logging,
    connection_from,
)
from tandemfeed.transport.scheduling import request_short_slices, tune_for_low_latency

INTERVAL_NS = 1_000_000_000
NAMED_STARTS: dict[str, Start] = {"live": "live", "first": "first", "snapshot": "snapshot"}
EXIT_INCOMPLETE = 3
ALARMS_SHOWN = 10  # every packet of a faulty adapter may differ


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns 0 after a normal end, 2 if the cluster refuses or revokes access or does not answer, 3 if
    the feed ended before `--count` messages."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    connection = connection_from(parser, arguments)
    request_short_slices()
    configure_logging("subscribe", arguments.log_level)

    def work() -> int:
        with (
            Interruption() as interruption,
            _sole_recorder(arguments.record),
            client_of(connection) as client,
        ):
            subscription = client.subscribe(
                arguments.topic,
                feed=arguments.feed,
                start=_start(arguments.start),
                on_lag=arguments.on_lag,
                confirm=arguments.confirm,
                compare=arguments.compare,
                verify=arguments.verify,
                transport=arguments.transport,
            )
            interruption.set_target(subscription)
            require_kind(arguments, subscription.classes)
            tune_for_low_latency()
            return _follow(subscription, arguments, interruption)

    return run_command("subscribe", work)


def _sole_recorder(path: Path | None) -> contextlib.AbstractContextManager[None]:
    """Refuse a record that cannot be written, or that another process will write, before anything is recorded."""
    if path is None:
        return contextlib.nullcontext()
    return alone_with(path.with_suffix(".npz"), f"another process records to {path}; choose another file")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed subscribe", description=__doc__)
    parser.add_argument("--feed", default="", metavar="NAME", help="the feed; needed if several have the topics")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help="subscribe only to this topic (repeatable; default: every topic that the policy grants)",
    )
    parser.add_argument(
        "--start",
        action="append",
        default=[],
        type=_start_part,
        metavar="live|first|snapshot|TIME|TOPIC=SEQ",
        help="begin live, with the session's first message, with the last message of each symbol, with what the source "
        "sent since a time (2026-11-22T14:30Z), also in a former session, or a topic with a message_seq, of a "
        "former session as TOPIC=SESSION/SEQ (repeatable; default live)",
    )
    parser.add_argument(
        "--confirm",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: deliver only messages that two adapters sent identically (default %(default)s)",
    )
    parser.add_argument(
        "--compare",
        choices=get_args(CompareMode),
        default="full",
        help="which second copies to compare with the first; a difference raises an alarm (default %(default)s)",
    )
    parser.add_argument(
        "--verify",
        choices=get_args(VerifyMode),
        default="alarm",
        help="signed: deliver only packets that their adapter has signed; alarm: deliver immediately, and raise an "
        "alarm when a signature does not match or does not arrive (default %(default)s)",
    )
    parser.add_argument(
        "--transport",
        choices=get_args(Transport),
        default="auto",
        help="auto: multicast, and unicast to adapters from which no multicast arrives (default %(default)s)",
    )
    parser.add_argument(
        "--on-lag",
        choices=get_args(OnLag),
        default="replay",
        help="what to do with messages that arrive faster than they are printed (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print statistics, one JSON line per second")
    add_output_arguments(parser, None)
    parser.add_argument(
        "--count", type=_message_count, metavar="N", help="stop after exactly N messages, of --kind if it is given"
    )
    parser.add_argument("--until-end", action="store_true", help="stop when the feed ends")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="record deliveries in FILE (.npz), and events in a .json file next to it",
    )
    add_connection_arguments(parser)
    return parser


def _start_part(text: str) -> Start:
    topic, _, message = text.rpartition("=")
    session, _, number = message.rpartition("/")
    if text in NAMED_STARTS:
        return NAMED_STARTS[text]
    with contextlib.suppress(ValueError):
        return utc(datetime.fromisoformat(text))
    numbers = (session, number) if "/" in message else (number,)
    if not topic or not all(each.isascii() and each.isdecimal() and int(each) for each in numbers):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not valid; use live, first, snapshot, a time, TOPIC=SEQ or TOPIC=SESSION/SEQ, SEQ from 1 on"
        )
    return {topic: (int(session), int(number)) if session else int(number)}


def _start(parts: list[Start]) -> Start:
    """The one start that was given, or the first messages of several topics."""
    firsts = {topic: number for part in parts if isinstance(part, dict) for topic, number in part.items()}
    others = [part for part in parts if not isinstance(part, dict)]
    return firsts or (others[-1] if others else "live")


def _message_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages; expected 1, 2, 3, …")
    return int(text)


def _follow(subscription: Subscription[Any], arguments: argparse.Namespace, interruption: Interruption) -> int:
    """Read until the end, and show the items as the arguments say."""
    serve_metrics(arguments.metrics_port, CounterCollector(subscription.counters))
    recorder = DeliveryRecorder() if arguments.record else None
    figures = LiveFigures(subscription)
    status = 0
    with _output(arguments, subscription, figures) as (show_items, show_interval):
        next_interval_ns = time.monotonic_ns() + INTERVAL_NS
        missing, alarms = arguments.count, 0
        while not subscription.is_closed and missing != 0:
            items = subscription.poll(max(0, next_interval_ns - time.monotonic_ns()) / 1e9)
            if missing is not None:
                items, missing = _first_messages(items, missing, arguments.kind)
            figures.take(items)
            if recorder is not None:
                recorder.record(items)
            show_items(items)
            for item in items:
                if isinstance(item, Diverged | Distrusted) and (alarms := alarms + 1) <= ALARMS_SHOWN:
                    print(f"tandemfeed subscribe: {alarm_text(item)}", file=sys.stderr)
            if time.monotonic_ns() >= next_interval_ns:
                next_interval_ns += INTERVAL_NS
                show_interval()
            if arguments.until_end and subscription.has_ended:
                break
            for item in items:
                if isinstance(item, Revoked):
                    print(f"tandemfeed subscribe: revoked: {item.reason}", file=sys.stderr)
                    status = EXIT_REFUSED if item.is_last else status
        show_interval()
    if recorder is not None:
        recorder.save(arguments.record)
    if missing and not status and not interruption.is_stopped:
        have = arguments.count - missing
        print(f"tandemfeed subscribe: the feed ended after {have} of {arguments.count} messages", file=sys.stderr)
        return EXIT_INCOMPLETE
    return status


def _first_messages(items: Iterable[Item], message_count: int, kind: str) -> tuple[list[Item], int]:
    """The items up to that many messages of a kind (empty: of any), and how many messages are still missing."""
    chosen: list[Item] = []
    for item in items:
        batch = item.batch if isinstance(item, Filled) else item
        if not isinstance(batch, Batch):
            chosen.append(item)
            continue
        counted = _places(batch, kind)
        if len(counted) < message_count:
            chosen.append(item)
            message_count -= len(counted)
            continue
        first = batch.first_messages(counted[message_count - 1] + 1)
        chosen.append(Filled(first) if isinstance(item, Filled) else first)
        return chosen, 0
    return chosen, message_count


def _places(batch: Batch, kind: str) -> Sequence[int]:
    """The places of a batch's messages of a kind; empty: of all."""
    if not kind:
        return range(batch.message_count)
    return [place for place, message in enumerate(batch.messages()) if type(message).__name__ == kind]


@contextlib.contextmanager
def _output(
    arguments: argparse.Namespace, subscription: Subscription[Any], figures: LiveFigures
) -> Iterator[tuple[Callable[[Iterable[Item]], None], Callable[[], None]]]:
    """The functions to call for the items of each poll, and each second."""
    if arguments.format is not None:
        with open_output(arguments) as output:
            yield output.write, lambda: None
    elif arguments.json:
        announce_ready(feed=subscription.grant.feed_name, groups=subscription.statistics().groups)
        yield (lambda _items: None), (lambda: print(json.dumps(figures.interval()), flush=True))
    else:
        names = dict(subscription.grant.source_stream_names)
        with LiveDisplay(console=Console(), auto_refresh=False) as display:
            yield (
                lambda _items: None,
                lambda: display.update(render(figures.interval(), names, figures.last_events), refresh=True),
            )
