"""How much each adapter of a feed may spend on replays: what administrators have set, in the records."""

from __future__ import annotations

import msgspec

from tandemfeed.admin_server.records.lease_records import ClusterRecords

KIND = "replay_limits"  # of the documents in the records; a document for each feed
# Each of the 128 replays that an adapter serves at a time gets its largest packet within the 5 s in which a client must
# make progress.
BYTES_PER_S_MIN = 500_000
BYTES_PER_S_MAX = 1_000_000_000_000


class ReplayLimits:
    """The limits of one feed, in bytes a second, by adapter_id; 0: none. One thread at a time changes them."""

    def __init__(self, records: ClusterRecords, feed_id: int) -> None:
        self._records, self._name = records, str(feed_id)
        document = records.documents(KIND).get(self._name, b"{}")
        self._limits: dict[int, int] = msgspec.json.decode(document, type=dict[int, int])

    def of(self, adapter_id: int) -> int:
        """An adapter's limit. Any thread."""
        return self._limits.get(adapter_id, 0)

    def set(self, adapter_id: int, bytes_per_s: int) -> None:
        """Record a limit. Waits for the disk.

        Raises:
            RecordsUnavailable: the limit has not changed.
        """
        changed = {**self._limits, adapter_id: bytes_per_s}
        self._records.note_document(KIND, self._name, msgspec.json.encode(changed))
        self._limits = changed
