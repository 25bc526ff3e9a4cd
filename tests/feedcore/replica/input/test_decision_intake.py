"""A decision is the next one only if all of its numbers continue the position (docs/protocol.md clause 4.1)."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.replica.input.decision_intake import DecisionConflict, DecisionIntake, IntakeConfig
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState, Run

NEXT = Run(1, 5, 9, 1, 5, 2, 3)


def at_position_five() -> DecisionIntake:
    """An intake in epoch 1, at input_seq 5, message_seq 9, and source_seq 5 of stream 1."""
    intake = DecisionIntake(IntakeConfig())
    intake.on_lineage(Lineage((EpochStart(1, 1, 1),)), MessageStreamState())
    intake.anchor(MessageStreamState(1, 5, 9, {1: 5}))
    return intake


def test_a_decision_that_continues_every_number_is_taken() -> None:
    intake = at_position_five()
    intake.on_runs([NEXT], 0)
    assert list(intake.ready) == [NEXT]


def test_a_decision_at_a_different_message_seq_is_out_of_step() -> None:
    intake = at_position_five()
    with pytest.raises(DecisionConflict, match="message_seq 9"):
        intake.on_runs([NEXT._replace(first_message_seq=10)], 0)


def test_a_decision_at_a_different_source_seq_is_out_of_step() -> None:
    intake = at_position_five()
    with pytest.raises(DecisionConflict, match="source_seq 5"):
        intake.on_runs([NEXT._replace(first_source_seq=6)], 0)


# ---- gaps (clause 5.4) ----

MS = 1_000_000
CONFIG = IntakeConfig()
NO_RUN: list[Run] = []


def a_run(first_input_seq: int, source_count: int = 2, *, epoch: int = 1) -> Run:
    """A run that can continue `at_position_five`: its message_seq is its input_seq plus four, its source_seq equal."""
    return Run(epoch, first_input_seq, first_input_seq + 4, 1, first_input_seq, source_count, source_count)


def test_early_decisions_wait_in_order_until_the_gap_before_them_is_closed() -> None:
    intake = at_position_five()
    intake.on_runs([a_run(9), a_run(7)], 0)
    assert (list(intake.ready), intake.has_gap) == ([], True)
    intake.on_runs([a_run(5)], MS)
    assert list(intake.ready) == [a_run(5), a_run(7), a_run(9)]
    assert not intake.has_gap
    assert intake.position() == MessageStreamState(1, 11, 15, {1: 11})


def test_a_repeated_decision_changes_nothing() -> None:
    intake = at_position_five()
    intake.on_runs([a_run(5), a_run(5), a_run(3)], 0)
    assert list(intake.ready) == [a_run(5)]
    assert not intake.has_gap


def test_an_early_decision_that_another_one_covers_is_dropped() -> None:
    intake = at_position_five()
    intake.on_runs([a_run(7)], 0)
    intake.on_runs([a_run(5, 4)], MS)
    intake.on_runs([a_run(9)], MS)
    assert list(intake.ready) == [a_run(5, 4), a_run(9)]


def test_missing_decisions_are_requested_after_a_pause_and_again_until_they_arrive() -> None:
    intake = at_position_five()
    intake.on_runs([a_run(7)], MS)
    due_ns = MS + CONFIG.request_after_ns
    assert intake.next_deadline_ns() == due_ns
    intake.on_runs([a_run(9)], 2 * MS)  # a further decision does not postpone the request
    assert not intake.is_request_due(due_ns - 1)
    assert intake.is_request_due(due_ns)
    assert not intake.is_request_due(due_ns + CONFIG.retry_every_ns - 1)
    assert intake.is_request_due(due_ns + CONFIG.retry_every_ns)
    intake.on_runs([a_run(5)], 50 * MS)
    assert intake.next_deadline_ns() is None
    assert not intake.is_request_due(1_000 * MS)


def test_a_heartbeat_reveals_a_missing_decision_and_an_older_heartbeat_does_not_hide_it() -> None:
    intake = at_position_five()
    intake.on_next_input_seq(5, 0)
    assert (intake.has_gap, intake.next_deadline_ns()) == (False, None)
    intake.on_next_input_seq(7, 0)
    intake.on_next_input_seq(6, MS)
    assert intake.has_gap
    assert intake.next_deadline_ns() == CONFIG.request_after_ns
    intake.on_runs([a_run(5)], 2 * MS)
    assert not intake.has_gap


def test_a_decision_across_the_position_is_out_of_step_except_in_a_channel_of_one_stream() -> None:
    with pytest.raises(DecisionConflict, match="expects input_seq 5"):
        at_position_five().on_runs([a_run(4)], 0)
    single = DecisionIntake(IntakeConfig(), is_single_source=True)
    single.on_lineage(Lineage((EpochStart(1, 1, 1),)), MessageStreamState())
    single.anchor(MessageStreamState(1, 5, 9, {1: 5}))
    single.on_runs([a_run(4), a_run(6)], 0)
    assert (list(single.ready), single.has_gap) == ([], True)  # it needs no decisions, because it numbers by itself


# ---- histories (clause 4.2) ----


def test_decisions_of_an_epoch_wait_until_its_history_is_known() -> None:
    intake = at_position_five()
    intake.on_runs([a_run(5, epoch=2)], 0)
    assert (list(intake.ready), intake.has_gap) == ([], False)
    intake.on_lineage(Lineage((EpochStart(1, 1, 1), EpochStart(2, 5, 9))), intake.position())
    assert list(intake.ready) == [a_run(5, epoch=2)]
    assert intake.epoch == 2


def test_a_newer_history_voids_the_decisions_after_its_beginning() -> None:
    intake = at_position_five()
    applied = intake.position()
    intake.on_runs([a_run(5), a_run(7), a_run(11)], 0)
    intake.on_lineage(Lineage((EpochStart(1, 1, 1), EpochStart(2, 7, 11))), applied)
    assert list(intake.ready) == [a_run(5)]
    assert not intake.has_gap  # known decisions end where the new epoch begins
    intake.on_runs([a_run(7, epoch=2)], 0)
    assert list(intake.ready) == [a_run(5), a_run(7, epoch=2)]


def test_a_decision_outside_the_newest_history_is_ignored() -> None:
    intake = at_position_five()
    intake.on_lineage(Lineage((EpochStart(1, 1, 1), EpochStart(2, 5, 9))), intake.position())
    intake.on_runs([a_run(5), a_run(7)], 0)
    assert (list(intake.ready), intake.has_gap) == ([], False)


def test_the_beginning_of_a_newer_history_reveals_missing_decisions_before_it() -> None:
    intake = at_position_five()
    intake.on_lineage(Lineage((EpochStart(1, 1, 1), EpochStart(2, 7, 11))), intake.position())
    assert intake.has_gap
    intake.on_runs([a_run(5)], 0)
    assert not intake.has_gap


def test_early_decisions_that_a_newer_history_contains_are_kept() -> None:
    intake = at_position_five()
    intake.on_runs([a_run(7), a_run(9)], 0)
    intake.on_lineage(Lineage((EpochStart(1, 1, 1), EpochStart(2, 9, 13))), intake.position())
    intake.on_runs([a_run(5)], 0)
    assert list(intake.ready) == [a_run(5), a_run(7)]


def test_a_history_that_ends_before_the_applied_position_is_out_of_step() -> None:
    intake = at_position_five()
    with pytest.raises(DecisionConflict, match="everything before input_seq 5 in epoch 1"):
        intake.on_lineage(Lineage((EpochStart(1, 1, 1), EpochStart(2, 4, 8))), intake.position())


def test_an_older_or_equal_history_changes_nothing() -> None:
    intake = at_position_five()
    intake.on_runs([a_run(5)], 0)
    intake.on_lineage(Lineage((EpochStart(1, 2, 2),)), MessageStreamState(1, 5, 9, {1: 5}))
    assert intake.lineage == Lineage((EpochStart(1, 1, 1),))
    assert list(intake.ready) == [a_run(5)]


# ---- without a place ----


def test_without_a_place_decisions_are_held_and_no_gap_is_reported() -> None:
    intake = DecisionIntake(IntakeConfig(early_count_max=2))
    intake.on_lineage(Lineage((EpochStart(1, 1, 1),)), MessageStreamState())
    intake.on_runs([a_run(5), a_run(7), a_run(9)], 0)
    assert (list(intake.ready), intake.has_gap, intake.next_deadline_ns()) == ([], False, None)
    intake.anchor(MessageStreamState(1, 7, 11, {1: 7}))
    intake.on_runs(NO_RUN, MS)
    assert list(intake.ready) == [a_run(7), a_run(9)], "the newest are kept, because a snapshot begins near them"


def test_rejoining_forgets_every_decision_heard() -> None:
    intake = at_position_five()
    intake.on_runs([a_run(5), a_run(9), a_run(5, epoch=2)], 0)
    intake.unanchor()
    assert (list(intake.ready), intake.has_gap, intake.next_deadline_ns()) == ([], False, None)
    intake.anchor(MessageStreamState(1, 5, 9, {1: 5}))
    intake.on_runs(NO_RUN, MS)
    assert not intake.has_gap
    intake.on_lineage(Lineage((EpochStart(1, 1, 1), EpochStart(2, 5, 9))), intake.position())
    assert (list(intake.ready), intake.has_gap) == ([], False)


def test_without_a_place_decisions_before_the_former_place_are_held_too() -> None:
    intake = at_position_five()
    intake.unanchor()
    intake.on_runs([a_run(3)], 0)
    intake.anchor(MessageStreamState(1, 3, 7, {1: 3}))
    intake.on_runs(NO_RUN, MS)
    assert list(intake.ready) == [a_run(3)]


def test_the_adapters_own_decision_advances_the_position_without_waiting() -> None:
    intake = at_position_five()
    intake.advance(a_run(5))
    assert list(intake.ready) == []
    assert intake.position() == MessageStreamState(1, 7, 11, {1: 7})
    assert not intake.has_gap


def test_the_adapters_own_history_replaces_the_decisions_heard() -> None:
    intake = at_position_five()
    intake.on_runs([a_run(9)], 0)
    lineage = Lineage((EpochStart(1, 1, 1), EpochStart(3, 5, 9)))
    intake.restart(lineage, MessageStreamState(3, 5, 9, {1: 5}))
    assert (intake.lineage, intake.has_gap) == (lineage, False)
    intake.on_runs([a_run(5, epoch=3)], 0)
    assert list(intake.ready) == [a_run(5, epoch=3)]


@pytest.mark.parametrize("older", [5, 7])
def test_neither_an_older_report_nor_a_decision_before_the_gap_hides_it(older: int) -> None:
    intake = at_position_five()
    intake.on_next_input_seq(11, 0)
    intake.on_next_input_seq(older, 0)
    assert intake.has_gap
    intake.on_runs([a_run(5)], 0)
    assert intake.has_gap
    intake.on_runs([a_run(7), a_run(9)], 0)
    assert not intake.has_gap


def test_the_position_is_in_the_epoch_of_the_newest_decision() -> None:
    intake = at_position_five()
    intake.on_lineage(Lineage((EpochStart(1, 1, 1), EpochStart(2, 5, 9))), MessageStreamState(1, 5, 9, {1: 5}))
    intake.on_runs([a_run(5, epoch=2)], 0)
    assert intake.position() == MessageStreamState(2, 7, 11, {1: 7})


@pytest.mark.parametrize("is_anchored", [True, False])
def test_decisions_held_while_a_newer_history_arrives_still_show_the_gap_before_them(is_anchored: bool) -> None:
    intake = at_position_five()
    if not is_anchored:
        intake.unanchor()
    intake.on_runs([a_run(9)], 0)
    position = MessageStreamState(1, 5, 9, {1: 5})
    intake.on_lineage(Lineage((EpochStart(1, 1, 1), EpochStart(2, 20, 24))), position)
    if not is_anchored:
        intake.anchor(position)
    assert intake.has_gap
