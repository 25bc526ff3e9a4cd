"""The rows that one group commit changes, collected from its transactions; one statement per table. Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from tandemfeed.journal.transactional.limits import POSITION_BLOCK
from tandemfeed.journal.transactional.transactions.contents import Contents, Entry, Fate, LockedMessage, Put


@dataclass(slots=True)
class Positions:
    """Assigns positions. Positions reserved on the disk are not reused, even after a crash."""

    next: int
    reserved_end: int

    def take(self) -> int:
        """The next position."""
        position = self.next
        self.next += 1
        return position


@dataclass(slots=True)
class Changes:
    """The changes of one group. No group both adds and removes an entry: only visible entries can be removed."""

    positions: Positions
    messages: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    entries: list[tuple[int, int, int, bool]] = field(default_factory=list)
    removed: list[tuple[int, int]] = field(default_factory=list)
    dropped_messages: list[tuple[int]] = field(default_factory=list)  # messages with one reference
    released_messages: list[tuple[int]] = field(default_factory=list)  # removes one reference per row
    prepared: list[tuple[int, str, int]] = field(default_factory=list)
    prepared_puts: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    prepared_holds: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    decided: list[tuple[int]] = field(default_factory=list)
    by_hand: list[tuple[str, bool, int]] = field(default_factory=list)
    delivery_counts: list[tuple[int, int, int]] = field(default_factory=list)

    def touches_disk(self) -> bool:
        """Whether any row changes; transactions with only non-persistent messages change none."""
        return any(
            (
                self.messages, self.entries, self.removed, self.prepared, self.decided, self.by_hand,
                self.delivery_counts, self.positions.next > self.positions.reserved_end,
            )
        )  # fmt: skip

    def reserve_positions(self) -> int | None:
        """The new end of the reserved positions, if the old end is passed."""
        if self.positions.next <= self.positions.reserved_end:
            return None
        return self.positions.next + POSITION_BLOCK

    def commit(self, contents: Contents) -> list[tuple[int, Entry]]:
        """Add the rows of a committed transaction; return the entries it adds, with their queues, in order."""
        arrivals: list[tuple[int, Entry]] = []
        for arrival in contents.arrivals:
            if isinstance(arrival, Put):
                arrivals += self._commit_put(arrival)
            else:
                arrivals.append(self._commit_move(arrival))
        for held in contents.held.values():
            if held.entry.persistent and held.fate is not Fate.KEEP:
                self.removed.append((held.queue_id, held.entry.position))
                if held.fate is Fate.REMOVE:
                    self._release(held.entry.message_id, held.entry.shared)
        return arrivals

    def prepare(self, contents: Contents, global_id: str, prepared_at_ns: int) -> tuple[int, list[int]]:
        """Add the rows of a prepared transaction: its bodies are stored now, its entries at the decision.

        Returns:
            The prepared transaction's number, and the message number of each persistent put in order.
        """
        prepared_id = self.positions.take()
        self.prepared.append((prepared_id, global_id, prepared_at_ns))
        message_ids: list[int] = []
        places = {id(arrival): place for place, arrival in enumerate(contents.arrivals)}
        for place, arrival in enumerate(contents.arrivals):
            if isinstance(arrival, Put) and arrival.persistent:
                message_ids.append(self._store(arrival))
                for queue_id in arrival.queue_ids:
                    self.prepared_puts.append((prepared_id, place, queue_id, message_ids[-1], arrival.size))
        for held in contents.held.values():
            if held.entry.persistent:
                place = places.get(id(held), -1)
                row = (prepared_id, held.queue_id, held.entry.position, held.fate.value, place, held.target_id)
                self.prepared_holds.append(row)
        return prepared_id, message_ids

    def roll_back_prepared(self, contents: Contents) -> None:
        """Add the changes that roll back a prepared transaction: its bodies are deleted."""
        for put in contents.puts:
            if put.persistent:
                self.dropped_messages.append((put.message_id,))

    def _commit_put(self, put: Put) -> list[tuple[int, Entry]]:
        message_id = put.message_id or self._store(put)
        shared, arrivals = len(put.queue_ids) > 1, []
        for queue_id in put.queue_ids:
            entry = Entry(self.positions.take(), message_id, put.persistent, shared)
            if put.persistent:
                self.entries.append((queue_id, entry.position, message_id, shared))
            arrivals.append((queue_id, entry))
        return arrivals

    def _commit_move(self, held: LockedMessage) -> tuple[int, Entry]:
        old = held.entry
        entry = Entry(self.positions.take(), old.message_id, old.persistent, old.shared)
        if entry.persistent:
            self.entries.append((held.target_id, entry.position, entry.message_id, entry.shared))
        return held.target_id, entry

    def _store(self, put: Put) -> int:
        message_id = self.positions.take()
        self.messages.append((message_id, len(put.queue_ids), zlib.crc32(put.body), put.body))
        return message_id

    def _release(self, message_id: int, shared: bool) -> None:
        (self.released_messages if shared else self.dropped_messages).append((message_id,))
