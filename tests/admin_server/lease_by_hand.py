"""A lease core as its tests drive it."""

from __future__ import annotations

from admin_server.lease_core import FeedLease, Granted, LeaseConfig, LeaseDecision
from feedcore.replica.states import ReplicaState

MS = 1_000_000
CONFIG = LeaseConfig(ttl_ns=300 * MS, allowance_ns=30 * MS, grace_ns=2_000 * MS)
ACTIVE, SYNCHRONIZED, DETACHED, JOINING = (
    ReplicaState.ACTIVE,
    ReplicaState.SYNCHRONIZED,
    ReplicaState.DETACHED,
    ReplicaState.JOINING,
)


def told(
    lease: FeedLease,
    adapter_id: int,
    state: ReplicaState,
    at_ns: int,
    seq: int = 1,
    health: float = 1.0,
    *,
    history_epoch: int = 0,
    abstains: bool = False,
) -> list[LeaseDecision]:
    """An adapter reports."""
    return lease.on_report(adapter_id, state, seq, health, at_ns, history_epoch=history_epoch, abstains=abstains)


def running(*backups: int) -> FeedLease:
    """A feed whose adapter 1 holds epoch 1 since 0, with synchronised backups; 1 and the backups are configured."""
    adapters = frozenset({1, *backups})
    lease = FeedLease(CONFIG, adapters)
    for adapter_id in adapters:
        lease.on_attend(adapter_id, 0)
    decisions = [
        decision for adapter_id in sorted(adapters, reverse=True) for decision in told(lease, adapter_id, JOINING, 0)
    ]
    assert decisions == [Granted(1, 1)], "all are alike, so the lowest id"
    told(lease, 1, ACTIVE, 0)
    for backup in backups:
        told(lease, backup, SYNCHRONIZED, 0)
    return lease


def kinds(decisions: list[LeaseDecision]) -> list[type]:
    """What was decided, by its names."""
    return [type(decision) for decision in decisions]
