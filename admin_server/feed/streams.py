"""The open streams of one feed: attending adapters, each with a queue that its stream drains, and subscriptions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tandemfeed.admin_server.policy.rules import Extent
from tandemfeed.admin_server.settings import AdapterSettings
from tandemfeed.transport.calls.notices.layout import GrantNotice
from tandemfeed.transport.calls.serving.stream_queue import StreamQueue
from tandemfeed.v1 import admin_pb2

# The limit for an adapter that does not read its stream: minutes of orders. Above it, only essential orders are queued.
ORDERS_WAITING_MAX = 1_000
# Above it, the stream ends: its adapter sends reports that need answers, and reads none of them.
ESSENTIAL_WAITING_MAX = 2_000
assert ESSENTIAL_WAITING_MAX > ORDERS_WAITING_MAX  # what may be lost is left out first
_CLIENT_IDS = itertools.count(1)


@dataclass(slots=True)
class Attendance:
    """One adapter's open stream.

    Attributes:
        report_id: the id of the newest report.
        heard_at_ns: when that report arrived, by this server's monotonic clock.
        notify: sends the adapter a grant notice, ahead of the order; never blocks.
        orders: the queue that the stream sends; None ends the stream.
        knows_subscriptions: it got the whole list of subscriptions, and every change since.
        is_overrun: it did not read its orders, so its stream ends.
    """

    adapter: AdapterSettings
    incarnation: int
    report_id: int
    heard_at_ns: int
    notify: Callable[[GrantNotice], None] = lambda _notice: None
    orders: StreamQueue[admin_pb2.AdapterOrder] = field(default_factory=StreamQueue)
    knows_subscriptions: bool = False
    is_overrun: bool = False

    def order(self, **order: object) -> None:
        """Send an essential order: about a lease, or about the adapter's state.

        An adapter that has read none of the last ESSENTIAL_WAITING_MAX gets no more, and its stream ends.
        """
        if self.is_overrun:
            return
        if self.orders.qsize() >= ESSENTIAL_WAITING_MAX:
            self.is_overrun = True
            self.end()
            return
        self.orders.put(admin_pb2.AdapterOrder(**order))  # type: ignore[arg-type]  # one field of the oneof, by name

    def grant(self, epoch: int, ttl_ns: int, epoch_proof: bytes) -> None:
        """Order the adapter to take the lease, by a notice as well. Args: epoch_proof: what it passes on to others."""
        self.notify(GrantNotice(self.incarnation, epoch, ttl_ns, self.report_id, epoch_proof))
        granted = admin_pb2.LeaseGranted(epoch=epoch, ttl_ns=ttl_ns, report_id=self.report_id, epoch_proof=epoch_proof)
        self.order(lease_granted=granted)

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


@dataclass(slots=True, eq=False)
class Subscriber:
    """One subscription of a client's call.

    Attributes:
        extents: how much it receives of each granted channel, by channel_id.
        notify: called when the grant may have changed. It and `end` may be called from any thread, with the feed's lock
            held, so they never block.
        end: called when this server stops serving the feed; with a text, when an operator ends the client's call.
        peer: the address of its connection.
        unicast_key: the CURVE public key with which it may connect to adapters; empty: it has none.
        client_id: names this subscription to operators.
    """

    identity: str
    extents: Mapping[int, Extent]
    notify: Callable[[], None] = field(repr=False)
    end: Callable[[str], None] = field(repr=False)
    peer: str = ""
    unicast_key: bytes = b""
    client_id: int = field(default_factory=partial(next, _CLIENT_IDS))
    since_unix_ns: int = field(default_factory=time.time_ns)
