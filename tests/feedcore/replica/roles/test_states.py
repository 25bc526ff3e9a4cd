"""The table of legal moves is checked at every move, is drawn in the documentation, and connects all states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemfeed.feedcore.replica.roles.states import MOVES, IllegalMove, ReplicaState, StateRecord, state_diagram

PROTOCOL = Path(__file__).resolve().parents[4] / "docs" / "protocol.md"


def test_the_protocols_diagram_matches_the_table() -> None:
    assert f"```mermaid\n{state_diagram()}\n```" in PROTOCOL.read_text(), "put state_diagram() into docs/protocol.md"


def test_every_state_can_be_entered_and_left() -> None:
    entered = {new for moves in MOVES.values() for new in moves}
    assert entered == set(ReplicaState)
    assert all(MOVES[state] for state in ReplicaState)
    assert all(state not in moves for state, moves in MOVES.items())


def test_an_illegal_move_raises_an_error_with_the_replicas_history() -> None:
    record = StateRecord()
    record.enter(ReplicaState.FAILED, "an operator says so")
    with pytest.raises(IllegalMove, match="joining -> failed: an operator says so; failed -> active: a bug"):
        record.enter(ReplicaState.ACTIVE, "a bug")
    assert record.state is ReplicaState.FAILED
