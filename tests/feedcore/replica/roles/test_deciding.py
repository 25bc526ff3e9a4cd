"""The active of a channel: how a term begins, what acknowledges its packets, and how it ends."""

from __future__ import annotations

from tandemfeed.feedcore.replica.config import PublishMode, ReplicaConfig
from tandemfeed.feedcore.replica.effects import AppendToJournal, CommitProvisional, ReleaseLease, StateMoved
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.feedcore.replica.engines import LEASE_NS, MS, SECOND, Adapter, data, hear, of, pair, transmitted

ACKED = ReplicaConfig(publish=PublishMode.ACKED, heartbeat_interval_ns=25 * MS)


def acknowledged_pair() -> tuple[Adapter, Adapter]:
    """A pair whose active, with a long lease, waits for the backup's acknowledgements."""
    active, backup = pair(replica=ACKED)
    active.engine.on_lease_renewed(1, 10 * SECOND, 20 * MS)
    hear(active, backup.engine.on_timer(30 * MS), 30 * MS)
    return active, backup


def decides_own_history(adapter: Adapter) -> bool:
    """Whether the adapter remembers no decision but its own, and lacks none."""
    intake, line = adapter.replica.intake, adapter.replica.line
    at_its_position = intake.position() == line.position()
    return intake.lineage == line.lineage and at_its_position and not intake.ready and not intake.has_gap


def test_an_active_that_sent_nothing_provisionally_commits_nothing() -> None:
    assert not of(Adapter(1).activate(), CommitProvisional)


def test_a_new_active_forgets_decisions_whose_source_messages_it_lacks() -> None:
    active, heir = pair()
    hear(heir, active.source(1, 1, [11, 13], 30 * MS), 30 * MS)
    assert heir.replica.intake.ready
    heir.activate(2, 31 * MS)
    assert decides_own_history(heir)
    assert heir.replica.intake.epoch == 2


def test_an_active_that_is_granted_another_epoch_keeps_its_own_history() -> None:
    active, _ = pair()
    active.source(1, 1, [11, 13], 30 * MS)
    active.activate(2, 31 * MS)
    assert decides_own_history(active)
    assert active.replica.intake.epoch == 2


def test_an_active_that_handed_over_lacks_no_decision_of_its_own() -> None:
    active, _ = pair()
    active.source(1, 1, [11, 13], 30 * MS)
    active.engine.on_hand_over(1, 2, 31 * MS)
    assert decides_own_history(active)


def test_an_heir_that_has_begun_can_hand_over_in_turn() -> None:
    active, heir = pair()
    heir.engine.on_lease_offered(2, 1, 30 * MS + LEASE_NS, 30 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, 31 * MS), 32 * MS)
    assert of(heir.engine.on_hand_over(2, 1, 33 * MS), ReleaseLease) == [ReleaseLease(2)]


def test_a_packet_of_another_history_acknowledges_nothing() -> None:
    active, backup = acknowledged_pair()
    announced = active.source(1, 1, [11], 31 * MS)
    backup.source(1, 1, [11], 31 * MS)
    (copy,) = data(hear(backup, announced, 32 * MS))
    assert not data(active.engine.on_output_packet(copy._replace(epoch=0), 33 * MS))
    assert data(active.engine.on_output_packet(copy, 33 * MS))


def test_the_next_announcement_of_a_waiting_packet_is_a_deadline() -> None:
    active, _ = acknowledged_pair()
    active.engine.on_timer(40 * MS)
    active.source(1, 1, [11], 41 * MS)
    assert active.replica.next_deadline_ns() == 41 * MS + ACKED.announce_every_ns


def test_an_active_that_fails_journals_the_waiting_packets_and_sends_nothing() -> None:
    active, _ = acknowledged_pair()
    active.source(1, 1, [11], 31 * MS)
    effects = active.engine.on_failed("an admin says so", 32 * MS)
    assert [effect.packet.first_input_seq for effect in of(effects, AppendToJournal)] == [1]
    assert [(move.old, move.new) for move in of(effects, StateMoved)] == [(ReplicaState.ACTIVE, ReplicaState.FAILED)]
    assert not transmitted(effects)


def test_an_active_that_lost_its_lease_hears_no_active_until_another_one_sends() -> None:
    active, heir = pair()
    heir.activate(2, 30 * MS)
    heir.engine.on_lease_lost(2, "withdrawn", 31 * MS)
    assert not heir.replica.hears_active(31 * MS)
    (beat, *_) = transmitted(active.engine.on_timer(32 * MS))
    line = heir.replica.line
    lineage = line.lineage.opened(3, line.next_input_seq, line.next_message_seq)
    heir.engine.on_epoch_vouched(3, active.adapter_id, 33 * MS)
    heir.engine.on_output_packet(beat._replace(epoch=3, payload=lineage.encode(1_000)), 33 * MS)
    assert heir.replica.hears_active(33 * MS)
