"""When a backup is repeatedly out of sync, the least healthy one leaves, unless it is the last (clause 5.8)."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.lease.failing import FailConfig, FailPolicy, healthiest_synchronized, is_repeated, should_leave
from tandemfeed.feedcore.replica.channel_state import ChannelStatus, PeerState
from tandemfeed.feedcore.replica.effects import ANY_HEIR, RequestHandOver, RequestToFail
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.position import MessageStreamState
from tests.feedcore.replica.engines import CHANNEL, MS, SECOND, Adapter, of, pair, transmitted

CONFIG = FailConfig()


def peer(
    adapter_id: int, health: float, state: ReplicaState = ReplicaState.SYNCHRONIZED, *, out_of_sync: bool = False
) -> PeerState:
    status = ChannelStatus(CHANNEL, state, MessageStreamState())
    return PeerState(adapter_id, 1, 1, (status,), out_of_sync=out_of_sync, health=health)


@pytest.mark.parametrize(
    ("policy", "own", "leaves"),
    [
        (FailPolicy.LOWEST, 0.5, True),
        (FailPolicy.LOWEST, 0.6, False),  # another with a higher id is equal, and leaves instead
        (FailPolicy.LOWEST, 0.7, False),
        (FailPolicy.LOWER_THAN_ANY, 0.5, True),
        (FailPolicy.LOWER_THAN_ANY, 0.6, False),
        (FailPolicy.LOWER_THAN_ONE, 0.6, True),
        (FailPolicy.LOWER_THAN_ONE, 0.89, True),
        (FailPolicy.LOWER_THAN_ONE, 0.9, False),
        (FailPolicy.BELOW_THRESHOLD, 0.24, True),
        (FailPolicy.BELOW_THRESHOLD, 0.25, False),
        (FailPolicy.BELOW_THRESHOLD, 0.26, False),
    ],
)
def test_the_policy_selects_the_adapter_that_leaves(policy: FailPolicy, own: float, leaves: bool) -> None:
    others = [peer(1, 0.1, ReplicaState.ACTIVE), peer(3, 0.6), peer(4, 0.9)]
    reason = should_leave(peer(2, own, out_of_sync=True), others, FailConfig(policy))
    assert (reason is not None) == leaves


def test_of_equals_the_highest_id_leaves_under_lowest_and_none_under_lower_than_any() -> None:
    own, others = peer(5, 0.6, out_of_sync=True), [peer(3, 0.6), peer(4, 0.9)]
    assert should_leave(own, others, FailConfig(FailPolicy.LOWEST)) is not None
    assert should_leave(own, others, FailConfig(FailPolicy.LOWER_THAN_ANY)) is None
    assert should_leave(own, others, FailConfig(FailPolicy.BELOW_THRESHOLD)) is None


def test_of_equals_none_leaves_under_lower_than_one() -> None:
    own, others = peer(5, 0.6, out_of_sync=True), [peer(3, 0.6), peer(4, 0.6)]
    assert should_leave(own, others, FailConfig(FailPolicy.LOWER_THAN_ONE)) is None


def test_an_adapter_without_channels_is_not_a_backup_to_compare_with() -> None:
    idle = PeerState(4, 1, 1, (), health=0.1)
    assert should_leave(peer(2, 0.5, out_of_sync=True), [peer(3, 0.9), idle], CONFIG) is not None
    assert should_leave(idle, [peer(3, 0.9, out_of_sync=True)], CONFIG) is None


def test_no_adapter_leaves_while_all_are_in_sync() -> None:
    assert should_leave(peer(2, 0.1), [peer(3, 0.9)], CONFIG) is None


def test_if_any_backup_is_repeatedly_out_of_sync_the_least_healthy_one_leaves() -> None:
    assert should_leave(peer(2, 0.1), [peer(3, 0.9, out_of_sync=True)], CONFIG) is not None


def test_the_last_synchronised_backup_never_leaves() -> None:
    assert should_leave(peer(2, 0.1, out_of_sync=True), [peer(1, 1.0, ReplicaState.ACTIVE)], CONFIG) is None
    joining = peer(3, 0.9, ReplicaState.JOINING, out_of_sync=True)
    assert should_leave(peer(2, 0.1), [joining], CONFIG) is None


def test_the_active_does_not_leave_because_of_its_health() -> None:
    assert should_leave(peer(1, 0.0, ReplicaState.ACTIVE, out_of_sync=True), [peer(2, 1.0)], CONFIG) is None


def test_three_times_within_ten_seconds_counts_as_repeatedly() -> None:
    assert is_repeated([1 * SECOND, 5 * SECOND, 9 * SECOND], CONFIG, 11 * SECOND)
    assert not is_repeated([1 * SECOND, 5 * SECOND, 9 * SECOND], CONFIG, 11 * SECOND + 1)


def test_a_backup_requests_to_be_failed_and_follows_the_admin_servers_decision() -> None:
    active, backup = pair()
    third = Adapter(3)
    third.follow(active)
    backup.engine.health = 0.2
    backup.replica.channel.out_of_sync_at_ns.extend([MS, 2 * MS, 3 * MS])
    (request,) = of(third.tell(backup, 30 * MS), RequestToFail)
    assert "0.20" in request.reason
    assert not of(third.tell(backup, 40 * MS), RequestToFail)  # not at every sync interval
    backup.engine.on_failed(request.reason, 50 * MS)
    assert backup.state is ReplicaState.FAILED
    assert not transmitted(backup.engine.on_timer(SECOND))
    backup.engine.on_readmitted(2 * SECOND)
    assert backup.state is ReplicaState.JOINING
    assert of(active.tell(backup, 2 * SECOND), RequestToFail) == []


def test_the_healthiest_synchronized_backup_is_the_heir_and_of_equals_the_lowest_id() -> None:
    others = [peer(2, 0.5), peer(4, 0.9), peer(3, 0.9), peer(5, 1.0, ReplicaState.DETACHED), peer(6, 0.0)]
    assert healthiest_synchronized(others) == 3
    assert healthiest_synchronized([peer(6, 0.0), PeerState(7, 1, 1, (), health=1.0)]) is None


def test_a_backup_that_is_unfit_requests_to_be_failed_and_repeats_it_once_a_second() -> None:
    _, backup = pair()
    assert of(backup.engine.on_unfit("the disk failed", 30 * MS), RequestToFail) == [RequestToFail("the disk failed")]
    assert backup.engine.on_unfit("the disk failed", 30 * MS + SECOND - 1) == []
    assert of(backup.engine.on_unfit("the disk failed", 30 * MS + SECOND), RequestToFail)


def test_an_active_that_is_unfit_hands_over_and_then_requests_to_be_failed() -> None:
    active, backup = pair()
    backup.tell(active, 30 * MS)
    active.engine.lease.on_renewed(1, 2 * SECOND)
    (request,) = active.engine.on_unfit("the disk failed", 40 * MS)
    assert request == RequestHandOver(1, 2, "the disk failed")
    assert active.engine.on_unfit("the disk failed", 40 * MS + SECOND - 1) == []
    active.engine.on_hand_over(1, 2, 50 * MS)
    assert of(active.engine.on_unfit("the disk failed", 40 * MS + SECOND), RequestToFail)


def test_an_active_that_is_unfit_and_hears_no_peer_lets_the_admin_server_choose_until_it_has_handed_over() -> None:
    active, _ = pair()
    active.engine.lease.on_renewed(1, 4 * SECOND)
    for now_ns in (20 * MS, 20 * MS + SECOND):
        (request,) = active.engine.on_unfit("a thread failed", now_ns)
        assert request == RequestHandOver(1, ANY_HEIR, "a thread failed")
    active.engine.on_hand_over(1, 2, 2 * SECOND)
    active.activate(3, 3 * SECOND)  # no other can replace it
    assert active.engine.on_unfit("a thread failed", 3 * SECOND + MS) == []


def test_an_active_that_is_unfit_hands_over_to_no_backup_that_is_unfit_too_but_to_one_that_it_no_longer_hears() -> None:
    active, backup = pair()
    backup.engine.health = 0.0
    backup.tell(active, 30 * MS)
    assert active.engine.on_unfit("the disk failed", 40 * MS) == []
    backup.engine.health = 1.0
    backup.tell(active, 50 * MS)
    silent_at_ns = 50 * MS + active.engine.config.consent.fresh_ns
    active.engine.lease.on_renewed(1, silent_at_ns + SECOND)
    (known,) = active.engine.on_unfit("the disk failed", silent_at_ns - 1)
    assert known == RequestHandOver(1, 2, "the disk failed")
    (unknown,) = active.engine.on_unfit("the disk failed", silent_at_ns - 1 + SECOND)
    assert unknown == RequestHandOver(1, ANY_HEIR, "the disk failed")


def test_an_active_whose_lease_has_run_out_stops_before_anything_else_when_it_is_unfit() -> None:
    active, _ = pair()
    effects = active.engine.on_unfit("the disk failed", SECOND)
    assert active.state is ReplicaState.DETACHED
    assert of(effects, RequestToFail)
