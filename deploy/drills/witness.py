"""The subscriber of the demo and the drills: a client application that records everything it receives.

The record is what the library delivered. Beside it is what the application was given (`application`), in the shape that
`--shape` names.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from tandemfeed.client_lib import Client, Item, Subscription
from tandemfeed.client_lib.commands.running import client_of
from tandemfeed.client_lib.reading.polling_thread import PolledItems
from tandemfeed.client_lib.recording.recorder import DeliveryRecorder
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.client_lib.stream.trust.stream_trust import VerifyMode
from tandemfeed.deploy.drills.application import READERS, Application, read, read_in_coroutine
from tandemfeed.runtime.threads import end_process, start_thread
from tandemfeed.transport.process_shell import (
    StopSignal,
    add_connection_arguments,
    announce,
    announce_ready,
    configure_logging,
    connection_from,
)
from tandemfeed.transport.scheduling import request_short_slices

POLL_S = 0.2
LOGIN_TIMEOUT_S = 60.0  # many subscribers may start on a small machine
WATCH_INTERVAL_S = 0.02  # once the end was requested
STOP_INTERVAL_S = 0.2  # until then
RECORD = "record"  # the shape of the demo, and of drills without --shape: it takes least from the machine
SHAPES = (RECORD, *READERS, "coroutine")


class EndRequest:
    """A request to end when certain source messages have been delivered.

    One JSON line on standard input: {"until": {source_stream_id: count sent, …}, "within_s": limit, "session": number}.
    Without "session" the counts apply to the current session. Messages that have not come in time count as missing.
    """

    def __init__(self) -> None:
        self._until: dict[int, int] | None = None
        self._is_requested = threading.Event()
        self._session = 0
        self._give_up_at_s = 0.0
        start_thread(self._read, "stdin", end_process)

    def is_met(self, subscription: Subscription[Any]) -> bool:
        """True if a request has come, and either its messages have all been delivered or its time is over."""
        if self._until is None:
            return False
        channels = subscription.statistics().channels.values()
        next_seqs = {stream: seq for channel in channels for stream, seq in channel.next_source_seqs.items()}
        return (
            all(self._session in (0, channel.session) for channel in channels)
            and all(next_seqs.get(stream, 1) > count for stream, count in self._until.items())
        ) or time.monotonic() > self._give_up_at_s

    def watch(self, subscription: Subscription[Any], application: Application, is_stopped: Callable[[], bool]) -> None:
        """Stop a subscription whose reader waits for messages, when the application has what was requested."""

        def is_over() -> bool:
            if self._until is None:
                return is_stopped()
            is_complete = application.has_all(self._until, self._session)
            return is_stopped() or is_complete or time.monotonic() > self._give_up_at_s

        def watch() -> None:
            while not is_over():
                if self._is_requested.wait(STOP_INTERVAL_S):
                    time.sleep(WATCH_INTERVAL_S)
            subscription.stop()

        start_thread(watch, "watch", end_process)

    def _read(self) -> None:
        for line in sys.stdin:
            request = json.loads(line)
            self._give_up_at_s = time.monotonic() + float(request["within_s"])
            self._session = int(request.get("session", 0))
            self._until = {int(stream): int(count) for stream, count in request["until"].items()}
            self._is_requested.set()


def main(argv: Sequence[str] | None = None) -> int:
    """Record everything a feed delivers, until its end or until a request on standard input is met."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed witness", description=main.__doc__)
    parser.add_argument("--feed", required=True, metavar="NAME", help="name of the feed")
    parser.add_argument(
        "--record", required=True, type=Path, metavar="FILE", help="write the record to FILE at the end"
    )
    parser.add_argument(
        "--start",
        default="first",
        choices=("live", "first"),
        help="start with live messages, or with the session's first message (default %(default)s)",
    )
    parser.add_argument(
        "--verify",
        choices=get_args(VerifyMode),
        default="alarm",
        help="verification mode; signed: record only messages that an adapter has signed (default %(default)s)",
    )
    parser.add_argument(
        "--transport",
        choices=get_args(Transport),
        default="multicast",
        help="how to receive the adapters (default %(default)s)",
    )
    parser.add_argument(
        "--shape", choices=SHAPES, default=RECORD, help="how the application reads (default %(default)s)"
    )
    parser.add_argument("--through-days", action="store_true", help="continue after the end of a session")
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    request_short_slices()
    configure_logging("witness", arguments.log_level)
    connection = connection_from(parser, arguments)
    client = client_of(connection, timeout_s=LOGIN_TIMEOUT_S)
    application = Application(lambda: announce("flowing"), starts_live=arguments.start == "live")
    # The records have no reference cycles. Searching them would cause ever longer pauses and distort the measurement.
    gc.disable()
    if arguments.shape == RECORD:
        recorder = _record(client, arguments, application)
    else:
        recorder = _read(client, arguments, application)
    recorder.save(arguments.record)
    application.save(arguments.record.with_suffix(".npy"))
    counts = {name: getattr(application, name) for name in ("delivered", "missing", "repeated")}
    announce("recorded", file=str(arguments.record), **counts)
    return 0


def _subscribe(client: Client, arguments: argparse.Namespace) -> Subscription[Any]:
    return client.subscribe(
        feed=arguments.feed,
        start=arguments.start,
        verify=arguments.verify,
        transport=arguments.transport,
        timeout_s=LOGIN_TIMEOUT_S,
    )


def _record(client: Client, arguments: argparse.Namespace, application: Application) -> DeliveryRecorder:
    """Poll, and record every item."""
    stop, request = StopSignal(), EndRequest()
    recorder = DeliveryRecorder(on_batch=application.take_batch)
    with client, _subscribe(client, arguments) as subscription:
        announce_ready(feed=arguments.feed)
        while not (stop.is_set or subscription.is_closed or request.is_met(subscription)):
            if subscription.has_ended and not arguments.through_days:
                break
            recorder.record(subscription.poll(POLL_S))
    return recorder


class Recorded:
    """What every shape polls; it records the items on the way. In a coroutine, a thread polls."""

    def __init__(self, polled: PolledItems, recorder: DeliveryRecorder) -> None:
        self._polled, self._recorder = polled, recorder

    @property
    def is_stopping(self) -> bool:
        """No more will come."""
        return self._polled.is_stopping

    def poll(self, timeout_s: float | None) -> list[Item]:
        """Wait for items, and record them."""
        items = self._polled.poll(timeout_s)
        self._recorder.record(items)
        return items

    def stop(self) -> None:
        """Make `poll` return."""
        self._polled.stop()


def _read(client: Client, arguments: argparse.Namespace, application: Application) -> DeliveryRecorder:
    """Read in a shape; what the library delivers to it is recorded on the way."""
    stop, request = StopSignal(), EndRequest()
    recorder = DeliveryRecorder()

    def begin(client: Client) -> Subscription[Any]:
        subscription = _subscribe(client, arguments)
        opened = subscription.open_items

        def open_recorded() -> Recorded | None:
            polled = opened()
            return None if polled is None else Recorded(polled, recorder)

        subscription.open_items = open_recorded  # type: ignore[assignment, method-assign]
        request.watch(subscription, application, lambda: stop.is_set)
        announce_ready(feed=arguments.feed)
        return subscription

    if arguments.shape == "coroutine":
        asyncio.run(read_in_coroutine(client, begin, application))
    else:
        read(arguments.shape, client, begin, application)
    return recorder
