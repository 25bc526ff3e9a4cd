"""The two threads of a feed: one runs its timers, the other prepares epochs and keys before they are needed.

The thread of the timers ends leases, and so begins takeovers. It must never wait for the records, whose disk may be
slow. Without it, the feed would stand still when its active adapter vanishes, so the process ends with it. The other
one is needed a day later at the earliest, so without it the process is unhealthy.
"""

from __future__ import annotations

import logging
import threading

from tandemfeed.admin_server.feed.feed_state import FeedState
from tandemfeed.admin_server.feed.keys.key_ring import KeyRing
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.runtime.threads import end_process, mark_unhealthy, start_thread

LOG = logging.getLogger("tandemfeed.admin_server.feed.timekeeper")


class Timekeeper:
    """Runs from `start` until the state is stopped."""

    def __init__(self, feed: str, state: FeedState, keys: KeyRing) -> None:
        self._feed, self._state, self._keys = feed, state, keys
        self._due = threading.Event()  # something must be prepared
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start both threads."""
        self._threads = [
            start_thread(self._run_timers, f"lease-{self._feed}", end_process),
            start_thread(self._prepare, f"keys-{self._feed}", mark_unhealthy),
        ]

    def join(self) -> None:
        """Wait for the end of both, after the state was stopped."""
        self._due.set()
        for thread in self._threads:
            thread.join()

    def _run_timers(self) -> None:
        """Do what is due, then wait for the next change."""
        while not self._state.is_stopped:
            if self._state.run_timers() or self._keys.pause_ns() <= 0:
                self._due.set()
            self._state.wait_for_change()

    def _prepare(self) -> None:
        """Write to the records what is due."""
        while True:
            self._due.wait()
            self._due.clear()  # before looking: what becomes due meanwhile sets it again
            if self._state.is_stopped:
                return
            self._state.reserve_epochs()
            if self._keys.pause_ns() <= 0:
                self._renew_keys()

    def _renew_keys(self) -> None:
        """Create keys that are due, drop expired ones, and announce the result."""
        try:
            self._keys.refresh()
        except RecordsUnavailable:
            LOG.exception("could not renew the stream keys", extra={"feed": self._feed})
            return
        self._state.announce()
