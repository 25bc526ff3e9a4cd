"""Sends an adapter's reports to the admin server, and knows until when the answers to them count.

Owner: the loop's thread. It stamps a report before it hands it to the stream, so that no report is recorded as sent
later than it was (docs/protocol.md clause 6.2). The registry's thread opens the streams, and gives each one to the loop
(`Registry`); a thread of the gRPC library takes the reports out of it.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping

from tandemfeed.feedcore.lease.holder_clock import HolderClock
from tandemfeed.v1 import admin_pb2

Lease = admin_pb2.LeaseGranted | admin_pb2.LeaseOffered | admin_pb2.LeaseRenewed


class ReportStream:
    """The reports of one call to the admin server. Owner: its queue, between the loop and the call.

    Attributes:
        incarnation: the adapter start as which the call attends.
    """

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self._reports: queue.SimpleQueue[admin_pb2.AdapterReport | None] = queue.SimpleQueue()

    def put(self, report: admin_pb2.AdapterReport) -> None:
        """Send a report; never blocks."""
        self._reports.put(report)

    def end(self) -> None:
        """End `taken`. May be called from any thread."""
        self._reports.put(None)

    def taken(self) -> Iterator[admin_pb2.AdapterReport]:
        """The reports, for the call."""
        return iter(self._reports.get, None)


class ReportSender:
    """The loop's side of the admin server's connection.

    Args:
        next_counters: returns each channel's first unused packet counter, from which a new receiver accepts packets.
        unicast_endpoint: returns where this adapter serves unicast clients; empty: nowhere yet.
        clock_ns: the monotonic clock.
    """

    def __init__(
        self,
        next_counters: Callable[[], Mapping[int, int]],
        unicast_endpoint: Callable[[], str] = lambda: "",
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._next_counters, self._unicast_endpoint, self._clock_ns = next_counters, unicast_endpoint, clock_ns
        self._holder_clock = HolderClock()
        self._stream: ReportStream | None = None

    def begin(self, stream: ReportStream, held_epoch: int) -> None:
        """Send reports on this stream from now on. The first one renews the lease, so that a restarted server finds
        the holder immediately.

        Args:
            held_epoch: of the lease that this adapter holds; 0: none.
        """
        self._stream = stream
        self.send(admin_pb2.AdapterReport(renew_epoch=held_epoch))

    def end(self, stream: ReportStream) -> None:
        """This stream has ended: send nothing until the next one begins."""
        if self._stream is stream:
            self._stream = None

    def send(self, report: admin_pb2.AdapterReport) -> None:
        """Send a report if the server is connected; never blocks. The sender, the id and what each report has are
        filled in."""
        stream = self._stream
        if stream is None:  # else reports would pile up during an outage
            return
        report.incarnation = stream.incarnation
        report.unicast_endpoint = self._unicast_endpoint()
        for channel_id, counter in self._next_counters().items():
            report.next_packet_counters[channel_id] = counter
        report.report_id = self._holder_clock.on_report_sent(self._clock_ns())
        stream.put(report)

    def valid_until_ns(self, lease: Lease) -> int:
        """Until when a lease counts that the server grants, offers or renews."""
        return self.until_ns(lease.report_id, lease.ttl_ns)

    def until_ns(self, report_id: int, ttl_ns: int) -> int:
        """The same, given the report that the server answered and the term."""
        return self._holder_clock.valid_until_ns(report_id, ttl_ns)
