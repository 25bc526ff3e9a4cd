"""The states of an item, the moves between them, and the results of a cancel. Pure.

A block has two bits for each item. They change only once, from zero to another value. So a state that reaches the disk
early or alone is never wrong: it is the item's final state. IN_FLIGHT is not stored: an item that was in flight when
its process ended is pending again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ItemState(Enum):
    """The state of an item."""

    PENDING = "pending"  # durable, not handed out
    IN_FLIGHT = "in flight"  # handed out by `get`, not yet settled
    DELIVERED = "delivered"  # `done` was called
    CANCELLED = "cancelled"  # cancelled before it was handed out
    LOST = "lost"  # damaged on the disk; never handed out


class ItemEvent(Enum):
    """What happens to an item."""

    GET = "get"
    DONE = "done"
    RELEASE = "release"
    CANCEL = "cancel"
    CRASH = "crash or close"
    DAMAGE = "damage found"


MOVES: dict[tuple[ItemState, ItemEvent], ItemState] = {
    (ItemState.PENDING, ItemEvent.GET): ItemState.IN_FLIGHT,
    (ItemState.PENDING, ItemEvent.CANCEL): ItemState.CANCELLED,
    (ItemState.PENDING, ItemEvent.CRASH): ItemState.PENDING,
    (ItemState.PENDING, ItemEvent.DAMAGE): ItemState.LOST,
    (ItemState.IN_FLIGHT, ItemEvent.DONE): ItemState.DELIVERED,
    (ItemState.IN_FLIGHT, ItemEvent.RELEASE): ItemState.PENDING,
    (ItemState.IN_FLIGHT, ItemEvent.CRASH): ItemState.PENDING,
}
STORED = (ItemState.PENDING, ItemState.DELIVERED, ItemState.CANCELLED, ItemState.LOST)  # in the order of their two bits
BITS = {state: bits for bits, state in enumerate(STORED)}
DELIVERED_BITS, CANCELLED_BITS, LOST_BITS = (
    BITS[state] for state in (ItemState.DELIVERED, ItemState.CANCELLED, ItemState.LOST)
)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The item is durably cancelled and will never be delivered."""

    item_id: int


@dataclass(frozen=True, slots=True)
class AlreadyDelivered:
    """Too late: `done` was called. Only the recipient can cancel it now."""

    item_id: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """Too late for now: the item is handed out, but may still be released."""

    item_id: int


@dataclass(frozen=True, slots=True)
class AlreadyCancelled:
    """The item was already cancelled, durably."""

    item_id: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The item is damaged on the disk and will not be delivered."""

    item_id: int


@dataclass(frozen=True, slots=True)
class Recycled:
    """The item was settled, and its block was recycled: treat it as delivered, because it may have been."""

    item_id: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """No item ever had this id."""

    item_id: int


CancelResult = Cancelled | AlreadyDelivered | InFlight | AlreadyCancelled | Lost | Recycled | Unknown
CANCEL_ANSWERS: dict[ItemState, type[Cancelled | AlreadyDelivered | InFlight | AlreadyCancelled | Lost]] = {
    ItemState.PENDING: Cancelled,
    ItemState.IN_FLIGHT: InFlight,
    ItemState.DELIVERED: AlreadyDelivered,
    ItemState.CANCELLED: AlreadyCancelled,
    ItemState.LOST: Lost,
}


def diagram() -> str:
    """The table as a mermaid state diagram, for the manual."""
    names = {state: state.name.title().replace("_", "") for state in ItemState}
    moves = [f"    {names[was]} --> {names[now]}: {event.value}" for (was, event), now in MOVES.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> Pending: put, durable", *moves])
