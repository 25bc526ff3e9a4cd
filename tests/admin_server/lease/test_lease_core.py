"""The lease store's decisions under virtual time: which adapter becomes active, and when."""

from __future__ import annotations

import pytest

from tandemfeed.admin_server.lease.lease_core import FeedLease, Granted, Vacated
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.admin_server.lease.lease_by_hand import (
    ACTIVE,
    CONFIG,
    DETACHED,
    JOINING,
    MS,
    SYNCHRONIZED,
    kinds,
    report,
    running,
)

NEEDED = "is needed, because no other adapter is active or synchronised"


def test_the_only_adapter_of_a_feed_is_granted_the_lease_at_its_first_report() -> None:
    lease = FeedLease(CONFIG, frozenset({1}))
    assert lease.on_attend(1, 0) == []
    assert report(lease, 1, JOINING, 1) == [Granted(1, 1)]


def test_the_only_adapter_of_a_feed_that_had_an_active_waits_only_for_the_term() -> None:
    lease = FeedLease(CONFIG, frozenset({1}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(1, 1)
    report(lease, 1, JOINING, 329 * MS)
    assert lease.on_timer(330 * MS)[-1] == Granted(1, 65)


def test_a_first_start_waits_half_a_second_for_missing_adapters() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.on_attend(1, 9_000 * MS)
    assert report(lease, 1, JOINING, 9_000 * MS) == []
    assert lease.next_deadline_ns() == 9_500 * MS
    assert report(lease, 1, JOINING, 9_400 * MS) == []
    assert lease.on_timer(9_500 * MS) == [Granted(1, 1)]


def test_a_cold_start_with_all_adapters_grants_the_furthest_one_immediately() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2, 3}))
    lease.restore(epoch=7, holder=0, now_ns=0, next_epoch=65)
    lease.on_timer(330 * MS)
    for adapter_id in (1, 2, 3):
        lease.on_attend(adapter_id, 400 * MS)
    assert report(lease, 1, JOINING, 401 * MS, 500) == []
    assert report(lease, 2, JOINING, 402 * MS, 900) == []
    assert report(lease, 3, JOINING, 403 * MS, 1) == [Granted(2, 65)]


def test_a_cold_start_waits_the_grace_period_for_a_missing_adapter() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=0, now_ns=0, next_epoch=65)
    lease.on_timer(330 * MS)
    lease.on_attend(1, 60_000 * MS)  # long after the server started
    report(lease, 1, JOINING, 60_000 * MS, 500)
    assert lease.next_deadline_ns() == 62_000 * MS
    report(lease, 1, JOINING, 61_900 * MS, 500)
    assert lease.on_timer(62_000 * MS) == [Granted(1, 65)]


def test_candidates_do_not_wait_for_an_adapter_that_is_failed_or_reports_failed() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2, 3}))
    lease.restore(epoch=0, holder=0, now_ns=0, next_epoch=1, failed={2: "out of sync"})
    lease.on_attend(3, 0)
    assert report(lease, 3, ReplicaState.FAILED, 0) == []
    lease.on_attend(1, 0)
    assert report(lease, 1, JOINING, 1) == [Granted(1, 1)]


def test_a_history_in_a_later_epoch_outranks_a_longer_one_in_an_earlier_epoch() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.on_attend(1, 0)
    lease.on_attend(2, 0)
    report(lease, 1, JOINING, 0, 900, history_epoch=5)
    assert report(lease, 2, JOINING, 1, 800, history_epoch=6) == [Granted(2, 1)]


def test_when_the_holder_ends_a_synchronised_candidate_is_granted_immediately() -> None:
    assert running(2).on_gone(1, 5)[-1] == Granted(2, 2)


def test_a_silent_holder_is_replaced_only_after_its_term_and_the_allowance() -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, 300 * MS)
    assert lease.on_timer(330 * MS - 1) == []
    assert kinds(lease.on_timer(330 * MS)) == [Vacated, Granted]


def test_a_renewal_begins_a_new_term() -> None:
    lease = running()
    assert lease.renew(1, 1, 200 * MS)
    assert lease.on_timer(400 * MS) == []
    assert not lease.renew(1, 1, 600 * MS)


def test_the_furthest_synchronised_candidate_is_chosen_then_the_healthiest() -> None:
    lease = running(2, 3, 4)
    report(lease, 2, ReplicaState.RESYNCHRONIZING, 1, 99)
    report(lease, 3, SYNCHRONIZED, 1, 50, 0.5)
    report(lease, 4, DETACHED, 1, 50, 0.9)
    assert lease.on_gone(1, 5)[-1] == Granted(4, 2)


def test_an_adapter_that_forwarded_provisionally_outranks_one_that_waited_at_the_same_position() -> None:
    lease = running(2, 3)
    report(lease, 2, DETACHED, 1, 50, 1.0)
    report(lease, 3, ReplicaState.AHEAD, 1, 50, 0.5)
    assert lease.on_gone(1, 5)[-1] == Granted(3, 2)


def test_an_abstaining_adapter_is_not_granted_until_it_stops_abstaining() -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, 1, abstains=True)
    assert kinds(lease.on_gone(1, 5)) == [Vacated]
    assert report(lease, 2, SYNCHRONIZED, 6) == [Granted(2, 2)]


def test_a_joining_adapter_waits_the_grace_period_and_a_failed_one_is_never_granted() -> None:
    lease = running(2)
    report(lease, 2, JOINING, 0)
    assert kinds(lease.on_gone(1, 0)) == [Vacated]
    assert lease.next_deadline_ns() == 2_000 * MS
    report(lease, 2, ReplicaState.FAILED, 1_999 * MS)
    assert lease.on_timer(10_000 * MS) == []
    report(lease, 2, JOINING, 10_000 * MS)
    report(lease, 2, JOINING, 11_900 * MS)
    assert lease.on_timer(12_000 * MS) == [Granted(2, 2)]


def test_a_holder_that_fell_silent_is_not_granted_again_before_it_reports() -> None:
    lease = running()
    assert kinds(lease.on_timer(500 * MS)) == [Vacated]
    assert lease.on_timer(5_000 * MS) == []
    assert report(lease, 1, SYNCHRONIZED, 6_000 * MS)[-1] == Granted(1, 2)


def test_a_restarted_store_waits_an_unknown_holders_term_and_skips_its_epochs() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=0, now_ns=0, next_epoch=65)
    assert lease.on_attend(1, 1) == []
    report(lease, 1, SYNCHRONIZED, 300 * MS)
    assert lease.on_timer(330 * MS)[-1] == Granted(1, 65)


def test_a_restored_holder_continues_in_its_epoch() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    assert lease.renew(1, 7, 100 * MS)


def test_a_holder_that_fell_silent_loses_against_a_candidate_that_reports() -> None:
    lease = running(2)
    assert lease.on_gone(1, 2)[-1] == Granted(2, 2)
    lease.on_attend(1, 3)
    report(lease, 1, SYNCHRONIZED, 320 * MS)  # on a quiet feed, at the same position as the holder
    assert lease.on_timer(330 * MS + 2)[-1] == Granted(1, 3)


def test_a_hung_candidate_leaves_no_deadline() -> None:
    lease = running(2)
    report(lease, 2, JOINING, 0)
    lease.on_gone(1, 5 * MS)
    assert lease.next_deadline_ns() == 2_005 * MS
    assert lease.on_timer(2_005 * MS) == []  # its only report is two seconds old
    assert lease.next_deadline_ns() is None
    report(lease, 2, JOINING, 3_000 * MS)
    assert lease.next_deadline_ns() == 5_000 * MS


def test_until_its_holder_renews_a_restored_lease_ends_only_with_its_term() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(3, 1)
    report(lease, 3, SYNCHRONIZED, 300 * MS, 50)
    assert lease.on_attend(1, 301 * MS) == [], "adapter 2 may hold epoch 8, granted without a record"
    assert lease.on_gone(1, 302 * MS) == []
    assert lease.on_timer(330 * MS)[-1] == Granted(3, 65)


def test_after_a_renewal_a_restored_lease_ends_with_the_holders_stream() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    lease.on_attend(3, 1)
    report(lease, 3, SYNCHRONIZED, 2, 50)
    assert lease.renew(1, 7, 3)
    assert lease.on_gone(1, 4)[-1] == Granted(3, 65)


def test_a_backup_that_hears_the_active_waits_for_it_to_reconnect_to_a_restarted_store() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(2, 1)
    report(lease, 2, SYNCHRONIZED, 300 * MS)
    assert kinds(lease.on_timer(330 * MS)) == [Vacated]
    lease.on_resume(1)  # the holder continued with the backup's consent
    assert lease.renew(1, 7, 900 * MS)
    assert lease.holder == 1


@pytest.mark.parametrize(("state", "at_ms"), [(DETACHED, 330), (SYNCHRONIZED, 2_330)])
def test_a_backup_waits_for_a_restored_holder_only_while_it_hears_it_and_for_a_limited_time(
    state: ReplicaState, at_ms: int
) -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(2, 1)
    report(lease, 2, SYNCHRONIZED, 300 * MS)
    lease.on_timer(330 * MS)
    assert lease.holder == 0
    granted = report(lease, 2, state, max(at_ms - 1, 331) * MS) + lease.on_timer(at_ms * MS)
    assert granted == [Granted(2, 65)]


def test_backups_stop_waiting_for_a_restored_holder_that_reports_it_is_not_active() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    lease.on_attend(2, 1)
    report(lease, 2, SYNCHRONIZED, 300 * MS, 50)
    report(lease, 1, JOINING, 301 * MS)
    assert lease.on_timer(330 * MS)[-1] == Granted(2, 65)


def test_backups_keep_waiting_for_a_restored_holder_that_reports_it_is_active() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    lease.on_attend(2, 1)
    report(lease, 2, SYNCHRONIZED, 300 * MS, 50)
    report(lease, 1, ACTIVE, 301 * MS)
    assert kinds(lease.on_timer(330 * MS)) == [Vacated]


def test_a_report_of_an_adapter_that_does_not_attend_has_no_effect() -> None:
    lease = FeedLease(CONFIG, frozenset({1}))
    assert report(lease, 1, SYNCHRONIZED, 0) == []
    assert lease.on_attend(1, 1) == []
    assert lease.holder == 0


def test_a_holder_whose_connection_broke_briefly_continues_if_no_other_was_granted() -> None:
    lease = running()
    assert kinds(lease.on_gone(1, 10 * MS)) == [Vacated]
    lease.on_resume(1)
    assert lease.renew(1, 1, 20 * MS)
    assert (lease.holder, lease.epoch) == (1, 1)


def test_a_former_holder_that_reported_it_is_not_active_does_not_get_its_epoch_back() -> None:
    lease = running()
    lease.on_gone(1, 10 * MS)
    lease.on_resume(1)
    report(lease, 1, JOINING, 11 * MS)
    assert not lease.renew(1, 1, 20 * MS)
    lease.on_attend(1, 30 * MS)
    assert not lease.renew(1, 1, 31 * MS), "this is a new process"


def test_the_holder_gets_one_new_epoch_for_each_epoch_that_it_wants_to_leave() -> None:
    lease = running(2)
    assert lease.next_epoch(2, 1, 5) == []
    assert lease.next_epoch(1, 1, 6) == [Granted(1, 2)]
    assert lease.next_epoch(1, 1, 7) == [], "it repeats the request until the grant arrives"
    assert not lease.renew(1, 1, 8)
    assert lease.renew(1, 2, 9)
    assert lease.on_timer(330 * MS) == [], "the term counts from the renewal"
    assert lease.next_epoch(1, 2, 400 * MS) == [], "its term has passed"


def test_a_holder_that_gives_up_its_epoch_without_an_heir_is_followed_by_the_best_candidate() -> None:
    lease = running(2)
    assert lease.on_released(1, 9, 5) == []
    assert lease.on_released(2, 1, 5) == []
    assert lease.on_released(1, 1, 5)[-1] == Granted(2, 2)
    assert not lease.renew(1, 1, 6)


def test_a_failed_adapter_is_not_a_candidate_until_it_is_readmitted_and_reports_again() -> None:
    lease = running(2, 3)
    report(lease, 2, SYNCHRONIZED, 1, 99)
    assert lease.fail(2, "out of sync", 2) == []
    report(lease, 2, SYNCHRONIZED, 3, 99)
    assert lease.on_gone(1, 5)[-1] == Granted(3, 2)
    lease.readmit(2)
    assert kinds(lease.on_gone(3, 6)) == [Vacated]
    assert report(lease, 2, SYNCHRONIZED, 7) == [Granted(2, 3)]


def test_the_last_synchronised_backup_can_be_failed_only_by_force() -> None:
    lease = running(2, 3)
    report(lease, 3, ReplicaState.RESYNCHRONIZING, 1)
    for is_own in (True, False):
        assert lease.refusal_to_fail(2, 2, is_own_request=is_own) == "is the last synchronised backup"
        assert lease.refusal_to_fail(3, 2, is_own_request=is_own) is None
    assert lease.refusal_to_fail(2, 2, is_own_request=False, is_forced=True) is None
    report(lease, 3, SYNCHRONIZED, 3)
    assert lease.refusal_to_fail(2, 4, is_own_request=True) is None
    assert lease.refusal_to_fail(2, 500 * MS, is_own_request=True) is None, "its report is old, so it is not in sync"


def test_neither_the_active_nor_the_last_usable_adapter_can_be_failed() -> None:
    lease = running(2)
    assert lease.refusal_to_fail(1, 1, is_own_request=False, is_forced=True) == "is active; hand over first"
    alone = FeedLease(CONFIG, frozenset({1, 2}))
    alone.on_attend(1, 0)
    report(alone, 1, JOINING, 0)
    assert alone.refusal_to_fail(1, 1, is_own_request=True) == NEEDED
    assert alone.refusal_to_fail(1, 1, is_own_request=False) is None


def test_the_holder_can_renew_without_a_recent_report() -> None:
    lease = running()
    report(lease, 1, ACTIVE, 10 * MS)
    assert lease.renew(1, 1, 300 * MS)


def test_a_drained_adapter_is_not_a_candidate_until_it_is_undrained() -> None:
    lease = running(2, 3)
    report(lease, 2, SYNCHRONIZED, 1, 99)
    assert lease.drain(2, "maintenance", 2) == []
    assert lease.on_gone(1, 5)[-1] == Granted(3, 2)
    assert kinds(lease.on_gone(3, 6)) == [Vacated]
    assert lease.undrain(2, 7) == [Granted(2, 3)], "it has followed all the time"


def test_a_candidate_no_longer_waits_for_an_adapter_that_is_drained() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.on_attend(1, 0)
    assert report(lease, 1, JOINING, 0) == []
    assert lease.drain(2, "maintenance", 1) == [Granted(1, 1)]


def test_a_former_holder_that_is_drained_does_not_get_its_epoch_back() -> None:
    lease = running()
    lease.on_gone(1, 5)
    lease.drain(1, "maintenance", 6)
    lease.on_resume(1)
    assert lease.renew(1, 1, 7) == []


def test_a_drained_adapter_is_still_drained_after_a_restart_of_the_store() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=0, holder=0, now_ns=0, next_epoch=1, drained={2: "maintenance"})
    lease.on_attend(2, 0)
    assert report(lease, 2, SYNCHRONIZED, 0) == []
    lease.on_attend(1, 1)
    assert report(lease, 1, JOINING, 2) == [Granted(1, 1)]


def test_epochs_that_an_adapter_has_been_in_are_skipped_and_no_epoch_is_granted_again() -> None:
    lease = running(2)
    lease.skip_epochs(8)
    assert lease.next_epoch(1, 1, 5) == [Granted(1, 9)]
    lease.skip_epochs(3)
    assert lease.next_epoch(1, 9, 6) == [Granted(1, 10)]


def test_what_a_holder_reported_before_its_term_passed_does_not_count_afterwards() -> None:
    lease = running()
    assert report(lease, 1, DETACHED, 329 * MS) == []
    assert kinds(lease.on_timer(330 * MS)) == [Vacated]
    assert report(lease, 1, DETACHED, 331 * MS)[-1] == Granted(1, 2)
