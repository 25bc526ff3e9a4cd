"""What a transaction has put, taken and settled so far, and an entry: one message's place in one queue. PURE."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from journal.transactional.errors import NotHeld


@dataclass(slots=True)
class Entry:
    """One message's place in one queue. `position` is unique in the store and never given twice."""

    position: int
    message_id: int  # the row of its body; of a non-persistent message, its number in the volatile cache
    persistent: bool
    shared: bool  # other entries may have the same message
    delivery_count: int = 0
    owner: str | None = None  # the transaction that has it


@dataclass(slots=True)
class Put:
    """A new message, stored once, for one queue or many."""

    queue_ids: tuple[int, ...]
    persistent: bool
    size: int  # bytes
    body: bytes = b""  # of a persistent one until it is on the disk
    message_id: int = 0  # of a non-persistent one at once, of a persistent one from its prepare on


class Fate(Enum):
    """What becomes of a taken message at commit; the value is what the page store keeps for a prepared transaction."""

    KEEP = 1  # it is available again
    REMOVE = 2
    MOVE = 3


@dataclass(slots=True)
class Held:
    """A message that the transaction has locked."""

    queue_id: int
    entry: Entry
    fate: Fate = Fate.KEEP
    target_id: int = 0  # queue, if moved


@dataclass(slots=True)
class Contents:
    """All of it."""

    owner: str
    held: dict[tuple[int, int], Held] = field(default_factory=dict)  # by queue and position
    arrivals: list[Put | Held] = field(default_factory=list)  # puts and moves, in the order of their calls
    size: int = 0  # bytes of persistent messages put

    @property
    def count(self) -> int:
        """Messages put and taken; one that is moved is both."""
        return len(self.held) + len(self.arrivals)

    def add(self, put: Put) -> None:
        """A new message."""
        self.arrivals.append(put)
        self.size += put.size if put.persistent else 0

    @property
    def puts(self) -> list[Put]:
        """The new messages."""
        return [arrival for arrival in self.arrivals if isinstance(arrival, Put)]

    def settle(self, queue_id: int, position: int, fate: Fate, target_id: int = 0) -> None:
        """Say what becomes of a message at commit.

        Raises:
            NotHeld: it is not locked by this transaction, or was settled before.
        """
        held = self.held.get((queue_id, position))
        if held is None:
            raise NotHeld(f"{self.owner} does not have message {position}: get it in this transaction first")
        if held.fate is not Fate.KEEP:
            raise NotHeld(f"{self.owner} settled message {position} before ({held.fate.name.lower()})")
        held.fate, held.target_id = fate, target_id
        if fate is Fate.MOVE:
            self.arrivals.append(held)

    def reservations(self) -> dict[int, int]:
        """How many messages each queue gets if it commits."""
        counts: dict[int, int] = {}
        for arrival in self.arrivals:
            for queue_id in arrival.queue_ids if isinstance(arrival, Put) else (arrival.target_id,):
                counts[queue_id] = counts.get(queue_id, 0) + 1
        return counts
