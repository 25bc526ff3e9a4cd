"""Lineages, by which receivers judge packets and positions: which epochs count, and how far."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.lineage import (
    ENTRIES_MAX,
    ENTRY_SIZE,
    UNLIMITED,
    EpochStart,
    Lineage,
    checked_lineage,
    decode_lineage,
)
from tandemfeed.feedcore.wire.position import SEQ_MAX, Run
from tandemfeed.feedcore.wire.refusal import PacketRefused


def lineage_of(*starts: tuple[int, int, int]) -> Lineage:
    """A lineage, each epoch given as (epoch, first input_seq, first message_seq)."""
    return Lineage(tuple(EpochStart(*start) for start in starts))


HISTORY = lineage_of((1, 1, 1), (3, 40, 30), (4, 40, 30), (7, 90, 60))


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    """Lineages: epochs grow, numbers never decrease."""
    entries = []
    epoch, first_input, first_message = 0, 1, 1
    for _ in range(draw(st.integers(1, ENTRIES_MAX))):
        epoch += draw(st.integers(1, 5))
        first_input += draw(st.integers(0, 50))
        first_message += draw(st.integers(0, 50))
        entries.append(EpochStart(epoch, first_input, first_message))
    return Lineage(tuple(entries))


def test_an_epoch_counts_up_to_where_the_next_of_the_history_begins() -> None:
    assert [HISTORY.end_of(epoch) for epoch in (1, 3, 4, 7)] == [40, 40, 90, UNLIMITED]


def test_an_epoch_outside_the_history_decided_nothing() -> None:
    assert [HISTORY.end_of(epoch) for epoch in (2, 5, 6, 8)] == [0, 0, 0, 0]


def test_before_the_oldest_epoch_remembered_everything_is_settled() -> None:
    assert lineage_of((5, 100, 90), (6, 200, 150)).end_of(2) == 100


def test_a_position_is_part_of_the_history_up_to_the_end_of_its_epoch() -> None:
    assert HISTORY.holds(1, 40)
    assert not HISTORY.holds(1, 41)
    assert HISTORY.holds(4, 90)
    assert not HISTORY.holds(2, 10)
    assert not lineage_of((5, 100, 90)).holds(4, 90)  # forgotten, so it cannot be judged
    assert not HISTORY.holds(2, 1)  # that epoch may have begun with another conversion state, carried over
    assert HISTORY.holds(0, 1)
    assert not HISTORY.holds(0, 2)


def test_a_decision_is_part_of_the_history_if_all_its_source_messages_precede_its_epochs_end() -> None:
    assert HISTORY.covers(Run(1, 38, 29, 1, 1, 2, 1))
    assert not HISTORY.covers(Run(1, 39, 30, 1, 1, 2, 0))
    assert not HISTORY.covers(Run(1, 40, 30, 1, 1, 1, 0))
    assert lineage_of((5, 100, 90)).covers(Run(4, 99, 90, 1, 1, 1, 0))  # forgotten, so it is settled
    assert not lineage_of((3, 1, 1)).covers(Run(2, 1, 1, 1, 1, 1, 0))  # its active died before any adapter followed it


def test_histories_part_where_the_first_epoch_begins_that_only_one_of_them_has() -> None:
    other = lineage_of((1, 1, 1), (2, 30, 20), (8, 60, 50))
    assert HISTORY.fork_from(other) == other.fork_from(HISTORY) == (2, 30, 20)
    assert HISTORY.fork_from(HISTORY.opened(9, 120, 80)) == (9, 120, 80)
    assert HISTORY.fork_from(HISTORY) is None


@given(lineages())
def test_a_lineage_decodes_to_what_was_encoded(lineage: Lineage) -> None:
    assert decode_lineage(lineage.encode(1_000)) == lineage
    assert decode_lineage(lineage.encode(ENTRY_SIZE)).entries == lineage.entries[-1:]


@given(lineages(), st.integers(1, 300))
def test_exactly_one_epoch_of_a_history_decides_each_source_message(lineage: Lineage, seq: int) -> None:
    if seq < lineage.entries[0].first_input_seq:
        return
    owners = [epoch for epoch, first, _ in lineage.entries if first <= seq < lineage.end_of(epoch)]
    assert len(owners) == 1


@pytest.mark.parametrize(
    "payload", [b"x", bytes(ENTRY_SIZE), lineage_of((3, 5, 5)).encode(99) * 2, bytes(13 * ENTRY_SIZE)]
)
def test_a_malformed_lineage_is_refused(payload: bytes) -> None:
    with pytest.raises(PacketRefused, match="lineage"):
        decode_lineage(payload)


@pytest.mark.parametrize(
    "second", [(1, 10, 10), (2, 9, 10), (2, 10, 9), (2, (1 << 62) + 1, 10), (2, 10, (1 << 62) + 1)]
)
def test_a_lineage_whose_numbers_decrease_or_exceed_the_limit_is_refused(second: tuple[int, int, int]) -> None:
    with pytest.raises(PacketRefused):
        checked_lineage([(1, 10, 10), second])


def test_a_history_knows_its_newest_epoch_and_where_that_begins() -> None:
    history = lineage_of((1, 1, 1), (7, 90, 60))
    assert (history.epoch, history.first_input_seq, history.first_message_seq) == (7, 90, 60)
    nothing = Lineage()
    assert (nothing.epoch, nothing.first_input_seq, nothing.first_message_seq) == (0, 1, 1)


def test_a_history_up_to_an_epoch_ends_with_it() -> None:
    assert HISTORY.up_to(4).entries == HISTORY.entries[:3]
    assert HISTORY.up_to(5).entries == HISTORY.entries[:3]
    assert HISTORY.up_to(0) == Lineage()


def test_two_histories_fork_at_the_first_epoch_that_only_one_has() -> None:
    renumbered = lineage_of((1, 1, 1), (3, 40, 30), (5, 60, 50))
    for ours, theirs in ((HISTORY, renumbered), (renumbered, HISTORY)):
        assert ours.fork_from(theirs) == (4, 40, 30)
    assert HISTORY.fork_from(HISTORY) is None
    assert Lineage().fork_from(HISTORY) == (1, 1, 1)
    assert HISTORY.fork_from(Lineage()) == (1, 1, 1)


def test_epochs_that_one_history_has_forgotten_are_no_fork() -> None:
    newer = Lineage(HISTORY.entries[2:])
    assert HISTORY.fork_from(newer) is None
    assert newer.fork_from(HISTORY) is None
    assert Lineage(HISTORY.entries[1:2]).fork_from(lineage_of((1, 1, 1), (4, 40, 30))) == (3, 40, 30)


def test_a_payload_too_small_for_an_entry_contains_none() -> None:
    assert HISTORY.encode(ENTRY_SIZE - 1) == b""
    assert HISTORY.encode(ENTRY_SIZE) == Lineage(HISTORY.entries[-1:]).encode(ENTRY_SIZE)


def test_more_entries_than_the_limit_are_refused() -> None:
    most = Lineage(tuple(EpochStart(epoch, 1, 1) for epoch in range(1, ENTRIES_MAX + 1)))
    payload = most.encode(ENTRIES_MAX * ENTRY_SIZE)
    assert decode_lineage(payload) == most
    with pytest.raises(PacketRefused):
        decode_lineage(payload + lineage_of((ENTRIES_MAX + 1, 1, 1)).encode(ENTRY_SIZE))


def test_the_largest_numbers_are_valid_and_larger_ones_are_not() -> None:
    assert checked_lineage([(1, SEQ_MAX, SEQ_MAX)]).first_input_seq == SEQ_MAX
    for wrong in ((1, SEQ_MAX + 1, SEQ_MAX), (1, SEQ_MAX, SEQ_MAX + 1)):
        with pytest.raises(PacketRefused):
            checked_lineage([wrong])
