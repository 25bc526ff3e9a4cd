"""A queue's statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A queue at one moment, and what it did since it was opened."""

    pending_count: int
    """Durable items that can be handed out."""
    in_flight_count: int
    """Items handed out and not yet settled."""
    active_count: int
    """Pending items and items in flight."""
    block_count: int
    """Blocks with items, without spares."""
    put_count: int
    """Items put since the queue was opened."""
    delivered_count: int
    """Items delivered (`done` called) since the queue was opened."""
    cancelled_count: int
    """Items cancelled since the queue was opened."""
    lost_count: int
    """Items found damaged on the disk since the queue was opened."""
    group_count: int
    """Groups flushed since the queue was opened."""
    checkpoint_count: int
    """Checkpoints written since the queue was opened."""
    recycled_count: int
    """Blocks recycled since the queue was opened."""
    recovery_s: float
    """Duration of recovery when the queue was opened, in seconds."""
    replayed_count: int
    """State changes that recovery replayed."""
