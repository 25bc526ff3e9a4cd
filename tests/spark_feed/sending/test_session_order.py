"""Which session a gateway begins: after a start, after the end of a session, and why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.spark_feed.sending.sessions.order import (
    END_PATIENCE_NS,
    FEED_PATIENCE_NS,
    AwaitChoice,
    AwaitEnd,
    AwaitFeed,
    AwaitFirst,
    AwaitJournal,
    BeginSession,
    FoundJournal,
    SessionOrder,
    Wait,
)

FOLDER = Path("/journals")
NOW_NS = 1_000_000_000


def journal(session: int, name: str = "", *, is_begun: bool = False) -> FoundJournal:
    return FoundJournal(session, FOLDER / (name or str(session)), is_begun)


def begin(session: int, former: int = 0) -> BeginSession:
    return BeginSession(session, FOLDER / str(session), FOLDER / str(former) if former else None)


def look(
    order: SessionOrder,
    *found: FoundJournal,
    feed: int = 21,
    is_complete: bool = True,
    position: int = 0,
    now_ns: int = NOW_NS,
) -> BeginSession | Wait:
    return order.on_look(found, feed_session=feed, is_complete=is_complete, position=position, now_ns=now_ns)


def in_session(session: int) -> SessionOrder:
    order = SessionOrder()
    order.begun(session)
    return order


# ---- the first session ----


def test_a_new_gateway_begins_with_the_feeds_session_and_leaves_earlier_ones_out() -> None:
    assert look(SessionOrder(), journal(23), journal(20), journal(21)) == begin(21, former=20)


def test_a_feed_that_has_no_journal_of_its_session_begins_with_the_next_one() -> None:
    assert look(SessionOrder(), journal(20), journal(24), journal(23)) == begin(23, former=20)


def test_a_restarted_gateway_continues_with_the_latest_session_that_it_has_begun() -> None:
    found = [journal(21, is_begun=True), journal(22, is_begun=True), journal(23)]
    assert look(SessionOrder(), *found, feed=21) == begin(22, former=21)


def test_a_gateway_that_lost_its_positions_continues_where_the_adapters_are() -> None:
    assert look(SessionOrder(), journal(21), journal(22), journal(23), feed=22) == begin(22, former=21)


def test_the_former_session_is_one_that_was_sent_rather_than_one_that_came_too_late() -> None:
    found = [journal(21, is_begun=True), journal(22), journal(23, is_begun=True)]
    assert look(SessionOrder(), *found, feed=23) == begin(23, former=21)


def test_without_a_journal_to_send_the_gateway_waits_and_says_for_which_session() -> None:
    order = SessionOrder()
    assert order.waiting_reason == ""
    assert look(order) == AwaitFirst(21, is_asked=False)
    assert order.waiting_reason == "nothing is sent, because there is no journal of session 21 or a later one"
    assert look(order, journal(20)) == AwaitFirst(21, is_asked=False)
    assert look(order, journal(22)) == begin(22)
    assert order.waiting_reason == ""


def test_the_session_that_was_asked_for_comes_first_and_no_other_one_takes_its_place() -> None:
    order = SessionOrder(asked=22)
    assert look(order, journal(21), journal(23)) == AwaitFirst(22, is_asked=True)
    assert order.waiting_reason == "nothing is sent, because there is no journal of session 22"
    assert look(order, journal(21), journal(22), journal(23)) == begin(22, former=21)


def test_a_gateway_that_is_restarted_with_the_same_session_option_does_not_go_back() -> None:
    found = [journal(22, is_begun=True), journal(23, is_begun=True), journal(24)]
    assert look(SessionOrder(asked=22), *found, feed=23) == begin(23, former=22)


# ---- the next session ----


def test_the_next_session_begins_when_the_present_one_is_complete() -> None:
    order = in_session(21)
    found = [journal(21, is_begun=True), journal(22), journal(23)]
    assert look(order, *found, is_complete=False) == AwaitEnd(21, 22)
    assert look(order, *found) == begin(22, former=21)


def test_a_gateway_waits_for_the_next_journal_as_long_as_it_takes_and_nothing_is_wrong() -> None:
    order = in_session(21)
    for now_ns in (NOW_NS, NOW_NS + 1_000 * END_PATIENCE_NS):
        outcome = look(order, journal(20), journal(21), now_ns=now_ns)
        assert isinstance(outcome, AwaitJournal)
        assert outcome.reason() == "there is no journal of a later session yet"
        assert order.waiting_reason == ""


def test_a_session_without_an_end_is_reported_when_a_later_one_waits_for_long() -> None:
    order = in_session(21)
    found = [journal(21), journal(22)]
    for elapsed_ns, position, is_reported in (
        (0, 7, False),
        (END_PATIENCE_NS - 1, 7, False),
        (END_PATIENCE_NS, 8, False),  # it was still growing
        (2 * END_PATIENCE_NS, 8, True),
    ):
        look(order, *found, is_complete=False, position=position, now_ns=NOW_NS + elapsed_ns)
        assert bool(order.waiting_reason) is is_reported
    assert "or `tandemfeed end-session`, or restart the gateway with --session 22" in order.waiting_reason
    assert look(order, *found) == begin(22, former=21)
    assert order.waiting_reason == ""


def test_no_session_begins_before_an_adapter_has_begun_the_one_before_it() -> None:
    order = in_session(22)
    found = [journal(22), journal(23)]
    assert look(order, *found, feed=21) == AwaitFeed(22, 23)
    assert order.waiting_reason == ""
    look(order, *found, feed=21, now_ns=NOW_NS + FEED_PATIENCE_NS)
    assert "no adapter has begun session 22" in order.waiting_reason
    assert look(order, *found, feed=22) == begin(23, former=22)


@pytest.mark.parametrize("order", [in_session(21), SessionOrder(asked=22)])
def test_two_journals_of_one_session_wait_until_an_operator_has_removed_one(order: SessionOrder) -> None:
    found = [journal(22, "b"), journal(22, "a"), journal(23)]
    assert look(order, *found) == AwaitChoice(22, (FOLDER / "a", FOLDER / "b"))
    assert order.waiting_reason.startswith("session 22 waits, because a, b contain it")
    assert look(order, *found[1:]) == BeginSession(22, FOLDER / "a", None)


def test_journals_that_appear_after_their_session_are_named_once() -> None:
    order = in_session(22)
    present = FOLDER / "22"
    early = [journal(20), journal(22)]
    assert order.new_too_late(early, present) == []  # they were there before
    late = [journal(21, "late"), journal(22, "twice")]
    assert order.new_too_late([*early, *late, journal(23)], present) == late
    assert order.new_too_late([*early, *late, journal(23)], present) == []
    assert order.new_too_late(early, present) == []  # the operator has moved them away ...
    assert order.new_too_late([*early, *late, journal(23)], present) == []  # ... and back
    order.begun(23)
    assert order.new_too_late([*early, *late, journal(23)], FOLDER / "23") == []


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 8), st.booleans(), st.integers(0, 6)), max_size=30))
def test_sessions_only_grow_whatever_appears(steps: list[tuple[int, int, bool, int]]) -> None:
    order, found, begun = SessionOrder(), list[FoundJournal](), list[int]()
    for now_ns, (session, name, is_complete, feed) in enumerate(steps):
        found.append(journal(session, f"{session}-{name}"))
        outcome = look(order, *found, feed=feed, is_complete=is_complete, now_ns=now_ns)
        if isinstance(outcome, BeginSession):
            assert [each.journal for each in found if each.session == outcome.session] == [outcome.journal]
            assert not begun or (is_complete and outcome.session > begun[-1] and feed >= begun[-1])
            order.begun(outcome.session)
            begun.append(outcome.session)
