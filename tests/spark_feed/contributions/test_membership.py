"""A contribution gateway's part, step by step: what the server's answers and the followers' positions change."""

from __future__ import annotations

import pytest

from tandemfeed.spark_feed.contributions.pair.membership import (
    LOOKS_MIN,
    NEAR_COUNT,
    NO_COPY,
    Acknowledge,
    Assignment,
    Claim,
    GatewayState,
    IllegalMove,
    Membership,
)

COPY, OTHER, THIRD = b"copy", b"other", b"third"
PATIENCE_NS = 1_000
END = 10  # the holder's log has ten records


def assigned(
    gateway: Membership,
    now_ns: int = 0,
    *,
    number: int | None = None,
    term: int = 1,
    is_holder: bool = True,
    is_takeover: bool = False,
    holder_copy: bytes = COPY,
    standby_copy: bytes = OTHER,
    own_copy: bytes = COPY,
    is_over: bool = False,
    reason: str = "",
) -> None:
    """The server's answer to the gateway's last report, or to another one, arrives."""
    number = gateway.number if number is None else number
    answer = Assignment(number, term, is_holder, is_takeover, holder_copy, standby_copy, is_over, reason)
    gateway.on_assignment(answer, own_copy, now_ns)


def starting(acknowledge: Acknowledge = Acknowledge.AVAILABLE) -> Membership:
    """A gateway that has made its first report."""
    gateway = Membership(acknowledge, PATIENCE_NS)
    gateway.claim()
    return gateway


def holding(acknowledge: Acknowledge = Acknowledge.AVAILABLE, standby_copy: bytes = OTHER) -> Membership:
    """A gateway that has held term 1 since 0."""
    gateway = starting(acknowledge)
    assigned(gateway, standby_copy=standby_copy)
    gateway.on_appended(END, 0)
    return gateway


# ---- reports and the states before a term ----


def test_a_gateway_begins_without_a_part_and_numbers_its_reports() -> None:
    gateway = Membership(Acknowledge.AVAILABLE, PATIENCE_NS, number=7)
    assert (gateway.state, gateway.is_over, gateway.reason) == (GatewayState.BEHIND, False, "")
    assert not gateway.is_urgent
    assert gateway.next_deadline_ns() is None
    assert [gateway.claim(), gateway.claim()] == [Claim(8, 0, NO_COPY), Claim(9, 0, NO_COPY)]
    assigned(gateway)
    assert gateway.claim() == Claim(10, 1, OTHER)


def test_a_gateway_is_a_standby_exactly_while_its_copy_is_recorded_as_such() -> None:
    gateway = starting()
    for own_copy, standby_copy, state in (
        (COPY, COPY, GatewayState.STANDBY),
        (COPY, OTHER, GatewayState.BEHIND),
        (NO_COPY, NO_COPY, GatewayState.BEHIND),
        (COPY, COPY, GatewayState.STANDBY),
        (COPY, COPY, GatewayState.STANDBY),
    ):
        assigned(
            gateway, is_holder=False, holder_copy=THIRD, standby_copy=standby_copy, own_copy=own_copy, reason="why"
        )
        assert (gateway.state, gateway.reason) == (state, "why")
    assert not gateway.is_urgent
    assert gateway.next_deadline_ns() is None


def test_an_answer_that_names_the_gateways_copy_as_the_holders_is_no_grant_for_another_process() -> None:
    gateway = starting()
    assigned(gateway, is_holder=False)
    assert gateway.state is GatewayState.BEHIND


def test_an_answer_to_a_report_of_an_earlier_process_is_ignored() -> None:
    gateway = starting()
    assigned(gateway, number=gateway.number + 1)
    assert gateway.state is GatewayState.BEHIND


def test_a_session_that_is_over_ends_the_gateway_for_good() -> None:
    gateway = starting()
    assigned(gateway, is_holder=False, is_over=True, reason="session 8 has begun")
    assert (gateway.state, gateway.is_over, gateway.reason) == (GatewayState.ENDED, True, "session 8 has begun")
    assigned(gateway, reason="another")
    assert (gateway.state, gateway.reason) == (GatewayState.ENDED, "session 8 has begun")


def test_only_a_holder_appends() -> None:
    gateway = starting()
    gateway.on_appended(END, 0)
    gateway.on_positions({OTHER: END}, 0)
    assert (gateway.committed_index, gateway.next_deadline_ns()) == (0, None)
    gateway = holding()
    assigned(gateway, is_holder=False)
    gateway.on_appended(END - 1, 0)  # what another gateway wrote meanwhile does not matter
    assert gateway.next_deadline_ns() is None


# ---- a term ----


def test_a_new_holder_has_the_standby_that_is_recorded() -> None:
    gateway = starting()
    assigned(gateway, is_holder=False, holder_copy=THIRD, reason="why")
    assigned(gateway, 5)
    assert (gateway.state, gateway.term, gateway.standby_copy, gateway.reason) == (GatewayState.HOLDER, 1, OTHER, "")
    assert not gateway.is_urgent
    assert gateway.next_deadline_ns() == 5 + PATIENCE_NS


@pytest.mark.parametrize(
    ("acknowledge", "is_takeover", "wanted"),
    [
        (Acknowledge.AVAILABLE, True, NO_COPY),
        (Acknowledge.AVAILABLE, False, OTHER),
        (Acknowledge.BOTH, True, OTHER),
        (Acknowledge.BOTH, False, OTHER),
    ],
)
def test_after_a_takeover_the_silent_former_holder_is_given_up_if_one_copy_is_enough(
    acknowledge: Acknowledge, is_takeover: bool, wanted: bytes
) -> None:
    gateway = starting(acknowledge)
    assigned(gateway, is_takeover=is_takeover)
    assert gateway.is_urgent == (wanted != OTHER)
    assert gateway.claim().standby_copy == wanted


def test_until_the_holders_log_is_recorded_nothing_is_committed_and_the_next_report_is_urgent() -> None:
    gateway = starting()
    assigned(gateway, holder_copy=NO_COPY, standby_copy=NO_COPY, own_copy=NO_COPY)
    gateway.on_appended(END, 0)
    assert (gateway.committed_index, gateway.is_urgent) == (0, True)
    assert gateway.reason == "the admin server has not recorded this gateway's log yet"
    for holder_copy, own_copy in ((NO_COPY, COPY), (NO_COPY, NO_COPY), (THIRD, COPY)):
        assigned(gateway, holder_copy=holder_copy, standby_copy=NO_COPY, own_copy=own_copy)
        assert (gateway.committed_index, gateway.is_urgent) == (0, True)
    assigned(gateway, standby_copy=NO_COPY)
    assert (gateway.committed_index, gateway.is_urgent, gateway.reason) == (END, False, "")


@pytest.mark.parametrize(("term", "is_holder"), [(2, True), (2, False), (1, False)])
def test_a_holder_ends_when_the_server_does_not_confirm_its_term(term: int, is_holder: bool) -> None:
    gateway = holding()
    gateway.on_positions({OTHER: 3}, 0)
    assigned(gateway, term=term, is_holder=is_holder, standby_copy=NO_COPY)
    assert gateway.state is GatewayState.ENDED
    assert gateway.reason == f"another gateway holds term {term}, after this one's term 1"
    assert (gateway.standby_copy, gateway.committed_index) == (OTHER, 3)
    assert not gateway.is_urgent


def test_an_answer_proves_only_what_its_own_and_earlier_reports_named() -> None:
    gateway = holding()
    gateway.on_positions({}, 0)
    gateway.on_timer(PATIENCE_NS)
    first, second = gateway.claim(), gateway.claim()
    assert (first.standby_copy, second.standby_copy) == (NO_COPY, NO_COPY)
    gateway.on_positions({THIRD: END}, PATIENCE_NS)
    assert gateway.claim().standby_copy == THIRD
    gateway.on_positions({THIRD: 0}, PATIENCE_NS)
    gateway.on_appended(END + 1, PATIENCE_NS)
    assigned(gateway, number=second.number, standby_copy=NO_COPY)
    assert gateway.committed_index == 0, "the server may have recorded the third copy since"
    gateway.on_positions({THIRD: END}, PATIENCE_NS)
    assert gateway.committed_index == END
    assigned(gateway, standby_copy=THIRD)
    gateway.on_positions({THIRD: END + 1}, PATIENCE_NS)
    assert gateway.committed_index == END + 1


def test_a_copy_that_a_confirmed_report_no_longer_names_is_not_required() -> None:
    gateway = holding()
    gateway.claim()
    gateway.on_positions({}, 0)
    gateway.on_timer(PATIENCE_NS)
    gateway.claim()
    assigned(gateway, standby_copy=NO_COPY)
    assert gateway.committed_index == END


def test_a_standby_that_a_report_named_is_required_until_that_report_or_a_later_one_is_answered() -> None:
    gateway = holding(standby_copy=NO_COPY)
    gateway.on_positions({OTHER: END}, 0)
    named = gateway.claim()
    assert named.standby_copy == OTHER
    gateway.on_positions({}, 0)
    gateway.on_timer(PATIENCE_NS)
    gateway.on_appended(END + 1, PATIENCE_NS)
    assert not gateway.is_urgent, "the record has no standby"
    assert gateway.committed_index == END, "the server may have recorded it"
    assigned(gateway, number=named.number - 1, standby_copy=NO_COPY)
    assert gateway.committed_index == END
    assigned(gateway, number=named.number, standby_copy=NO_COPY)
    assert gateway.committed_index == END + 1


# ---- followers ----


def test_everything_that_may_be_granted_next_must_have_what_is_committed() -> None:
    gateway = holding(standby_copy=NO_COPY)
    gateway.on_appended(END + 5, 0)
    assert gateway.committed_index == END + 5
    gateway.on_appended(END + 9, 0)
    gateway = holding()
    gateway.on_positions({OTHER: 4}, 0)
    assert gateway.committed_index == 4
    gateway.on_positions({OTHER: 2}, 0)
    assert gateway.committed_index == 4, "what was committed stays so"


def test_a_follower_joins_only_when_it_lacks_few_records() -> None:
    gateway = holding(standby_copy=NO_COPY)
    gateway.on_appended(NEAR_COUNT + END, 0)
    gateway.on_positions({OTHER: END}, 0)
    gateway.on_appended(NEAR_COUNT + END + 1, 1)
    assert gateway.committed_index == NEAR_COUNT + END + 1, "no one waits for a follower that is far behind"
    gateway.on_positions({OTHER: END + 2}, 2)
    gateway.on_appended(NEAR_COUNT + END + 2, 3)
    assert gateway.committed_index == NEAR_COUNT + END + 1, "it joins"
    gateway.on_positions({}, 4)
    assert gateway.committed_index == NEAR_COUNT + END + 2, "it has gone"


def test_one_follower_joins_at_a_time_and_the_choice_stays() -> None:
    gateway = holding(standby_copy=NO_COPY)
    gateway.on_positions({THIRD: END - 1, OTHER: END - 2}, 0)
    gateway.on_appended(END + 1, 0)
    gateway.on_positions({b"a copy that sorts first": END + 1, THIRD: END + 1, OTHER: END - 2}, 0)
    assert gateway.claim().standby_copy == NO_COPY, "these are further, but the other one was chosen"
    gateway.on_positions({THIRD: END - 1, OTHER: END + 1}, 0)
    assert gateway.claim().standby_copy == OTHER
    gateway.on_positions({b"a copy that sorts first": END + 1, OTHER: END + 1}, 0)
    assert gateway.claim().standby_copy == OTHER, "a standby that follows is not replaced"


def test_a_follower_becomes_the_standby_only_with_everything_from_before_the_term() -> None:
    gateway = holding(standby_copy=NO_COPY)
    gateway.on_appended(END + 5, 0)
    gateway = holding(Acknowledge.BOTH, standby_copy=NO_COPY)
    gateway.on_appended(END + 5, 0)
    gateway.on_positions({OTHER: END - 1}, 0)
    assert gateway.claim().standby_copy == NO_COPY
    gateway.on_positions({OTHER: END}, 0)
    assert gateway.claim().standby_copy == OTHER, "what this term has not committed may be missing"


# ---- waiting ----


def test_a_standby_that_delays_acknowledgements_is_given_up_after_the_patience_and_not_before() -> None:
    gateway = holding()
    gateway.on_positions({OTHER: 4}, 100)
    assert gateway.next_deadline_ns() is None or gateway.committed_index < END
    begun_ns = (gateway.next_deadline_ns() or 0) - PATIENCE_NS
    gateway.on_timer(begun_ns + PATIENCE_NS - 1)
    assert gateway.claim().standby_copy == OTHER
    gateway.on_timer(begun_ns + PATIENCE_NS)
    assert gateway.claim().standby_copy == NO_COPY
    assert gateway.next_deadline_ns() == begun_ns + 2 * PATIENCE_NS


def test_nothing_is_given_up_while_nothing_waits() -> None:
    gateway = holding()
    gateway.on_positions({OTHER: END}, 0)
    assert (gateway.next_deadline_ns(), gateway.reason) == (None, "")
    gateway.on_timer(9 * PATIENCE_NS)
    assert gateway.claim().standby_copy == OTHER


def test_after_a_pause_of_the_holder_its_standby_gets_the_whole_patience_again() -> None:
    gateway = holding()
    gateway.on_positions({}, 0)
    for now_ns in range(0, PATIENCE_NS, PATIENCE_NS // LOOKS_MIN):
        gateway.on_timer(now_ns)
    resumed_ns = 90 * PATIENCE_NS
    gateway.on_timer(resumed_ns)
    assert gateway.claim().standby_copy == OTHER
    for now_ns in range(resumed_ns, resumed_ns + PATIENCE_NS, PATIENCE_NS // LOOKS_MIN):
        gateway.on_timer(now_ns)
        assert gateway.claim().standby_copy == OTHER
    gateway.on_timer(resumed_ns + PATIENCE_NS)
    assert gateway.claim().standby_copy == NO_COPY


def test_a_pause_while_nothing_is_awaited_changes_nothing() -> None:
    gateway = holding()
    gateway.on_positions({OTHER: END}, 0)
    gateway.on_timer(0)
    gateway.on_timer(90 * PATIENCE_NS)
    assert gateway.next_deadline_ns() is None


def test_the_time_that_a_new_holder_takes_to_open_its_log_does_not_count() -> None:
    gateway = starting()
    assigned(gateway)
    opened_ns = 90 * PATIENCE_NS
    gateway.on_appended(END, opened_ns)
    gateway.on_timer(opened_ns)
    assert gateway.claim().standby_copy == OTHER
    assert gateway.next_deadline_ns() == opened_ns + PATIENCE_NS


def test_the_patience_counts_from_the_last_progress() -> None:
    gateway = holding()
    gateway.on_positions({OTHER: 4}, 300)
    assert gateway.next_deadline_ns() == 300 + PATIENCE_NS
    gateway.on_positions({OTHER: 4}, 400)
    assert gateway.next_deadline_ns() == 300 + PATIENCE_NS
    gateway.on_positions({OTHER: END}, 500)
    gateway.on_appended(END + 1, 600)
    assert gateway.next_deadline_ns() == 600 + PATIENCE_NS


def test_a_standby_that_is_not_connected_is_waited_for_even_if_nothing_is_new() -> None:
    gateway = holding()
    gateway.on_positions({OTHER: END}, 0)
    gateway.on_positions({}, 700)
    assert gateway.committed_index == END
    assert gateway.next_deadline_ns() == 700 + PATIENCE_NS
    assert gateway.reason == (
        "the second gateway does not answer, and the admin server has not recorded yet that this one is alone"
    )


def test_the_reason_says_whose_acknowledgement_the_policy_requires() -> None:
    gateway = holding(Acknowledge.BOTH)
    gateway.on_positions({}, 0)
    assert gateway.reason == (
        'the second gateway does not answer, and acknowledge_contributions = "both" requires its copy'
    )
    alone = holding(Acknowledge.BOTH, standby_copy=NO_COPY)
    assert alone.reason == (
        'no second gateway has a complete copy of the log, which acknowledge_contributions = "both" requires'
    )


def test_the_story_of_an_illegal_move_has_the_last_twenty_moves() -> None:
    gateway = starting()
    for number in range(30):
        state = (GatewayState.STANDBY, GatewayState.BEHIND)[number % 2]
        gateway._move(state, f"move {number}")
    with pytest.raises(IllegalMove) as raised:
        gateway._move(GatewayState.BEHIND, "again")
    story = str(raised.value).split("; ")
    assert (len(story), story[0]) == (21, "behind -> standby: move 10")
