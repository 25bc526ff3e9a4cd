"""The subscriber of the demo and the drills: a client application that records everything it receives.

For each source message it records the identity and some fields, so that the content can later be compared with the
recording.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib import Batch, Subscription, connect
from tandemfeed.client_lib.recording.recorder import DeliveryRecorder
from tandemfeed.client_lib.stream.stream_trust import VerifyMode
from tandemfeed.client_lib.stream.transport_choice import Transport
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
CONTENT_DTYPE = np.dtype(
    [
        ("stream", "<u2"),
        ("source_seq", "<u8"),
        ("symbol", "S8"),
        ("event_at", "<u8"),
        ("value", "<i8"),
        ("session", "<u4"),
    ]
)
VALUE_FIELDS = {"TradeTick": "price", "QuoteTick": "bidPrice", "OrderEvent": "price"}


class ContentRecorder:
    """Records source identity, symbol, event time and a price of each message."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.void]] = []
        self._times: list[tuple[int, int]] = []  # per part: received (monotonic clock), messages

    def take(self, batch: Batch) -> None:
        """Copy the fields of a batch."""
        spans = batch.sources()
        for model, rows in batch.arrays():
            part = np.empty(len(rows), CONTENT_DTYPE)
            span = spans[0]  # adapters put one run in a packet
            part["stream"] = span.source_stream_id
            part["source_seq"] = batch.packet.runs[0].first_source_seq + rows["source_offset"].astype(np.uint64)
            part["session"] = batch.packet.session
            part["symbol"], part["event_at"] = rows["symbol"], rows["eventAt"]
            part["value"] = rows[VALUE_FIELDS[model.name]]
            self._parts.append(part)
            self._times.append((batch.received_monotonic_ns, len(part)))

    def save(self, path: Path) -> None:
        """Write two arrays in order of delivery: the messages to `path`, their receive times to NAME.times.npy."""
        np.save(path, np.concatenate(self._parts) if self._parts else np.empty(0, CONTENT_DTYPE))
        times = np.array(self._times, np.int64).reshape(-1, 2)
        np.save(path.with_suffix(".times.npy"), np.repeat(times[:, 0], times[:, 1]))


class EndRequest:
    """A request to end when certain source messages have been delivered.

    One JSON line on standard input: {"until": {source_stream_id: count sent, …}, "within_s": limit, "session": number}.
    Without "session" the counts apply to the current session. Messages that have not come in time count as missing.
    """

    def __init__(self) -> None:
        self._until: dict[int, int] | None = None
        self._session = 0
        self._give_up_at_s = 0.0
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

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

    def _read(self) -> None:
        for line in sys.stdin:
            request = json.loads(line)
            self._give_up_at_s = time.monotonic() + float(request["within_s"])
            self._session = int(request.get("session", 0))
            self._until = {int(stream): int(count) for stream, count in request["until"].items()}


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
    parser.add_argument("--through-days", action="store_true", help="continue after the end of a session")
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    request_short_slices()
    configure_logging("witness", arguments.log_level)
    connection = connection_from(parser, arguments)
    # The records have no reference cycles. Searching them would cause ever longer pauses and distort the measurement.
    gc.disable()
    stop = StopSignal()
    content = ContentRecorder()
    recorder = DeliveryRecorder(on_batch=content.take)
    request = EndRequest()
    with (
        connect(
            admin=connection.admin,
            ca=connection.ca_pem,
            identity=connection.identity,
            secret=connection.credential,
            interface=connection.interface,
        ) as client,
        client.subscribe(
            feed=arguments.feed, start=arguments.start, verify=arguments.verify, transport=arguments.transport
        ) as subscription,
    ):
        announce_ready(feed=arguments.feed)
        is_flowing = False
        while not (stop.is_set or subscription.is_closed or request.is_met(subscription)):
            if subscription.has_ended and not arguments.through_days:
                break
            recorder.record(subscription.poll(POLL_S))
            if recorder.message_count and not is_flowing:
                is_flowing = True
                announce("flowing")
    recorder.save(arguments.record)
    content.save(arguments.record.with_suffix(".npy"))
    announce("recorded", file=str(arguments.record))
    return 0
