"""What the forge drill lets pass: no change of roles, but for an active that a busy machine made late."""

from __future__ import annotations

import pytest

from deploy.faults.forging import what_became_of_roles
from deploy.forger import HUGE_EPOCH
from deploy.processes import ProcessFailed
from tandemfeed.v1 import admin_pb2


def status(active: int, epoch: int, *, needless: int = 0, **takeovers: int) -> admin_pb2.FeedStatus:
    made = admin_pb2.FeedStatus(active_adapter_id=active, epoch=epoch, needless_takeover_count=needless)
    for reason, count in takeovers.items():
        made.takeover_counts.add(reason=reason, count=count)
    return made


def test_roles_that_stay_are_said_to_stay_whatever_was_before() -> None:
    before = status(1, 7, needless=1, term_passed=2, process_ended=1)
    assert what_became_of_roles(before, before) == "roles and epoch stayed"


def test_an_active_that_lived_and_was_late_is_the_machines_doing() -> None:
    told = what_became_of_roles(status(1, 7, needless=1, term_passed=2), status(1, 9, needless=3, term_passed=4))
    assert told == "2 takeovers, all because the machine was too busy for the lease's term"


@pytest.mark.parametrize(
    "after",
    [
        status(2, 8, term_passed=1),
        status(2, 8, needless=1, given_up=1),
        status(1, 9, needless=1, term_passed=1, process_ended=1),
        status(1, HUGE_EPOCH, needless=1, term_passed=1),
        status(1, 8),
        status(2, 7),
    ],
    ids=["term passed", "given up", "process ended", "huge epoch", "epoch changed", "active changed"],
)
def test_any_other_change_fails_the_round(after: admin_pb2.FeedStatus) -> None:
    with pytest.raises(ProcessFailed, match="adapter 1 was active in epoch 7 before packets were forged"):
        what_became_of_roles(status(1, 7), after)


def test_an_adapter_that_follows_a_forged_epoch_fails_the_round() -> None:
    after = status(1, 7)
    channel = after.adapters.add().state.channels.add()
    channel.position.epoch = HUGE_EPOCH
    with pytest.raises(ProcessFailed, match="adapter 1 was active in epoch 7"):
        what_became_of_roles(status(1, 7), after)
