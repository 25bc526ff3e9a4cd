"""The holder's half of the lease's clock: which report was sent when, and until when an answer to it counts
(docs/protocol.md clause 6.2).

Every grant, offer and renewal answers a report. It counts from the time when that report was sent, by the adapter's own
monotonic clock, less a margin. So an answer that was late lengthens no term, and a process that was paused finds only
terms that have ended.

Invariant: a term ends here before it ends at the lease store, which counts all of it, and an allowance, from its
answer. For this the time must be taken before the report can leave, and never again: one call gives a report both its
id and its time.
"""

from __future__ import annotations

REPORTS_REMEMBERED = 256  # about ten seconds of reports, which are many terms
MARGIN_PER_TTL = 10  # a lease ends at its holder a tenth of the term early: clocks drift, packets linger


class HolderClock:
    """The clock of one adapter process. Owner: the thread that sends the reports."""

    def __init__(self) -> None:
        self._report_id = 0
        self._sent_at_ns: dict[int, int] = {}  # by report_id, ascending

    def on_report_sent(self, now_ns: int) -> int:
        """Note that the next report is sent. Call it before the report can leave.

        Returns:
            The report's id, which must be in the report; ids ascend and are never reused.
        """
        self._report_id += 1
        self._sent_at_ns[self._report_id] = now_ns
        self._sent_at_ns.pop(self._report_id - REPORTS_REMEMBERED, None)
        return self._report_id

    def valid_until_ns(self, report_id: int, ttl_ns: int) -> int:
        """Until when a lease counts here.

        Args:
            report_id: of the report that the lease store answered.
            ttl_ns: the term that it announced.

        Returns:
            0, which has passed: the report was never sent, or is so old that any term of it has ended.
        """
        sent_at_ns = self._sent_at_ns.get(report_id)
        return 0 if sent_at_ns is None else sent_at_ns + ttl_ns - ttl_ns // MARGIN_PER_TTL
