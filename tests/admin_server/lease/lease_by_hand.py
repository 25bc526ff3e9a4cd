"""Helpers for the tests of the lease core."""

from __future__ import annotations

from tandemfeed.admin_server.lease.lease_core import FeedLease, Granted, LeaseConfig, LeaseDecision
from tandemfeed.feedcore.replica.roles.states import ReplicaState

MS = 1_000_000
CONFIG = LeaseConfig(ttl_ns=300 * MS, allowance_ns=30 * MS, grace_ns=2_000 * MS)
ACTIVE, SYNCHRONIZED, DETACHED, JOINING = (
    ReplicaState.ACTIVE,
    ReplicaState.SYNCHRONIZED,
    ReplicaState.DETACHED,
    ReplicaState.JOINING,
)


def report(
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
    """Let an adapter report."""
    return lease.on_report(adapter_id, state, seq, health, at_ns, history_epoch=history_epoch, abstains=abstains)


def running(*backups: int) -> FeedLease:
    """A feed whose adapter 1 has held epoch 1 since time 0, with these synchronised backups and no others."""
    adapters = frozenset({1, *backups})
    lease = FeedLease(CONFIG, adapters)
    for adapter_id in adapters:
        lease.on_attend(adapter_id, 0)
    decisions = [
        decision for adapter_id in sorted(adapters, reverse=True) for decision in report(lease, adapter_id, JOINING, 0)
    ]
    assert decisions == [Granted(1, 1)], "all are equal, so the lowest id wins"
    report(lease, 1, ACTIVE, 0)
    for backup in backups:
        report(lease, backup, SYNCHRONIZED, 0)
    return lease


def kinds(decisions: list[LeaseDecision]) -> list[type]:
    """The types of the decisions."""
    return [type(decision) for decision in decisions]
