"""The processes registered as a feed's adapters, and their record, which outlives the server.

The decisions are `admin_server.registrations`'; here they are put in and out of the records. The broker notes with its
lock held; `keep` waits for the disk and is called without it.
"""

from __future__ import annotations

import logging
import threading
import time

from admin_server.lease_records import ClusterRecords, RecordsUnavailable
from admin_server.registrations import ProcessStart, Registrations
from admin_server.settings import AdapterSettings, FeedSettings
from admin_server.streams import Attendance

LOG = logging.getLogger("admin_server.process_book")
ATTENDED_SYNC_INTERVALS = 10  # without a report for longer, an adapter's process is taken to hang


class ProcessBook:
    """One feed's.

    Args:
        term_ns: of its lease.
    """

    def __init__(self, feed: FeedSettings, records: ClusterRecords, term_ns: int) -> None:
        self._feed, self._records = feed, records
        self._kept = records.processes(feed.feed_id)
        attended_ns = max(term_ns, ATTENDED_SYNC_INTERVALS * feed.sync_interval_ns)
        self._registrations = Registrations(attended_ns, self._kept, began_at_ns=time.monotonic_ns())
        self._incarnations: dict[int, int] = {}  # of the registered processes, since this server runs
        self._keeping = threading.Lock()

    # ---- with the broker's lock held ----

    def check(
        self, adapter: AdapterSettings, start: ProcessStart, attendance: Attendance | None, is_replacing: bool
    ) -> None:
        """May this process register? Args: attendance: of the one that is attended as this adapter.

        Raises:
            AnotherProcess, ReturnAwaited: it may not, or not yet.
        """
        self._registrations.check(
            adapter.adapter_id,
            adapter.name,
            start,
            heard_at_ns=None if attendance is None else attendance.heard_at_ns,
            now_ns=time.monotonic_ns(),
            is_replacing=is_replacing,
        )

    def note_registered(self, adapter_id: int, start: ProcessStart, incarnation: int) -> None:
        """It may, and has."""
        self._registrations.note(adapter_id, start, time.time_ns())
        self._incarnations[adapter_id] = incarnation

    def note_attended(self, attendance: Attendance, is_attended: bool) -> None:
        """A stream began or ended; that of a process which was replaced says nothing about the present one."""
        adapter_id = attendance.adapter.adapter_id
        if self._incarnations.get(adapter_id) == attendance.incarnation:
            self._registrations.note_attended(adapter_id, is_attended)

    # ---- without ----

    def keep(self, adapter_id: int) -> None:
        """Write down what was noted last; on the disk when this returns.

        Raises:
            RecordsUnavailable.
        """
        with self._keeping:  # so that of two that write the later one has the newer record
            record = self._registrations.record(adapter_id)
            if record is not None and record != self._kept.get(adapter_id):
                self._records.note_process(self._feed.feed_id, adapter_id, record)
                self._kept[adapter_id] = record

    def keep_if_possible(self, adapter_id: int) -> None:
        """The same where no caller waits: what is not written costs a process that starts in the second after the
        server's next start that second."""
        try:
            self.keep(adapter_id)
        except RecordsUnavailable as failed:
            LOG.warning("not written down", extra={"feed": self._feed.name, "adapter": adapter_id, "why": str(failed)})
