"""A feed's present session, as reported by its adapters; it only grows (docs/protocol.md clause 10.6)."""

from __future__ import annotations

import logging

from tandemfeed.admin_server.records.lease_records import LeaseRecords, RecordsUnavailable
from tandemfeed.admin_server.settings import FeedSettings

LOG = logging.getLogger("tandemfeed.admin_server.feed.current_session")


class CurrentSession:
    """Attributes: session: the newest session reported, or the configured one."""

    def __init__(self, feed: FeedSettings, records: LeaseRecords) -> None:
        self._feed, self._records = feed, records
        self.session = max(feed.session, records.newest_session(feed.feed_id))

    def note(self, session: int) -> bool:
        """An adapter reports this session. True if it is new for the feed."""
        if session <= self.session:
            return False
        LOG.info("session changed", extra={"feed": self._feed.name, "old": self.session, "new": session})
        self.session = session
        try:
            self._records.note_session(self._feed.feed_id, session)
        except RecordsUnavailable as failed:
            LOG.warning("could not record the session", extra={"feed": self._feed.name, "why": str(failed)})
        return True
