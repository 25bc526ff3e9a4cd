"""What a queue tells of itself: every figure with a sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A queue at one moment, and what it did since it was opened."""

    pending_count: int
    """Items that are durable and that nobody has."""
    in_flight_count: int
    """Items handed out and not yet settled."""
    active_count: int
    """Both of these."""
    block_count: int
    """Blocks that hold items, without spares."""
    put_count: int
    """Items put since the queue was opened."""
    delivered_count: int
    """Items that `done` was said for since the queue was opened."""
    cancelled_count: int
    """Items cancelled since the queue was opened."""
    lost_count: int
    """Items that damage on the disk took, as found since the queue was opened."""
    group_count: int
    """Groups flushed since the queue was opened."""
    checkpoint_count: int
    """Checkpoints written since the queue was opened."""
    recycled_count: int
    """Blocks used anew since the queue was opened."""
    recovery_s: float
    """Seconds that recovery took when the queue was opened."""
    replayed_count: int
    """State changes that recovery replayed."""
