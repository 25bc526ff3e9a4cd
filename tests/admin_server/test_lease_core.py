"""The lease store's decisions under virtual time: who becomes active, and when."""

from __future__ import annotations

import pytest

from admin_server.lease_core import FeedLease, Granted, Vacated
from feedcore.replica.states import ReplicaState
from tests.admin_server.lease_by_hand import ACTIVE, CONFIG, DETACHED, JOINING, MS, SYNCHRONIZED, kinds, running, told

NEEDED = "is needed, because no other adapter is active or synchronised"


def test_a_feeds_only_adapter_is_granted_at_its_first_report() -> None:
    lease = FeedLease(CONFIG, frozenset({1}))
    assert lease.on_attend(1, 0) == []
    assert told(lease, 1, JOINING, 1) == [Granted(1, 1)]


def test_the_only_adapter_of_a_feed_that_had_an_active_waits_for_nobody() -> None:
    lease = FeedLease(CONFIG, frozenset({1}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(1, 1)
    told(lease, 1, JOINING, 329 * MS)
    assert lease.on_timer(330 * MS)[-1] == Granted(1, 65)


def test_a_first_start_waits_half_a_second_for_those_that_are_missing() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.on_attend(1, 9_000 * MS)
    assert told(lease, 1, JOINING, 9_000 * MS) == []
    assert lease.next_deadline_ns() == 9_500 * MS
    assert told(lease, 1, JOINING, 9_400 * MS) == []
    assert lease.on_timer(9_500 * MS) == [Granted(1, 1)]


def test_a_cold_start_with_all_adapters_there_grants_the_one_with_the_furthest_past_at_once() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2, 3}))
    lease.restore(epoch=7, holder=0, now_ns=0, next_epoch=65)
    lease.on_timer(330 * MS)
    for adapter_id in (1, 2, 3):
        lease.on_attend(adapter_id, 400 * MS)
    assert told(lease, 1, JOINING, 401 * MS, 500) == []
    assert told(lease, 2, JOINING, 402 * MS, 900) == []
    assert told(lease, 3, JOINING, 403 * MS, 1) == [Granted(2, 65)]


def test_a_cold_start_waits_out_the_grace_for_an_adapter_that_does_not_come() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=0, now_ns=0, next_epoch=65)
    lease.on_timer(330 * MS)
    lease.on_attend(1, 60_000 * MS)  # the server was there long before
    told(lease, 1, JOINING, 60_000 * MS, 500)
    assert lease.next_deadline_ns() == 62_000 * MS
    told(lease, 1, JOINING, 61_900 * MS, 500)
    assert lease.on_timer(62_000 * MS) == [Granted(1, 65)]


def test_nobody_waits_for_a_failed_adapter_nor_for_one_that_reports_failed() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2, 3}))
    lease.restore(epoch=0, holder=0, now_ns=0, next_epoch=1, failed={2: "out of sync"})
    lease.on_attend(3, 0)
    assert told(lease, 3, ReplicaState.FAILED, 0) == []
    lease.on_attend(1, 0)
    assert told(lease, 1, JOINING, 1) == [Granted(1, 1)]


def test_a_past_in_a_later_epoch_counts_before_a_longer_one_in_an_earlier_epoch() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.on_attend(1, 0)
    lease.on_attend(2, 0)
    told(lease, 1, JOINING, 0, 900, history_epoch=5)
    assert told(lease, 2, JOINING, 1, 800, history_epoch=6) == [Granted(2, 1)]


def test_the_holders_end_grants_the_synchronised_candidate_at_once() -> None:
    assert running(2).on_gone(1, 5)[-1] == Granted(2, 2)


def test_silence_grants_only_after_term_and_allowance() -> None:
    lease = running(2)
    told(lease, 2, SYNCHRONIZED, 300 * MS)
    assert lease.on_timer(330 * MS - 1) == []
    assert kinds(lease.on_timer(330 * MS)) == [Vacated, Granted]


def test_a_renewal_begins_a_new_term() -> None:
    lease = running()
    assert lease.renew(1, 1, 200 * MS)
    assert lease.on_timer(400 * MS) == []
    assert not lease.renew(1, 1, 600 * MS)


def test_the_furthest_synchronised_candidate_is_chosen_then_the_healthiest() -> None:
    lease = running(2, 3, 4)
    told(lease, 2, ReplicaState.RESYNCHRONIZING, 1, 99)
    told(lease, 3, SYNCHRONIZED, 1, 50, 0.5)
    told(lease, 4, DETACHED, 1, 50, 0.9)
    assert lease.on_gone(1, 5)[-1] == Granted(4, 2)


def test_one_that_went_on_provisionally_comes_before_one_that_waited_at_the_same_place() -> None:
    lease = running(2, 3)
    told(lease, 2, DETACHED, 1, 50, 1.0)
    told(lease, 3, ReplicaState.AHEAD, 1, 50, 0.5)
    assert lease.on_gone(1, 5)[-1] == Granted(3, 2)


def test_one_that_abstains_is_not_granted_before_it_says_otherwise() -> None:
    lease = running(2)
    told(lease, 2, SYNCHRONIZED, 1, abstains=True)
    assert kinds(lease.on_gone(1, 5)) == [Vacated]
    assert told(lease, 2, SYNCHRONIZED, 6) == [Granted(2, 2)]


def test_a_joining_adapter_waits_out_the_grace_and_a_failed_one_forever() -> None:
    lease = running(2)
    told(lease, 2, JOINING, 0)
    assert kinds(lease.on_gone(1, 0)) == [Vacated]
    assert lease.next_deadline_ns() == 2_000 * MS
    told(lease, 2, ReplicaState.FAILED, 1_999 * MS)
    assert lease.on_timer(10_000 * MS) == []
    told(lease, 2, JOINING, 10_000 * MS)
    told(lease, 2, JOINING, 11_900 * MS)
    assert lease.on_timer(12_000 * MS) == [Granted(2, 2)]


def test_a_holder_that_fell_silent_is_not_granted_again_before_it_reports() -> None:
    lease = running()
    assert kinds(lease.on_timer(500 * MS)) == [Vacated]
    assert lease.on_timer(5_000 * MS) == []
    assert told(lease, 1, SYNCHRONIZED, 6_000 * MS)[-1] == Granted(1, 2)


def test_a_restarted_store_lets_an_unknown_holders_term_pass_and_skips_its_epochs() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=0, now_ns=0, next_epoch=65)
    assert lease.on_attend(1, 1) == []
    told(lease, 1, SYNCHRONIZED, 300 * MS)
    assert lease.on_timer(330 * MS)[-1] == Granted(1, 65)


def test_a_restored_holder_goes_on_in_its_epoch() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    assert lease.renew(1, 7, 100 * MS)


def test_a_holder_that_fell_silent_does_not_win_against_a_candidate_that_speaks() -> None:
    lease = running(2)
    assert lease.on_gone(1, 2)[-1] == Granted(2, 2)
    lease.on_attend(1, 3)
    told(lease, 1, SYNCHRONIZED, 320 * MS)  # a quiet feed: no further than the holder
    assert lease.on_timer(330 * MS + 2)[-1] == Granted(1, 3)


def test_a_candidate_that_hangs_leaves_no_deadline_behind() -> None:
    lease = running(2)
    told(lease, 2, JOINING, 0)
    lease.on_gone(1, 5 * MS)
    assert lease.next_deadline_ns() == 2_005 * MS
    assert lease.on_timer(2_005 * MS) == []  # its only report is two seconds old
    assert lease.next_deadline_ns() is None
    told(lease, 2, JOINING, 3_000 * MS)
    assert lease.next_deadline_ns() == 5_000 * MS


def test_a_restored_lease_ends_only_with_its_term_until_its_holder_has_renewed_it() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(3, 1)
    told(lease, 3, SYNCHRONIZED, 300 * MS, 50)
    assert lease.on_attend(1, 301 * MS) == [], "2 may hold epoch 8, granted when nothing could be written down"
    assert lease.on_gone(1, 302 * MS) == []
    assert lease.on_timer(330 * MS)[-1] == Granted(3, 65)


def test_a_restored_holder_that_renewed_ends_with_its_stream_again() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    lease.on_attend(3, 1)
    told(lease, 3, SYNCHRONIZED, 2, 50)
    assert lease.renew(1, 7, 3)
    assert lease.on_gone(1, 4)[-1] == Granted(3, 65)


def test_a_backup_that_hears_the_active_waits_for_it_to_come_back_to_a_restarted_store() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(2, 1)
    told(lease, 2, SYNCHRONIZED, 300 * MS)
    assert kinds(lease.on_timer(330 * MS)) == [Vacated]
    lease.on_resume(1)  # it went on, with the backup's consent
    assert lease.renew(1, 7, 900 * MS)
    assert lease.holder == 1


@pytest.mark.parametrize(("state", "at_ms"), [(DETACHED, 330), (SYNCHRONIZED, 2_330)])
def test_a_backup_waits_for_a_restored_holder_only_while_it_hears_it_and_not_for_ever(
    state: ReplicaState, at_ms: int
) -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(2, 1)
    told(lease, 2, SYNCHRONIZED, 300 * MS)
    lease.on_timer(330 * MS)
    assert lease.holder == 0
    granted = told(lease, 2, state, max(at_ms - 1, 331) * MS) + lease.on_timer(at_ms * MS)
    assert granted == [Granted(2, 65)]


def test_a_restored_holder_that_says_it_is_not_active_any_more_is_waited_for_no_longer() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    lease.on_attend(2, 1)
    told(lease, 2, SYNCHRONIZED, 300 * MS, 50)
    told(lease, 1, JOINING, 301 * MS)
    assert lease.on_timer(330 * MS)[-1] == Granted(2, 65)


def test_a_restored_holder_that_says_it_is_active_is_still_waited_for() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    lease.on_attend(2, 1)
    told(lease, 2, SYNCHRONIZED, 300 * MS, 50)
    told(lease, 1, ACTIVE, 301 * MS)
    assert kinds(lease.on_timer(330 * MS)) == [Vacated]


def test_a_report_of_one_that_does_not_attend_decides_nothing() -> None:
    lease = FeedLease(CONFIG, frozenset({1}))
    assert told(lease, 1, SYNCHRONIZED, 0) == []
    assert lease.on_attend(1, 1) == []
    assert lease.holder == 0


def test_a_holder_whose_connection_broke_for_a_moment_goes_on_if_nobody_was_granted() -> None:
    lease = running()
    assert kinds(lease.on_gone(1, 10 * MS)) == [Vacated]
    lease.on_resume(1)
    assert lease.renew(1, 1, 20 * MS)
    assert (lease.holder, lease.epoch) == (1, 1)


def test_a_former_holder_that_has_said_it_is_not_active_any_more_does_not_get_its_epoch_back() -> None:
    lease = running()
    lease.on_gone(1, 10 * MS)
    lease.on_resume(1)
    told(lease, 1, JOINING, 11 * MS)
    assert not lease.renew(1, 1, 20 * MS)
    lease.on_attend(1, 30 * MS)
    assert not lease.renew(1, 1, 31 * MS), "another life of it"


def test_the_holder_gets_a_new_epoch_for_itself_once_for_each_epoch_it_asks_from() -> None:
    lease = running(2)
    assert lease.next_epoch(2, 1, 5) == []
    assert lease.next_epoch(1, 1, 6) == [Granted(1, 2)]
    assert lease.next_epoch(1, 1, 7) == [], "it asks until it hears"
    assert not lease.renew(1, 1, 8)
    assert lease.renew(1, 2, 9)
    assert lease.on_timer(330 * MS) == [], "the term counts from then"
    assert lease.next_epoch(1, 2, 400 * MS) == [], "its term has passed"


def test_a_holder_that_gives_its_epoch_up_without_an_heir_leaves_it_to_the_best() -> None:
    lease = running(2)
    assert lease.on_released(1, 9, 5) == []
    assert lease.on_released(2, 1, 5) == []
    assert lease.on_released(1, 1, 5)[-1] == Granted(2, 2)
    assert not lease.renew(1, 1, 6)


def test_a_failed_adapter_is_no_candidate_until_it_is_readmitted_and_tells_anew() -> None:
    lease = running(2, 3)
    told(lease, 2, SYNCHRONIZED, 1, 99)
    assert lease.fail(2, "out of sync", 2) == []
    told(lease, 2, SYNCHRONIZED, 3, 99)
    assert lease.on_gone(1, 5)[-1] == Granted(3, 2)
    lease.readmit(2)
    assert kinds(lease.on_gone(3, 6)) == [Vacated]
    assert told(lease, 2, SYNCHRONIZED, 7) == [Granted(2, 3)]


def test_the_last_synchronised_backup_is_failed_only_by_force() -> None:
    lease = running(2, 3)
    told(lease, 3, ReplicaState.RESYNCHRONIZING, 1)
    for is_own in (True, False):
        assert lease.refusal_to_fail(2, 2, is_own_request=is_own) == "is the last synchronised backup"
        assert lease.refusal_to_fail(3, 2, is_own_request=is_own) is None
    assert lease.refusal_to_fail(2, 2, is_own_request=False, is_forced=True) is None
    told(lease, 3, SYNCHRONIZED, 3)
    assert lease.refusal_to_fail(2, 4, is_own_request=True) is None
    assert lease.refusal_to_fail(2, 500 * MS, is_own_request=True) is None, "its own report is old: it is not in sync"


def test_the_active_is_not_failed_and_nobody_leaves_a_feed_to_nobody() -> None:
    lease = running(2)
    assert lease.refusal_to_fail(1, 1, is_own_request=False, is_forced=True) == "is active; hand over first"
    alone = FeedLease(CONFIG, frozenset({1, 2}))
    alone.on_attend(1, 0)
    told(alone, 1, JOINING, 0)
    assert alone.refusal_to_fail(1, 1, is_own_request=True) == NEEDED
    assert alone.refusal_to_fail(1, 1, is_own_request=False) is None


def test_a_renewal_of_the_holder_does_not_need_its_state() -> None:
    lease = running()
    told(lease, 1, ACTIVE, 10 * MS)
    assert lease.renew(1, 1, 300 * MS)
