"""Sending ahead of decisions; then committing what was sent, or slowing down and taking its numbers (clause 6.8)."""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.config import OnSilence, ReplicaConfig
from tandemfeed.feedcore.replica.effects import CommitProvisional, Publish, RequestRuns
from tandemfeed.feedcore.replica.output.provisional import Throttle
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tests.feedcore.replica.engines import LEASE_NS, MS, SECOND, Adapter, data, hear, of, pair
from tests.simulation.toy_feed import SESSION

VALUES = [11, 13, 17, 19]  # one message each


def left_alone(config: ReplicaConfig | None = None, streams: tuple[int, ...] = (1, 2)) -> tuple[Adapter, Adapter]:
    """A backup that hears neither its active nor an admin server."""
    active, backup = pair(streams, config)
    active.engine.on_lease_renewed(1, 10 * SECOND, 50 * MS)
    backup.engine.on_admin_disconnected(50 * MS)
    for step in range(6, 40):
        backup.engine.on_timer(step * 10 * MS)
    return active, backup


def test_without_active_and_admin_server_a_backup_forwards_provisionally() -> None:
    _, backup = left_alone()
    assert backup.state is ReplicaState.AHEAD
    effects = backup.source(1, 1, VALUES, SECOND)
    (packet,) = data(effects)
    assert packet.flags == OutputFlag.PROVISIONAL
    assert of(effects, Publish)[0].packets == [packet]
    assert backup.next_message_seq == 1  # nothing was decided


def test_with_on_silence_hold_a_backup_waits() -> None:
    _, backup = left_alone(ReplicaConfig(on_silence=OnSilence.HOLD))
    assert backup.state is ReplicaState.DETACHED
    assert not data(backup.source(1, 1, VALUES, SECOND))


def test_a_backup_in_contact_with_an_admin_server_waits_for_the_lease() -> None:
    _, backup = pair()
    for step in range(6, 40):
        backup.engine.on_admin_message(step * 10 * MS)
        backup.engine.on_timer(step * 10 * MS)
    assert backup.state is ReplicaState.DETACHED


def test_a_grant_commits_what_was_sent() -> None:
    _, backup = left_alone()
    sent = data(backup.source(1, 1, VALUES, SECOND)) + data(backup.source(2, 1, [23], SECOND))
    effects = backup.activate(5, SECOND + MS)
    assert of(effects, CommitProvisional) == [CommitProvisional(1, 5, 1, 6, SESSION)]
    assert backup.replica.line.lineage.entries == ((1, 1, 1), (5, 1, 1))
    assert backup.next_message_seq == sent[-1].end_message_seq == 6
    reply = backup.engine.runs_since(1, left_alone()[0].replica.line.position()).reply()
    assert [(run.epoch, run.first_message_seq, run.source_count) for run in reply.runs] == [(5, 1, 4), (5, 5, 1)]


def test_another_backup_follows_the_committed_runs_without_a_snapshot() -> None:
    active, backup = left_alone()
    other = Adapter(3)
    other.follow(active, 60 * MS)
    backup.source(1, 1, VALUES, SECOND)
    other.source(1, 1, VALUES, SECOND)
    hear(other, backup.activate(5, SECOND + MS), SECOND + 2 * MS)
    reply = backup.engine.runs_since(1, other.replica.intake.position()).reply()
    copies = data(other.engine.on_answer(1, reply, SECOND + 3 * MS))
    assert [(packet.epoch, packet.first_message_seq) for packet in copies] == [(5, 1)]
    assert other.converter.snapshot() == backup.converter.snapshot()


def test_decisions_about_packets_sent_ahead_set_the_numbers_and_convert_nothing_twice() -> None:
    active, backup = left_alone()
    backup.source(1, 1, VALUES, SECOND)
    decided = active.source(2, 1, [23], SECOND) + active.source(1, 1, VALUES, SECOND)
    assert backup.source(2, 1, [23], SECOND)  # sent ahead as well
    copies = hear(backup, decided, SECOND + MS)
    assert not data(copies)
    assert backup.state is ReplicaState.SYNCHRONIZED
    assert backup.replica.line.position() == active.replica.line.position()
    assert backup.converter.snapshot() == active.converter.snapshot()


def test_the_unsent_rest_of_a_decision_takes_its_last_numbers() -> None:
    active, backup = left_alone()
    backup.source(1, 1, VALUES[:2], SECOND)
    hear(backup, active.engine.on_timer(SECOND), SECOND)
    decided = active.source(1, 1, VALUES, SECOND + MS)
    hear(backup, decided, SECOND + MS)
    # The source repeats the whole packet, which gives the throttled backup the messages that it lacks.
    copies = data(backup.source(1, 1, VALUES, SECOND + 2 * MS))
    assert [(packet.flags, packet.first_message_seq, packet.message_count) for packet in copies] == [(0, 3, 2)]
    assert backup.replica.line.position() == active.replica.line.position()


def test_an_adapter_ahead_pauses_after_every_kth_message_while_it_hears_the_active() -> None:
    config = ReplicaConfig(throttle_message_count=4, throttle_pause_ns=7 * MS)
    active, backup = left_alone(config)
    backup.source(1, 1, VALUES, SECOND)
    hear(backup, active.engine.on_timer(SECOND), SECOND)
    assert backup.state is ReplicaState.AHEAD
    assert data(backup.source(1, 5, VALUES, SECOND + MS))  # the fourth message, so a pause begins
    assert not data(backup.source(1, 9, VALUES, SECOND + 2 * MS))
    assert data(backup.engine.on_timer(SECOND + 8 * MS))


def test_a_throttle_pauses_after_its_number_of_messages() -> None:
    throttle = Throttle(10, 5)
    assert throttle.may_send(0)
    throttle.on_sent(9, 100)
    assert throttle.may_send(100)
    throttle.on_sent(1, 100)
    assert not throttle.may_send(104)
    assert throttle.may_send(105)
    throttle.on_sent(9, 105)  # the count restarts
    assert throttle.may_send(105)


def test_an_active_whose_lease_expires_out_of_contact_forwards_provisionally() -> None:
    active, _ = pair()
    active.engine.on_admin_disconnected(50 * MS)
    active.engine.on_timer(LEASE_NS)
    assert active.state is ReplicaState.AHEAD
    assert active.counters.counts[Counter.LEASE_LAPSED] == 1
    assert [packet.flags for packet in data(active.source(1, 1, VALUES, SECOND))] == [OutputFlag.PROVISIONAL]


def test_a_rejoining_adapter_remembers_what_it_sent_until_a_snapshot_arrives() -> None:
    _, backup = left_alone()
    backup.source(1, 1, VALUES, SECOND)
    backup.lose_place(SECOND)
    effects = backup.activate(5, SECOND + MS)
    assert of(effects, CommitProvisional) == [CommitProvisional(1, 5, 1, 5, SESSION)]
    assert not data(effects)


def test_decisions_are_applied_only_when_they_reach_past_everything_sent_ahead() -> None:
    active, backup = left_alone()
    backup.source(1, 1, VALUES, SECOND)
    backup.source(2, 1, [23], SECOND)
    hear(backup, active.source(2, 1, [23], SECOND), SECOND + MS)
    assert backup.next_message_seq == 1
    effects = backup.activate(5, SECOND + 2 * MS)  # decided only in part; everything that was sent is committed
    assert of(effects, CommitProvisional) == [CommitProvisional(1, 5, 1, 6, SESSION)]


def test_the_number_of_waiting_source_messages_is_limited_while_detached() -> None:
    _, backup = left_alone(ReplicaConfig(on_silence=OnSilence.HOLD, backlog_count_max=6))
    assert backup.state is ReplicaState.DETACHED
    backup.source(1, 1, VALUES, SECOND)
    assert backup.state is ReplicaState.DETACHED
    backup.source(1, 5, VALUES, SECOND)
    assert backup.state is ReplicaState.JOINING


def test_an_adapter_that_goes_ahead_begins_with_the_waiting_messages() -> None:
    _, backup = pair()
    backup.engine.on_admin_disconnected(50 * MS)
    backup.source(1, 1, VALUES, 60 * MS)
    proceeds_at_ns = backup.replica.channel.active.heard_at_ns + ReplicaConfig().proceed_after_ns
    assert not data(backup.engine.on_timer(proceeds_at_ns - 1))
    assert [packet.flags for packet in data(backup.engine.on_timer(proceeds_at_ns))] == [OutputFlag.PROVISIONAL]
    assert backup.state is ReplicaState.AHEAD


def test_a_decision_with_fewer_messages_than_were_sent_ahead_leads_to_a_snapshot() -> None:
    active, backup = left_alone()
    backup.source(1, 1, VALUES, SECOND)
    (decided,) = data(active.source(1, 1, [*VALUES, 23], SECOND))
    run = decided.runs[0]._replace(message_count=0)
    backup.engine.on_output_packet(decided._replace(runs=(run,)), SECOND + MS)
    assert backup.state is ReplicaState.AHEAD
    backup.source(1, 5, [23], SECOND + 2 * MS)
    assert backup.state is ReplicaState.JOINING
    assert list(backup.replica.channel.out_of_sync_at_ns) == [SECOND + 2 * MS]


def test_an_adapter_ahead_requests_missed_decisions() -> None:
    active, backup = left_alone()
    backup.source(1, 1, VALUES, SECOND)
    active.source(1, 1, VALUES, SECOND)  # unheard
    hear(backup, active.engine.on_timer(SECOND), SECOND)
    due_ns = SECOND + ReplicaConfig().intake.request_after_ns
    assert backup.replica._role.next_deadline_ns() == due_ns
    (request,) = of(backup.engine.on_timer(due_ns), RequestRuns)
    reply = active.engine.runs_since(1, request.position).reply()
    backup.engine.on_answer(1, reply, due_ns)
    assert backup.replica.line.position() == active.replica.line.position()


def test_a_pause_is_a_deadline_while_source_messages_wait() -> None:
    active, backup = left_alone(ReplicaConfig(throttle_message_count=4, throttle_pause_ns=7 * MS))
    backup.source(1, 1, VALUES, SECOND)
    hear(backup, active.engine.on_timer(SECOND), SECOND)
    backup.source(1, 5, VALUES, SECOND + MS)
    assert backup.replica._role.next_deadline_ns() is None
    backup.source(1, 9, VALUES, SECOND + 2 * MS)
    assert backup.replica._role.next_deadline_ns() == SECOND + 8 * MS


def test_an_adapter_ahead_rejoins_if_source_messages_do_not_arrive_while_it_hears_the_active() -> None:
    active, backup = left_alone()
    active.engine.on_lease_renewed(1, 100 * SECOND, SECOND)
    backup.source(1, 1, VALUES, SECOND)
    hear(backup, active.source(2, 1, [23], SECOND), SECOND)
    backup.engine.on_timer(SECOND)
    stuck_at_ns = SECOND + ReplicaConfig().stuck_after_ns
    for now_ns in range(SECOND, stuck_at_ns, 50 * MS):
        hear(backup, active.engine.on_timer(now_ns), now_ns)
        backup.engine.on_timer(now_ns)
    assert backup.state is ReplicaState.AHEAD
    hear(backup, active.engine.on_timer(stuck_at_ns), stuck_at_ns)
    backup.engine.on_timer(stuck_at_ns)
    assert backup.state is ReplicaState.JOINING


def test_an_adapter_ahead_keeps_waiting_for_source_messages_while_no_adapter_decides() -> None:
    active, backup = left_alone()
    backup.source(1, 1, VALUES, SECOND)
    hear(backup, active.source(2, 1, [23], SECOND), SECOND)
    for now_ns in range(SECOND, 2 * SECOND + ReplicaConfig().stuck_after_ns, 50 * MS):
        backup.engine.on_timer(now_ns)
    assert backup.state is ReplicaState.AHEAD


def test_an_heir_that_forwarded_provisionally_meanwhile_begins_its_epoch_after_its_patience() -> None:
    active, heir = pair()
    active.engine.on_lease_renewed(1, 10 * SECOND, 50 * MS)
    heir.engine.on_lease_offered(2, 1, 10 * SECOND, 50 * MS)
    heir.engine.on_admin_disconnected(50 * MS)
    for step in range(6, 40):
        heir.engine.on_timer(step * 10 * MS)
    assert heir.state is ReplicaState.AHEAD
    active.source(2, 1, [23], 400 * MS)  # unheard, so the heir does not reach the end of the epoch
    hear(heir, active.engine.on_hand_over(1, 2, 401 * MS), 402 * MS)
    assert heir.state is ReplicaState.AHEAD
    begin_ns = 402 * MS + heir.engine.config.replica.promotion_patience_ns
    heir.engine.on_timer(begin_ns - 1)
    assert heir.state is ReplicaState.AHEAD
    heir.engine.on_timer(begin_ns)
    assert heir.state is ReplicaState.ACTIVE


def test_an_active_that_loses_its_lease_out_of_contact_forwards_nothing_before_its_next_event() -> None:
    active, _ = pair()
    active.engine.on_admin_disconnected(50 * MS)
    active.engine.on_timer(60 * MS)
    active.engine.on_lease_lost(1, "a test says so", 70 * MS)
    assert active.state is ReplicaState.DETACHED
    active.engine.on_timer(70 * MS)
    assert active.state is ReplicaState.AHEAD
