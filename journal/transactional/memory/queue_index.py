"""The available messages of one queue, in order, with few of them in memory. Pure: its owner reads the rows.

Of the persistent messages the index has only those up to `cursor`: a window, the locked ones, and the released ones.
The rest are counted (`beyond_count`) and read when the window is used up. Non-persistent messages are all here.
Invariant: count = (entries here that are non-persistent, or at or before the cursor) + beyond_count.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from tandemfeed.journal.transactional.errors import MessageLocked
from tandemfeed.journal.transactional.limits import WINDOW_COUNT_MAX
from tandemfeed.journal.transactional.transactions.contents import Entry


class QueueIndex:
    """One queue's entries. Guarded by its owner's lock."""

    def __init__(self, queue_id: int, name: str, stored_count: int = 0) -> None:
        self.queue_id = queue_id
        self.name = name
        self.cursor = 0
        self.beyond_count = stored_count
        self.count = stored_count
        self.reserved_count = 0  # messages that open and prepared transactions would add
        self.locked_count = 0
        self._entries: dict[int, Entry] = {}
        self._ready: list[int] = []  # heap of positions; those whose entry is gone or locked are skipped

    def wants_rows(self) -> bool:
        """Whether the next available message may be beyond the cursor."""
        self._skip_unavailable()
        return self.beyond_count > 0 and (not self._ready or self._ready[0] > self.cursor)

    def load(self, rows: Sequence[Entry]) -> None:
        """Add the next persistent entries after the cursor, in order."""
        assert rows, f"queue {self.name}: {self.beyond_count} messages are counted after {self.cursor}, but none exists"
        for entry in rows:
            assert entry.position > self.cursor, f"queue {self.name}: {entry.position} was already read"
            self.cursor = entry.position
            self.beyond_count -= 1
            if entry.position not in self._entries:  # otherwise it was locked by its number
                self._entries[entry.position] = entry
                heappush(self._ready, entry.position)

    def take(self, owner: str) -> Entry | None:
        """Lock the first available entry. Call it only when `wants_rows` is false."""
        self._skip_unavailable()
        if not self._ready:
            return None
        entry = self._entries[heappop(self._ready)]
        self._lock(entry, owner)
        entry.delivery_count += 1
        return entry

    def lock_known(self, position: int, owner: str) -> Entry | None:
        """Lock the entry of this number, if it is here. This does not count as a delivery."""
        entry = self._entries.get(position)
        if entry is None:
            return None
        if entry.owner is not None:
            raise MessageLocked(f"message {position} of queue {self.name} is locked by {entry.owner}")
        self._lock(entry, owner)
        return entry

    def lock_stored(self, entry: Entry, owner: str) -> None:
        """Lock an entry beyond the cursor."""
        assert entry.position > self.cursor
        assert entry.position not in self._entries
        self._entries[entry.position] = entry
        self._lock(entry, owner)

    def arrive(self, entry: Entry) -> None:
        """Add a committed entry; positions arrive in order."""
        self.count += 1
        if entry.persistent:
            if self.beyond_count or len(self._ready) >= WINDOW_COUNT_MAX:
                self.beyond_count += 1
                return
            self.cursor = entry.position
        self._entries[entry.position] = entry
        heappush(self._ready, entry.position)

    def release(self, entry: Entry) -> None:
        """Make a locked entry available again, at its old place."""
        self._unlock(entry)
        if self._is_beyond(entry):
            del self._entries[entry.position]  # it is read again later, in order
        else:
            heappush(self._ready, entry.position)
        if len(self._ready) > 2 * len(self._entries) + WINDOW_COUNT_MAX:
            self._ready = [place for place, known in self._entries.items() if known.owner is None]
            heapify(self._ready)

    def remove(self, entry: Entry) -> None:
        """Remove a locked entry that was consumed or moved."""
        self._unlock(entry)
        del self._entries[entry.position]
        self.count -= 1
        if self._is_beyond(entry):
            self.beyond_count -= 1

    def volatile_message_ids(self) -> list[int]:
        """The message ids of the non-persistent entries."""
        return [entry.message_id for entry in self._entries.values() if not entry.persistent]

    def validate(self) -> None:
        """Check the invariants; for tests."""
        known = [entry for entry in self._entries.values() if not self._is_beyond(entry)]
        assert self.count == len(known) + self.beyond_count, f"{self.name}: {self.count}"
        locked = {position for position, entry in self._entries.items() if entry.owner is not None}
        assert len(locked) == self.locked_count
        assert set(self._ready) >= {entry.position for entry in known} - locked
        assert self.beyond_count >= 0
        assert self.reserved_count >= 0

    def _is_beyond(self, entry: Entry) -> bool:
        return entry.persistent and entry.position > self.cursor

    def _lock(self, entry: Entry, owner: str) -> None:
        assert entry.owner is None
        entry.owner = owner
        self.locked_count += 1

    def _unlock(self, entry: Entry) -> None:
        assert entry.owner is not None
        assert self._entries.get(entry.position) is entry
        entry.owner = None
        self.locked_count -= 1

    def _skip_unavailable(self) -> None:
        while self._ready:
            entry = self._entries.get(self._ready[0])
            if entry is not None and entry.owner is None:
                return
            heappop(self._ready)
