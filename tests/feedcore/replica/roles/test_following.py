"""A backup with a place: its state, by what is outstanding and which adapters it hears; when it rejoins (clause 5)."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel_state import RunsRefused, RunsReply
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import RequestRuns, RequestSnapshot, SaveState, StateMoved, Transmit
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tandemfeed.feedcore.wire.position import Run
from tests.feedcore.replica.engines import CHANNEL, MS, SECOND, Adapter, data, hear, of, pair
from tests.simulation.toy_feed import SESSION

CONFIG = ReplicaConfig()
BEGUN = 30 * MS


def beat(active: Adapter, backup: Adapter, now_ns: int) -> None:
    """Let the backup hear the active and an admin server, and do what is due."""
    hear(backup, active.engine.on_timer(now_ns), now_ns)
    backup.engine.on_admin_message(now_ns)
    backup.engine.on_timer(now_ns)


def lasting_pair(config: ReplicaConfig | None = None) -> tuple[Adapter, Adapter]:
    """A pair whose active holds a long lease."""
    active, backup = pair(replica=config)
    active.engine.on_lease_renewed(1, 100 * SECOND, BEGUN)
    return active, backup


def lacking_sources() -> tuple[Adapter, Adapter]:
    """A pair whose backup has had a decision since 30 ms, but not its source messages."""
    active, backup = lasting_pair()
    hear(backup, active.source(1, 1, [11, 13], BEGUN), BEGUN)
    return active, backup


# ---- states ----


def test_a_backup_is_resynchronizing_once_something_is_outstanding_for_50_ms() -> None:
    active, backup = lacking_sources()
    beat(active, backup, BEGUN + CONFIG.resynchronizing_after_ns - 1)
    assert backup.state is ReplicaState.SYNCHRONIZED
    beat(active, backup, BEGUN + CONFIG.resynchronizing_after_ns)
    assert backup.state is ReplicaState.RESYNCHRONIZING
    effects = backup.source(1, 1, [11, 13], 90 * MS)
    assert backup.state is ReplicaState.SYNCHRONIZED
    assert [move.reason for move in of(effects, StateMoved)] == ["nothing outstanding"]
    assert [packet.first_message_seq for packet in data(effects)] == [1]


def test_the_time_outstanding_restarts_once_nothing_was_outstanding() -> None:
    active, backup = lacking_sources()
    backup.source(1, 1, [11, 13], 60 * MS)
    beat(active, backup, 65 * MS)
    hear(backup, active.source(1, 3, [17], 70 * MS), 70 * MS)
    beat(active, backup, 70 * MS + CONFIG.resynchronizing_after_ns - 1)
    assert backup.state is ReplicaState.SYNCHRONIZED
    beat(active, backup, 70 * MS + CONFIG.resynchronizing_after_ns)
    assert backup.state is ReplicaState.RESYNCHRONIZING


def test_a_backup_is_detached_once_the_active_is_silent_for_100_ms() -> None:
    active, backup = lasting_pair()
    beat(active, backup, BEGUN)
    for since_ns, state in (
        (CONFIG.detach_after_ns - 1, ReplicaState.SYNCHRONIZED),
        (CONFIG.detach_after_ns, ReplicaState.DETACHED),
    ):
        backup.engine.on_admin_message(BEGUN + since_ns)
        backup.engine.on_timer(BEGUN + since_ns)
        assert backup.state is state
    beat(active, backup, BEGUN + SECOND)
    assert backup.state is ReplicaState.SYNCHRONIZED


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_state_is_saved_only_while_synchronized(is_heard: bool) -> None:
    active, backup = lasting_pair()
    backup.source(1, 1, [11, 13], BEGUN)
    hear(backup, active.source(1, 1, [11, 13], BEGUN), BEGUN)
    beat(active, backup, BEGUN)
    if not is_heard:
        backup.engine.on_admin_message(SECOND)
        backup.engine.on_timer(SECOND)
        assert backup.state is ReplicaState.DETACHED
    assert bool(of(backup.engine.on_stop(), SaveState)) == is_heard


# ---- what is missing ----


def test_missed_decisions_are_requested_from_the_active_and_applied() -> None:
    active, backup = lasting_pair()
    active.source(1, 1, [11, 13], BEGUN)  # unheard
    backup.source(1, 1, [11, 13], BEGUN)
    beat(active, backup, 40 * MS)
    due_ns = 40 * MS + CONFIG.intake.request_after_ns
    assert backup.engine.next_deadline_ns() == due_ns
    (request,) = of(backup.engine.on_timer(due_ns), RequestRuns)
    assert request == RequestRuns(CHANNEL, 1, backup.replica.line.position(), SESSION)
    assert backup.counters.counts[Counter.RUN_REQUESTS] == 1
    assert of(backup.engine.on_timer(due_ns + MS), RequestRuns) == []
    reply = active.engine.runs_since(CHANNEL, request.position).reply()
    copies = data(backup.engine.on_answer(CHANNEL, reply, due_ns + 2 * MS))
    assert [(packet.flags, packet.first_message_seq) for packet in copies] == [(OutputFlag.NONE, 1)]
    assert backup.replica.line.position() == active.replica.line.position()


def test_a_reply_from_before_the_newest_epoch_is_ignored() -> None:
    active, backup = lasting_pair()
    active.source(1, 1, [11, 13], BEGUN)  # unheard
    backup.source(1, 1, [11, 13], BEGUN)
    old = active.engine.runs_since(CHANNEL, backup.replica.line.position()).reply()
    heir = Adapter(3)
    heir.follow(active, BEGUN)
    hear(backup, heir.activate(2, 40 * MS), 40 * MS)
    assert backup.replica.intake.epoch == 2
    assert old.lineage == Lineage((EpochStart(1, 1, 1),))
    assert not data(backup.engine.on_answer(CHANNEL, old, 41 * MS))
    assert backup.state is not ReplicaState.JOINING


def test_missed_decisions_are_not_requested_while_the_active_is_not_known() -> None:
    active, _ = lasting_pair()
    heir, third = Adapter(2), Adapter(3)
    for adapter in (heir, third):
        adapter.follow(active, BEGUN)
    active.engine.on_lease_lost(1, "a test says so", BEGUN)
    hear(third, heir.activate(2, 40 * MS), 40 * MS)
    hear(third, heir.source(1, 1, [11], 41 * MS), 41 * MS)
    third.source(1, 1, [11], 41 * MS)
    hear(active, third.engine.on_timer(60 * MS), 60 * MS)  # a backup's heartbeat, which says nothing of decisions
    assert not active.replica.intake.has_gap
    active.engine.on_timer(60 * MS + CONFIG.intake.request_after_ns)
    assert active.counters.counts[Counter.RUN_REQUESTS] == 0
    hear(active, heir.engine.on_timer(100 * MS), 100 * MS)
    active.engine.on_timer(200 * MS)
    assert active.counters.counts[Counter.RUN_REQUESTS] == 1


def test_decisions_that_are_no_longer_available_lead_to_a_snapshot_while_an_adapter_decides() -> None:
    active, backup = lasting_pair()
    beat(active, backup, BEGUN)
    backup.engine.on_admin_message(BEGUN + CONFIG.detach_after_ns)
    backup.engine.on_answer(CHANNEL, RunsRefused("too old"), BEGUN + CONFIG.detach_after_ns)
    assert backup.state is not ReplicaState.JOINING  # while no adapter decides, a backup does not rejoin
    beat(active, backup, SECOND)
    effects = backup.engine.on_answer(CHANNEL, RunsRefused("too old"), SECOND)
    assert [(move.new, move.reason) for move in of(effects, StateMoved)] == [(ReplicaState.JOINING, "too old")]
    assert of(backup.engine.on_timer(SECOND), RequestSnapshot)


def test_a_reply_that_contradicts_applied_decisions_counts_as_out_of_sync() -> None:
    active, backup = lasting_pair()
    backup.source(1, 1, [11, 13], BEGUN)
    hear(backup, active.source(1, 1, [11, 13], BEGUN), BEGUN)
    contradiction = RunsReply(active.replica.line.lineage, (Run(1, 3, 9, 1, 3, 1, 1),))
    backup.engine.on_answer(CHANNEL, contradiction, 40 * MS)
    assert backup.state is ReplicaState.JOINING
    assert list(backup.replica.channel.out_of_sync_at_ns) == [40 * MS]


def test_source_messages_that_do_not_arrive_within_2_s_lead_to_a_snapshot() -> None:
    active, backup = lacking_sources()
    beat(active, backup, BEGUN)  # the time limit for that decision begins
    now_ns = BEGUN
    while now_ns + 50 * MS < BEGUN + CONFIG.stuck_after_ns:
        now_ns += 50 * MS
        beat(active, backup, now_ns)
    assert backup.state is ReplicaState.RESYNCHRONIZING
    beat(active, backup, BEGUN + CONFIG.stuck_after_ns - 1)
    assert backup.state is ReplicaState.RESYNCHRONIZING
    beat(active, backup, BEGUN + CONFIG.stuck_after_ns)
    assert backup.state is ReplicaState.JOINING
    assert not backup.replica.channel.out_of_sync_at_ns  # it contradicted no decision


def test_each_decision_has_its_own_2_s() -> None:
    active, backup = lacking_sources()
    beat(active, backup, BEGUN)
    hear(backup, active.source(1, 3, [17], SECOND), SECOND)
    backup.source(1, 1, [11, 13], SECOND)
    beat(active, backup, SECOND)
    for now_ns in range(SECOND, SECOND + CONFIG.stuck_after_ns, 50 * MS):
        beat(active, backup, now_ns)
    assert backup.state is ReplicaState.RESYNCHRONIZING
    beat(active, backup, SECOND + CONFIG.stuck_after_ns)
    assert backup.state is ReplicaState.JOINING


def test_a_backup_that_hears_no_active_waits_for_source_messages_without_a_limit() -> None:
    _, backup = lacking_sources()
    for now_ns in range(BEGUN, 5 * SECOND, 100 * MS):
        backup.engine.on_admin_message(now_ns)
        backup.engine.on_timer(now_ns)
    assert backup.state is ReplicaState.DETACHED


def test_a_backup_whose_conversion_diverged_transmits_nothing_of_the_run_and_rejoins() -> None:
    active, backup = lasting_pair()
    (decided,) = data(active.source(1, 1, [11, 13], BEGUN))
    other_count = decided._replace(runs=(decided.runs[0]._replace(message_count=5),), message_count=5)
    backup.source(1, 1, [11, 13], BEGUN)
    effects = hear(backup, [Transmit(other_count)], 40 * MS)
    assert not data(effects)
    assert backup.state is ReplicaState.JOINING
    assert backup.counters.counts[Counter.DIGESTS_UNEQUAL] == 1
    assert list(backup.replica.channel.out_of_sync_at_ns) == [40 * MS]


# ---- epochs (clause 4.2) ----


def test_only_the_decisions_before_the_end_of_a_superseded_epoch_count() -> None:
    active, backup = lasting_pair()
    heir = Adapter(3)
    heir.follow(active, BEGUN)
    first = active.source(1, 1, [11, 13], BEGUN)
    heir.source(1, 1, [11, 13], BEGUN)
    hear(heir, first, BEGUN)
    opened = heir.activate(2, 40 * MS)  # at input_seq 3
    void = active.source(1, 3, [17], 40 * MS)
    hear(backup, opened, 41 * MS)
    backup.source(1, 1, [11, 13, 17], 42 * MS)
    assert not data(hear(backup, void, 43 * MS))
    void_run = data(void)[0].runs[0]
    beyond = data(void)[0]._replace(runs=(void_run._replace(first_source_seq=8),))
    backup.engine.on_output_packet(beyond, 43 * MS)
    assert backup.replica.source_lags()[1] == 3, "nor does it show which source messages exist"
    assert backup.counters.counts[Counter.STALE_EPOCH_PACKETS] == 2
    assert [packet.first_message_seq for packet in data(hear(backup, first, 44 * MS))] == [1]
    assert backup.counters.counts[Counter.STALE_EPOCH_PACKETS] == 2
    active.tell(backup, 45 * MS)
    assert backup.replica.channel.active.adapter_id == 3
    assert backup.replica.channel.active.heard_at_ns == 41 * MS, "the old active's report is not a sign of life"


@pytest.mark.parametrize("is_by_state", [True, False])
def test_a_newer_history_that_lacks_applied_decisions_leads_to_a_snapshot_and_counts_as_out_of_sync(
    is_by_state: bool,
) -> None:
    active, backup = lasting_pair()
    heir = Adapter(3)
    heir.follow(active, BEGUN)
    backup.source(1, 1, [11, 13], BEGUN)
    hear(backup, active.source(1, 1, [11, 13], BEGUN), BEGUN)
    opened = heir.activate(2, 40 * MS)  # at input_seq 1
    effects = heir.tell(backup, 41 * MS) if is_by_state else hear(backup, opened, 41 * MS)
    assert [move.new for move in of(effects, StateMoved)] == [ReplicaState.JOINING]
    assert list(backup.replica.channel.out_of_sync_at_ns) == [41 * MS]


def test_the_active_is_the_adapter_that_decides_in_the_newest_epoch_not_one_that_repeats_its_decisions() -> None:
    active, backup = lasting_pair()
    third = Adapter(3)
    third.follow(active, BEGUN)
    decided = active.source(1, 1, [11], BEGUN)
    third.source(1, 1, [11], BEGUN)
    copies = hear(third, decided, BEGUN)
    heard_at_ns = backup.replica.channel.active.heard_at_ns
    hear(backup, copies, 50 * MS)
    assert backup.replica.channel.active.adapter_id == 1
    assert backup.replica.channel.active.heard_at_ns == heard_at_ns
    hear(backup, decided, 51 * MS)
    assert backup.replica.channel.active.heard_at_ns == 51 * MS


def test_the_state_of_the_active_is_a_sign_of_life_and_reveals_missing_decisions() -> None:
    active, backup = lasting_pair()
    third = Adapter(3)
    third.follow(active, BEGUN)
    active.source(1, 1, [11], BEGUN)  # unheard
    third.tell(backup, 50 * MS)
    assert not backup.replica.intake.has_gap
    assert backup.replica.channel.active.heard_at_ns < 50 * MS
    active.tell(backup, 51 * MS)
    assert backup.replica.intake.has_gap
    assert backup.replica.channel.active.heard_at_ns == 51 * MS


def test_a_readmitted_adapter_has_the_source_messages_that_arrived_while_it_was_failed() -> None:
    active, backup = lasting_pair()
    backup.engine.on_failed("an admin says so", BEGUN)
    snapshot = active.engine.snapshot(CHANNEL)
    decided = active.source(1, 1, [11, 13], 40 * MS)
    assert not data(backup.source(1, 1, [11, 13], 40 * MS))
    assert backup.activate(7, 41 * MS) == []
    assert backup.state is ReplicaState.FAILED
    backup.engine.on_readmitted(SECOND)
    backup.engine.on_answer(CHANNEL, snapshot, SECOND)
    assert [packet.first_message_seq for packet in data(hear(backup, decided, SECOND))] == [1]
