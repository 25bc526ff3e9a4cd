"""Which contribution gateway is granted a term: only one whose copy has everything that was acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemfeed.admin_server.feed.contributions.contribution_terms import (
    LACKING,
    PROCESSES_KEPT,
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


def test_while_the_server_reads_no_reports_the_holder_is_not_silent(server: Server) -> None:
    server.terms.on_resumed(LATER_NS)
    assert not server.report(TWO, LATER_NS).is_holder, "the holder's reports may wait in the server's queues"
    assert not server.report(TWO, 2 * LATER_NS - 1).is_holder
    assert server.report(TWO, 2 * LATER_NS).is_holder


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


def test_a_gateway_waits_for_the_other_ones_first_report_for_as_long_as_the_server_reads_reports() -> None:
    server = Server()
    server.terms.on_resumed(LATER_NS)
    assert not server.report(ONE, LATER_NS + 2 * SILENCE_NS_MAX - 1).is_holder
    assert server.report(ONE, LATER_NS + 2 * SILENCE_NS_MAX).is_holder


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


def test_the_last_report_of_each_gateway_is_known_with_its_time(server: Server) -> None:
    server.report(TWO, 5)
    server.report(TWO, 7)
    last = {claim.endpoint: (claim.number, at_ns) for claim, at_ns in server.terms.claims()}
    assert last == {ONE.endpoint: (1, 0), TWO.endpoint: (2, 7)}


def test_a_report_that_was_accepted_is_late_when_it_arrives_again() -> None:
    terms = ContributionTerms(2, TermRecord(ONE.session, 1, ONE.copy), 0)
    outcome = terms.decide(ONE, 0)
    assert terms.accept(ONE, outcome, 0) is True
    assert terms.accept(ONE, outcome, 1) is False
    assert terms.decide(ONE, 1).reason == "a later report of this gateway was answered before"


def test_only_the_newest_processes_are_remembered_for_their_late_reports() -> None:
    terms = ContributionTerms(2, TermRecord(ONE.session, 1, ONE.copy), 0)
    claims = [replace(TWO, process=bytes([number])) for number in range(PROCESSES_KEPT + 1)]
    for claim in claims[:-1]:
        terms.accept(claim, Outcome(terms.record), 0)
    assert terms.accept(claims[0], Outcome(terms.record), 1) is False
    terms.accept(claims[-1], Outcome(terms.record), 1)
    assert terms.accept(claims[1], Outcome(terms.record), 2) is False
    assert terms.accept(claims[0], Outcome(terms.record), 2) is True, "it is the oldest, and forgotten"


def test_what_changed_is_named_for_the_history(server: Server) -> None:
    def event(claim: GatewayClaim, now_ns: int = 0) -> str:
        return server.report(claim, now_ns).event

    assert event(replace(ONE, term=1, standby_copy=TWO.copy)) == "", "nothing"
    alone = server.report(replace(ONE, term=1))
    assert (alone.event, alone.is_holder) == ("the holder goes on alone", True)
    assert event(replace(ONE, term=1, standby_copy=TWO.copy)) == "a standby has everything"
    assert event(TWO, LATER_NS) == "the holder was silent"


def test_a_report_of_the_present_term_with_another_copy_confirms_nothing(server: Server) -> None:
    assert not server.report(replace(ONE, term=1, copy=b"another")).is_holder


def test_a_holder_of_a_former_term_is_not_taken_for_one_that_restarted() -> None:
    server = Server(TermRecord(ONE.session, 3, ONE.copy, TWO.copy))
    assert not server.report(replace(ONE, term=2)).is_holder


def test_without_a_standby_a_gateway_without_a_log_is_granted_nothing(server: Server) -> None:
    server.report(replace(ONE, term=1))
    outcome = server.report(replace(TWO, copy=b""), LATER_NS)
    assert (outcome.is_holder, outcome.reason) == (
        False, "its copy of the log may lack messages that only the holder has"
    )  # fmt: skip


def test_a_gateway_that_waits_is_given_the_reason(server: Server) -> None:
    assert server.report(TWO).reason == "", "it is the standby"
    for copy in (b"another", b""):
        waiting = server.report(replace(TWO, copy=copy))
        assert waiting.reason == "its copy of the log may lack messages that the holder and another gateway have"


def test_a_gateway_that_is_stopping_is_granted_nothing(server: Server) -> None:
    outcome = server.report(replace(TWO, is_stopping=True), LATER_NS)
    assert (outcome.is_holder, outcome.record, outcome.reason) == (False, record_of(1, ONE, TWO), "it is stopping")


def next_day_begun() -> Server:
    """Host 1 was granted the next session's first term with its copy of the former one, and has no log yet."""
    server = Server(TermRecord(20261123, 1, ONE.copy, TWO.copy))
    claim = replace(ONE, session=20261124, copy=b"", former_copy=ONE.copy)
    assert server.report(claim, LATER_NS).record == TermRecord(20261124, 2, b"", b"", (ONE.copy, TWO.copy))
    return server


def test_until_a_session_has_a_log_only_a_complete_copy_of_the_former_session_is_granted_a_term() -> None:
    server = next_day_begun()
    next_day = replace(TWO, session=20261124, copy=b"")
    late_ns = 3 * LATER_NS
    for former_copy in (b"an old copy", b""):
        lacking = server.report(replace(next_day, former_copy=former_copy), late_ns)
        assert (lacking.is_holder, lacking.reason) == (False, LACKING)
    waiting = server.report(replace(next_day, former_copy=TWO.copy), 2 * LATER_NS - 1)
    assert (waiting.is_holder, waiting.reason) == (False, "another gateway begins")
    granted = server.report(replace(next_day, former_copy=TWO.copy), late_ns)
    assert granted.record == TermRecord(20261124, 3, b"", b"", (ONE.copy, TWO.copy)), "either copy still counts"


def test_a_gateway_that_is_granted_a_session_with_its_own_log_of_it_needs_no_copy_of_the_former_one() -> None:
    made = replace(TWO, session=20261124, copy=b"new", former_copy=TWO.copy)
    assert next_day_begun().report(made, 3 * LATER_NS).record == TermRecord(20261124, 3, b"new")


def test_the_first_holder_is_confirmed_without_a_log_and_its_first_log_ends_the_former_ones_part() -> None:
    server = next_day_begun()
    holder = replace(ONE, session=20261124, copy=b"", former_copy=ONE.copy, term=2)
    confirmed = server.report(holder, LATER_NS)
    assert (confirmed.is_holder, confirmed.record, confirmed.event) == (True, server.terms.record, "")
    made = server.report(replace(holder, copy=b"new"), LATER_NS)
    assert (made.record, made.event) == (TermRecord(20261124, 2, b"new"), "the holder has made its log")


@pytest.mark.parametrize("other", [replace(ONE, term=1, process=b"one again"), replace(ONE, term=0)])
def test_only_the_process_and_term_that_were_granted_may_record_the_first_log(other: GatewayClaim) -> None:
    server = Server()
    server.report(replace(TWO, copy=b""))
    server.report(replace(ONE, copy=b""))
    outcome = server.report(other)
    assert (outcome.is_holder, outcome.reason) == (False, "another gateway begins")


def test_a_restarted_server_lets_no_process_record_the_first_log_of_a_term_that_it_did_not_grant() -> None:
    server = Server(TermRecord(ONE.session, 1, b""))
    assert not server.report(replace(ONE, term=1)).is_holder


def test_a_gateway_that_has_fallen_silent_or_stops_does_not_count_as_present() -> None:
    ahead = replace(TWO, known_term=3, log_end=9)
    for silent_ns, is_stopping, is_holder in (
        (LATER_NS - 1, False, False),
        (LATER_NS, False, True),
        (LATER_NS - 1, True, True),
    ):
        server = Server()
        heard_ns = LATER_NS + 1
        server.report(replace(ahead, is_stopping=is_stopping), heard_ns)
        outcome = server.report(ONE, heard_ns + silent_ns)
        assert outcome.is_holder == is_holder
        if not is_holder:
            assert outcome.reason == "another gateway's log is further ahead"


def test_a_gateway_that_reports_twice_is_not_two_gateways() -> None:
    server = Server()
    for _ in range(2):
        assert server.report(ONE).reason == "waiting for the other gateway's first report"


def test_the_wait_for_the_other_gateway_counts_from_the_servers_start() -> None:
    terms = ContributionTerms(2, None, 100)
    assert not terms.decide(ONE, 99 + 2 * LATER_NS).is_holder
    assert terms.decide(ONE, 100 + 2 * LATER_NS).is_holder


def test_a_later_session_begins_without_a_copy_of_the_former_one_if_the_gateway_carries_none_on(server: Server) -> None:
    next_day = replace(ONE, session=20261124, copy=b"")
    begun = server.report(next_day, LATER_NS)
    assert (begun.is_holder, begun.record, begun.event) == (
        True, TermRecord(20261124, 2, b""), "session 20261124 begins"
    )  # fmt: skip


def test_an_accepted_loss_counts_once() -> None:
    server = Server()
    server.terms.accept_loss(ONE.endpoint)
    assert server.report(ONE).is_holder, "even without a record, and without a report of the other gateway"
    server.report(replace(ONE, term=1, is_stopping=True))
    lacking = replace(ONE, session=20261124, copy=b"", former_copy=b"an old copy")
    assert server.report(lacking, 9 * LATER_NS).reason == LACKING
