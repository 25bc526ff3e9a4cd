"""The forge drill's check: roles may not change, except when a busy machine made the active renew too late."""

from __future__ import annotations

import pytest

from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.drills.forger import HUGE_EPOCH
from tandemfeed.deploy.faults.forging import check_roles
from tandemfeed.deploy.faults.lying import check_named
from tandemfeed.v1 import admin_pb2, common_pb2


def status(active: int, epoch: int, *, needless: int = 0, **takeovers: int) -> admin_pb2.FeedStatus:
    made = admin_pb2.FeedStatus(active_adapter_id=active, epoch=epoch, needless_takeover_count=needless)
    for reason, count in takeovers.items():
        made.takeover_counts.add(reason=reason, count=count)
    return made


@pytest.mark.parametrize(
    ("doubted", "story"), [((), "no adapter"), (("a",), "does not believe a"), (("a", "b"), "a, b")]
)
def test_a_status_that_names_not_just_the_liar_fails_the_round(doubted: tuple[str, ...], story: str) -> None:
    made = admin_pb2.FeedStatus()
    for name in "ab":
        row = made.adapters.add(adapter=common_pb2.AdapterDescription(name=name))
        if name in doubted:
            row.doubts.add(what="was in epoch 9", count=1)
    with pytest.raises(ProcessFailed, match=story):
        check_named(made, "b")


def test_unchanged_roles_pass_regardless_of_earlier_events() -> None:
    before = status(1, 7, needless=1, term_passed=2, process_ended=1)
    assert check_roles(before, before) == "active and epoch did not change"


def test_takeovers_from_a_live_but_late_active_pass() -> None:
    description = check_roles(status(1, 7, needless=1, term_passed=2), status(1, 9, needless=3, term_passed=4))
    assert description == "2 takeovers, all because this machine was too busy to renew the lease in time"


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
        check_roles(status(1, 7), after)


def test_an_adapter_that_follows_a_forged_epoch_fails_the_round() -> None:
    after = status(1, 7)
    channel = after.adapters.add().state.channels.add()
    channel.position.epoch = HUGE_EPOCH
    with pytest.raises(ProcessFailed, match="adapter 1 was active in epoch 7"):
        check_roles(status(1, 7), after)
