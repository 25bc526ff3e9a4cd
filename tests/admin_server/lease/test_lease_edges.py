"""The lease core at exact deadlines and with unexpected requests; these cases were found by mutation testing."""

from __future__ import annotations

from tandemfeed.admin_server.lease.lease_core import FeedLease, Granted, Vacated
from tandemfeed.admin_server.lease.lease_decisions import HandedOver, HandOverRefused, Offered, OfferWithdrawn, Renewed
from tests.admin_server.lease.lease_by_hand import (
    ACTIVE,
    CONFIG,
    DETACHED,
    JOINING,
    SYNCHRONIZED,
    kinds,
    report,
    running,
)

TERM_NS = CONFIG.term_ns
NEEDED = "is needed, because no other adapter is active or synchronised"


def offering() -> FeedLease:
    """Adapter 1 holds epoch 1, renewed at 100 ns; epoch 2 was offered to adapter 2 at 50 ns."""
    lease = running(2, 3)
    lease.hand_over(2, 50)
    lease.renew(1, 1, 100)
    return lease


def restored() -> FeedLease:
    """A restarted store; adapter 1 held epoch 7, and the same process attends again."""
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    return lease


def test_a_lease_can_be_renewed_just_before_its_term_ends_and_not_at_its_end() -> None:
    assert running().renew(1, 1, TERM_NS - 1) == [Renewed(1, 1)]
    assert running().renew(1, 1, TERM_NS) == []
    assert running(2).renew(2, 1, 5) == []


def test_a_new_epoch_is_granted_just_before_the_term_ends_and_not_at_its_end() -> None:
    assert running().next_epoch(1, 1, TERM_NS - 1) == [Granted(1, 2)]
    assert running().next_epoch(1, 1, TERM_NS) == []


def test_a_restored_holder_must_renew_before_it_gets_a_new_epoch() -> None:
    lease = restored()
    assert lease.next_epoch(1, 7, 5) == []
    lease.renew(1, 7, 6)
    assert lease.next_epoch(1, 7, 7) == [Granted(1, 65)]


def test_the_holder_gets_no_new_epoch_during_a_hand_over() -> None:
    assert offering().next_epoch(1, 1, 200) == []


def test_a_holder_that_released_its_lease_cannot_renew_it_even_if_no_other_was_granted() -> None:
    lease = running()
    assert kinds(lease.on_released(1, 1, 5)) == [Vacated]
    assert lease.renew(1, 1, 6) == []


def test_only_the_holder_can_release_the_lease() -> None:
    lease = offering()
    assert lease.on_released(3, 1, 200) == []
    assert lease.on_released(2, 1, 200) == []
    assert lease.offer is not None


def test_an_offer_is_valid_just_before_its_end_and_not_at_its_end() -> None:
    end_ns = 50 + TERM_NS
    assert offering().on_released(1, 1, end_ns - 1) == [HandedOver(2, 2, 1)]
    assert offering().on_released(1, 1, end_ns)[-1] == Granted(2, 3)
    assert kinds(offering().renew(2, 2, end_ns - 1)) == [HandedOver, Renewed]
    assert offering().renew(2, 2, end_ns) == []
    assert kinds(offering().on_offer_accepted(2, 2, end_ns - 1)) != []
    assert offering().on_offer_accepted(2, 2, end_ns) == []


def test_an_offer_is_withdrawn_at_its_end_and_not_before() -> None:
    lease = offering()
    assert lease.next_deadline_ns() == 50 + TERM_NS
    assert lease.on_timer(49 + TERM_NS) == []
    assert kinds(lease.on_timer(50 + TERM_NS)) == [OfferWithdrawn]
    assert lease.next_deadline_ns() == 100 + TERM_NS
    assert lease.renew(1, 1, 51 + TERM_NS) == [Renewed(1, 1)]


def test_a_holder_whose_term_ends_before_its_offer_leaves_the_offered_epoch_to_the_heir() -> None:
    lease = running(2)
    lease.hand_over(2, 50)
    assert lease.next_deadline_ns() == TERM_NS
    assert lease.on_timer(TERM_NS)[-1] == Granted(2, 2)


def test_an_heir_holds_the_lease_for_the_longer_of_both_terms() -> None:
    lease = offering()
    lease.on_released(1, 1, 200)
    assert lease.next_deadline_ns() == 100 + TERM_NS
    lease = running(2)
    lease.hand_over(2, 50)
    lease.on_released(1, 1, 200)
    assert lease.next_deadline_ns() == 50 + TERM_NS


def test_an_heir_whose_connection_broke_briefly_continues_in_the_epoch_that_was_handed_over() -> None:
    lease = running(2)
    lease.hand_over(2, 50)
    lease.on_released(1, 1, 60)
    report(lease, 1, JOINING, 61, abstains=True)
    assert kinds(lease.on_gone(2, 70)) == [Vacated]
    lease.on_resume(2)
    assert lease.renew(2, 2, 80) == [Renewed(2, 2)]


def test_the_named_heir_takes_over_even_if_another_backup_is_better() -> None:
    lease = running(2, 3)
    assert lease.hand_over(3, 5) == [Offered(3, 2, 1)]


def test_no_hand_over_begins_after_the_term_or_before_a_restored_holder_has_renewed() -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, TERM_NS - 1)
    assert lease.hand_over(None, TERM_NS) == [HandOverRefused("no adapter is active")]
    assert kinds(lease.hand_over(None, TERM_NS - 1)) == [Offered]
    (refused,) = restored().hand_over(None, 5)
    assert refused == HandOverRefused("is active, but has not renewed its lease since this server started", 1)


def test_a_late_restored_holder_does_not_count_as_a_needless_takeover() -> None:
    lease = restored()
    lease.on_timer(TERM_NS)
    report(lease, 1, JOINING, TERM_NS + 1)
    assert lease.terms.needless_count == 0


def test_only_the_heirs_own_restart_or_end_withdraws_its_offer() -> None:
    for end in (FeedLease.on_attend, FeedLease.on_gone):
        lease = offering()
        assert end(lease, 3, 200) == []
        assert kinds(end(lease, 2, 201)) == [OfferWithdrawn]


def test_a_former_holder_loses_its_epoch_when_it_is_failed_and_not_when_another_is() -> None:
    lease = running(2)
    lease.fail(2, "by hand", 1)
    lease.on_gone(1, 5)
    lease.on_resume(1)
    assert lease.renew(1, 1, 6) == [Renewed(1, 1)]
    lease.on_gone(1, 7)
    lease.fail(1, "by hand", 8)
    lease.on_resume(1)
    assert lease.renew(1, 1, 9) == []


def test_the_heir_and_the_holder_are_not_failed_even_by_force() -> None:
    lease = offering()
    refusal = lease.refusal_to_fail(2, 200, is_own_request=False, is_forced=True)
    assert refusal == "is taking over the lease"
    assert lease.refusal_to_fail(3, 200, is_own_request=False, is_forced=True) is None
    assert lease.refusal_to_fail(3, 200, is_own_request=True) is None


def test_an_unsynchronised_adapter_can_be_failed_if_another_is_synchronised_even_without_a_known_active() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2, 3}))
    lease.restore(epoch=7, holder=0, now_ns=0, next_epoch=65)
    for adapter_id in (1, 2):
        lease.on_attend(adapter_id, 1)
        report(lease, adapter_id, JOINING, 2)
    assert lease.refusal_to_fail(1, 3, is_own_request=True) == NEEDED
    report(lease, 2, SYNCHRONIZED, 4)
    assert lease.refusal_to_fail(1, 5, is_own_request=True) is None


def test_a_poor_candidate_waits_the_full_grace_period_after_a_better_one_has_left() -> None:
    lease = running(2, 3)
    report(lease, 2, JOINING, 0)
    lease.on_gone(3, 1)
    lease.on_gone(1, 2)
    assert lease.next_deadline_ns() == 2 + CONFIG.grace_ns
    report(lease, 2, ACTIVE, 3)  # not a candidate, so no adapter waits
    assert lease.next_deadline_ns() is None
    report(lease, 2, JOINING, 10)
    assert lease.next_deadline_ns() == 10 + CONFIG.grace_ns


def test_a_poor_candidate_waits_the_full_grace_period_after_anothers_term() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2, 3}))
    lease.on_attend(1, 0)
    lease.on_attend(2, 0)
    report(lease, 1, JOINING, 0, 900)
    report(lease, 2, JOINING, CONFIG.first_grace_ns - 1, 1)
    report(lease, 1, JOINING, CONFIG.first_grace_ns - 1, 900)
    assert lease.on_timer(CONFIG.first_grace_ns) == [Granted(1, 1)]
    passed_ns = CONFIG.first_grace_ns + TERM_NS
    assert kinds(lease.on_timer(passed_ns)) == [Vacated]
    assert lease.next_deadline_ns() == passed_ns + CONFIG.grace_ns


def test_once_another_was_granted_candidates_no_longer_wait_for_the_restored_holder() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2, 3}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(2, 1)
    lease.on_attend(3, 1)
    report(lease, 2, DETACHED, TERM_NS - 1)
    assert lease.on_timer(TERM_NS)[-1] == Granted(2, 65)
    report(lease, 3, SYNCHRONIZED, TERM_NS + 1)
    assert lease.on_gone(2, TERM_NS + 2)[-1] == Granted(3, 66), "it received the stream of adapter 2, which has left"


def test_a_feed_that_never_had_an_active_has_no_former_holder_to_renew_or_to_wait_for() -> None:
    for adapter_id in (1, 2):
        lease = FeedLease(CONFIG, frozenset({1, 2}))
        lease.on_resume(adapter_id)
        assert lease.renew(adapter_id, 0, 1) == []
        assert report(lease, adapter_id, SYNCHRONIZED, 2) == [Granted(adapter_id, 1)]


def test_a_former_holder_that_stopped_cannot_renew_even_while_it_abstains() -> None:
    lease = running()
    lease.on_gone(1, 5)
    lease.on_resume(1)
    assert report(lease, 1, JOINING, 6, abstains=True) == []
    assert lease.renew(1, 1, 7) == []


def test_a_vacant_lease_cannot_be_handed_over_even_before_its_term_ends() -> None:
    lease = running()
    lease.on_gone(1, 5)
    assert lease.hand_over(None, 6) == [HandOverRefused("no adapter is active")]
