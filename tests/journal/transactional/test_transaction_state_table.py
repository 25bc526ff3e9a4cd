"""The transaction's table of moves: legal moves, error texts, crashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.journal.transactional.errors import BadName, IllegalTransactionMove
from tandemfeed.journal.transactional.topics import checked_pattern, checked_topic, matches
from tandemfeed.journal.transactional.transactions.transaction_state import (
    FINAL,
    MOVES,
    STORY_LENGTH_MAX,
    TransactionEvent,
    TransactionMachine,
    TransactionState,
)

PROMISED = {
    TransactionState.PREPARED,
    TransactionState.IN_DOUBT,
    TransactionState.DECIDED_COMMIT,
    TransactionState.DECIDED_ROLLBACK,
}


def machine_in(state: TransactionState) -> TransactionMachine:
    return TransactionMachine("transaction 1", state)


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("event", TransactionEvent)
def test_legal_moves_are_made_and_all_others_are_refused(state: TransactionState, event: TransactionEvent) -> None:
    machine = machine_in(state)
    assert machine.allows(event) == ((state, event) in MOVES)
    if machine.allows(event):
        assert machine.step(event) is machine.state is MOVES[state, event]
    else:
        with pytest.raises(IllegalTransactionMove, match=state.value):
            machine.step(event)
        assert machine.state is state


def test_every_state_can_be_reached_and_every_unfinished_one_can_end() -> None:
    reached, grown = {TransactionState.ACTIVE}, True
    while grown:
        more = {target for (state, _), target in MOVES.items() if state in reached} - reached
        reached, grown = reached | more, bool(more)
    assert reached == set(TransactionState)
    ends = set(FINAL)
    while more := {state for (state, _), target in MOVES.items() if target in ends} - ends:
        ends |= more
    assert ends == set(TransactionState)


def test_nothing_leaves_a_final_state() -> None:
    assert not [state for state, _ in MOVES if state in FINAL]


def test_a_prepared_transaction_ends_only_with_a_durable_decision() -> None:
    for (state, event), target in MOVES.items():
        if state in PROMISED and target not in PROMISED:
            assert event is TransactionEvent.DURABLE
            assert state in (TransactionState.DECIDED_COMMIT, TransactionState.DECIDED_ROLLBACK)


def test_an_illegal_move_lists_the_states_before_it() -> None:
    machine = machine_in(TransactionState.ACTIVE)
    for event in (TransactionEvent.PREPARE, TransactionEvent.DURABLE, TransactionEvent.COMMIT):
        machine.step(event)
    with pytest.raises(IllegalTransactionMove, match="active —prepare→ preparing —durable→ prepared —commit→"):
        machine.step(TransactionEvent.PREPARE)


def test_the_list_of_states_is_bounded() -> None:
    machine = machine_in(TransactionState.ACTIVE)
    for _ in range(STORY_LENGTH_MAX * 2):
        machine.step(TransactionEvent.COMMIT)
        machine.step(TransactionEvent.REFUSED)
    assert machine.story.count("→") <= STORY_LENGTH_MAX
    assert machine.story.startswith("active —")


@pytest.mark.parametrize(
    ("pattern", "topic", "wanted"),
    [
        ("quotes.us.AAPL", "quotes.us.AAPL", True),
        ("quotes.us.AAPL", "quotes.us", False),
        ("quotes.*.AAPL", "quotes.us.AAPL", True),
        ("quotes.*", "quotes.us.AAPL", False),
        ("*", "quotes", True),
        ("*", "quotes.us", False),
        ("quotes.#", "quotes", True),
        ("quotes.#", "quotes.us.AAPL", True),
        ("quotes.#", "trades.us", False),
        ("*.us.#", "quotes.us", True),
        ("*.us.#", "quotes", False),
        ("#", "anything.at.all", True),
    ],
)
def test_a_pattern_matches_these_topics(pattern: str, topic: str, wanted: bool) -> None:
    assert matches(checked_pattern(pattern), checked_topic(topic)) is wanted


WORD = st.text("ab", min_size=1, max_size=2)


@given(st.lists(st.one_of(WORD, st.just("*")), max_size=4), st.booleans(), st.lists(WORD, min_size=1, max_size=5))
def test_patterns_agree_with_the_plain_definition(words: list[str], open_end: bool, topic: list[str]) -> None:
    if not words and not open_end:
        return
    pattern = ".".join([*words, "#"] if open_end else words)
    long_enough = len(topic) >= len(words) if open_end else len(topic) == len(words)
    plain = long_enough and all(word in ("*", topic[place]) for place, word in enumerate(words))
    assert matches(pattern, ".".join(topic)) is plain


@pytest.mark.parametrize("name", ["", ".", "a..b", "a.", "quotes.*", "#", "a b", "a" * 201])
def test_an_invalid_topic_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        checked_topic(name)


@pytest.mark.parametrize("name", ["", "a.#.b", "##", "a*", "a..b", "a" * 201])
def test_an_invalid_pattern_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        checked_pattern(name)


def test_the_manual_contains_this_table() -> None:
    manual = (Path(__file__).resolve().parents[3] / "docs" / "transactional-store.md").read_text()
    drawn = {
        (TransactionState[source], event.strip()): TransactionState[target]
        for source, target, events in re.findall(r"^    ([A-Z_]+) --> ([A-Z_]+): (.+)$", manual, re.MULTILINE)
        for event in events.split(",")
    }
    assert drawn == {(state, event.value): target for (state, event), target in MOVES.items()}
