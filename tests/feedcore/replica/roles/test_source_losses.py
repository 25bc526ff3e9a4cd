"""If the source journal lacks messages, a backup that has them takes over; else they are declared lost (clause 4.4)."""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import RequestEpoch, RequestHandOver, RunsLost
from tandemfeed.feedcore.replica.input.source_tracker import TrackerConfig
from tandemfeed.feedcore.replica.roles.deciding import RUN_SOURCE_COUNT_MAX
from tests.feedcore.replica.engines import CHANNEL, MS, SECOND, Adapter, data, hear, of, pair

CONFIG = ReplicaConfig(tracker=TrackerConfig(declare_after_ns=500 * MS))
LACKS_SINCE = 30 * MS
DECLARED_AT = LACKS_SINCE + 500 * MS


def lacking(first_there: int = 3) -> tuple[Adapter, Adapter]:
    """A pair whose active lacks the messages before `first_there` in source stream 1."""
    active, backup = pair(replica=CONFIG)
    active.engine.on_lease_renewed(1, 10 * SECOND, 20 * MS)
    active.source(1, first_there, [23, 29], LACKS_SINCE)
    return active, backup


def test_a_loss_is_declared_after_its_time_and_the_messages_after_it_are_decided() -> None:
    active, backup = lacking()
    assert of(active.engine.on_timer(DECLARED_AT - 1), RunsLost) == []
    effects = active.engine.on_timer(DECLARED_AT)
    assert of(effects, RunsLost) == [RunsLost(CHANNEL, 1, 1, 2)]
    assert not of(effects, RequestEpoch)  # with several source streams no new epoch is needed
    assert active.counters.counts[Counter.SOURCE_MESSAGES_LOST] == 2
    gap, following = data(effects)
    assert (gap.runs[0].is_source_gap, gap.runs[0].source_count, gap.first_message_seq) == (True, 2, 1)
    assert (following.first_message_seq, following.message_count) == (2, 2)
    hear(backup, effects, DECLARED_AT)
    assert backup.replica.line.next_source_seqs[1] == 3


def test_the_loss_of_a_single_message_is_declared() -> None:
    active, _ = lacking(2)
    gap, _ = data(active.engine.on_timer(DECLARED_AT))
    assert (gap.runs[0].is_source_gap, gap.runs[0].source_count) == (True, 1)


def test_a_loss_longer_than_a_run_is_declared_in_several_runs() -> None:
    active, _ = lacking(RUN_SOURCE_COUNT_MAX + 3)
    effects = active.engine.on_timer(DECLARED_AT)
    assert of(effects, RunsLost) == [RunsLost(CHANNEL, 1, 1, RUN_SOURCE_COUNT_MAX + 2)]
    gaps = [packet.runs[0] for packet in data(effects) if packet.runs[0].is_source_gap]
    assert [(run.first_source_seq, run.source_count) for run in gaps] == [
        (1, RUN_SOURCE_COUNT_MAX),
        (RUN_SOURCE_COUNT_MAX + 1, 2),
    ]
    assert active.counters.counts[Counter.SOURCE_MESSAGES_LOST] == RUN_SOURCE_COUNT_MAX + 2


def test_a_hand_over_to_the_backup_with_most_of_the_missing_messages_is_requested() -> None:
    active, backup = lacking(4)
    third = Adapter(3, replica=CONFIG)
    third.follow(active, LACKS_SINCE)
    third.source(1, 1, [11], LACKS_SINCE)
    backup.source(1, 1, [11, 13], LACKS_SINCE)
    third.tell(active, DECLARED_AT - 20 * MS)
    backup.tell(active, DECLARED_AT - 20 * MS)
    effects = active.engine.on_timer(DECLARED_AT)
    reason = "adapter 2 has source stream 1 from 1 to 2"
    assert of(effects, RequestHandOver) == [RequestHandOver(1, 2, reason)]
    assert not of(effects, RunsLost)


def test_a_backup_that_has_none_of_the_missing_messages_is_not_an_heir() -> None:
    active, backup = lacking()
    backup.tell(active, DECLARED_AT - 20 * MS)
    effects = active.engine.on_timer(DECLARED_AT)
    assert not of(effects, RequestHandOver)
    assert of(effects, RunsLost) == [RunsLost(CHANNEL, 1, 1, 2)]


def test_an_adapter_that_has_failed_since_is_not_an_heir() -> None:
    active, backup = lacking()
    backup.source(1, 1, [11, 13], LACKS_SINCE)
    backup.tell(active, DECLARED_AT - 30 * MS)
    backup.engine.on_failed("an admin says so", DECLARED_AT - 25 * MS)
    backup.tell(active, DECLARED_AT - 20 * MS)
    assert of(active.engine.on_timer(DECLARED_AT), RunsLost) == [RunsLost(CHANNEL, 1, 1, 2)]


def test_the_hand_over_is_requested_again_after_a_pause() -> None:
    active, backup = lacking()
    backup.source(1, 1, [11, 13], LACKS_SINCE)
    backup.tell(active, DECLARED_AT - 20 * MS)
    assert of(active.engine.on_timer(DECLARED_AT), RequestHandOver)
    pause_ns = 200 * MS
    active.replica.channel.ask_lease_store_at_ns = DECLARED_AT + pause_ns
    assert not of(active.engine.on_timer(DECLARED_AT + pause_ns - 1), RequestHandOver)
    assert of(active.engine.on_timer(DECLARED_AT + pause_ns), RequestHandOver)
    assert active.replica.channel.ask_lease_store_at_ns == DECLARED_AT + pause_ns + CONFIG.ask_lease_store_every_ns
