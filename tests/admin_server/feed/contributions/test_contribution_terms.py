"""Which contribution gateway is granted a term: only one whose copy has everything that was acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemfeed.admin_server.feed.contributions.contribution_terms import (
    SILENCE_NS_MAX,
    ContributionTerms,
    GatewayClaim,
    Outcome,
    TermRecord,
)

ONE = GatewayClaim(b"one", 1, 20261123, b"copy one", "host-1:7000")
TWO = GatewayClaim(b"two", 1, 20261123, b"copy two", "host-2:7000")
LATER_NS = SILENCE_NS_MAX


class Server:
    """The terms of a feed with two gateways; the first report is that of host 1, which holds term 1."""

    def __init__(self, record: TermRecord | None = None) -> None:
        self.terms, self.numbers = ContributionTerms(2, record, 0), dict[bytes, int]()

    def report(self, claim: GatewayClaim, now_ns: int = 0) -> Outcome:
        number = self.numbers[claim.process] = self.numbers.get(claim.process, 0) + 1
        numbered = replace(claim, number=number)
        outcome = self.terms.decide(numbered, now_ns)
        self.terms.accept(numbered, outcome, now_ns)
        return outcome


@pytest.fixture
def server() -> Server:
    """Host 1 holds term 1, and host 2 has everything."""
    made = Server(TermRecord(20261123, 1, ONE.copy))
    assert made.report(replace(ONE, term=1, standby_copy=TWO.copy)).record == record_of(1, ONE, TWO)
    return made


def record_of(term: int, holder: GatewayClaim, standby: GatewayClaim | None = None) -> TermRecord:
    return TermRecord(holder.session, term, holder.copy, b"" if standby is None else standby.copy)


def test_a_standby_is_granted_the_next_term_when_the_holder_is_silent_and_not_before(server: Server) -> None:
    early = server.report(TWO, LATER_NS - 1)
    assert (early.is_holder, early.record) == (False, record_of(1, ONE, TWO))
    granted = server.report(TWO, LATER_NS)
    assert (granted.is_holder, granted.is_takeover, granted.record) == (True, True, record_of(2, TWO, ONE))


def test_a_standby_is_granted_the_next_term_at_once_when_the_holder_stops(server: Server) -> None:
    server.report(replace(ONE, term=1, standby_copy=TWO.copy, is_stopping=True))
    assert server.report(TWO).is_holder


def test_a_gateway_whose_copy_may_lack_something_is_granted_nothing(server: Server) -> None:
    assert not server.report(replace(TWO, copy=b"another"), 9 * LATER_NS).is_holder
    assert not server.report(replace(TWO, copy=b""), 9 * LATER_NS).is_holder
    assert server.report(replace(ONE, term=1), 9 * LATER_NS).record == record_of(1, ONE)  # it goes on alone
    assert not server.report(TWO, 99 * LATER_NS).is_holder


def test_a_former_holder_is_not_confirmed_and_changes_nothing(server: Server) -> None:
    server.report(TWO, LATER_NS)
    outcome = server.report(replace(ONE, term=1), LATER_NS)
    assert (outcome.is_holder, outcome.record) == (False, record_of(2, TWO, ONE))


def test_a_holder_that_restarts_has_a_new_term_with_the_same_standby(server: Server) -> None:
    restarted = replace(ONE, process=b"one again", known_term=1)
    assert server.report(restarted).record == record_of(2, ONE, TWO)


def test_reports_that_arrive_after_a_later_one_change_nothing(server: Server) -> None:
    alone = server.report(replace(ONE, term=1)), server.report(replace(ONE, term=1))
    assert [each.record for each in alone] == [record_of(1, ONE)] * 2
    for number in (1, 2):  # the second is late even though the first was heard last
        late = replace(ONE, term=1, number=number, standby_copy=TWO.copy)
        outcome = server.terms.decide(late, LATER_NS)
        assert not server.terms.accept(late, outcome, LATER_NS)
        assert (outcome.record, server.terms.record) == (record_of(1, ONE),) * 2


def test_of_two_gateways_without_a_record_the_one_whose_log_is_further_ahead_begins() -> None:
    server = Server()
    ahead = replace(TWO, known_term=3, log_end=9)
    assert not server.report(ONE).is_holder  # the other one has not reported
    assert server.report(ahead).record == TermRecord(TWO.session, 4, TWO.copy)
    assert not server.report(ONE).is_holder


def test_a_gateway_begins_without_the_other_one_if_that_does_not_report() -> None:
    server = Server()
    assert not server.report(ONE, LATER_NS).is_holder
    assert server.report(ONE, 2 * LATER_NS).is_holder


def test_a_first_holder_is_recorded_when_it_has_made_its_log() -> None:
    server = Server()
    empty = replace(ONE, copy=b"")
    server.report(replace(TWO, copy=b""))
    assert server.report(empty).record == TermRecord(ONE.session, 1, b"")
    assert not server.report(replace(TWO, copy=b"")).is_holder
    made = server.report(replace(ONE, term=1))
    assert (made.is_holder, made.record) == (True, record_of(1, ONE))


def test_the_next_session_begins_with_a_complete_log_of_the_former_one(server: Server) -> None:
    next_day = replace(ONE, session=20261124, copy=b"", former_copy=ONE.copy)
    assert not server.report(next_day).is_holder  # the former session's holder still runs
    server.report(replace(ONE, term=1, standby_copy=TWO.copy, is_stopping=True))
    assert not server.report(replace(next_day, former_copy=b"an old copy")).is_holder
    begun = server.report(next_day)
    assert begun.record == TermRecord(20261124, 2, b"", b"", (ONE.copy, TWO.copy))
    assert server.report(TWO).is_over


def test_an_operator_may_let_the_next_session_begin_with_a_copy_that_lacks_something(server: Server) -> None:
    server.report(replace(ONE, term=1))  # alone, then lost
    server.terms.accept_loss(TWO.endpoint)
    assert not server.report(TWO, 9 * LATER_NS).is_holder  # the adapters have numbers of this session that it lacks
    begun = server.report(replace(TWO, session=20261124, copy=b"", former_copy=TWO.copy), 9 * LATER_NS)
    assert (begun.is_holder, begun.record) == (True, TermRecord(20261124, 2, b""))
    assert server.report(replace(ONE, term=1)).is_over


def test_a_record_from_a_restored_backup_is_older_than_a_log_and_does_not_count() -> None:
    server = Server(TermRecord(ONE.session, 1, ONE.copy))
    server.report(replace(ONE, known_term=1, log_end=5))
    assert server.report(replace(TWO, known_term=4, log_end=9)).record == record_of(5, TWO)
