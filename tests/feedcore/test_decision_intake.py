"""A decision is the next one only if all of its numbers continue the position (docs/protocol.md clause 4.1)."""

from __future__ import annotations

import pytest

from feedcore.replica.decision_intake import DecisionIntake, IntakeConfig, OutOfStep
from feedcore.wire.lineage import EpochStart, Lineage
from feedcore.wire.position import MessageStreamState, Run

NEXT = Run(1, 5, 9, 1, 5, 2, 3)


def at_position_five() -> DecisionIntake:
    """Epoch 1, input_seq 5 at message_seq 9, source stream 1 at 5."""
    intake = DecisionIntake(IntakeConfig())
    intake.on_lineage(Lineage((EpochStart(1, 1, 1),)), MessageStreamState())
    intake.anchor(MessageStreamState(1, 5, 9, {1: 5}))
    return intake


def test_a_decision_that_continues_every_number_is_taken() -> None:
    intake = at_position_five()
    intake.on_runs([NEXT], 0)
    assert list(intake.ready) == [NEXT]


def test_a_decision_at_another_message_seq_is_out_of_step() -> None:
    intake = at_position_five()
    with pytest.raises(OutOfStep, match="message_seq 9"):
        intake.on_runs([NEXT._replace(first_message_seq=10)], 0)


def test_a_decision_at_another_source_seq_is_out_of_step() -> None:
    intake = at_position_five()
    with pytest.raises(OutOfStep, match="source_seq 5"):
        intake.on_runs([NEXT._replace(first_source_seq=6)], 0)
