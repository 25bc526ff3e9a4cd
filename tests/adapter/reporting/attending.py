"""The real registry and report sender of an adapter. The test's thread takes the place of the adapter's loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from tandemfeed.adapter.reporting.registry import Registry
from tandemfeed.adapter.reporting.report_sender import ReportSender, ReportStream
from tandemfeed.runtime.threads import mark_unhealthy, start_thread
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.v1 import admin_pb2


class Attending:
    """An adapter that attends at admin servers.

    Args:
        held_epoch: returns the epoch of the lease that it holds.

    Attributes:
        orders: the admin server's orders.
        events: for the loop; `turn` takes them.
    """

    def __init__(
        self,
        servers: str,
        ca_pem: bytes,
        tokens: TokenSource,
        request: admin_pb2.RegisterRequest,
        *,
        held_epoch: Callable[[], int] = lambda: 0,
        next_counters: Callable[[], dict[int, int]] = lambda: {1: 1},
        **options: Any,
    ) -> None:
        self.orders: queue.SimpleQueue[admin_pb2.AdapterOrder] = queue.SimpleQueue()
        self.events: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.sender = ReportSender(next_counters)
        self._stopped = threading.Event()

        def on_begun(stream: ReportStream) -> None:
            self.events.put(lambda: self.sender.begin(stream, held_epoch()))

        def on_lost(stream: ReportStream) -> None:
            self.events.put(lambda: self.sender.end(stream))

        known: dict[str, Any] = {
            "on_order": self.orders.put,
            "on_registered": lambda _reply: None,
            "on_replaced": lambda _reason: None,
        }
        self.registry = Registry(
            servers,
            ca_pem,
            tokens,
            request,
            on_begun=on_begun,
            on_lost=on_lost,
            next_counters=next_counters,
            **(known | options),
        )

    def run_in_thread(self) -> None:
        """Have a thread take the place of the loop."""
        start_thread(self._run, "loop by hand", mark_unhealthy)

    def stop(self) -> None:
        """End the connection, and the thread."""
        self.registry.stop()
        self.events.put(self._stopped.set)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.events.get()()

    def turn(self, wait_s: float = 0.0) -> None:
        """Take the events so far; if there is none, wait for one."""
        try:
            self.events.get(timeout=wait_s)()
            while True:
                self.events.get_nowait()()
        except queue.Empty:
            return

    def report(self, report: admin_pb2.AdapterReport) -> None:
        """Send a report if the server is connected."""
        self.turn()
        self.sender.send(report)
