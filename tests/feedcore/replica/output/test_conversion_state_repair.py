"""Conversion states are compared where positions are equal, and differing buckets are set (clause 5.7)."""

from __future__ import annotations

from dataclasses import replace

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import AdapterEffect, RequestBuckets
from tandemfeed.feedcore.replica.output.bucket_repair import ANSWER_NS_MAX, REACH_NS_MAX, TRIES_MAX, BucketRepair
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.feedcore.replica.engines import CHANNEL, MS, SECOND, Adapter, a_channel, data, hear, of, pair
from tests.simulation.toy_feed import SESSION

CONFIG = ReplicaConfig(digest_interval_messages=4)
SYMBOL = 1


def step(active: Adapter, backup: Adapter, first: int, now_ns: int) -> list[AdapterEffect]:
    """Let four source messages arrive at both; returns the backup's effects."""
    sent = active.source(1, first, [11, 13, 17, 19], now_ns)
    effects = backup.source(1, first, [11, 13, 17, 19], now_ns)
    return effects + hear(backup, sent, now_ns)


def corrupted() -> tuple[Adapter, Adapter, tuple[int, ...]]:
    """A pair whose backup has found its state of one symbol wrong, and the buckets that it requests."""
    active, backup = pair(replica=CONFIG)
    backup.converter.sums[SYMBOL] ^= 1
    step(active, backup, 1, 30 * MS)
    (request,) = of(active.tell(backup, 40 * MS), RequestBuckets)
    return active, backup, request.buckets


def test_equal_states_are_counted_as_equal() -> None:
    active, backup = pair(replica=CONFIG)
    step(active, backup, 1, 30 * MS)
    assert not of(active.tell(backup, 40 * MS), RequestBuckets)
    assert backup.counters.counts[Counter.DIGESTS_EQUAL] == 1


def test_a_bucket_that_differs_is_set_to_the_actives_value() -> None:
    active, backup, buckets = corrupted()
    assert buckets == (SYMBOL,)
    assert backup.counters.counts[Counter.DIGESTS_UNEQUAL] == 1
    assert list(backup.replica.channel.out_of_sync_at_ns) == [40 * MS]
    backup.engine.on_answer(CHANNEL, active.engine.buckets(CHANNEL, buckets), 41 * MS)
    assert backup.counters.counts[Counter.BUCKETS_SET] == 1
    assert backup.converter.snapshot() == active.converter.snapshot()
    assert backup.state is ReplicaState.SYNCHRONIZED


def test_the_backup_waits_for_the_answer_and_applies_decisions_up_to_exactly_its_position() -> None:
    active, backup, buckets = corrupted()
    assert not data(step(active, backup, 5, 41 * MS))
    answer = active.engine.buckets(CHANNEL, buckets)
    assert not data(step(active, backup, 9, 42 * MS))
    copies = data(backup.engine.on_answer(CHANNEL, answer, 43 * MS))
    assert [packet.first_message_seq for packet in copies] == [5, 9]
    assert backup.counters.counts[Counter.BUCKETS_SET] == 1
    assert backup.converter.snapshot() == active.converter.snapshot()


def test_during_a_repair_a_backup_of_one_source_stream_numbers_nothing_itself() -> None:
    active, backup = pair((1,), CONFIG)
    backup.converter.sums[SYMBOL] ^= 1
    step(active, backup, 1, 30 * MS)
    assert of(active.tell(backup, 40 * MS), RequestBuckets)
    assert not data(backup.source(1, 5, [11], 41 * MS))


def test_buckets_are_requested_again_if_the_answer_is_from_before_the_backups_position() -> None:
    active, backup = pair(replica=CONFIG)
    early = active.engine.buckets(CHANNEL, (SYMBOL,))
    backup.converter.sums[SYMBOL] ^= 1
    step(active, backup, 1, 30 * MS)
    active.tell(backup, 40 * MS)
    (again,) = of(backup.engine.on_answer(CHANNEL, early, 41 * MS), RequestBuckets)
    assert again.buckets == (SYMBOL,)


def test_missing_answers_lead_to_a_snapshot() -> None:
    _, backup, _ = corrupted()
    asked, now_ns = 1, 40 * MS
    while backup.state is not ReplicaState.JOINING:
        now_ns += 10 * MS
        asked += len(of(backup.engine.on_timer(now_ns), RequestBuckets))
        assert now_ns < 2_000 * MS
    assert asked == TRIES_MAX


def test_values_that_do_not_repair_the_state_lead_to_a_snapshot() -> None:
    active, backup, buckets = corrupted()
    answer = active.engine.buckets(CHANNEL, buckets)
    backup.engine.on_answer(CHANNEL, replace(answer, digests=tuple(range(len(answer.digests)))), 41 * MS)
    assert backup.state is ReplicaState.JOINING


def test_positions_of_different_epochs_are_not_compared() -> None:
    active, backup = pair(replica=CONFIG)
    step(active, backup, 1, 30 * MS)
    state = active.report(40 * MS)
    moved = replace(state.channels[0].digest, epoch=2, digests=(7,) * 16)
    other = replace(state, channels=(replace(state.channels[0], digest=moved),))
    assert not of(backup.engine.on_peer_state(other, 41 * MS), RequestBuckets)
    assert backup.counters.counts[Counter.DIGESTS_UNEQUAL] == 0


def test_a_snapshot_that_does_not_match_its_digests_is_refused_and_counted() -> None:
    active, _ = pair(replica=CONFIG)
    active.source(1, 1, [11, 13], 30 * MS)
    stranger = Adapter(3, replica=CONFIG)
    stranger.engine.on_cluster_changed(1, 1, 30 * MS)
    snapshot = active.engine.snapshot(CHANNEL)
    damaged = replace(snapshot, conversion_state=bytes(len(snapshot.conversion_state)))
    assert stranger.engine.on_answer(CHANNEL, damaged, 31 * MS) == []
    assert stranger.state is ReplicaState.JOINING
    assert stranger.next_message_seq == 1
    assert stranger.counters.counts[Counter.SNAPSHOTS_REFUSED] == 1
    stranger.engine.on_answer(CHANNEL, snapshot, 32 * MS)
    assert stranger.next_message_seq == 3


def test_only_the_buckets_that_differ_are_requested_from_the_active() -> None:
    active, backup = pair(replica=CONFIG)
    backup.converter.sums[5] ^= 1
    backup.converter.sums[9] ^= 1
    step(active, backup, 1, 30 * MS)
    assert of(active.tell(backup, 40 * MS), RequestBuckets) == [RequestBuckets(CHANNEL, 1, (5, 9), SESSION)]
    assert of(active.tell(backup, 50 * MS), RequestBuckets) == [], "one repair at a time"


def test_a_repair_waits_250_ms_for_the_answer_and_a_second_for_its_position() -> None:
    active, backup, buckets = corrupted()
    active.engine.on_lease_renewed(1, 10 * SECOND, 41 * MS)
    assert backup.replica._role.next_deadline_ns() == 40 * MS + ANSWER_NS_MAX
    assert not of(backup.engine.on_timer(40 * MS + ANSWER_NS_MAX - 1), RequestBuckets)
    step(active, backup, 5, 100 * MS)  # decided, and not applied by the backup
    active.source(1, 9, [23], 100 * MS)  # unheard
    answer = active.engine.buckets(CHANNEL, buckets)
    assert [packet.first_message_seq for packet in data(backup.engine.on_answer(CHANNEL, answer, 110 * MS))] == [5]
    assert backup.replica._role.next_deadline_ns() == 110 * MS + REACH_NS_MAX
    backup.engine.on_timer(110 * MS + REACH_NS_MAX - 1)
    assert backup.state is not ReplicaState.JOINING
    backup.engine.on_timer(110 * MS + REACH_NS_MAX)
    assert backup.state is ReplicaState.JOINING


def test_a_different_number_of_buckets_leads_to_a_snapshot() -> None:
    active, backup = pair(replica=CONFIG)
    step(active, backup, 1, 30 * MS)
    state = active.report(40 * MS)
    digest = replace(state.channels[0].digest, digests=(7,))
    other = replace(state, channels=(replace(state.channels[0], digest=digest),))
    assert not of(backup.engine.on_peer_state(other, 41 * MS), RequestBuckets)
    assert backup.state is ReplicaState.JOINING


def test_buckets_that_were_not_requested_change_nothing() -> None:
    active, backup = pair(replica=CONFIG)
    step(active, backup, 1, 30 * MS)
    assert backup.engine.on_answer(CHANNEL, active.engine.buckets(CHANNEL, (SYMBOL,)), 40 * MS) == []
    assert backup.counters.counts[Counter.BUCKETS_SET] == 0


def test_without_buckets_to_set_every_decision_may_be_applied() -> None:
    assert BucketRepair(a_channel()).may_apply()
