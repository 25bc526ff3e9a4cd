"""What the admin server of a run remembers of a stream, and how its words reach an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedcore.replica.effects import AdapterEffect
from feedcore.replica.engine import AdapterEngine
from feedcore.replica.states import ReplicaState

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor

# From the worst to the best, as in admin_server.descriptions: an adapter is as good as its worst channel.
WORST = (
    ReplicaState.FAILED,
    ReplicaState.JOINING,
    ReplicaState.RESYNCHRONIZING,
    ReplicaState.AHEAD,
    ReplicaState.DETACHED,
    ReplicaState.SYNCHRONIZED,
    ReplicaState.ACTIVE,
)


@dataclass(slots=True)
class Attendance:
    """One adapter's open stream; `reported_at_ns`: when its newest report was sent, by the adapter's clock."""

    adapter: AdapterActor
    life: int
    reported_at_ns: int


def change(
    engine: AdapterEngine, everybody: frozenset[int], active: int, epoch: int, now_ns: int
) -> list[AdapterEffect]:
    """The group as the admin server knows it."""
    return engine.on_cluster_changed(active, epoch, now_ns, everybody)


def deliver(message: tuple[AdapterActor, int, Callable[..., list[AdapterEffect]], tuple[object, ...]]) -> None:
    """An order arrives."""
    adapter, life, order, arguments = message
    adapter.on_message(life, order, *arguments)
