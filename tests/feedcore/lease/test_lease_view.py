"""An adapter's view of its lease: which grants and renewals it believes, and for how long."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.lease.lease_view import LeaseView
from tandemfeed.feedcore.replica.effects import RenewLease

TTL_NS = 400


def holding(epoch: int = 5, valid_until_ns: int = 360) -> LeaseView:
    """A view that was granted an epoch at time 0."""
    view = LeaseView(TTL_NS)
    assert view.on_granted(epoch, valid_until_ns, 0)
    return view


def test_the_first_epoch_of_a_feed_is_granted_and_held_like_any_other() -> None:
    view = LeaseView(TTL_NS)
    assert (view.is_held, view.is_by_consent, view.last_epoch, view.may_transmit(0)) == (False, False, 0, False)
    assert view.on_granted(1, 360, 0)
    assert view.may_transmit(359)
    assert view.on_timer(100) == RenewLease(1)


@pytest.mark.parametrize("epoch", [1, 4, 5])
def test_a_grant_of_an_epoch_that_has_passed_is_not_believed(epoch: int) -> None:
    view = LeaseView(TTL_NS)
    view.note_epoch(5)
    assert not view.on_granted(epoch, 360, 0)
    assert (view.is_held, view.may_transmit(0), view.next_deadline_ns()) == (False, False, None)


def test_a_grant_of_an_epoch_that_was_held_before_is_not_believed() -> None:
    view = holding()
    view.drop()
    assert not view.on_granted(5, 900, 10)
    assert view.on_granted(6, 900, 10)


def test_an_old_grant_does_not_change_the_lease_that_is_held() -> None:
    view = holding()
    assert not view.on_granted(4, 9_999, 1)
    assert (view.epoch, view.may_transmit(359), view.may_transmit(360)) == (5, True, False)


def test_a_grant_that_has_expired_on_its_way_is_not_believed() -> None:
    view = LeaseView(TTL_NS)
    assert not view.on_granted(5, 360, 360)
    assert view.on_granted(5, 360, 359)


def test_a_renewal_of_another_epoch_does_not_count_and_no_renewal_shortens_the_lease() -> None:
    view = holding()
    view.on_renewed(4, 900)
    view.on_renewed(6, 900)
    view.on_renewed(5, 100)
    assert (view.may_transmit(359), view.may_transmit(360)) == (True, False)
    view.on_renewed(5, 900)
    assert (view.may_transmit(899), view.may_transmit(900)) == (True, False)


def test_a_holder_requests_renewals_and_its_last_deadline_is_the_end_of_the_lease() -> None:
    view = holding()
    assert view.on_timer(99) is None
    assert view.on_timer(100) == RenewLease(5)
    assert view.next_deadline_ns() == 200
    assert view.on_timer(300) == RenewLease(5)
    assert view.next_deadline_ns() == 360, "not the next renewal, because the holder stops by its own clock"
    assert not view.may_transmit(360)
    view.drop()
    view.on_renewed(5, 900)
    assert not view.may_transmit(362), "the renewal arrived after the holder had stopped"


def test_an_adapter_that_gave_up_its_lease_neither_transmits_nor_renews() -> None:
    view = holding()
    view.on_consent(400)
    view.drop()
    assert (view.is_held, view.is_by_consent, view.may_transmit(1)) == (False, False, False)
    assert (view.next_deadline_ns(), view.on_timer(100), view.on_timer(400)) == (None, None, None)


def test_consent_extends_the_lease_and_never_shortens_it_until_the_store_renews_it() -> None:
    view = holding()
    view.on_consent(300)
    assert (view.is_by_consent, view.may_transmit(359), view.may_transmit(360)) == (True, True, False)
    view.on_consent(700)
    assert (view.may_transmit(699), view.may_transmit(700)) == (True, False)
    view.on_renewed(4, 900)
    assert view.is_by_consent, "a renewal of another epoch does not count"
    view.on_renewed(5, 900)
    assert (view.is_by_consent, view.may_transmit(899)) == (False, True)


def test_a_holder_back_in_contact_renews_immediately() -> None:
    view = holding()
    view.on_contact(700, 50)
    assert view.next_deadline_ns() == 50
    assert (view.is_by_consent, view.may_transmit(360)) == (False, False), "the lease is still the store's"
    assert view.on_timer(50) == RenewLease(5)
    assert view.on_timer(50) is None


def test_a_holder_by_consent_that_is_back_in_contact_keeps_the_consent_until_the_answer() -> None:
    view = holding()
    view.on_consent(500)
    view.on_contact(700, 450)
    assert view.is_by_consent
    assert (view.may_transmit(699), view.may_transmit(700)) == (True, False)
    assert view.on_timer(450) == RenewLease(5)


def test_a_connection_that_returns_in_the_middle_of_a_renewal_leaves_one_chain_of_renewals() -> None:
    view = holding(valid_until_ns=100_000)
    renewed_at_ns = []
    for now_ns in range(100, 2_000, 10):
        if now_ns in (200, 250):  # right after a renewal, and between two: not answered yet
            view.on_contact(0, now_ns)
        if view.on_timer(now_ns) is not None:
            renewed_at_ns.append(now_ns)
    assert renewed_at_ns[:3] == [100, 200, 250]
    assert renewed_at_ns[2:] == list(range(250, 2_000, 100))
