"""Which epochs are believed, and whose they are (docs/protocol.md clause 6.11)."""

from __future__ import annotations

from tandemfeed.feedcore.vouched_epochs import OWNERS_REMEMBERED, VouchedEpochs

HUGE = 2**32 - 1


def test_no_epoch_is_believed_that_was_not_vouched_for() -> None:
    vouched = VouchedEpochs()
    assert not vouched.may_be_active(1, 1)
    assert vouched.vouch(3, 1)
    assert not vouched.may_be_active(4, 1)
    assert not vouched.may_be_active(HUGE, 1)


def test_an_epoch_is_its_owners_alone() -> None:
    vouched = VouchedEpochs()
    vouched.vouch(3, 1)
    assert vouched.owner_of(3) == 1
    assert vouched.may_be_active(3, 1)
    assert not vouched.may_be_active(3, 2)


def test_of_an_older_epoch_the_owner_may_be_unknown() -> None:
    vouched = VouchedEpochs()
    vouched.vouch(3, 1)
    assert vouched.may_be_active(2, 2)
    assert vouched.owner_of(2) == 0


def test_the_newest_epoch_never_decreases() -> None:
    vouched = VouchedEpochs()
    vouched.vouch(7, 2)
    assert vouched.vouch(5, 1), "its owner is news"
    assert not vouched.vouch(5, 1)
    assert vouched.newest == 7
    assert not vouched.may_be_active(5, 2)


def test_an_epoch_without_a_known_owner_may_be_anybodys_until_the_owner_is_known() -> None:
    vouched = VouchedEpochs()
    assert vouched.vouch(4, 0)
    assert not vouched.vouch(4, 0)
    assert vouched.may_be_active(4, 1)
    assert vouched.vouch(4, 2)
    assert not vouched.may_be_active(4, 1)


def test_only_the_newest_owners_are_remembered() -> None:
    vouched = VouchedEpochs()
    for epoch in range(1, OWNERS_REMEMBERED + 2):
        vouched.vouch(epoch, 1)
    assert vouched.owner_of(1) == 0
    assert vouched.owner_of(2) == 1
