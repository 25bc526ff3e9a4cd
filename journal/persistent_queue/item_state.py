"""The life of an item: states, moves, and what a cancel can be answered. PURE.

A block keeps two bits for each item. They only ever go from zero to one other value, so a state that reaches the disk
early, or on a page of its own, is never wrong: it is what the item was to become. IN_FLIGHT is not stored: an item that
was in flight when its process ended is pending again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ItemState(Enum):
    """One sentence each."""

    PENDING = "pending"  # durable, and nobody has it
    IN_FLIGHT = "in flight"  # handed out by `get`, not yet settled
    DELIVERED = "delivered"  # `done` was said
    CANCELLED = "cancelled"  # taken back before it was handed out
    LOST = "lost"  # damage on the disk took it; never served


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
STORED = (ItemState.PENDING, ItemState.DELIVERED, ItemState.CANCELLED, ItemState.LOST)  # by their two bits
BITS = {state: bits for bits, state in enumerate(STORED)}
DELIVERED_BITS, CANCELLED_BITS, LOST_BITS = (
    BITS[state] for state in (ItemState.DELIVERED, ItemState.CANCELLED, ItemState.LOST)
)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """It will never be delivered; on the disk."""

    item_id: int


@dataclass(frozen=True, slots=True)
class AlreadyDelivered:
    """Too late: `done` was said. Whoever got it must be asked to cancel it."""

    item_id: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """Too late for now: somebody has it and may yet release it."""

    item_id: int


@dataclass(frozen=True, slots=True)
class AlreadyCancelled:
    """Somebody was faster; on the disk."""

    item_id: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Damage on the disk took it; it is not delivered."""

    item_id: int


@dataclass(frozen=True, slots=True)
class Recycled:
    """It was settled, and its block has been used anew since: treat it as delivered, for it may have been."""

    item_id: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """No item has had this id."""

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
