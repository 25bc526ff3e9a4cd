"""Which backup leaves the group when one is repeatedly out of sync (docs/protocol.md clause 5.8).

Every adapter knows the health of all others, and judges only whether it must itself leave. The admin server makes the
final decision, so that no two adapters leave together and the last synchronised backup never leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tandemfeed.feedcore.replica.channel_state import PeerState
from tandemfeed.feedcore.replica.roles.states import ReplicaState

MS = 1_000_000
TIMES_MAX = 8  # an adapter remembers this many losses of sync of each channel


class FailPolicy(Enum):
    """Which backup counts as unfit."""

    LOWEST = "lowest"  # the lowest score of all backups; among equals the highest adapter_id
    LOWER_THAN_ANY = "lower_than_any"  # a score strictly lower than every other backup's
    LOWER_THAN_ONE = "lower_than_one"  # a score strictly lower than at least one other backup's
    BELOW_THRESHOLD = "below_threshold"  # a score below a threshold


@dataclass(frozen=True, slots=True)
class FailConfig:
    """When a backup counts as repeatedly out of sync, and which backup then leaves.

    Attributes:
        threshold: the score that BELOW_THRESHOLD compares with.
        times, within_ns: a backup is repeatedly out of sync if it loses sync this often within this time.
        ask_every_ns: interval between requests to the admin server.
    """

    policy: FailPolicy = FailPolicy.LOWEST
    threshold: float = 0.25
    times: int = 3
    within_ns: int = 10_000 * MS
    ask_every_ns: int = 1_000 * MS

    def __post_init__(self) -> None:
        assert 1 <= self.times <= TIMES_MAX  # more are never remembered, so no backup would ever leave


def is_repeated(troubles_at_ns: Iterable[int], config: FailConfig, now_ns: int) -> bool:
    """True if a backup that lost sync at these times counts as repeatedly out of sync."""
    return sum(now_ns - at_ns <= config.within_ns for at_ns in troubles_at_ns) >= config.times


def should_leave(own: PeerState, peers: list[PeerState], config: FailConfig) -> str | None:
    """Why this backup must leave, given its own state and the fresh states of the others; None if it may stay."""
    backups = [peer for peer in peers if is_backup(peer)]
    if not is_backup(own) or not any(each.out_of_sync for each in (own, *backups)):
        return None
    if not any(is_synchronized(peer) for peer in backups):
        return None  # the last synchronised backup never leaves, nor does one that may be the last
    scores = [peer.health for peer in backups]
    if config.policy is FailPolicy.BELOW_THRESHOLD:
        is_unfit = own.health < config.threshold
    elif config.policy is FailPolicy.LOWER_THAN_ANY:
        is_unfit = own.health < min(scores)
    elif config.policy is FailPolicy.LOWER_THAN_ONE:
        is_unfit = own.health < max(scores)
    else:
        is_unfit = min((peer.health, -peer.adapter_id) for peer in (own, *backups)) == (own.health, -own.adapter_id)
    reason = f"backups are repeatedly out of sync, and this one's score {own.health:.2f} is {config.policy.value}"
    return reason if is_unfit else None


def healthiest_synchronized(peers: Iterable[PeerState]) -> int | None:
    """The backup that could best take over; of equals the lowest id. None: there is none that is fit."""
    fit = [peer for peer in peers if peer.channels and is_synchronized(peer) and peer.health > 0]
    return min(fit, key=lambda peer: (-peer.health, peer.adapter_id)).adapter_id if fit else None


def is_backup(state: PeerState) -> bool:
    """True if the adapter has channels, and is neither active nor failed on any of them."""
    away = (ReplicaState.ACTIVE, ReplicaState.FAILED)
    return bool(state.channels) and all(channel.state not in away for channel in state.channels)


def is_synchronized(state: PeerState) -> bool:
    """True if the adapter is synchronised on all of its channels."""
    return all(channel.state is ReplicaState.SYNCHRONIZED for channel in state.channels)
