"""The states of an adapter's replica of one channel, and the one table of legal moves (docs/protocol.md clause 5).

Every move is checked against the table, and the state diagram in docs/protocol.md is generated from it
(`state_diagram`).
"""

from __future__ import annotations

from collections import deque
from enum import Enum

STORY_LENGTH = 32


class ReplicaState(Enum):
    """A comment explains each state; logs, the admin CLI and metrics show the value."""

    JOINING = "joining"  # has no place in the channel yet; waits for a snapshot, or for what follows its own journal
    SYNCHRONIZED = "synchronized"  # applies the active's decisions as they arrive
    RESYNCHRONIZING = "resynchronizing"  # knows that it lacks decisions or source messages, and requests them
    DETACHED = "detached"  # the active is silent: neither its output nor its reports arrive
    AHEAD = "ahead"  # transmits provisionally, in its own numbering, what no active has decided
    ACTIVE = "active"  # decides
    FAILED = "failed"  # left the group and reported why; an admin can readmit it


_S = ReplicaState
_FAILED = "failed by the admin server"
_FROM_A_PLACE = {
    _S.JOINING: "contradiction, or decisions no longer available",
    _S.ACTIVE: "lease granted",
    _S.FAILED: _FAILED,
}
MOVES: dict[ReplicaState, dict[ReplicaState, str]] = {
    _S.JOINING: {
        _S.RESYNCHRONIZING: "snapshot installed, or its own journal continued",
        _S.ACTIVE: "lease granted, no better candidate",
        _S.FAILED: "failed by the admin server, or the snapshot is of another table",
    },
    _S.RESYNCHRONIZING: {
        _S.SYNCHRONIZED: "nothing outstanding",
        _S.DETACHED: "the active silent for 100 ms",
        **_FROM_A_PLACE,
    },
    _S.SYNCHRONIZED: {
        _S.RESYNCHRONIZING: "decisions or source messages outstanding for 50 ms",
        _S.DETACHED: "the active silent for 100 ms",
        **_FROM_A_PLACE,
    },
    _S.DETACHED: {
        _S.SYNCHRONIZED: "the active is heard",
        _S.AHEAD: "no admin server either, on_silence = proceed",
        **_FROM_A_PLACE,
    },
    _S.AHEAD: {
        _S.RESYNCHRONIZING: "the active is past all that was sent ahead",
        **_FROM_A_PLACE,
        _S.ACTIVE: "lease granted, what was sent is committed",
    },
    _S.ACTIVE: {
        _S.SYNCHRONIZED: "handed over",
        _S.DETACHED: "lease ran out or lost, or a newer epoch is heard",
        _S.FAILED: _FAILED,
    },
    _S.FAILED: {_S.JOINING: "readmitted"},
}
assert set(MOVES) == set(ReplicaState)


class IllegalMove(AssertionError):
    """A move that is not in `MOVES`, which is a bug. The text lists the replica's last moves."""


class StateRecord:
    """The current state of one replica, and the moves that led to it."""

    def __init__(self) -> None:
        self.state = ReplicaState.JOINING
        self._story: deque[str] = deque(maxlen=STORY_LENGTH)

    def enter(self, new: ReplicaState, reason: str) -> ReplicaState:
        """Move to another state and return the old one.

        Raises:
            IllegalMove: the move is not in the table.
        """
        old = self.state
        self._story.append(f"{old.value} -> {new.value}: {reason}")
        if new not in MOVES[old]:
            raise IllegalMove("; ".join(self._story))
        self.state = new
        return old


def state_diagram() -> str:
    """The table as a Mermaid state diagram, for docs/protocol.md."""
    lines = ["stateDiagram-v2", f"    [*] --> {ReplicaState.JOINING.value}"]
    lines += [f"    {old.value} --> {new.value}: {why}" for old, moves in MOVES.items() for new, why in moves.items()]
    return "\n".join(lines)
