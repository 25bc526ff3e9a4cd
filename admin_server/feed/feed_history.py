"""What happened to a feed's roles: the last events, kept in the records, so that they outlive the server.

The audit log has everything, and proves it; this is what an operator needs to see at once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping

from tandemfeed.admin_server.records.lease_records import (
    HISTORY_KEPT_COUNT,
    HistoryEvent,
    LeaseRecords,
    RecordsUnavailable,
)

LOG = logging.getLogger("tandemfeed.admin_server.feed.feed_history")
REASON_LENGTH_MAX = 500  # of each event; the audit log has the whole
EPOCH_BEGAN = ("lease granted", "lease handed over")
RECORDED = frozenset(
    {
        *EPOCH_BEGAN,
        "lease vacated",
        "hand-over requested",
        "adapter failed",
        "adapter readmitted",
        "adapter drained",
        "adapter undrained",
        "replay limited",
        "attending",
        "left",
        "keys replaced",
        "alert began",
        "alert ended",
    }
)


class FeedHistory:
    """The last events of one feed. One thread at a time.

    Args:
        name_of: an adapter's name.
    """

    def __init__(self, feed_id: int, records: LeaseRecords, name_of: Callable[[int], str]) -> None:
        self._feed_id, self._records, self._name_of = feed_id, records, name_of
        self._events = deque(records.history(feed_id), maxlen=HISTORY_KEPT_COUNT)

    def note(self, event: str, fields: Mapping[str, object], now_unix_ns: int) -> None:
        """Keep an event if it belongs to the history. Does not wait for the disk."""
        if event not in RECORDED:
            return
        adapter_id = fields.get("adapter_id")
        adapter = fields.get("adapter") or fields.get("heir") or ""
        self._events.append(
            HistoryEvent(
                now_unix_ns,
                event,
                self._name_of(adapter_id) if isinstance(adapter_id, int) else str(adapter),
                int(str(fields.get("epoch", 0))),
                str(fields.get("reason", ""))[:REASON_LENGTH_MAX],
                str(fields.get("by", "")),
            )
        )
        try:
            self._records.note_history(self._feed_id, list(self._events))
        except RecordsUnavailable:  # the audit log still has it
            LOG.exception("could not record a feed's history", extra={"feed_id": self._feed_id, "lost": event})

    def events(self) -> list[HistoryEvent]:
        """The last events, the newest last."""
        return list(self._events)

    def epoch_began(self, epoch: int) -> HistoryEvent | None:
        """How this epoch came about, with the reason for which the previous one ended."""
        reason = ""
        for event in self._events:
            if event.event == "lease vacated":
                reason = event.reason
            elif event.event in EPOCH_BEGAN and event.epoch == epoch:
                why = "its adapter handed it over" if event.event == "lease handed over" else reason
                return event._replace(reason=why)
        return None
