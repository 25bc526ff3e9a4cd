"""The thread that runs a feed's timers, and prepares epochs and keys before they are needed."""

from __future__ import annotations

import logging
import threading
import time

from tandemfeed.admin_server.feed.feed_state import FeedState
from tandemfeed.admin_server.feed.keys.key_ring import KeyRing
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable

LOG = logging.getLogger("tandemfeed.admin_server.feed.timekeeper")


class Timekeeper(threading.Thread):
    """Runs from `start` until the state is stopped."""

    def __init__(self, feed: str, state: FeedState, keys: KeyRing) -> None:
        super().__init__(name=f"lease-{feed}", daemon=True)
        self._feed, self._state, self._keys = feed, state, keys

    def run(self) -> None:
        """Do what is due, then wait for the next change."""
        while not self._state.is_stopped:
            if self._state.run_timers():
                self._state.reserve_epochs()
            if time.time_ns() >= self._keys.next_change_unix_ns:
                self._renew_keys()
            self._state.wait_for_change()

    def _renew_keys(self) -> None:
        """Create keys that are due, drop expired ones, and announce the result."""
        try:
            self._keys.refresh(time.time_ns())
        except RecordsUnavailable:
            LOG.exception("could not renew the stream keys", extra={"feed": self._feed})
            return
        self._state.announce()
