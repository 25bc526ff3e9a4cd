"""What a replica does in every role: heartbeats, saved states, deadlines, order of arrival, the end of the session."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import RequestSource, SaveState, Transmit
from tandemfeed.feedcore.replica.output.save_schedule import STATE_SIZE_MAX
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import Run
from tests.feedcore.merge.merge_feed import lineage_of
from tests.feedcore.replica.engines import MS, SECOND, Adapter, a_channel, data, hear, of, pair, transmitted

CONFIG = ReplicaConfig()
EVERY_NS = CONFIG.heartbeat_interval_ns


def an_active(config: ReplicaConfig | None = None) -> Adapter:
    """An active with a long lease from time 0 on."""
    active = Adapter(1, replica=config)
    active.activate()
    active.engine.on_lease_renewed(1, 100 * SECOND, 0)
    return active


# ---- heartbeats (clause 4.2) ----


def test_a_heartbeat_is_sent_every_10_ms_and_its_time_is_the_deadline() -> None:
    active = an_active()
    for beat_at_ns in (EVERY_NS, 2 * EVERY_NS):
        assert active.replica.next_deadline_ns() == beat_at_ns
        assert not transmitted(active.replica.on_timer(beat_at_ns - 1))
        (beat,) = of(active.replica.on_timer(beat_at_ns), Transmit)
        assert beat.packet.flags == OutputFlag.HEARTBEAT | OutputFlag.FROM_ACTIVE


def beat_times(active: Adapter, from_ns: int, until_ns: int) -> list[int]:
    """When heartbeats are sent in this time."""
    times, now_ns = [], from_ns
    while (at_ns := active.replica.next_deadline_ns()) is not None and at_ns <= until_ns:
        now_ns = max(now_ns, at_ns)
        times += [now_ns for each in active.replica.on_timer(now_ns) if isinstance(each, Transmit)]
    return times


def test_heartbeats_are_rarer_once_they_have_said_the_same_for_long() -> None:
    times = beat_times(an_active(), 0, 500 * MS)
    often = [EVERY_NS * number for number in range(1, CONFIG.idle_after_count + 1)]  # the opening one was at 0
    assert times[: len(often)] == often
    assert {later - earlier for earlier, later in pairwise(times[len(often) - 1 :])} == {25 * MS}


@pytest.mark.parametrize("after_ms", [3, 17], ids=["within 10 ms of a heartbeat", "later"])
def test_on_an_idle_channel_a_message_is_followed_by_a_heartbeat_within_10_ms_and_then_every_10_ms(
    after_ms: int,
) -> None:
    active = an_active()
    last_ns = beat_times(active, 0, 500 * MS)[-1]
    sent_ns = last_ns + after_ms * MS
    active.source(1, 1, [11], sent_ns)
    first_ns = max(last_ns + EVERY_NS, sent_ns)
    expected = [first_ns + number * EVERY_NS for number in range(3)]
    assert beat_times(active, sent_ns, expected[-1]) == expected


def test_a_replica_without_a_place_sends_no_heartbeat() -> None:
    joining = Adapter(2)
    assert joining.replica.next_deadline_ns() is None
    assert not transmitted(joining.replica.on_timer(SECOND))


def test_a_backup_that_knows_no_epoch_sends_no_heartbeat() -> None:
    active = Adapter(1)
    backup = Adapter(2)
    backup.engine.on_cluster_changed(1, 0, 0)
    backup.engine.on_answer(1, active.replica.line.snapshot(), 0)
    assert backup.state is ReplicaState.SYNCHRONIZED
    assert not transmitted(backup.replica.on_timer(EVERY_NS))


# ---- saved states (clause 5.1.1) ----


def test_the_state_is_saved_when_due_and_that_time_is_a_deadline() -> None:
    config = ReplicaConfig(state_interval_ns=5 * MS)
    active = an_active(config)
    assert active.replica.next_deadline_ns() == 5 * MS
    assert not of(active.replica.on_timer(5 * MS), SaveState)  # nothing has moved
    active.source(1, 1, [11], 6 * MS)
    assert not of(active.replica.on_timer(10 * MS - 1), SaveState)
    (saved,) = of(active.replica.on_timer(10 * MS), SaveState)
    assert saved.snapshot == active.replica.line.snapshot()


def test_a_state_too_large_to_save_is_never_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    active = an_active()
    active.source(1, 1, [11], MS)
    assert of(active.engine.on_stop(), SaveState)
    monkeypatch.setattr(active.converter, "snapshot", lambda: bytes(STATE_SIZE_MAX + 1))
    assert not of(active.engine.on_stop(), SaveState)
    assert not of(active.replica.on_timer(CONFIG.state_interval_ns), SaveState)


def test_a_state_that_falls_due_while_detached_is_saved_once_synchronized() -> None:
    active, backup = pair()
    active.engine.on_lease_renewed(1, 100 * SECOND, 30 * MS)
    backup.source(1, 1, [11], 30 * MS)
    hear(backup, active.source(1, 1, [11], 30 * MS), 30 * MS)
    due_ns = CONFIG.state_interval_ns
    backup.engine.on_admin_message(due_ns)
    assert not of(backup.engine.on_timer(due_ns), SaveState)
    assert backup.state is ReplicaState.DETACHED
    hear(backup, active.engine.on_timer(due_ns + MS), due_ns + MS)
    assert of(backup.engine.on_timer(due_ns + MS), SaveState)


# ---- source messages ----


def test_a_replica_without_a_place_reports_no_available_source_messages() -> None:
    active, joining = an_active(), Adapter(2)
    assert active.replica.status().available_source_seqs == {1: 1, 2: 1}
    assert joining.replica.status().available_source_seqs == {}


def test_a_new_active_decides_waiting_messages_in_order_of_arrival() -> None:
    _, backup = pair()
    for stream, first in ((2, 1), (1, 1), (2, 2)):
        backup.source(stream, first, [11], 30 * MS)
    decided = [packet.runs[0] for packet in data(backup.activate(2, 31 * MS))]
    assert [(run.source_stream_id, run.first_source_seq) for run in decided] == [(2, 1), (1, 1), (2, 2)]


def test_missing_source_messages_are_requested_and_that_time_is_a_deadline() -> None:
    active = an_active()
    active.source(1, 3, [11], MS)
    due_ns = MS + CONFIG.tracker.request_after_ns
    assert active.replica.next_deadline_ns() == due_ns
    (request,) = of(active.replica.on_timer(due_ns), RequestSource)
    assert request.ranges == ((1, 3),)


def test_the_lag_is_the_number_of_known_messages_that_have_not_been_converted() -> None:
    active, backup = pair()
    assert backup.replica.source_lags() == {1: 0, 2: 0}
    backup.source(1, 1, [11, 13], 30 * MS)
    backup.source(2, 3, [17], 30 * MS)
    assert backup.replica.source_lags() == {1: 2, 2: 3}
    active.source(1, 1, [11, 13], 30 * MS)
    assert active.replica.source_lags() == {1: 0, 2: 0}


# ---- the end of the session (clause 10.4) ----


def heartbeat(channel: Channel, epoch: int, end_input_seq: int, lineage: Lineage) -> OutputPacket:
    """Another adapter's heartbeat that announces the end of the session at `end_input_seq`."""
    beat = channel.line.heartbeat(int(OutputFlag.END_OF_STREAM), (end_input_seq, end_input_seq))
    return beat._replace(adapter_id=2, epoch=epoch, payload=lineage.encode(1_000))


def test_the_newest_epoch_determines_where_the_session_ends() -> None:
    channel = a_channel()
    first = Lineage((EpochStart(1, 1, 1),))
    channel.take_output_packet(heartbeat(channel, 2, 5, first.opened(2, 3, 3)), 0)
    assert not channel.is_at_end
    channel.line.next_input_seq = 5
    assert channel.is_at_end
    channel.take_output_packet(heartbeat(channel, 1, 3, first), 0)  # late, of an epoch that has ended
    assert channel.is_at_end


# ---- orders of the engine ----


def test_a_backup_hears_the_active_until_it_has_been_silent_for_too_long() -> None:
    active, backup = pair()
    assert not active.replica.hears_active(0)
    assert not Adapter(3).replica.hears_active(0)
    heard_at_ns = backup.replica.channel.active.heard_at_ns
    assert backup.replica.hears_active(heard_at_ns + CONFIG.detach_after_ns - 1)
    assert not backup.replica.hears_active(heard_at_ns + CONFIG.detach_after_ns)


def test_a_promotion_or_its_loss_ends_the_wait_for_an_epoch_that_was_handed_over() -> None:
    for order in ("promote", "demote"):
        _, backup = pair()
        hand_over = backup.replica.channel.hand_over
        hand_over.await_end(2, 1, 0)
        effects = backup.replica.promote(3, 0) if order == "promote" else backup.replica.demote("lost", 0)
        assert not hand_over.is_awaited
        assert bool(effects) is (order == "promote")


def test_only_the_active_gives_up_an_epoch_and_it_does_not_wait_for_another() -> None:
    active, backup = pair()
    assert backup.replica.hand_over(1, 0) == []
    assert active.replica.promote_when_caught_up(2, 1, 0) == []
    assert not active.replica.channel.hand_over.is_awaited


# ---- decisions of a session that follow another end of the previous one ----


@pytest.mark.parametrize(
    ("history", "heard_epoch", "is_kept"),
    [
        (((1, 1), (2, 5)), 1, False),  # epoch 2 decided the end of the previous session again
        (((1, 1), (2, 8)), 1, False),
        (((1, 1), (2, 9)), 1, True),  # it decided nothing of it
        (((1, 1), (2, 5)), 2, True),  # the decisions heard are its own
    ],
)
def test_decisions_that_follow_a_different_end_of_the_previous_session_are_dropped(
    history: tuple[tuple[int, int], ...], heard_epoch: int, is_kept: bool
) -> None:
    before, replica = Adapter(1).replica, Adapter(1).replica
    before.line.lineage, before.line.next_input_seq = lineage_of(history), 9
    run = Run(heard_epoch, 1, 1, 1, 1, 2, 2)
    replica.intake.on_lineage(lineage_of(((heard_epoch, 1),)), replica.line.position())
    replica.intake.on_runs([run], 0)
    replica.discard_other_history(before)
    replica.intake.anchor(replica.line.position())
    replica.intake.on_runs([], 0)
    assert list(replica.intake.ready) == [run] * is_kept


# ---- what a backup takes from others ----


def test_a_provisional_packet_decides_nothing() -> None:
    active, backup = pair()
    (packet,) = data(active.source(1, 1, [11], 30 * MS))
    backup.source(1, 1, [11], 30 * MS)
    assert backup.replica.on_output_packet(packet._replace(flags=OutputFlag.PROVISIONAL), 31 * MS) == []
    assert data(backup.replica.on_output_packet(packet, 31 * MS))


def test_the_first_heartbeat_of_a_backup_is_due_an_interval_after_it_began() -> None:
    _, backup = pair()
    assert not transmitted(backup.replica.on_timer(EVERY_NS - 1))
    assert transmitted(backup.replica.on_timer(EVERY_NS))
