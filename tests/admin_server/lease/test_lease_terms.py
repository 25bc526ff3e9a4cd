"""Lease terms grow while holders are late and shrink in quiet periods; takeovers are counted by reason."""

from __future__ import annotations

import pytest

from tandemfeed.admin_server.lease.lease_core import FeedLease, Granted, LeaseConfig, Vacated
from tandemfeed.admin_server.lease.lease_decisions import LeaseDecision, Offered, Renewed, TermNoted
from tandemfeed.admin_server.lease.lease_terms import SECOND, STRETCHED_TTL_NS_MAX, Terms
from tandemfeed.admin_server.lease.takeovers import LAST_COUNT, Takeover, TakeoverReason, Takeovers
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.admin_server.lease.lease_by_hand import ACTIVE, CONFIG, JOINING, MS, SYNCHRONIZED, kinds, report, running

TERM_NS = CONFIG.term_ns
QUIET_NS = CONFIG.quiet_ns


# ---- the terms alone ----


def test_a_normal_term_has_the_configured_length_and_needs_no_note() -> None:
    terms = Terms(CONFIG)
    assert CONFIG.term_ns == 330 * MS
    assert terms.begin(5) == (5 + 330 * MS, [])
    assert terms.ttl_ns == 300 * MS


def test_each_needless_takeover_doubles_the_term_up_to_eight_times() -> None:
    terms = Terms(CONFIG)
    for ttl_ms in (600, 1_200, 2_400):
        terms.on_needless_takeover(7)
        assert terms.begin(7) == (7 + (ttl_ms + 30) * MS, [TermNoted(ttl_ms * MS)])
        assert terms.ttl_ns == terms.noted_ttl_ns == ttl_ms * MS
    terms.on_needless_takeover(7)
    assert terms.begin(7) == (7 + 2_430 * MS, [])
    assert terms.needless_count == 4


@pytest.mark.parametrize(("ttl_ms", "longest_ms"), [(50, 400), (499, 3_992), (1_000, 4_000), (60_000, 60_000)])
def test_no_term_is_lengthened_beyond_four_seconds(ttl_ms: int, longest_ms: int) -> None:
    config = LeaseConfig(ttl_ns=ttl_ms * MS)
    terms = Terms(config)
    for _ in range(9):
        terms.on_needless_takeover(0)
    assert terms.ttl_ns_at(0) == config.ttl_ns_max == longest_ms * MS
    assert STRETCHED_TTL_NS_MAX == 4 * SECOND


def test_each_quiet_period_halves_the_term_and_a_needless_takeover_restarts_the_period() -> None:
    terms = Terms(CONFIG)
    for at_ns in (10, 20, 30):
        terms.on_needless_takeover(at_ns)
    assert terms.ttl_ns_at(29 + QUIET_NS) == 2_400 * MS
    assert terms.ttl_ns_at(30 + QUIET_NS) == 1_200 * MS
    assert terms.ttl_ns_at(30 + 2 * QUIET_NS) == 600 * MS
    terms.on_needless_takeover(30 + 2 * QUIET_NS)
    assert terms.ttl_ns_at(29 + 3 * QUIET_NS) == 1_200 * MS
    assert terms.ttl_ns_at(30 + 9 * QUIET_NS) == 300 * MS
    terms.on_needless_takeover(30 + 9 * QUIET_NS)
    assert terms.ttl_ns_at(30 + 9 * QUIET_NS) == 600 * MS, "earlier takeovers no longer count"


def test_a_shorter_term_is_noted_only_when_the_last_longer_one_has_passed() -> None:
    terms = Terms(CONFIG)
    terms.on_needless_takeover(0)
    last_ns = QUIET_NS - 1
    assert terms.begin(0)[1] == [TermNoted(600 * MS)]
    assert terms.begin(last_ns) == (last_ns + 630 * MS, [])
    assert terms.begin(last_ns + 629 * MS) == (last_ns + 959 * MS, []), "a holder may still rely on the longer one"
    assert (terms.ttl_ns, terms.noted_ttl_ns) == (300 * MS, 600 * MS)
    assert terms.begin(last_ns + 630 * MS)[1] == [TermNoted(300 * MS)]
    assert terms.begin(last_ns + 631 * MS)[1] == []


def test_every_renewal_with_a_longer_term_postpones_the_note_of_a_shorter_one() -> None:
    terms = Terms(LeaseConfig(quiet_ns=700 * MS))
    terms.on_needless_takeover(0)
    terms.begin(0)
    assert terms.begin(629 * MS) == (1_259 * MS, [])
    assert terms.begin(700 * MS) == (1_030 * MS, []), "a holder may rely until 1,259 ms on the term announced at 629 ms"
    assert terms.begin(1_258 * MS)[1] == []
    assert terms.begin(1_259 * MS)[1] == [TermNoted(300 * MS)]


def test_a_term_that_grows_before_a_shorter_one_was_noted_needs_no_new_note() -> None:
    terms = Terms(CONFIG)
    terms.on_needless_takeover(0)
    terms.begin(QUIET_NS - 1)
    terms.begin(QUIET_NS)
    terms.on_needless_takeover(QUIET_NS + 1)
    assert terms.begin(QUIET_NS + 1) == (QUIET_NS + 1 + 630 * MS, [])
    assert terms.begin(QUIET_NS + 2) == (QUIET_NS + 2 + 630 * MS, [])


@pytest.mark.parametrize(("noted_ms", "until_ms"), [(0, 330), (300, 330), (100, 330), (2_400, 2_430)])
def test_a_restored_store_waits_for_the_longest_term_that_was_noted(noted_ms: int, until_ms: int) -> None:
    terms = Terms(CONFIG)
    assert terms.restore(noted_ms * MS, 9) == 9 + until_ms * MS
    assert terms.begin(8 + until_ms * MS)[1] == []
    expected = [TermNoted(300 * MS)] if noted_ms > 300 else []
    assert terms.begin(9 + until_ms * MS)[1] == expected


# ---- in the lease core ----


def expired_and_heard(lease: FeedLease, at_ns: int) -> list[LeaseDecision]:
    """The holder's term passes at `at_ns`; the holder reports a moment later."""
    holder = lease.holder
    lease.on_timer(at_ns)
    return report(lease, holder, JOINING, at_ns + 1)


def test_a_late_holder_doubles_the_next_term_which_a_renewal_announces() -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, 329 * MS)
    assert kinds(lease.on_timer(TERM_NS)) == [Vacated, Granted]
    report(lease, 1, JOINING, TERM_NS + 1)
    assert lease.renew(2, 2, 400 * MS) == [TermNoted(600 * MS), Renewed(2, 2)]
    assert lease.terms.ttl_ns == 600 * MS
    assert lease.on_timer(1_030 * MS - 1) == []
    assert kinds(lease.on_timer(1_030 * MS))[0] is Vacated


def test_a_late_renewal_proves_that_the_holder_is_alive_like_a_report() -> None:
    lease = running()
    assert lease.on_timer(TERM_NS) == [Vacated(1, TakeoverReason.TERM_PASSED)]
    assert lease.renew(1, 1, TERM_NS + 5) == [TermNoted(600 * MS), Renewed(1, 1)]
    assert lease.terms.needless_count == 1


@pytest.mark.parametrize(("silence_ms", "needless"), [(329, 1), (330, 0), (5_000, 0)])
def test_a_holder_that_returns_after_more_than_another_term_was_cut_off_and_not_late(
    silence_ms: int, needless: int
) -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, 329 * MS)
    lease.on_timer(TERM_NS)
    report(lease, 1, JOINING, TERM_NS + silence_ms * MS)
    report(lease, 1, JOINING, TERM_NS + silence_ms * MS + 1)
    assert lease.terms.needless_count == needless


def test_after_a_doubling_a_holder_may_be_late_by_the_doubled_term() -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, 329 * MS)
    expired_and_heard(lease, TERM_NS)
    lease.renew(2, 2, 400 * MS)
    lease.on_timer(1_030 * MS)
    report(lease, 2, JOINING, 1_660 * MS - 1)
    assert lease.terms.needless_count == 2


def test_a_late_holder_is_counted_once() -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, 329 * MS)
    expired_and_heard(lease, TERM_NS)
    report(lease, 1, SYNCHRONIZED, TERM_NS + 2)
    report(lease, 2, ACTIVE, TERM_NS + 2)
    assert lease.terms.needless_count == 1


@pytest.mark.parametrize("how", ["gone", "restarted"])
def test_the_death_of_a_holder_does_not_change_the_terms(how: str) -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, 329 * MS)
    lease.on_timer(TERM_NS)
    if how == "gone":
        lease.on_gone(1, TERM_NS + 1)
        lease.on_resume(1)
    else:
        lease.on_attend(1, TERM_NS + 1)
    report(lease, 1, JOINING, TERM_NS + 2)
    assert lease.renew(2, 2, TERM_NS + 3) == [Renewed(2, 2)]
    assert lease.terms.needless_count == 0


def test_another_adapters_end_does_not_excuse_a_late_holder() -> None:
    lease = running(2, 3)
    report(lease, 2, SYNCHRONIZED, 329 * MS)
    lease.on_timer(TERM_NS)
    lease.on_gone(3, TERM_NS + 1)
    lease.on_attend(3, TERM_NS + 2)
    report(lease, 3, JOINING, TERM_NS + 3)
    assert lease.terms.needless_count == 0
    report(lease, 1, JOINING, TERM_NS + 4)
    assert lease.terms.needless_count == 1


def test_a_vanished_host_is_replaced_within_a_configured_term_after_a_quiet_period() -> None:
    lease = running(2)
    lease.renew(1, 1, 3_600 * SECOND)
    report(lease, 2, SYNCHRONIZED, 3_600 * SECOND + 300 * MS)
    assert lease.on_timer(3_600 * SECOND + TERM_NS)[-1] == Granted(2, 2)


def test_a_broken_connection_passes_the_lease_on_immediately_regardless_of_its_term() -> None:
    lease = running(2)
    for _ in range(5):
        lease.terms.on_needless_takeover(0)
    lease.renew(1, 1, 5)
    assert lease.next_deadline_ns() == 5 + 2_430 * MS
    assert lease.on_gone(1, 6)[-1] == Granted(2, 2)


def test_offers_and_grants_announce_the_longer_term_too() -> None:
    lease = running(2)
    lease.terms.on_needless_takeover(0)
    assert lease.hand_over(None, 5) == [TermNoted(600 * MS), Offered(2, 2, 1)]
    assert lease.offer is not None
    assert lease.offer.until_ns == 5 + 630 * MS
    lease = running(2)
    lease.terms.on_needless_takeover(0)
    assert lease.on_gone(1, 5)[1:] == [TermNoted(600 * MS), Granted(2, 2)]
    assert lease.next_deadline_ns() == 5 + 630 * MS


def test_a_restored_store_does_not_grant_before_the_longest_noted_term_has_passed() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65, noted_ttl_ns=2_400 * MS)
    lease.on_attend(2, 1)
    report(lease, 2, ReplicaState.DETACHED, 2_429 * MS)
    assert lease.on_timer(2_430 * MS - 1) == []
    assert lease.on_timer(2_430 * MS)[-1] == Granted(2, 65)


def test_a_busy_machine_has_a_bounded_number_of_takeovers() -> None:
    """Both adapters are heard every 1.5 s for ten minutes. Once terms are longer than that, takeovers stop."""
    lease = running(2)
    now_ns = 0
    while now_ns < 600 * SECOND:
        late_ns = now_ns + 1_500 * MS
        while (deadline_ns := lease.next_deadline_ns()) is not None and deadline_ns < late_ns:
            for adapter_id in (1, 2):
                report(lease, adapter_id, ACTIVE if adapter_id == lease.holder else SYNCHRONIZED, deadline_ns - 1)
            lease.on_timer(deadline_ns)
        now_ns = late_ns
        for adapter_id in (1, 2):
            report(lease, adapter_id, ACTIVE if adapter_id == lease.holder else SYNCHRONIZED, now_ns)
        lease.renew(lease.holder, lease.epoch, now_ns)
    assert lease.epoch < 25, "a few at first, then two per minute, because each quiet period shortens the term"


def test_adapters_that_are_silent_for_long_take_over_from_each_other_at_most_twice_the_last_dozen_a_minute() -> None:
    """Each adapter that becomes active is silent for just longer than another term, time and again."""
    lease = running(2)
    now_ns = 0
    while now_ns < 600 * SECOND:
        former, now_ns = lease.holder, lease.next_deadline_ns() or 0
        report(lease, 3 - former, SYNCHRONIZED, now_ns - 1)
        lease.on_timer(now_ns)
        lease.renew(lease.holder, lease.epoch, now_ns + TERM_NS // 2)
        now_ns += lease.terms.ttl_ns + 30 * MS
        report(lease, former, SYNCHRONIZED, now_ns)
    assert lease.epoch < 10 * (2 * LAST_COUNT + 1), "with terms that never grow, ninety a minute"


# ---- takeovers and their reasons ----


def last_reason(lease: FeedLease) -> TakeoverReason:
    """The reason of the newest takeover."""
    newest = lease.takeovers.last[-1]
    assert (newest.epoch, newest.adapter_id) == (lease.epoch, lease.holder)
    return newest.reason


def test_the_first_grant_of_a_feed_is_not_a_takeover() -> None:
    lease = running(2)
    assert sum(lease.takeovers.counts.values()) == 0
    assert not lease.takeovers.last
    assert lease.terms.needless_count == 0


@pytest.mark.parametrize(("has_ended", "reason"), [(False, "STREAM_ENDED"), (True, "PROCESS_ENDED")])
def test_the_end_of_a_stream_and_of_a_process_have_different_reasons(has_ended: bool, reason: str) -> None:
    lease = running(2)
    vacated, _ = lease.on_gone(1, 5, has_ended=has_ended)
    assert vacated == Vacated(1, TakeoverReason[reason])
    assert lease.takeovers.last[-1] == Takeover(5, TakeoverReason[reason], 2, 1, 2)
    assert lease.takeovers.counts[TakeoverReason[reason]] == sum(lease.takeovers.counts.values()) == 1


def test_a_new_start_of_the_holder_ends_its_former_process() -> None:
    lease = running(2)
    lease.on_attend(1, 5)
    assert last_reason(lease) is TakeoverReason.PROCESS_ENDED


def test_expired_given_up_and_restored_leases_have_different_reasons() -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, 329 * MS)
    lease.on_timer(TERM_NS)
    assert last_reason(lease) is TakeoverReason.TERM_PASSED
    lease = running(2)
    lease.on_released(1, 1, 5)
    assert last_reason(lease) is TakeoverReason.GIVEN_UP
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(2, 1)
    report(lease, 2, ReplicaState.DETACHED, 329 * MS)
    lease.on_timer(TERM_NS)
    assert lease.takeovers.last[-1] == Takeover(TERM_NS, TakeoverReason.RESTORED, 65, 1, 2)


def test_the_former_holder_of_a_takeover_is_0_if_it_is_unknown() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=0, now_ns=0, next_epoch=65)
    lease.on_attend(2, 1)
    report(lease, 2, ReplicaState.DETACHED, 329 * MS)
    lease.on_timer(TERM_NS)
    assert lease.takeovers.last[-1] == Takeover(TERM_NS, TakeoverReason.RESTORED, 65, 0, 2)
    assert report(lease, 2, ACTIVE, TERM_NS + 1) == []
    assert lease.terms.needless_count == 0


@pytest.mark.parametrize(("is_failing", "reason"), [(False, "HANDED_OVER"), (True, "FAILED")])
def test_the_reason_of_a_hand_over_shows_whether_the_active_was_being_failed(is_failing: bool, reason: str) -> None:
    lease = running(2)
    lease.hand_over(None, 5, is_failing=is_failing)
    lease.on_released(1, 1, 6)
    assert lease.takeovers.last[-1] == Takeover(6, TakeoverReason[reason], 2, 1, 2)
    lease.on_gone(2, 7)
    report(lease, 1, SYNCHRONIZED, 8)
    assert lease.takeovers.last[-1] == Takeover(8, TakeoverReason.STREAM_ENDED, 3, 2, 1)


def test_a_holder_that_continues_in_its_epoch_is_not_a_takeover() -> None:
    lease = running()
    lease.on_gone(1, 10 * MS)
    lease.on_resume(1)
    lease.renew(1, 1, 20 * MS)
    assert lease.next_epoch(1, 1, 30 * MS) == [Granted(1, 2)], "an epoch that it requested is not a takeover either"
    assert sum(lease.takeovers.counts.values()) == 0


def test_only_the_last_few_takeovers_are_kept_and_all_are_counted() -> None:
    takeovers = Takeovers()
    for epoch in range(1, LAST_COUNT + 3):
        takeovers.on_vacated(TakeoverReason.TERM_PASSED, 1)
        takeovers.on_granted(2, epoch, epoch)
    assert [each.epoch for each in takeovers.last] == list(range(3, LAST_COUNT + 3))
    assert takeovers.counts[TakeoverReason.TERM_PASSED] == LAST_COUNT + 2


def test_takeovers_are_frequent_if_the_last_dozen_happened_within_the_period() -> None:
    takeovers = Takeovers()
    for at_ns in range(100, 100 + LAST_COUNT):
        assert not takeovers.are_frequent(at_ns, 1_000), "there were fewer"
        takeovers.on_vacated(TakeoverReason.TERM_PASSED, 1)
        takeovers.on_granted(2, at_ns, at_ns)
    assert takeovers.are_frequent(1_099, 1_000)
    assert not takeovers.are_frequent(1_100, 1_000)


def test_a_process_whose_term_never_passed_was_not_late_however_frequent_takeovers_are() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2, 3}))
    for at_ns in range(LAST_COUNT):
        lease.takeovers.on_vacated(TakeoverReason.TERM_PASSED, 2)
        lease.takeovers.on_granted(3, at_ns, at_ns)
    lease.on_resume(1)  # it has run since before this store's start
    report(lease, 1, SYNCHRONIZED, LAST_COUNT)
    assert lease.terms.needless_count == 0
