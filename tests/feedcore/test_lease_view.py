"""An adapter's own view of its lease: what it believes, for how long, and what it never believes."""

from __future__ import annotations

import pytest

from feedcore.lease.lease_view import LeaseLapsed, LeaseView
from feedcore.replica.effects import RenewLease

TTL_NS = 400


def holding(epoch: int = 5, valid_until_ns: int = 360) -> LeaseView:
    """A view that was granted an epoch at 0."""
    view = LeaseView(TTL_NS)
    assert view.on_granted(epoch, valid_until_ns, 0)
    return view


@pytest.mark.parametrize("epoch", [1, 4, 5])
def test_a_grant_of_an_epoch_that_has_passed_is_not_believed(epoch: int) -> None:
    view = LeaseView(TTL_NS)
    view.note_epoch(5)
    assert not view.on_granted(epoch, 360, 0)
    assert (view.is_held, view.may_transmit(0), view.next_deadline_ns()) == (False, False, None)


def test_a_grant_of_the_epoch_that_was_held_before_is_not_believed_again() -> None:
    view = holding()
    view.drop()
    assert not view.on_granted(5, 900, 10)
    assert view.on_granted(6, 900, 10)


def test_an_old_grant_leaves_the_lease_that_is_held_as_it_is() -> None:
    view = holding()
    assert not view.on_granted(4, 9_999, 1)
    assert (view.epoch, view.may_transmit(359), view.may_transmit(360)) == (5, True, False)


def test_a_grant_that_has_run_out_on_its_way_is_not_believed() -> None:
    view = LeaseView(TTL_NS)
    assert not view.on_granted(5, 360, 360)
    assert view.on_granted(5, 360, 359)


def test_a_renewal_of_another_epoch_says_nothing_and_none_shortens_the_lease() -> None:
    view = holding()
    view.on_renewed(4, 900)
    view.on_renewed(6, 900)
    view.on_renewed(5, 100)
    assert (view.may_transmit(359), view.may_transmit(360)) == (True, False)
    view.on_renewed(5, 900)
    assert (view.may_transmit(899), view.may_transmit(900)) == (True, False)


def test_a_holder_that_was_not_renewed_fences_itself_by_its_own_clock() -> None:
    view = holding()
    assert view.on_timer(99) is None
    assert view.on_timer(100) == RenewLease(5)
    assert view.next_deadline_ns() == 200
    assert view.on_timer(360) == LeaseLapsed(5)
    assert (view.is_held, view.on_timer(361)) == (False, None)
    view.on_renewed(5, 900)
    assert not view.may_transmit(362), "a renewal that comes after the fence"
