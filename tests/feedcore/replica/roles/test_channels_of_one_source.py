"""A channel of one source stream needs no decisions: a backup numbers immediately as the active does (clause 5.5)."""

from __future__ import annotations

from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import RequestEpoch, RequestHandOver, RunsLost
from tandemfeed.feedcore.replica.input.source_tracker import TrackerConfig
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tests.feedcore.replica.engines import CHANNEL, MS, SECOND, Adapter, data, hear, of, pair

VALUES = [11, 13]
CONFIG = ReplicaConfig(tracker=TrackerConfig(declare_after_ns=500 * MS))


def begun(config: ReplicaConfig | None = None) -> tuple[Adapter, Adapter]:
    """A pair that has made a decision in its epoch."""
    active, backup = pair((1,), config)
    backup.source(1, 1, VALUES, 20 * MS)
    hear(backup, active.source(1, 1, VALUES, 20 * MS), 21 * MS)
    return active, backup


def test_a_backup_waits_for_the_first_decision_of_an_epoch() -> None:
    _, backup = pair((1,))
    assert not data(backup.source(1, 1, VALUES, 20 * MS))


def test_after_the_first_decision_a_backup_transmits_immediately_exactly_what_the_active_does() -> None:
    active, backup = begun()
    (copy,) = data(backup.source(1, 3, [17, 19], 30 * MS))
    (original,) = data(active.source(1, 3, [17, 19], 30 * MS))
    assert (copy.flags, copy._replace(flags=0, adapter_id=0)) == (0, original._replace(flags=0, adapter_id=0))
    assert original.flags == OutputFlag.FROM_ACTIVE
    assert not data(hear(backup, [*active.engine.on_timer(40 * MS)], 41 * MS))


def test_a_backup_does_not_wait_when_the_active_falls_silent() -> None:
    _, backup = begun()
    for step in range(3, 20):
        backup.engine.on_timer(step * 10 * MS)
    assert backup.state is ReplicaState.DETACHED
    assert data(backup.source(1, 3, [17, 19], 200 * MS))
    backup.engine.on_admin_disconnected(200 * MS)
    backup.engine.on_timer(SECOND)
    assert [packet.flags for packet in data(backup.source(1, 5, [23], SECOND))] == [OutputFlag.NONE]


def test_a_loss_is_declared_only_as_the_first_decision_of_a_new_epoch() -> None:
    active, backup = begun(CONFIG)
    active.engine.on_lease_renewed(1, 10 * SECOND, 30 * MS)
    active.source(1, 5, [23], 30 * MS)
    effects = active.engine.on_timer(30 * MS + 500 * MS)
    assert of(effects, RequestEpoch) == [RequestEpoch(1)]
    assert not of(effects, RunsLost)
    effects = active.activate(2, 540 * MS)
    assert of(effects, RunsLost) == [RunsLost(CHANNEL, 1, 3, 4)]
    gap, following = data(effects)
    assert gap.runs[0].is_source_gap
    assert (gap.epoch, gap.first_message_seq, following.first_message_seq) == (2, 3, 4)
    hear(backup, effects, 541 * MS)
    assert backup.replica.line.next_source_seqs == {1: 5}


def lacking_what_its_backup_has() -> Adapter:
    """An active that has had a source gap since 30 ms and knows a synchronised backup that has the messages."""
    active, backup = begun(CONFIG)
    active.engine.on_lease_renewed(1, 10 * SECOND, 30 * MS)
    backup.source(1, 3, [17, 19, 23], 30 * MS)
    active.source(1, 5, [23], 30 * MS)
    backup.tell(active, 500 * MS)
    return active


def test_if_a_synchronised_backup_has_the_messages_the_active_hands_over_and_declares_no_loss() -> None:
    active = lacking_what_its_backup_has()
    effects = active.engine.on_timer(30 * MS + 500 * MS)
    (request,) = of(effects, RequestHandOver)
    assert request == RequestHandOver(1, 2, "adapter 2 has source stream 1 from 3 to 5")
    assert not of(effects, RunsLost)
    assert not of(active.engine.on_timer(600 * MS), RequestHandOver)  # only once a second


def test_a_restart_of_the_backup_that_has_the_messages_does_not_prevent_the_hand_over() -> None:
    active = lacking_what_its_backup_has()
    restarted = Adapter(2, (1,), CONFIG)
    active.engine.on_peer_state(restarted.engine.report(510 * MS, 2), 510 * MS)  # joining, from its journal
    effects = active.engine.on_timer(30 * MS + 500 * MS)
    assert of(effects, RequestHandOver)
    assert not of(effects, RunsLost) + of(effects, RequestEpoch)


def test_if_no_hand_over_follows_the_loss_is_declared_after_the_same_time_again() -> None:
    active = lacking_what_its_backup_has()
    assert of(active.engine.on_timer(30 * MS + 999 * MS), RequestHandOver)
    effects = active.engine.on_timer(30 * MS + 2_000 * MS)
    assert not of(effects, RequestHandOver)
    assert of(effects, RequestEpoch) == [RequestEpoch(1)]
    assert of(active.activate(2, 2_040 * MS), RunsLost) == [RunsLost(CHANNEL, 1, 3, 4)]


def test_a_new_active_already_knows_which_messages_a_backup_has() -> None:
    active, backup = begun(CONFIG)
    heir = Adapter(3, (1,), CONFIG)
    heir.follow(active, 30 * MS)
    backup.source(1, 3, [17, 19, 23], 30 * MS)
    heir.source(1, 5, [23], 30 * MS)
    backup.tell(heir, 500 * MS)
    effects = heir.activate(2, 540 * MS) + heir.engine.on_timer(541 * MS)
    assert heir.state is ReplicaState.ACTIVE
    assert not of(effects, RunsLost)
    assert of(effects, RequestHandOver)


def test_two_adapters_that_lack_messages_do_not_hand_over_to_each_other_without_a_pause() -> None:
    active = lacking_what_its_backup_has()
    assert of(active.engine.on_timer(540 * MS), RequestHandOver)
    active.engine.on_hand_over(1, 2, 541 * MS)
    again = active.activate(3, 545 * MS) + active.engine.on_timer(546 * MS)
    assert active.state is ReplicaState.ACTIVE
    assert not of(again, RequestHandOver)


def test_at_the_end_of_an_epoch_a_backup_waits_for_the_first_decision_of_the_next() -> None:
    active, backup = begun()
    heir = Adapter(3, (1,))
    heir.follow(active, 30 * MS)
    hear(backup, heir.activate(2, 40 * MS), 41 * MS)
    assert not data(backup.source(1, 3, [17], 42 * MS)), "the next epoch may begin with a declared gap"
    effects = hear(backup, heir.source(1, 3, [17], 43 * MS), 44 * MS)
    assert [(packet.epoch, packet.first_input_seq) for packet in data(effects)] == [(2, 3)]
