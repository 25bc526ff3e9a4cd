"""Lineages: which epochs count up to where, as receivers judge packets and positions by them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedcore.wire.lineage import ENTRIES_MAX, UNLIMITED, Lineage, checked_lineage, decode_lineage
from feedcore.wire.position import Run
from feedcore.wire.refusal import PacketRefused

HISTORY = Lineage(((1, 1), (3, 40), (4, 40), (7, 90)))

lineages = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50)), max_size=ENTRIES_MAX, min_size=1).map(
    lambda steps: Lineage(
        tuple(
            (sum(step[0] for step in steps[: place + 1]), 1 + sum(step[1] for step in steps[: place + 1]))
            for place in range(len(steps))
        )
    )
)


def test_an_epoch_counts_up_to_where_the_next_of_the_history_begins() -> None:
    assert [HISTORY.end_of(epoch) for epoch in (1, 3, 4, 7)] == [40, 40, 90, UNLIMITED]


def test_an_epoch_that_the_history_was_not_built_from_counts_for_nothing() -> None:
    assert [HISTORY.end_of(epoch) for epoch in (2, 5, 6, 8)] == [0, 0, 0, 0]


def test_before_the_oldest_epoch_remembered_everything_is_settled() -> None:
    assert Lineage(((5, 100), (6, 200))).end_of(2) == 100


def test_a_position_stands_in_the_history_up_to_the_end_of_its_epoch() -> None:
    assert HISTORY.holds(1, 40)
    assert not HISTORY.holds(1, 41)
    assert HISTORY.holds(4, 90)
    assert not HISTORY.holds(2, 10)
    assert not Lineage(((5, 100),)).holds(4, 90)  # forgotten: nobody can say
    assert HISTORY.holds(2, 1)  # nothing was applied: that is in every history


def test_a_decision_without_a_message_at_the_very_end_may_be_part_of_it() -> None:
    assert HISTORY.covers(Run(1, 39, 1, 1, 1, 1))
    assert not HISTORY.covers(Run(1, 40, 1, 1, 1, 1))
    assert HISTORY.covers(Run(1, 40, 1, 1, 1, 0))
    assert Lineage(((5, 100),)).covers(Run(4, 100, 1, 1, 1, 0))  # forgotten, hence settled


def test_a_decision_before_the_first_message_is_part_only_if_its_epoch_is() -> None:
    silent = Run(2, 1, 1, 1, 1, 0)
    assert Lineage(((2, 1), (3, 1))).covers(silent)
    assert not Lineage(((3, 1),)).covers(silent)  # its active died before anybody followed it


def test_histories_part_where_the_first_epoch_that_only_one_has_begins() -> None:
    other = Lineage(((1, 1), (2, 30), (8, 60)))
    assert HISTORY.parts_at(other) == other.parts_at(HISTORY) == 30
    assert HISTORY.parts_at(HISTORY.opened(9, 120)) == 120
    assert HISTORY.parts_at(HISTORY) == UNLIMITED


@given(lineages)
def test_the_wire_gives_back_what_it_was_given(lineage: Lineage) -> None:
    assert decode_lineage(lineage.encode(1_000)) == lineage
    assert decode_lineage(lineage.encode(12)).entries == lineage.entries[-1:]


@given(lineages, st.integers(1, 300))
def test_of_the_epochs_of_a_history_exactly_one_numbers_a_message(lineage: Lineage, seq: int) -> None:
    if seq < lineage.entries[0][1]:
        return
    owners = [epoch for epoch, first in lineage.entries if first <= seq < lineage.end_of(epoch)]
    assert len(owners) == 1


@pytest.mark.parametrize("payload", [b"x", bytes(12), Lineage(((3, 5),)).encode(99) * 2, bytes(12 * 13)])
def test_what_cannot_be_a_history_is_refused(payload: bytes) -> None:
    with pytest.raises(PacketRefused, match="lineage"):
        decode_lineage(payload)


def test_a_history_whose_beginnings_shrink_is_refused() -> None:
    with pytest.raises(PacketRefused):
        checked_lineage([(1, 10), (2, 9)])
