"""An appender that waits until followers have acknowledged its records."""

from __future__ import annotations

from collections.abc import Sequence

from tandemfeed.journal.errors import NotReplicated
from tandemfeed.journal.format.body import Record
from tandemfeed.journal.replication.leader.leader import ReplicationLeader
from tandemfeed.journal.store import Journal

TIMEOUT_S = 5.0


class ReplicatedAppender:
    """Appends to a journal and waits for its followers. Thread-safe.

    Args:
        journal: open for appending; the caller closes it.
        leader: started, of the same journal, in this process.
    """

    def __init__(self, journal: Journal, leader: ReplicationLeader) -> None:
        if journal.folder.resolve() != leader.folder.resolve():
            raise ValueError(f"the journal is {journal.folder}, but the leader serves {leader.folder}")
        self._journal = journal
        self._leader = leader

    def append(self, record: Record, *, timeout_s: float = TIMEOUT_S) -> int:
        """Append one record.

        Returns:
            The record's index, once the leader's `acks` followers have acknowledged it.

        Raises:
            NotReplicated: not acknowledged in time; the record is in the journal, and will still be replicated.
            JournalError: the record was not appended, or the leader is not running.
        """
        return self._wait(index := self._journal.append(record), index, timeout_s)

    def append_batch(self, records: Sequence[bytes], *, timeout_s: float = TIMEOUT_S) -> int:
        """Append records as one segment; as `append`, but returns the first record's index."""
        index = self._journal.append_batch(records)
        return self._wait(index, index + len(records) - 1, timeout_s)

    def _wait(self, first: int, last: int, timeout_s: float) -> int:
        self._leader.wake()
        if not self._leader.wait_for_replicated(last, timeout_s):
            raise NotReplicated(
                f"{self._journal.folder}: index {first:#018x} is appended, but unacknowledged after {timeout_s:g} s",
                first,
            )
        return first
