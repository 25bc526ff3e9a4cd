"""The demo's and drills' subscriber: an application on the client library that writes down everything it is delivered.

Per source message it keeps identity and the fields that came, so that afterwards the content can be held against what
the source sent.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_lib import Batch, connect
from client_lib.recorder import DeliveryRecorder
from transport.process_shell import (
    StopSignal,
    add_connection_arguments,
    announce,
    announce_ready,
    configure_logging,
    connection_from,
)

POLL_S = 0.2
CONTENT_DTYPE = np.dtype(
    [("stream", "<u2"), ("source_seq", "<u8"), ("symbol", "S8"), ("event_at", "<u8"), ("value", "<i8")]
)
VALUE_FIELDS = {"TradeTick": "price", "QuoteTick": "bidPrice", "OrderEvent": "price"}


class ContentTape:
    """What came, per message: source identity, symbol, event time and a price."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.void]] = []

    def take(self, batch: Batch) -> None:
        """Copy the fields of a batch."""
        spans = batch.sources()
        for model, rows in batch.arrays():
            part = np.empty(len(rows), CONTENT_DTYPE)
            span = spans[0]  # adapters put one run in a packet
            part["stream"] = span.source_stream_id
            part["source_seq"] = batch.packet.runs[0].first_source_seq + rows["source_offset"].astype(np.uint64)
            part["symbol"], part["event_at"] = rows["symbol"], rows["eventAt"]
            part["value"] = rows[VALUE_FIELDS[model.name]]
            self._parts.append(part)

    def save(self, path: Path) -> None:
        """Write one array, in order of delivery."""
        np.save(path, np.concatenate(self._parts) if self._parts else np.empty(0, CONTENT_DTYPE))


def main(argv: Sequence[str] | None = None) -> int:
    """Record a feed from its first message to its end."""
    parser = argparse.ArgumentParser(prog="tandemfeed witness", description=main.__doc__)
    parser.add_argument("--feed", required=True, metavar="NAME", help="the feed")
    parser.add_argument("--record", required=True, type=Path, metavar="FILE", help="written at the end")
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    configure_logging("witness", arguments.log_level)
    connection = connection_from(parser, arguments)
    stop = StopSignal()
    content = ContentTape()
    recorder = DeliveryRecorder(on_batch=content.take)
    with (
        connect(
            admin=connection.admin,
            ca=connection.ca_pem,
            identity=connection.identity,
            secret=connection.secret,
            interface=connection.interface,
        ) as client,
        client.subscribe(arguments.feed, start=1) as subscription,
    ):
        announce_ready(feed=arguments.feed)
        while not (stop.is_set or subscription.has_ended or subscription.is_closed):
            recorder.record(subscription.poll(POLL_S))
    recorder.save(arguments.record)
    content.save(arguments.record.with_suffix(".npy"))
    announce("recorded", file=str(arguments.record))
    return 0
