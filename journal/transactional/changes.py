"""The rows that one group commit changes, gathered from many transactions; statements run once per table. PURE."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from journal.transactional.contents import Contents, Entry, Fate, Held, Put
from journal.transactional.limits import POSITION_BLOCK


@dataclass(slots=True)
class Positions:
    """Hands out positions; what is reserved on the disk is never handed out again, crash or not."""

    next: int
    reserved_end: int

    def take(self) -> int:
        """The next one."""
        position = self.next
        self.next += 1
        return position


@dataclass(slots=True)
class Changes:
    """Of one group. No entry is both added and removed in a group: it must be seen to be taken."""

    positions: Positions
    messages: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    entries: list[tuple[int, int, int, bool]] = field(default_factory=list)
    removed: list[tuple[int, int]] = field(default_factory=list)
    dropped_messages: list[tuple[int]] = field(default_factory=list)  # had one reference
    released_messages: list[tuple[int]] = field(default_factory=list)  # one reference less each time
    prepared: list[tuple[int, str, int]] = field(default_factory=list)
    prepared_puts: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    prepared_holds: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    decided: list[tuple[int]] = field(default_factory=list)
    by_hand: list[tuple[str, bool, int]] = field(default_factory=list)
    delivery_counts: list[tuple[int, int, int]] = field(default_factory=list)

    def touches_disk(self) -> bool:
        """Whether anything here must be durable; transactions of non-persistent messages alone change no row."""
        return any(
            (
                self.messages, self.entries, self.removed, self.prepared, self.decided, self.by_hand,
                self.delivery_counts, self.positions.next > self.positions.reserved_end,
            )
        )  # fmt: skip

    def reserve_positions(self) -> int | None:
        """The new end of the reserved positions, if the old one was reached."""
        if self.positions.next <= self.positions.reserved_end:
            return None
        return self.positions.next + POSITION_BLOCK

    def commit(self, contents: Contents) -> list[tuple[int, Entry]]:
        """Rows of a committed transaction; the entries it adds, with their queues, in order."""
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
        """Rows of a promise: bodies are stored now, entries at the decision.

        Returns:
            the prepared transaction's number, and the message number of each persistent put in order.
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
        """Rows of a prepared transaction's end without effect: its bodies go."""
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

    def _commit_move(self, held: Held) -> tuple[int, Entry]:
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
