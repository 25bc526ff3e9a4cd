"""Peers' messages are checked: wrong adapters, channels or streams and impossible values are refused and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tandemfeed.adapter.peers.peer_input import LogThrottle, PeerInput
from tandemfeed.adapter.peers.translation import peer_state_to_proto, runs_to_proto, state_chunks
from tandemfeed.adapter.reporting.health import Health
from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.replica.channel_state import ChannelStatus, PeerState, RunsReply
from tandemfeed.feedcore.replica.effects import AdapterEffect
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState, Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.v1 import common_pb2, sync_pb2

POSITION = MessageStreamState(3, 12, 11, {1: 6, 2: 7})
LINEAGE = Lineage().opened(2, 1, 1).opened(3, 6, 5)
STATUS = ChannelStatus(1, ReplicaState.ACTIVE, POSITION, LINEAGE)
HEALTH = Health(0.5, 0.1, 0, 0.0, 0)
SESSION = 20_261_121
STATE = PeerState(2, 4, 1, (STATUS,), {1: 9}, health=HEALTH.score, session=SESSION)
RUN = Run(3, 12, 11, 1, 6, 4, 4)


class Checked:
    """The check with its own counters."""

    def __init__(self) -> None:
        self.counters = CounterSet()
        self.input = PeerInput({1: frozenset({1, 2})}, self.counters, self._post)

    def _post(self, event: Callable[[int], list[AdapterEffect]]) -> None:
        assert event(0) == []


@pytest.fixture
def checked() -> Checked:
    return Checked()


def chunks(position: MessageStreamState = POSITION, lineage: Lineage = LINEAGE) -> list[sync_pb2.SnapshotChunk]:
    return list(state_chunks(position, lineage, (1, 2), b"x" * 10, SESSION))


def test_valid_messages_of_a_peer_pass_unchanged(checked: Checked) -> None:
    assert checked.input.state(2, peer_state_to_proto(STATE, HEALTH)) == STATE
    assert checked.input.snapshot(1, chunks()).position == POSITION
    assert checked.input.snapshot(1, chunks()).session == checked.input.buckets(1, chunks()).session == SESSION
    assert checked.input.buckets(1, chunks()).data == b"x" * 10
    reply = RunsReply(LINEAGE, (RUN,), SESSION)
    assert checked.input.runs(1, runs_to_proto(reply)) == reply


def set_channel(state: common_pb2.FeedAdapterState, **values: object) -> None:
    for key, value in values.items():
        setattr(state.channels[0], key, value)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda state: setattr(state, "adapter_id", 3), Refusal.WRONG_ADAPTER),
        (lambda state: set_channel(state, channel_id=9), Refusal.WRONG_CHANNEL),
        (lambda state: state.channels[0].position.next_source_seqs.update({8: 1}), Refusal.WRONG_CHANNEL),
        (lambda state: state.channels.append(state.channels[0]), Refusal.MALFORMED),
        (lambda state: set_channel(state, replica_state="asleep"), Refusal.MALFORMED),
        (lambda state: setattr(state.channels[0].position, "next_message_seq", 0), Refusal.MALFORMED),
        (lambda state: setattr(state.channels[0].position, "next_message_seq", 1 << 63), Refusal.MALFORMED),
        (lambda state: setattr(state.channels[0].position, "next_input_seq", 0), Refusal.MALFORMED),
        (lambda state: setattr(state.channels[0].position, "epoch", 9), Refusal.MALFORMED),
        (
            lambda state: state.channels[0].lineage.add(epoch=1, first_input_seq=1, first_message_seq=1),
            Refusal.MALFORMED,
        ),
        (lambda state: setattr(state.health, "score", float("nan")), Refusal.MALFORMED),
        (lambda state: setattr(state.health, "score", 1.5), Refusal.MALFORMED),
    ],
)
def test_an_impossible_state_is_refused(
    checked: Checked, spoil: Callable[[common_pb2.FeedAdapterState], None], reason: Refusal
) -> None:
    message = peer_state_to_proto(STATE, HEALTH)
    spoil(message)
    with pytest.raises(PacketRefused) as refused:
        checked.input.state(2, message)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    ("position", "lineage", "reason"),
    [
        (MessageStreamState(3, 12, 11, {1: 6}), LINEAGE, Refusal.WRONG_CHANNEL),
        (MessageStreamState(3, 12, 11, {1: 6, 2: 0}), LINEAGE, Refusal.MALFORMED),
        (MessageStreamState(2, 12, 11, {1: 6, 2: 7}), LINEAGE, Refusal.MALFORMED),
    ],
)
def test_a_snapshot_of_another_channel_or_history_is_refused(
    checked: Checked, position: MessageStreamState, lineage: Lineage, reason: Refusal
) -> None:
    with pytest.raises(PacketRefused) as refused:
        checked.input.snapshot(1, chunks(position, lineage))
    assert refused.value.reason is reason


def test_a_snapshot_that_was_cut_short_is_refused(checked: Checked) -> None:
    (whole,) = chunks()
    whole.data = whole.data[:-1]
    for cut in ([], [whole]):
        with pytest.raises(PacketRefused, match="cut short"):
            checked.input.snapshot(1, cut)
        with pytest.raises(PacketRefused, match="cut short"):
            checked.input.buckets(1, cut)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (RUN._replace(source_stream_id=9), Refusal.UNKNOWN_STREAM),
        (RUN._replace(source_count=0), Refusal.MALFORMED),
        (RUN._replace(first_source_seq=0), Refusal.MALFORMED),
        (RUN._replace(first_message_seq=1 << 62), Refusal.MALFORMED),
        (RUN._replace(first_input_seq=1 << 62), Refusal.MALFORMED),
        (RUN._replace(epoch=0), Refusal.MALFORMED),
        (RUN._replace(is_source_gap=True), Refusal.MALFORMED),
    ],
)
def test_impossible_decisions_are_refused(checked: Checked, run: Run, reason: Refusal) -> None:
    with pytest.raises(PacketRefused) as refused:
        checked.input.runs(1, runs_to_proto(RunsReply(LINEAGE, (run,))))
    assert refused.value.reason is reason


def test_every_refusal_is_counted_and_refusals_are_logged_at_intervals(
    checked: Checked, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tandemfeed.adapter.peers.peer_input"):
        for _ in range(5):
            checked.input.refuse(2, "state", PacketRefused(Refusal.WRONG_ADAPTER, "the state of adapter 3"))
        checked.input.refuse(2, "runs", PacketRefused(Refusal.MALFORMED, "no decision"))
    assert checked.counters.refusals[Refusal.WRONG_ADAPTER] == 5
    assert checked.counters.counts[Counter.PEER_ANSWERS_REFUSED] == 6
    assert [vars(record)["what"] for record in caplog.records] == ["state", "runs"]


def test_frequent_events_are_logged_at_intervals_with_their_count() -> None:
    throttle = LogThrottle(interval_ns=100)
    assert [throttle.take("x", at_ns) for at_ns in (0, 50, 99, 100, 150)] == [1, None, None, 3, None]
    assert throttle.take("y", 150) == 1
