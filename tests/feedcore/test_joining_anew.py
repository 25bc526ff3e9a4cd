"""Joining anew: the place in the channel is forgotten, the source messages that wait are not (clause 5.1)."""

from __future__ import annotations

from feedcore.replica.effects import RequestSource, SaveState
from feedcore.replica.source_tracker import SourceTracker, TrackerConfig
from feedcore.replica.states import ReplicaState
from feedcore.wire.source_packet import decode_source_packet
from tests.feedcore.engines import CHANNEL, MS, SECOND, Adapter, data, hear, of, pair
from tests.simulation.toy_feed import FEED_ID, encode_source

VALUES = [11, 13, 17, 19]  # one message each


def test_a_backup_that_joins_anew_and_is_granted_the_lease_decides_what_waited() -> None:
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


def test_what_waited_is_decided_once_by_the_snapshots_place_in_it() -> None:
    active, backup = pair()
    decided = active.source(1, 1, VALUES[:2], 30 * MS)
    backup.source(1, 1, VALUES, 30 * MS)  # another cut of the same messages
    backup.lose_place(40 * MS)
    backup.engine.on_answer(CHANNEL, active.engine.snapshot(CHANNEL), 41 * MS)
    hear(backup, decided, 42 * MS)
    assert backup.next_message_seq == 3
    copies = hear(backup, active.source(1, 3, VALUES[2:], 43 * MS), 44 * MS)
    assert [(packet.first_message_seq, packet.message_count) for packet in data(copies)] == [(3, 2)]
    assert backup.converter.snapshot() == active.converter.snapshot()


def test_a_snapshot_is_saved_at_once_because_the_journal_does_not_lead_up_to_it() -> None:
    active, backup = pair()
    active.source(1, 1, VALUES, 30 * MS)  # unheard
    backup.lose_place(40 * MS)
    snapshot = active.engine.snapshot(CHANNEL)
    assert of(backup.engine.on_answer(CHANNEL, snapshot, 41 * MS), SaveState) == [SaveState(snapshot)]


def test_a_snapshot_for_a_replica_that_stands_in_its_own_past_keeps_what_waits() -> None:
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


def test_without_a_place_the_oldest_are_dropped_first_whenever_they_come() -> None:
    tracker = SourceTracker(1, TrackerConfig(held_count_max=2))
    for first in (5, 7, 1, 3):
        datagram = encode_source(1, first, [(0, 1), (0, 2)], 0, 0)
        assert tracker.on_packet(decode_source_packet(datagram, FEED_ID), first, 0) == []
    assert len(tracker._held) == 2
    assert [piece.first_source_seq for piece in tracker.anchor(5, 0)] == [5, 7]
