"""Planned hand-over under virtual time: all its outcomes, and all reasons for a refusal (protocol 6.6)."""

from __future__ import annotations

import pytest

from tandemfeed.admin_server.lease.lease_core import FeedLease, Granted, LeaseDecision, Vacated
from tandemfeed.admin_server.lease.lease_decisions import (
    HandedOver,
    HandOverRefused,
    Offered,
    OfferWithdrawn,
    OrderedHandOver,
    Renewed,
)
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

TERM_NS = CONFIG.ttl_ns + CONFIG.allowance_ns


def offering(*backups: int) -> FeedLease:
    """Adapter 1 holds epoch 1; at 100 ms epoch 2 was offered to adapter 2, which accepted the offer."""
    lease = running(2, *backups)
    assert lease.renew(1, 1, 100 * MS)
    assert lease.hand_over(2, 100 * MS) == [Offered(2, 2, after_epoch=1)]
    assert lease.on_offer_accepted(2, 2, 101 * MS) == [OrderedHandOver(1, 1, heir=2)]
    return lease


def refusal(decisions: list[LeaseDecision]) -> tuple[int, str]:
    (refused,) = decisions
    assert isinstance(refused, HandOverRefused)
    return refused.adapter_id, refused.reason


def test_the_best_synchronised_backup_is_the_heir_if_none_is_named() -> None:
    lease = running(2, 3, 4)
    report(lease, 2, SYNCHRONIZED, 1, 90)
    report(lease, 3, SYNCHRONIZED, 1, 100)
    report(lease, 4, DETACHED, 1, 999)  # it does not receive the active's stream, so it would miss the end of its epoch
    assert lease.hand_over(None, 2)[0] == Offered(3, 2, after_epoch=1)


def test_the_heir_holds_the_lease_once_the_holder_has_released_its_epoch() -> None:
    lease = offering()
    assert lease.on_released(1, 1, 110 * MS) == [HandedOver(2, 2, former=1)]
    assert (lease.holder, lease.epoch, lease.offer) == (2, 2, None)
    assert not lease.renew(1, 1, 111 * MS)
    assert kinds(lease.renew(2, 2, 120 * MS)) == [Renewed]


def test_the_heirs_first_renewal_completes_the_hand_over() -> None:
    lease = offering()
    assert kinds(lease.renew(2, 2, 110 * MS)) == [HandedOver, Renewed]
    assert (lease.holder, lease.epoch) == (2, 2)
    assert lease.on_released(1, 1, 111 * MS) == [], "already handed over"


def test_the_holder_is_ordered_to_hand_over_once_and_only_after_the_heir_accepts() -> None:
    lease = running(2, 3)
    assert lease.on_offer_accepted(2, 2, 90 * MS) == [], "nothing was offered"
    assert kinds(lease.hand_over(2, 100 * MS)) == [Offered]
    assert lease.on_offer_accepted(3, 2, 101 * MS) == [], "not the heir"
    assert lease.on_offer_accepted(2, 1, 101 * MS) == [], "of another epoch"
    assert kinds(lease.on_offer_accepted(2, 2, 102 * MS)) == [OrderedHandOver]
    assert lease.on_offer_accepted(2, 2, 103 * MS) == [], "already accepted"


def test_an_offer_that_the_heir_does_not_accept_in_time_changes_nothing() -> None:
    lease = running(2)
    lease.renew(1, 1, 100 * MS)
    lease.hand_over(2, 100 * MS)
    assert lease.renew(1, 1, 300 * MS)
    assert lease.on_offer_accepted(2, 2, 100 * MS + TERM_NS) == [], "too late"
    assert kinds(lease.on_timer(100 * MS + TERM_NS)) == [OfferWithdrawn]
    assert (lease.holder, lease.epoch) == (1, 1)


def test_after_a_hand_over_the_longer_of_both_terms_applies() -> None:
    lease = running(2)
    lease.hand_over(2, 10 * MS)
    assert lease.renew(1, 1, 200 * MS), "the report was sent before the order to hand over arrived"
    lease.on_released(1, 1, 201 * MS)
    assert lease.next_deadline_ns() == 200 * MS + TERM_NS
    lease = offering()
    lease.on_released(1, 1, 101 * MS)
    assert lease.next_deadline_ns() == 100 * MS + TERM_NS


def test_an_heir_that_never_opens_its_epoch_loses_it_when_the_term_ends() -> None:
    lease = offering()
    lease.on_released(1, 1, 110 * MS)
    report(lease, 1, SYNCHRONIZED, 400 * MS)
    decisions = lease.on_timer(100 * MS + TERM_NS)
    assert decisions[-1] == Granted(1, 3)


def test_an_offer_is_withdrawn_if_the_holder_does_not_hand_over_in_time() -> None:
    lease = offering()
    assert lease.renew(1, 1, 300 * MS)
    assert lease.next_deadline_ns() == 100 * MS + TERM_NS
    assert kinds(lease.on_timer(100 * MS + TERM_NS)) == [OfferWithdrawn]
    assert (lease.holder, lease.epoch) == (1, 1)
    assert not lease.renew(2, 2, 431 * MS), "the offer was withdrawn"
    report(lease, 2, SYNCHRONIZED, 500 * MS)
    assert lease.hand_over(2, 501 * MS)[0] == Offered(2, 3, after_epoch=1), "an epoch is never offered twice"


def test_a_holder_that_releases_after_the_withdrawal_leaves_the_lease_to_the_best_candidate() -> None:
    lease = offering(3)
    lease.renew(1, 1, 300 * MS)
    lease.on_timer(100 * MS + TERM_NS)
    report(lease, 3, SYNCHRONIZED, 440 * MS)
    assert lease.on_released(1, 1, 441 * MS)[-1] == Granted(3, 3)


@pytest.mark.parametrize("end", ["its stream ends", "it restarts"])
def test_if_the_holder_dies_during_an_offer_the_heir_gets_the_offered_epoch(end: str) -> None:
    lease = offering(3)
    report(lease, 3, SYNCHRONIZED, 101 * MS, 9_999)
    report(lease, 2, JOINING, 102 * MS)  # it may already have opened the epoch
    decisions = lease.on_gone(1, 110 * MS) if end == "its stream ends" else lease.on_attend(1, 110 * MS)
    assert kinds(decisions) == [Vacated, Granted]
    assert decisions[-1] == Granted(2, 2)
    assert lease.renew(2, 2, 120 * MS)


def test_if_the_holder_falls_silent_during_an_offer_the_heir_gets_the_lease() -> None:
    lease = running(2, 3)
    assert lease.renew(1, 1, 10 * MS)
    lease.hand_over(2, 200 * MS)
    assert lease.on_timer(10 * MS + TERM_NS)[-1] == Granted(2, 2)


def test_an_heir_whose_offer_expired_with_the_holders_term_gets_a_new_epoch() -> None:
    lease = offering()
    assert lease.on_timer(100 * MS + TERM_NS)[-1] == Granted(2, 3)


def test_if_the_heir_dies_its_offer_is_withdrawn_and_the_holder_continues() -> None:
    lease = offering()
    assert kinds(lease.on_gone(2, 110 * MS)) == [OfferWithdrawn]
    assert lease.renew(1, 1, 200 * MS)
    assert (lease.holder, lease.epoch, lease.offer) == (1, 1, None)
    lease = offering()
    assert kinds(lease.on_attend(2, 110 * MS)) == [OfferWithdrawn], "its new process does not know of the offer"
    assert not lease.renew(2, 2, 111 * MS)


def test_a_holder_that_releases_after_its_heir_died_leaves_the_lease_to_another_backup() -> None:
    lease = offering(3)
    lease.on_gone(2, 110 * MS)
    report(lease, 3, SYNCHRONIZED, 111 * MS)
    assert lease.on_released(1, 1, 112 * MS)[-1] == Granted(3, 3)


def test_an_heir_loses_its_offer_when_its_connection_breaks_even_if_it_reconnects() -> None:
    lease = offering()
    lease.on_gone(2, 110 * MS)
    lease.on_resume(2)
    assert not lease.renew(2, 2, 111 * MS)


def test_no_other_operation_can_begin_during_a_hand_over() -> None:
    lease = offering(3)
    assert refusal(lease.hand_over(3, 101 * MS)) == (2, "is already taking over the lease")
    assert lease.next_epoch(1, 1, 102 * MS) == []
    assert lease.refusal_to_fail(2, 103 * MS, is_own_request=True) == "is taking over the lease"


@pytest.mark.parametrize(
    ("state", "abstains", "reason"),
    [
        (ReplicaState.RESYNCHRONIZING, False, "is resynchronizing, not synchronized"),
        (DETACHED, False, "is detached, not synchronized"),
        (SYNCHRONIZED, True, "accepts no grants for the moment, because it recently lost the admin server"),
    ],
)
def test_a_backup_that_does_not_follow_cannot_be_the_heir(state: ReplicaState, abstains: bool, reason: str) -> None:
    lease = running(2)
    report(lease, 2, state, 1, abstains=abstains)
    assert refusal(lease.hand_over(2, 2)) == (2, reason)
    assert refusal(lease.hand_over(None, 2)) == (0, "there is no synchronised backup")


def test_a_refused_hand_over_says_why() -> None:
    lease = running(2, 3)
    assert refusal(lease.hand_over(1, 1)) == (1, "is already active")
    assert refusal(lease.hand_over(9, 1)) == (9, "is away")
    lease.fail(3, "too slow", 1)
    assert refusal(lease.hand_over(3, 1)) == (3, "is failed: too slow")
    report(lease, 2, SYNCHRONIZED, 1)
    lease.renew(1, 1, 300 * MS)
    assert refusal(lease.hand_over(2, 600 * MS)) == (2, "has not reported its state recently")
    assert refusal(lease.hand_over(2, 700 * MS)) == (0, "no adapter is active")


def test_a_restored_holder_can_hand_over_only_after_it_has_renewed() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(2, 0)
    report(lease, 2, SYNCHRONIZED, 0)
    why = "is active, but has not renewed its lease since this server started"
    assert refusal(lease.hand_over(2, 1)) == (1, why)
    lease.on_resume(1)
    report(lease, 1, ACTIVE, 1)
    lease.renew(1, 7, 2)
    assert lease.hand_over(2, 3)[0] == Offered(2, 65, after_epoch=7)
