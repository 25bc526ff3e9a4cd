"""The messages that a transaction has put, locked and settled, and entries: places of messages in queues. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tandemfeed.journal.transactional.errors import NotHeld


@dataclass(slots=True)
class Entry:
    """One message's place in one queue. `position` is unique in the store and never reused."""

    position: int
    message_id: int  # the row of its body; of a non-persistent message, its number in the volatile cache
    persistent: bool
    shared: bool  # other entries may refer to the same message
    delivery_count: int = 0
    owner: str | None = None  # the transaction that has locked it


@dataclass(slots=True)
class Put:
    """A new message, stored once, for one queue or many."""

    queue_ids: tuple[int, ...]
    persistent: bool
    size: int  # bytes
    body: bytes = b""  # of a persistent message, until it is on the disk
    message_id: int = 0  # non-persistent: set immediately; persistent: set by prepare


class Fate(Enum):
    """What happens to a locked message at commit; the page store has the value for prepared transactions."""

    KEEP = 1  # becomes available again
    REMOVE = 2
    MOVE = 3


@dataclass(slots=True)
class LockedMessage:
    """A message that the transaction has locked."""

    queue_id: int
    entry: Entry
    fate: Fate = Fate.KEEP
    target_id: int = 0  # queue, if moved


@dataclass(slots=True)
class Contents:
    """The messages of one transaction."""

    owner: str
    held: dict[tuple[int, int], LockedMessage] = field(default_factory=dict)  # by queue and position
    arrivals: list[Put | LockedMessage] = field(default_factory=list)  # puts and moves, in the order of their calls
    size: int = 0  # bytes of persistent messages put

    @property
    def count(self) -> int:
        """Messages put and locked; a moved message counts as both."""
        return len(self.held) + len(self.arrivals)

    def add(self, put: Put) -> None:
        """Add a new message."""
        self.arrivals.append(put)
        self.size += put.size if put.persistent else 0

    @property
    def puts(self) -> list[Put]:
        """The new messages."""
        return [arrival for arrival in self.arrivals if isinstance(arrival, Put)]

    def settle(self, queue_id: int, position: int, fate: Fate, target_id: int = 0) -> None:
        """Set what happens to a message at commit.

        Raises:
            NotHeld: this transaction has not locked it, or has already settled it.
        """
        held = self.held.get((queue_id, position))
        if held is None:
            raise NotHeld(f"{self.owner} has not locked message {position}: get it in this transaction first")
        if held.fate is not Fate.KEEP:
            raise NotHeld(f"{self.owner} has already settled message {position} ({held.fate.name.lower()})")
        held.fate, held.target_id = fate, target_id
        if fate is Fate.MOVE:
            self.arrivals.append(held)

    def reservations(self) -> dict[int, int]:
        """How many messages each queue gains if it commits."""
        counts: dict[int, int] = {}
        for arrival in self.arrivals:
            for queue_id in arrival.queue_ids if isinstance(arrival, Put) else (arrival.target_id,):
                counts[queue_id] = counts.get(queue_id, 0) + 1
        return counts
