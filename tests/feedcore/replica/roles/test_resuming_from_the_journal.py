"""A replica with restart state in its journal requests what it missed, and discards a state that does not fit."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot, RunsRefused, RunsReply
from tandemfeed.feedcore.replica.config import ChannelConfig, EngineConfig, ReplicaConfig
from tandemfeed.feedcore.replica.effects import AdapterEffect, RequestRuns, RequestSnapshot, SaveState, Transmit
from tandemfeed.feedcore.replica.output.production import ProductionLine
from tandemfeed.feedcore.replica.output.save_schedule import STATE_SIZE_MAX, SaveSchedule
from tandemfeed.feedcore.replica.replica import ChannelReplica
from tandemfeed.feedcore.replica.roles.joining import CATCH_UP_NS_MAX, TRIES_MAX
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState, Run
from tandemfeed.feedcore.wire.source_packet import decode_source_packet
from tests.feedcore.replica.engines import CHANNEL, Adapter, data, hear, pair
from tests.simulation.toy_feed import FEED_ID, SESSION, ToyConverter, encode_source

MS = 1_000_000
ACTIVE = 2


def a_replica(snapshot: ChannelSnapshot | None, runs: tuple[Run, ...] = ()) -> tuple[ChannelReplica, CounterSet]:
    """A JOINING replica, with this restart state and these later decisions of its own; and its counters."""
    counters = CounterSet()
    channel = ChannelConfig(1, (1,))
    line = ProductionLine(EngineConfig(1, 1, 20_261_121, (channel,), 256), channel, ToyConverter(), counters)
    replica = ChannelReplica(1, line, ReplicaConfig(), counters, 0)
    if snapshot is not None:
        replica.resume_from(snapshot, runs, 0)
    replica.on_active_known(ACTIVE, 3, 0)
    return replica, counters


def a_snapshot(epoch: int = 2, next_seq: int = 101, state: bytes | None = None) -> ChannelSnapshot:
    """A restart state, as in an output journal."""
    position = MessageStreamState(epoch, next_seq, next_seq, {1: next_seq})
    return ChannelSnapshot(
        1, position, Lineage((EpochStart(epoch, 50, 50),)), ToyConverter().snapshot() if state is None else state
    )


def reply(*runs: Run, epoch_3_from: int | None = None) -> RunsReply:
    """The active's answer; its history is epoch 2 from 50 on, and optionally epoch 3."""
    entries = (EpochStart(2, 50, 50),)
    if epoch_3_from is not None:
        entries = (*entries, EpochStart(3, epoch_3_from, epoch_3_from))
    return RunsReply(Lineage(entries), runs)


def asked(effects: list[AdapterEffect]) -> list[type]:
    """The types of the requests to the active."""
    return [type(effect) for effect in effects if isinstance(effect, RequestRuns | RequestSnapshot)]


def test_later_decisions_are_requested_and_continue_the_restart_state() -> None:
    replica, counters = a_replica(a_snapshot())
    (request,) = [each for each in replica.on_timer(0) if isinstance(each, RequestRuns)]
    assert request == RequestRuns(1, ACTIVE, a_snapshot().position, SESSION)
    replica.on_answer(reply(Run(2, 101, 101, 1, 101, 3, 3), Run(3, 104, 104, 1, 104, 2, 2), epoch_3_from=104), MS)
    assert replica.state is ReplicaState.RESYNCHRONIZING  # until the source messages arrive
    assert counters.counts[Counter.STATES_RESUMED] == 1
    assert replica.line.next_message_seq == 101
    assert list(replica.intake.ready) == [Run(2, 101, 101, 1, 101, 3, 3), Run(3, 104, 104, 1, 104, 2, 2)]


def test_a_restart_state_that_a_newer_epoch_renumbered_is_replaced_by_a_snapshot() -> None:
    replica, counters = a_replica(a_snapshot())
    replica.on_timer(0)
    replica.on_answer(reply(Run(3, 101, 101, 1, 101, 3, 3), epoch_3_from=99), MS)
    assert replica.state is ReplicaState.JOINING
    assert asked(replica.on_timer(MS)) == [RequestSnapshot]
    assert counters.counts[Counter.STATES_RESUMED] == 0


def test_decisions_that_leave_a_gap_do_not_continue_the_restart_state() -> None:
    replica, _ = a_replica(a_snapshot())
    replica.on_timer(0)
    replica.on_answer(reply(Run(2, 102, 102, 1, 102, 3, 3)), MS)
    assert replica.state is ReplicaState.JOINING
    assert asked(replica.on_timer(MS)) == [RequestSnapshot]


def test_a_refusal_or_silence_leads_to_a_snapshot() -> None:
    replica, _ = a_replica(a_snapshot())
    assert asked(replica.on_timer(0)) == [RequestRuns]
    replica.on_answer(RunsRefused("the log is too short"), MS)
    assert asked(replica.on_timer(MS)) == [RequestSnapshot]
    silent, _ = a_replica(a_snapshot())
    kinds = [kind for step in range(TRIES_MAX + 1) for kind in asked(silent.on_timer(step * 300 * MS))]
    assert kinds == [RequestRuns] * TRIES_MAX + [RequestSnapshot]
    silent.on_answer(reply(), 5_000 * MS)
    assert silent.state is ReplicaState.JOINING, "the late answer continues a place that was given up"


def test_a_refusal_does_not_repeat_the_request_for_a_snapshot_early() -> None:
    replica, _ = a_replica(None)
    assert asked(replica.on_timer(0)) == [RequestSnapshot]
    replica.on_answer(RunsRefused("the log is too short"), MS)
    assert asked(replica.on_timer(MS)) == []


def test_decisions_that_contradict_the_restart_state_lead_to_a_snapshot() -> None:
    wrong = Run(2, 101, 109, 1, 101, 1, 1)
    replica, _ = a_replica(a_snapshot())
    replica.on_timer(0)
    replica.on_answer(reply(wrong), MS)
    assert asked(replica.on_timer(MS)) == [RequestSnapshot]
    damaged, _ = a_replica(a_snapshot(), (wrong,))  # they are in the journal
    assert asked(damaged.on_timer(0)) == [RequestSnapshot]
    assert not damaged.channel.transmitted_ends
    assert not damaged.status().available_source_seqs, "it has no place"


def test_the_restart_state_of_another_table_is_replaced_by_a_snapshot() -> None:
    replica, _ = a_replica(a_snapshot(state=b"not a toy's"))
    assert asked(replica.on_timer(0)) == [RequestSnapshot]
    assert replica.on_answer(reply(), MS) == []
    assert replica.state is ReplicaState.JOINING


def test_a_restart_state_whose_continuation_does_not_arrive_is_replaced_by_a_snapshot() -> None:
    replica, _ = a_replica(a_snapshot())
    replica.on_timer(0)
    replica.on_answer(reply(Run(2, 101, 101, 1, 101, 3, 3)), MS)
    assert replica.state is ReplicaState.RESYNCHRONIZING  # the source messages have not arrived
    assert asked(replica.on_timer(1_000 * MS)) == []
    ends_at_ns = MS + CATCH_UP_NS_MAX
    deadline = replica.next_deadline_ns()
    assert deadline is not None
    assert deadline <= ends_at_ns
    replica.on_timer(ends_at_ns)
    assert replica.state is ReplicaState.JOINING
    assert asked(replica.on_timer(ends_at_ns)) == [RequestSnapshot]


def test_a_resuming_adapter_promoted_alone_continues_at_its_restart_state() -> None:
    replica, _ = a_replica(a_snapshot(epoch=2))
    replica.promote(4, MS)
    assert replica.state is ReplicaState.ACTIVE
    assert replica.line.position() == MessageStreamState(4, 101, 101, {1: 101})
    forgotten, _ = a_replica(a_snapshot(epoch=9))  # of an epoch that the lease store has forgotten
    forgotten.promote(4, MS)
    assert forgotten.line.lineage == Lineage((EpochStart(4, 101, 101),))


def test_runs_transmitted_after_the_saved_state_are_applied_again_without_transmitting() -> None:
    transmitted = (Run(2, 101, 101, 1, 101, 1, 1), Run(3, 102, 102, 1, 102, 2, 2))
    replica, _ = a_replica(a_snapshot(), transmitted)
    messages = [(1, 11), (1, 13), (1, 17), (1, 19)]
    datagram = encode_source(1, 101, messages, 0, 0)
    assert replica.on_source_packet(decode_source_packet(datagram, FEED_ID), MS) == []
    assert replica.line.position() == MessageStreamState(3, 104, 104, {1: 104})
    effects = replica.promote(4, 2 * MS)
    sent = data(effects)
    assert [(packet.epoch, packet.first_message_seq, packet.message_count) for packet in sent] == [(4, 104, 1)]
    assert replica.line.lineage == Lineage((EpochStart(2, 50, 50), EpochStart(3, 102, 102), EpochStart(4, 104, 104)))


def test_a_newer_epoch_in_the_journal_replaces_the_decisions_that_it_renumbered() -> None:
    first, second = Run(2, 101, 101, 1, 101, 1, 1), Run(2, 102, 102, 1, 102, 2, 2)
    renumbered, last = Run(3, 102, 102, 1, 102, 1, 1), Run(3, 103, 103, 1, 103, 1, 1)
    replica, _ = a_replica(a_snapshot(), (first, second, renumbered, last))
    assert list(replica.intake.ready) == [first, renumbered, last]
    assert replica.intake.lineage == Lineage((EpochStart(2, 50, 50), EpochStart(3, 102, 102)))


def test_a_newer_epoch_in_the_journal_may_begin_at_the_saved_state() -> None:
    renumbered = Run(3, 101, 101, 1, 101, 2, 2)
    replica, _ = a_replica(a_snapshot(), (Run(2, 101, 101, 1, 101, 1, 1), renumbered))
    assert list(replica.intake.ready) == [renumbered]
    assert replica.intake.lineage == Lineage((EpochStart(2, 50, 50), EpochStart(3, 101, 101)))


def test_a_newer_epoch_that_begins_within_a_decision_is_not_resumed() -> None:
    decided, within = Run(2, 101, 101, 1, 101, 3, 3), Run(3, 102, 102, 1, 102, 2, 2)
    replica, _ = a_replica(a_snapshot(), (decided, within))
    assert list(replica.intake.ready) == []
    assert replica.intake.lineage == Lineage((EpochStart(2, 50, 50),))


E2, E3 = 2, 3


@pytest.mark.parametrize(
    ("runs", "kept"),
    [
        (((E2, 101, 2), (E2, 104, 1), (E2, 103, 1)), 1),  # it would follow, but comes after a gap
        (((E2, 101, 2), (E2, 104, 1), (E3, 103, 1)), 1),
        (((E2, 101, 2), (E2, 103, 2), (E2, 103, 2), (E2, 105, 1)), 2),  # an epoch does not decide twice
        (((E3, 101, 1), (E2, 102, 1), (E3, 103, 1)), 1),  # an older epoch does not follow a newer one
    ],
)
def test_decisions_in_the_journal_count_up_to_the_first_that_does_not_follow(
    runs: tuple[tuple[int, int, int], ...], kept: int
) -> None:
    decided = tuple(Run(epoch, first, first, 1, first, count, count) for epoch, first, count in runs)
    replica, _ = a_replica(a_snapshot(), decided)
    assert tuple(replica.intake.ready) == decided[:kept]
    assert not replica.intake.has_gap


def test_a_newer_epoch_in_the_journal_follows_the_decisions_that_it_did_not_renumber() -> None:
    runs = tuple(Run(2, first, first, 1, first, 1, 1) for first in (101, 102, 103))
    renumbered = Run(3, 103, 103, 1, 103, 2, 2)
    replica, _ = a_replica(a_snapshot(), (*runs, renumbered))
    assert tuple(replica.intake.ready) == (*runs[:2], renumbered)


def test_an_adapter_with_decisions_that_the_actives_history_lacks_requests_a_snapshot() -> None:
    replica, _ = a_replica(a_snapshot(), (Run(2, 101, 101, 1, 101, 2, 2),))
    assert asked(replica.on_timer(0)) == [RequestRuns]
    replica.on_answer(reply(epoch_3_from=102), MS)
    assert replica.state is ReplicaState.JOINING
    assert asked(replica.on_timer(MS)) == [RequestSnapshot]


def test_a_snapshot_replaces_the_restart_state_even_if_it_contradicts_what_was_heard() -> None:
    active, _ = pair()
    snapshot = active.engine.snapshot(CHANNEL)
    (decided,) = data(active.source(1, 1, [11], MS))
    restarted = Adapter(3)
    restarted.engine.resume_from(snapshot, decided.runs)
    assert restarted.replica.channel.transmitted_ends
    restarted.engine.on_cluster_changed(1, 1, MS)
    restarted.engine.on_answer(CHANNEL, active.engine.snapshot(CHANNEL), 2 * MS)
    assert not restarted.replica.channel.transmitted_ends
    assert restarted.state is ReplicaState.SYNCHRONIZED


def test_a_catch_up_that_is_complete_has_no_limit() -> None:
    active, _ = pair()
    restarted = Adapter(3)
    restarted.engine.resume_from(active.engine.snapshot(CHANNEL))
    restarted.engine.on_cluster_changed(1, 1, MS)
    restarted.engine.on_timer(MS)
    logged = active.engine.runs_since(CHANNEL, restarted.replica.intake.position())
    restarted.engine.on_answer(CHANNEL, logged.reply(), 2 * MS)
    assert restarted.state is ReplicaState.SYNCHRONIZED
    restarted.replica.on_timer(2 * MS + CATCH_UP_NS_MAX)
    assert restarted.state is ReplicaState.DETACHED


def test_nothing_is_transmitted_again_after_a_gap_in_the_journal() -> None:
    sent_provisionally, decided = Run(3, 101, 101, 1, 101, 2, 2), Run(3, 103, 103, 1, 103, 1, 1)
    replica, _ = a_replica(a_snapshot(), (decided,))
    assert asked(replica.on_timer(0)) == [RequestRuns]
    replica.on_answer(reply(sent_provisionally, decided, epoch_3_from=101), MS)
    datagram = encode_source(1, 101, [(1, 11), (1, 13), (1, 17)], 0, 0)
    effects = replica.on_source_packet(decode_source_packet(datagram, FEED_ID), 2 * MS)
    assert replica.line.next_input_seq == 104
    assert data(effects) == []


def test_state_is_saved_at_intervals_if_the_channel_moved_and_the_state_is_small() -> None:
    save_schedule = SaveSchedule(100, 0)
    assert not save_schedule.is_due(2, 99)
    assert save_schedule.is_due(2, 100)
    assert not save_schedule.is_due(2, 200)
    assert save_schedule.is_due(3, 300)
    assert save_schedule.is_small_enough(STATE_SIZE_MAX)
    assert save_schedule.is_due(4, 400)
    assert not save_schedule.is_small_enough(STATE_SIZE_MAX + 1)
    assert not save_schedule.is_due(9, 10**15)


def test_an_active_that_stops_saves_its_state() -> None:
    replica, _ = a_replica(None)
    assert replica.on_stop() == []
    replica.promote(1, MS)
    assert replica.on_stop() == []  # nothing has been converted yet
    replica.on_source_packet(decode_source_packet(encode_source(1, 1, [(1, 11)], 0, 0), FEED_ID), MS)
    (effect,) = replica.on_stop()
    assert isinstance(effect, SaveState)
    assert effect.snapshot.position == replica.line.position()


def test_a_decision_after_a_gap_does_not_show_where_its_epoch_began() -> None:
    replica, _ = a_replica(a_snapshot(), (Run(3, 103, 103, 1, 103, 1, 1), Run(4, 104, 104, 1, 104, 1, 1)))
    assert replica.intake.lineage == a_snapshot().lineage
    assert (list(replica.intake.ready), replica.intake.has_gap) == ([], False)
    assert replica.channel.transmitted_ends == {3: 104, 4: 105}


def test_decisions_of_an_epoch_older_than_the_saved_state_do_not_continue_it() -> None:
    replica, _ = a_replica(a_snapshot(epoch=3), (Run(2, 101, 101, 1, 101, 1, 1),))
    assert list(replica.intake.ready) == []


def test_while_joining_a_restarted_adapter_transmits_only_what_it_transmitted_before() -> None:
    active = Adapter(1)
    active.activate()
    snapshot = active.engine.snapshot(CHANNEL)
    first, second = (data(active.source(1, seq, [11], MS))[0] for seq in (1, 2))
    restarted = Adapter(3)
    restarted.engine.resume_from(snapshot, first.runs)
    restarted.engine.on_cluster_changed(1, 1, MS)
    restarted.source(1, 1, [11, 11], 2 * MS)
    assert restarted.replica.line.next_input_seq == 2
    assert not data(hear(restarted, [Transmit(second)], 3 * MS))
    assert (restarted.state, restarted.replica.line.next_input_seq) == (ReplicaState.JOINING, 2)
    logged = active.engine.runs_since(CHANNEL, restarted.replica.intake.position())
    copies = data(restarted.engine.on_answer(CHANNEL, logged.reply(), 4 * MS))
    assert [packet.first_message_seq for packet in copies] == [2]
    assert restarted.state is ReplicaState.SYNCHRONIZED
