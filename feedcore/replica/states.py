"""The states of an adapter's replica of one channel, and the one table of legal moves (docs/protocol.md clause 5)."""

from __future__ import annotations

from enum import Enum


class ReplicaState(Enum):
    """One sentence each; the value is what logs, the admin CLI and metrics show."""

    JOINING = "joining"  # has no usable conversion state yet: waits for a snapshot, then catches up
    SYNCHRONIZED = "synchronized"  # applies the active's decisions as they come
    RESYNCHRONIZING = "resynchronizing"  # knows it misses decisions or source messages, and asks for them
    DETACHED = "detached"  # the active is silent: neither output nor sync channel speaks
    AHEAD = "ahead"  # transmitted on its own numbering what the active had not
    ACTIVE = "active"  # decides
    FAILED = "failed"  # left the group and says why; an admin readmits it


LEGAL_MOVES: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.JOINING: frozenset({ReplicaState.RESYNCHRONIZING, ReplicaState.ACTIVE, ReplicaState.FAILED}),
    ReplicaState.SYNCHRONIZED: frozenset(
        {
            ReplicaState.JOINING,
            ReplicaState.RESYNCHRONIZING,
            ReplicaState.DETACHED,
            ReplicaState.ACTIVE,
            ReplicaState.FAILED,
        }
    ),
    ReplicaState.RESYNCHRONIZING: frozenset(
        {
            ReplicaState.JOINING,
            ReplicaState.SYNCHRONIZED,
            ReplicaState.DETACHED,
            ReplicaState.ACTIVE,
            ReplicaState.FAILED,
        }
    ),
    ReplicaState.DETACHED: frozenset(
        {
            ReplicaState.JOINING,
            ReplicaState.SYNCHRONIZED,
            ReplicaState.AHEAD,
            ReplicaState.ACTIVE,
            ReplicaState.FAILED,
        }
    ),
    ReplicaState.AHEAD: frozenset(
        {ReplicaState.JOINING, ReplicaState.RESYNCHRONIZING, ReplicaState.ACTIVE, ReplicaState.FAILED}
    ),
    ReplicaState.ACTIVE: frozenset({ReplicaState.SYNCHRONIZED, ReplicaState.DETACHED, ReplicaState.FAILED}),
    ReplicaState.FAILED: frozenset({ReplicaState.JOINING}),
}
