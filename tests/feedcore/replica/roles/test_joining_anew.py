"""Rejoining: the adapter forgets its place in the channel, but not the source messages that wait (clause 5.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel_state import RunsRefused
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import RequestSnapshot, RequestSource, SaveState
from tandemfeed.feedcore.replica.input.source_tracker import SourceTracker, TrackerConfig
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.source_packet import decode_source_packet
from tests.feedcore.replica.engines import CHANNEL, MS, SECOND, Adapter, data, hear, of, pair
from tests.simulation.toy_feed import FEED_ID, SESSION, encode_source

VALUES = [11, 13, 17, 19]  # one message each


def test_a_rejoining_backup_that_is_granted_the_lease_decides_the_waiting_messages() -> None:
    _, backup = pair()
    backup.source(1, 1, VALUES, 30 * MS)
    backup.source(2, 1, [23], 30 * MS)
    backup.lose_place(40 * MS)
    backup.source(1, 5, [29], 50 * MS)
    decided = [run for packet in data(backup.activate(5, SECOND)) for run in packet.runs]
    assert sorted((run.source_stream_id, run.first_source_seq, run.source_count) for run in decided) == [
        (1, 1, 4),
        (1, 5, 1),
        (2, 1, 1),
    ]
    assert not of(backup.engine.on_timer(2 * SECOND), RequestSource)


def test_waiting_messages_before_the_snapshots_position_are_not_applied_twice() -> None:
    active, backup = pair()
    decided = active.source(1, 1, VALUES[:2], 30 * MS)
    backup.source(1, 1, VALUES, 30 * MS)  # the same messages, cut differently
    backup.lose_place(40 * MS)
    backup.engine.on_answer(CHANNEL, active.engine.snapshot(CHANNEL), 41 * MS)
    hear(backup, decided, 42 * MS)
    assert backup.next_message_seq == 3
    copies = hear(backup, active.source(1, 3, VALUES[2:], 43 * MS), 44 * MS)
    assert [(packet.first_message_seq, packet.message_count) for packet in data(copies)] == [(3, 2)]
    assert backup.converter.snapshot() == active.converter.snapshot()


def test_a_snapshot_is_saved_immediately_because_the_journal_does_not_lead_up_to_it() -> None:
    active, backup = pair()
    active.source(1, 1, VALUES, 30 * MS)  # unheard
    backup.lose_place(40 * MS)
    snapshot = active.engine.snapshot(CHANNEL)
    assert of(backup.engine.on_answer(CHANNEL, snapshot, 41 * MS), SaveState) == [SaveState(snapshot)]


def test_a_snapshot_for_a_replica_with_restart_state_keeps_the_waiting_messages() -> None:
    active, _ = pair()
    active.source(2, 1, [23], 30 * MS)
    restarted = Adapter(3)
    restarted.engine.resume_from(active.engine.snapshot(CHANNEL))
    restarted.source(1, 1, VALUES, 31 * MS)
    restarted.engine.on_cluster_changed(1, 1, 32 * MS)
    restarted.engine.on_answer(CHANNEL, active.engine.snapshot(CHANNEL), 33 * MS)
    assert restarted.state is not ReplicaState.JOINING
    copies = hear(restarted, active.source(1, 1, VALUES, 43 * MS), 44 * MS)
    assert [(packet.first_message_seq, packet.message_count) for packet in data(copies)] == [(2, 4)]


def test_without_a_place_the_oldest_messages_are_dropped_first_in_any_order_of_arrival() -> None:
    tracker = SourceTracker(1, TrackerConfig(held_count_max=2))
    for first in (5, 7, 1, 3):
        datagram = encode_source(1, first, [(0, 1), (0, 2)], 0, 0)
        assert tracker.on_packet(decode_source_packet(datagram, FEED_ID), first, 0) == []
    assert len(tracker._held) == 2
    assert [piece.first_source_seq for piece in tracker.anchor(5, 0)] == [5, 7]


# ---- the snapshot (clause 5.1) ----

RETRY_NS = ReplicaConfig().snapshot_retry_ns


def test_a_snapshot_is_requested_as_soon_as_the_active_is_known_and_again_at_intervals() -> None:
    joining = Adapter(2)
    assert not of(joining.engine.on_timer(MS), RequestSnapshot)
    joining.engine.on_cluster_changed(1, 1, 2 * MS)
    assert joining.engine.next_deadline_ns() == 2 * MS
    assert of(joining.engine.on_timer(2 * MS), RequestSnapshot) == [RequestSnapshot(CHANNEL, 1, SESSION)]
    assert not of(joining.engine.on_timer(2 * MS + RETRY_NS - 1), RequestSnapshot)
    assert of(joining.engine.on_timer(2 * MS + RETRY_NS), RequestSnapshot)
    joining.engine.on_cluster_changed(3, 2, 300 * MS)  # another active is asked immediately
    assert of(joining.engine.on_timer(300 * MS), RequestSnapshot) == [RequestSnapshot(CHANNEL, 3, SESSION)]


def test_a_snapshot_is_requested_from_an_active_that_is_heard_even_if_no_admin_server_named_it() -> None:
    active, joining = Adapter(1), Adapter(2)
    hear(joining, active.activate(), MS)
    assert of(joining.engine.on_timer(MS), RequestSnapshot) == [RequestSnapshot(CHANNEL, 1, SESSION)]


def test_a_snapshot_from_before_the_newest_epoch_is_ignored() -> None:
    active, heir = pair()
    old = active.engine.snapshot(CHANNEL)
    joining = Adapter(3)
    hear(joining, heir.activate(2, 30 * MS), 30 * MS)
    assert joining.engine.on_answer(CHANNEL, old, 31 * MS) == []
    assert joining.state is ReplicaState.JOINING
    joining.engine.on_answer(CHANNEL, heir.engine.snapshot(CHANNEL), 32 * MS)
    assert joining.state is ReplicaState.SYNCHRONIZED


def test_a_snapshot_of_another_table_fails_the_adapter() -> None:
    active, backup = pair()
    backup.lose_place(30 * MS)
    snapshot = replace(active.engine.snapshot(CHANNEL), conversion_state=b"another table's")
    backup.engine.on_answer(CHANNEL, snapshot, 31 * MS)
    assert backup.state is ReplicaState.FAILED


def test_a_snapshot_that_contradicts_heard_decisions_is_not_used_and_the_next_is_requested_immediately() -> None:
    active, backup = pair()
    (decided,) = data(active.source(1, 1, VALUES, 30 * MS))
    backup.lose_place(30 * MS)
    backup.engine.on_timer(30 * MS)
    run = decided.runs[0]._replace(first_message_seq=9)
    backup.engine.on_output_packet(decided._replace(runs=(run,)), 31 * MS)
    stale = pair()[0].engine.snapshot(CHANNEL)  # at input_seq 1, where the decision above contradicts it
    assert not of(backup.engine.on_answer(CHANNEL, stale, 32 * MS), SaveState)
    assert backup.state is ReplicaState.JOINING
    assert of(backup.engine.on_timer(32 * MS), RequestSnapshot)


def test_a_resumed_adapter_whose_conversion_differs_requests_a_snapshot() -> None:
    active, _ = pair()
    snapshot = active.engine.snapshot(CHANNEL)
    (decided,) = data(active.source(1, 1, VALUES, 30 * MS))
    restarted = Adapter(3)
    restarted.engine.resume_from(snapshot, [decided.runs[0]._replace(message_count=9)])
    restarted.engine.on_cluster_changed(1, 1, 30 * MS)
    restarted.source(1, 1, VALUES, 31 * MS)
    assert restarted.counters.counts[Counter.DIGESTS_UNEQUAL] == 1
    assert of(restarted.engine.on_timer(31 * MS), RequestSnapshot)


def test_a_resumed_adapter_with_too_many_waiting_messages_requests_a_snapshot() -> None:
    active, _ = pair()
    restarted = Adapter(3, replica=ReplicaConfig(backlog_count_max=3))
    restarted.engine.resume_from(active.engine.snapshot(CHANNEL))
    restarted.engine.on_cluster_changed(1, 1, 30 * MS)
    restarted.engine.on_timer(30 * MS)
    restarted.source(1, 1, VALUES[:3], 31 * MS)
    assert not of(restarted.engine.on_timer(31 * MS), RequestSnapshot)
    restarted.source(1, 4, VALUES[:1], 32 * MS)
    assert of(restarted.engine.on_timer(32 * MS), RequestSnapshot)


def test_an_adapter_that_rejoins_forgets_what_it_transmitted() -> None:
    _, backup = pair()
    backup.replica.channel.transmitted_ends[1] = 5
    backup.lose_place(30 * MS)
    assert not backup.replica.channel.transmitted_ends


def test_a_snapshot_brings_the_history_and_the_active_counts_as_heard() -> None:
    active, _ = pair()
    active.engine.on_lease_renewed(1, 100 * SECOND, 0)
    joining = Adapter(3)
    joining.engine.on_epoch_vouched(1, active.adapter_id, 0)
    joining.engine.on_answer(CHANNEL, active.engine.snapshot(CHANNEL), 10 * SECOND)
    assert joining.replica.intake.lineage == active.replica.line.lineage
    joining.engine.on_admin_message(10 * SECOND + MS)
    joining.engine.on_timer(10 * SECOND + MS)
    assert joining.state is ReplicaState.SYNCHRONIZED


def test_a_snapshot_that_contradicts_heard_decisions_gives_a_restarted_adapter_no_place() -> None:
    active, _ = pair()
    snapshot = active.engine.snapshot(CHANNEL)
    beat = active.engine.on_timer(20 * MS)
    (decided,) = data(active.source(1, 1, VALUES, 30 * MS))
    run = decided.runs[0]._replace(first_message_seq=9)
    restarted = Adapter(3)
    hear(restarted, beat, 20 * MS)
    restarted.engine.on_output_packet(decided._replace(runs=(run,)), 31 * MS)
    restarted.engine.on_answer(CHANNEL, snapshot, 32 * MS)
    assert restarted.state is ReplicaState.JOINING
    assert not restarted.replica.status().available_source_seqs


def test_a_restarted_adapter_that_a_snapshot_gave_no_place_requests_another_snapshot() -> None:
    active, _ = pair()
    snapshot = active.engine.snapshot(CHANNEL)
    (decided,) = data(active.source(1, 1, VALUES, 30 * MS))
    restarted = Adapter(3)
    restarted.engine.resume_from(snapshot)
    restarted.engine.on_cluster_changed(1, 1, 30 * MS)
    after = decided.runs[0]._replace(first_input_seq=3, first_message_seq=9)
    restarted.engine.on_output_packet(decided._replace(runs=(after,)), 31 * MS)
    position = replace(snapshot.position, next_input_seq=3, next_message_seq=3, next_source_seqs={1: 3, 2: 1})
    restarted.engine.on_answer(CHANNEL, replace(snapshot, position=position), 32 * MS)
    assert restarted.state is ReplicaState.JOINING
    assert of(restarted.engine.on_timer(32 * MS), RequestSnapshot)


def test_a_snapshot_too_large_to_save_is_used_and_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    active, backup = pair()
    backup.lose_place(40 * MS)
    monkeypatch.setattr(backup.replica.channel.save_schedule, "is_small_enough", lambda size: False)
    assert not of(backup.engine.on_answer(CHANNEL, active.engine.snapshot(CHANNEL), 41 * MS), SaveState)
    assert backup.state is ReplicaState.SYNCHRONIZED


def test_a_new_active_is_asked_for_a_snapshot_as_soon_as_it_is_heard() -> None:
    joining, heir = Adapter(2), Adapter(3)
    joining.engine.on_cluster_changed(1, 1, 0)
    assert of(joining.engine.on_timer(0), RequestSnapshot)
    hear(joining, heir.activate(2, MS), 2 * MS)
    assert of(joining.engine.on_timer(2 * MS), RequestSnapshot) == [RequestSnapshot(CHANNEL, 3, SESSION)]


def test_an_adapter_that_rejoins_because_decisions_are_gone_does_not_count_as_out_of_sync() -> None:
    _, backup = pair()
    backup.engine.on_answer(CHANNEL, RunsRefused("the log is too short"), 30 * MS)
    assert backup.state is ReplicaState.JOINING
    assert not backup.replica.channel.out_of_sync_at_ns


def test_a_readmitted_adapter_begins_without_earlier_losses_of_sync() -> None:
    _, backup = pair()
    backup.replica.channel.out_of_sync_at_ns.append(MS)
    backup.engine.on_failed("an admin says so", 30 * MS)
    backup.engine.on_readmitted(31 * MS)
    assert not backup.replica.channel.out_of_sync_at_ns


def test_a_backup_rejoins_only_when_more_source_messages_wait_than_the_limit() -> None:
    _, backup = pair(replica=ReplicaConfig(backlog_count_max=len(VALUES)))
    backup.source(1, 1, VALUES, 30 * MS)
    assert backup.state is ReplicaState.SYNCHRONIZED
    backup.source(2, 1, [23], 30 * MS)
    assert backup.state is ReplicaState.JOINING


def test_decisions_heard_before_the_snapshot_was_requested_need_not_be_requested() -> None:
    active, backup = Adapter(1), Adapter(2)
    hear(backup, active.activate(), 0)
    backup.source(1, 1, VALUES)
    hear(backup, active.source(1, 1, VALUES[:2]), 0)
    snapshot = active.engine.snapshot(CHANNEL)
    hear(backup, active.source(1, 3, VALUES[2:]), 0)
    assert of(backup.engine.on_timer(MS), RequestSnapshot) == [RequestSnapshot(CHANNEL, 1, SESSION)]
    backup.engine.on_answer(CHANNEL, snapshot, 2 * MS)
    assert backup.next_message_seq == active.next_message_seq == 5
