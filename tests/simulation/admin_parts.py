"""What the admin server of a run knows about a stream, and how its messages reach an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandemfeed.feedcore.replica.effects import AdapterEffect
from tandemfeed.feedcore.replica.roles.states import ReplicaState

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor

# From worst to best, as in admin_server.descriptions; an adapter counts as its worst channel.
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
    """The open stream of one adapter.

    Attributes:
        report_id: the id of the adapter's newest message.
    """

    adapter: AdapterActor
    life: int
    report_id: int


def change(
    adapter: AdapterActor,
    everybody: frozenset[int],
    starts: dict[int, int],
    session: int,
    active: int,
    epoch: int,
    now_ns: int,
) -> list[AdapterEffect]:
    """Pass the group, its newest starts, the session, the active and the epoch, as known to the admin server, to an
    adapter."""
    if active:
        adapter.keep_proof(epoch, active)
    adapter.engine.on_starts_announced(starts)
    return adapter.engine.on_cluster_changed(active, epoch, now_ns, everybody, session)


def deliver(message: tuple[AdapterActor, int, Callable[..., list[AdapterEffect]], tuple[object, ...]]) -> None:
    """An order of the admin server arrives at an adapter."""
    adapter, life, order, arguments = message
    adapter.on_message(life, order, *arguments)
