"""The open streams of one feed: attending adapters and subscribers, each with a queue that its stream drains."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from tandemfeed.admin_server.policy.rules import Extent
from tandemfeed.admin_server.settings import AdapterSettings
from tandemfeed.transport.calls.serving.stream_queue import StreamQueue
from tandemfeed.v1 import admin_pb2

# The limit for an adapter that does not read its stream: minutes of orders. Above it, only essential orders are queued.
ORDERS_WAITING_MAX = 1_000
_CLIENT_IDS = itertools.count(1)


@dataclass(slots=True)
class Attendance:
    """One adapter's open stream.

    Attributes:
        report_id: the id of the newest report.
        heard_at_ns: when that report arrived, by this server's monotonic clock.
        orders: the queue that the stream sends; None ends the stream.
        knows_subscriptions: it got the whole list of subscriptions, and every change since.
    """

    adapter: AdapterSettings
    incarnation: int
    report_id: int
    heard_at_ns: int
    orders: StreamQueue[admin_pb2.AdapterOrder] = field(default_factory=StreamQueue)
    knows_subscriptions: bool = False

    def order(self, **order: object) -> None:
        """Send an essential order: about a lease, or about the adapter's state."""
        self.orders.put(admin_pb2.AdapterOrder(**order))  # type: ignore[arg-type]  # one field of the oneof, by name

    def order_if_room(self, **order: object) -> None:
        """Send an order that may be lost; without renewals, an adapter stops by its own clock."""
        if self.has_room:
            self.order(**order)

    @property
    def has_room(self) -> bool:
        """Whether the adapter reads its stream."""
        return self.orders.qsize() < ORDERS_WAITING_MAX

    def end(self) -> None:
        """End the stream after the orders already queued."""
        self.orders.put(None)


@dataclass(slots=True)
class Subscriber:
    """One client's open stream.

    Attributes:
        extents: how much it receives of each granted channel, by channel_id.
        peer: the address of its connection.
        unicast_key: the CURVE public key with which it may connect to adapters; empty: it has none.
        client_id: names this stream to operators.
        end_reason: why an operator ended it; empty: its client may subscribe again at once.
        has_ended: whether it has ended, so that it must not get another update.
    """

    identity: str
    extents: Mapping[int, Extent]
    peer: str = ""
    unicast_key: bytes = b""
    client_id: int = field(default_factory=partial(next, _CLIENT_IDS))
    since_unix_ns: int = field(default_factory=time.time_ns)
    end_reason: str = ""
    updates: StreamQueue[bool] = field(default_factory=StreamQueue)
    has_ended: bool = False

    def notify(self) -> None:
        """Request an update. One waiting request is enough, because an update contains the state at its sending."""
        if self.updates.empty():
            self.updates.put(True)

    def end(self, reason: str = "") -> None:
        """End the stream. Args: reason: refuse the client with this text."""
        self.end_reason, self.has_ended = self.end_reason or reason, True
        self.updates.put(None)
