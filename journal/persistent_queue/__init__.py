"""A queue whose items survive any crash: the second of the engine's three faces.

docs/persistent-queue.md is the manual.
"""

from tandemfeed.journal.persistent_queue.errors import NotInFlight, PathMissing, QueueFailed, QueueFull, TooManyInFlight
from tandemfeed.journal.persistent_queue.items.item_state import (
    AlreadyCancelled,
    AlreadyDelivered,
    Cancelled,
    CancelResult,
    InFlight,
    ItemState,
    Lost,
    Recycled,
    Unknown,
)
from tandemfeed.journal.persistent_queue.queue import PersistentQueue
from tandemfeed.journal.persistent_queue.statistics import QueueStatistics

__all__ = [
    "AlreadyCancelled",
    "AlreadyDelivered",
    "CancelResult",
    "Cancelled",
    "InFlight",
    "ItemState",
    "Lost",
    "NotInFlight",
    "PathMissing",
    "PersistentQueue",
    "QueueFailed",
    "QueueFull",
    "QueueStatistics",
    "Recycled",
    "TooManyInFlight",
    "Unknown",
]
