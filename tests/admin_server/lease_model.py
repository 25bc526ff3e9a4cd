"""What an impartial observer knows of a feed's adapters, and whom it would grant: the oracle of the lease core's tests.

Written from protocol 6.4, not from the core: candidates are sifted step by step instead of sorted by a key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from feedcore.replica.states import ReplicaState

GOOD = (ReplicaState.SYNCHRONIZED, ReplicaState.DETACHED, ReplicaState.AHEAD)
POOR = (ReplicaState.RESYNCHRONIZING, ReplicaState.JOINING)


@dataclass(frozen=True, slots=True)
class Told:
    """What an adapter told of itself, and when."""

    state: ReplicaState
    seq: int
    health: float
    history_epoch: int
    abstains: bool
    at_ns: int


class Observer:
    """Attributes: told: adapter_id -> its newest report in this stream, unless it is worth nothing any more."""

    def __init__(self, fresh_ns: int) -> None:
        self._fresh_ns = fresh_ns
        self.told: dict[int, Told] = {}
        self.failed: set[int] = set()

    def forget(self, adapter_id: int) -> None:
        """What it told is worth nothing: it left, started anew, or let its term pass."""
        self.told.pop(adapter_id, None)

    def best(self, now_ns: int) -> int | None:
        """The adapter that is to be granted, if any is."""
        pool = {
            adapter_id: told
            for adapter_id, told in self._fresh(now_ns).items()
            if told.state in GOOD + POOR and not told.abstains
        }
        steps: list[Callable[[Told], float]] = [
            lambda told: told.state in GOOD,
            lambda told: told.state is ReplicaState.RESYNCHRONIZING,
            lambda told: told.history_epoch,
            lambda told: told.seq,
            lambda told: told.state is ReplicaState.AHEAD,
            lambda told: told.health,
        ]
        for step in steps:
            most = max((step(told) for told in pool.values()), default=0)
            pool = {adapter_id: told for adapter_id, told in pool.items() if step(told) == most}
        return min(pool, default=None)

    def is_good(self, adapter_id: int) -> bool:
        """It has what the active had."""
        return self.told[adapter_id].state in GOOD

    def in_sync(self, holder: int, now_ns: int) -> list[int]:
        """Backups that could follow the holder without a loss."""
        return [each for each, told in self._fresh(now_ns).items() if each != holder and told.state in GOOD]

    def _fresh(self, now_ns: int) -> dict[int, Told]:
        return {
            adapter_id: told
            for adapter_id, told in self.told.items()
            if adapter_id not in self.failed and now_ns - told.at_ns <= self._fresh_ns
        }
