"""Which packets a backup leaves out while a channel has no subscriber."""

from __future__ import annotations

import pytest

from tandemfeed.adapter.idle_channels import IdleChannels
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.transport.unicast.admitted_clients import RETURN_NS

CHANNEL = 1


def packet(flags: int = 0) -> OutputPacket:
    return OutputPacket(flags, 1, CHANNEL, 1, 20261121, 1, 1, 1, 0, (), 0, 0, b"")


def idle(state: ReplicaState = ReplicaState.SYNCHRONIZED) -> IdleChannels:
    channels = IdleChannels([CHANNEL], lambda _channel_id: state)
    channels.on_subscriber_counts({}, 0)
    return channels


def test_a_synchronized_backup_leaves_out_packets_but_not_heartbeats() -> None:
    assert idle().may_leave_out(packet(), RETURN_NS)
    assert not idle().may_leave_out(packet(OutputFlag.HEARTBEAT), RETURN_NS)


@pytest.mark.parametrize("state", [each for each in ReplicaState if each is not ReplicaState.SYNCHRONIZED])
def test_in_any_other_state_everything_is_sent(state: ReplicaState) -> None:
    assert not idle(state).may_leave_out(packet(), RETURN_NS)


def test_a_channel_is_idle_only_after_subscribers_had_time_to_return_to_a_restarted_server() -> None:
    channels = idle()
    assert not channels.may_leave_out(packet(), RETURN_NS - 1)
    channels.on_subscriber_counts({CHANNEL: 1}, RETURN_NS)
    assert not channels.may_leave_out(packet(), 2 * RETURN_NS)


def test_a_subscriber_ends_the_idleness_and_its_end_begins_the_wait_again() -> None:
    channels = idle()
    channels.on_subscriber_counts({CHANNEL: 1}, RETURN_NS)
    channels.on_subscriber_counts({}, 2 * RETURN_NS)
    channels.on_subscriber_counts({}, 3 * RETURN_NS - 1)  # another change does not begin it anew
    assert not channels.may_leave_out(packet(), 3 * RETURN_NS - 1)
    assert channels.may_leave_out(packet(), 3 * RETURN_NS)


def test_before_the_server_has_reported_subscriptions_everything_is_sent() -> None:
    assert not IdleChannels([CHANNEL], lambda _: ReplicaState.SYNCHRONIZED).may_leave_out(packet(), 2 * RETURN_NS)
