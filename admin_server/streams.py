"""The open streams of one feed: attending adapters and subscribers, each with a queue that its thread drains."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field

from admin_server.settings import AdapterSettings
from tandemfeed.v1 import admin_pb2

ORDERS_WAITING_MAX = (
    1_000  # an adapter that does not read: minutes of orders. Beyond, only what is decided for it is told
)


@dataclass(slots=True)
class Attendance:
    """One adapter's open stream.

    Attributes:
        report_id: of the newest report heard.
        heard_at_ns: when that was, by this server's monotonic clock.
        orders: what its stream's thread sends; None ends it.
    """

    adapter: AdapterSettings
    incarnation: int
    report_id: int
    heard_at_ns: int
    orders: queue.SimpleQueue[admin_pb2.AdapterOrder | None] = field(default_factory=queue.SimpleQueue)

    def order(self, **order: object) -> None:
        """Send what must be told: the fate of a lease or of the adapter."""
        self.orders.put(admin_pb2.AdapterOrder(**order))  # type: ignore[arg-type]  # one field of the oneof, by name

    def tell(self, **order: object) -> None:
        """Send what may be missed: without renewals an adapter stops by its own clock."""
        if self.orders.qsize() < ORDERS_WAITING_MAX:
            self.order(**order)

    def end(self) -> None:
        """End the stream behind what was sent."""
        self.orders.put(None)


@dataclass(slots=True)
class Subscriber:
    """One client's open stream. Attributes: channel_ids: what it was granted."""

    identity: str
    channel_ids: frozenset[int]
    updates: queue.SimpleQueue[bool | None] = field(default_factory=queue.SimpleQueue)

    def tell(self) -> None:
        """Something changed; one that waits will find everything as it then is."""
        if self.updates.empty():
            self.updates.put(True)

    def end(self) -> None:
        """End the stream."""
        self.updates.put(None)
