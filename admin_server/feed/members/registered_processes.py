"""The processes registered as a feed's adapters, and their durable record.

`registrations` decides; this module loads and saves its state. `FeedState` checks and notes, one thread at a time;
`save` waits for the disk, and any thread may call it.
"""

from __future__ import annotations

import logging
import threading
import time

from tandemfeed.admin_server.feed.members.registrations import ProcessStart, Registrations
from tandemfeed.admin_server.feed.streams import Attendance
from tandemfeed.admin_server.records.lease_records import ClusterRecords, RecordsUnavailable
from tandemfeed.admin_server.settings import AdapterSettings, FeedSettings

LOG = logging.getLogger("tandemfeed.admin_server.feed.members.registered_processes")
ATTENDED_SYNC_INTERVALS = 10  # an adapter's process that does not report for longer is considered hung


class RegisteredProcesses:
    """The processes of one feed's adapters.

    Args:
        term_ns: the configured lease term.
    """

    def __init__(self, feed: FeedSettings, records: ClusterRecords, term_ns: int) -> None:
        self._feed, self._records = feed, records
        self._saved = records.processes(feed.feed_id)
        attended_ns = max(term_ns, ATTENDED_SYNC_INTERVALS * feed.sync_interval_ns)
        self._registrations = Registrations(attended_ns, self._saved, began_at_ns=time.monotonic_ns())
        self._incarnations: dict[int, int] = {}  # adapter_id -> incarnation that registered here
        self._saving = threading.Lock()

    # ---- one thread at a time ----

    def check(
        self,
        adapter: AdapterSettings,
        start: ProcessStart,
        attendance: Attendance | None,
        *,
        is_replacing: bool,
        resumed_at_ns: int,
    ) -> None:
        """Return if this process may register.

        Args:
            attendance: the stream that is open as this adapter, if any.
            resumed_at_ns: when this server's last pause ended.

        Raises:
            AnotherProcess: it may not register.
            ReturnAwaited: it may not register yet.
        """
        self._registrations.check(
            adapter.adapter_id,
            adapter.name,
            start,
            heard_at_ns=None if attendance is None else attendance.heard_at_ns,
            now_ns=time.monotonic_ns(),
            resumed_at_ns=resumed_at_ns,
            is_replacing=is_replacing,
        )

    def note_registered(self, adapter_id: int, start: ProcessStart, incarnation: int) -> None:
        """The process has registered."""
        self._registrations.note(adapter_id, start, time.time_ns())
        self._incarnations[adapter_id] = incarnation

    def is_registered(self, adapter_id: int, incarnation: int) -> bool:
        """Whether this start registered last as an adapter, or none has registered here yet."""
        return self._incarnations.get(adapter_id, incarnation) == incarnation

    def note_attended(self, attendance: Attendance, is_attended: bool) -> None:
        """A stream began or ended. Streams of replaced processes do not count."""
        adapter_id = attendance.adapter.adapter_id
        if self._incarnations.get(adapter_id) == attendance.incarnation:
            self._registrations.note_attended(adapter_id, is_attended)

    def registered(self, adapter_id: int) -> ProcessStart | None:
        """The process that is registered as an adapter, or was last."""
        record = self._registrations.record(adapter_id)
        return None if record is None else record.start

    # ---- any thread ----

    def save(self, adapter_id: int) -> None:
        """Record what was noted last. Durable when this returns.

        Raises:
            RecordsUnavailable.
        """
        with self._saving:  # of two concurrent calls, the later one writes the newer record
            record = self._registrations.record(adapter_id)
            if record is not None and record != self._saved.get(adapter_id):
                self._records.note_process(self._feed.feed_id, adapter_id, record)
                self._saved[adapter_id] = record

    def save_if_possible(self, adapter_id: int) -> None:
        """Record what was noted last, and only log a failure: it can at most delay a registration right after the
        server's next start by about a second."""
        try:
            self.save(adapter_id)
        except RecordsUnavailable as failed:
            extra = {"feed": self._feed.name, "adapter": adapter_id, "why": str(failed)}
            LOG.warning("could not record an adapter's process", extra=extra)
