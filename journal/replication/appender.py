"""An appender that returns when a record is held by followers as well."""

from __future__ import annotations

from collections.abc import Sequence

from journal.body import Record
from journal.errors import NotReplicated
from journal.replication.leader import ReplicationLeader
from journal.store import Journal

TIMEOUT_S = 5.0


class ReplicatedAppender:
    """Appends to a journal and waits for its followers. Safe to use from several threads.

    Args:
        journal: open to append; stays the caller's.
        leader: started, of the same journal, in this process.
    """

    def __init__(self, journal: Journal, leader: ReplicationLeader) -> None:
        if journal.folder.resolve() != leader.folder.resolve():
            raise ValueError(f"the journal is {journal.folder}, and the leader serves {leader.folder}")
        self._journal = journal
        self._leader = leader

    def append(self, record: Record, *, timeout_s: float = TIMEOUT_S) -> int:
        """Append one record.

        Returns:
            The record's index, when as many followers as the leader wants have acknowledged it.

        Raises:
            NotReplicated: not in time; the record is in the journal all the same, and will be replicated.
            JournalError: not appended; or the leader does not run.
        """
        return self._wait(index := self._journal.append(record), index, timeout_s)

    def append_batch(self, records: Sequence[bytes], *, timeout_s: float = TIMEOUT_S) -> int:
        """Append records as one segment; as `append`, and the index is the first record's."""
        index = self._journal.append_batch(records)
        return self._wait(index, index + len(records) - 1, timeout_s)

    def _wait(self, first: int, last: int, timeout_s: float) -> int:
        self._leader.wake()
        if not self._leader.wait_for_replicated(last, timeout_s):
            raise NotReplicated(
                f"{self._journal.folder}: index {first:#018x} was appended and not acknowledged within {timeout_s:g} s",
                first,
            )
        return first
