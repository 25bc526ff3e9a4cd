"""Changes of session at the adapters (docs/protocol.md clause 10)."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.replica.config import PublishMode, ReplicaConfig, SessionState
from tandemfeed.feedcore.replica.effects import (
    AdapterEffect,
    AppendToJournal,
    RequestRuns,
    RequestSnapshot,
    RequestSource,
    RunsLost,
    SessionBegun,
    Transmit,
)
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.replica.sessions import NotActive
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.refusal import Refusal
from tandemfeed.feedcore.wire.source_packet import SourceFlag
from tests.feedcore.replica.engines import CHANNEL, LEASE_NS, MS, SECOND, Adapter, data, hear, of, pair, transmitted
from tests.simulation.toy_feed import SESSION, encode_source

NEXT = SESSION + 1
END = SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM


def say(
    adapter: Adapter, stream: int, first: int, values: list[int], now_ns: int, *, session: int, flags: int = 0
) -> list[AdapterEffect]:
    """Pass a source packet of a session to an adapter; without values it is a heartbeat."""
    rows = [(stream % 2, value) for value in values]
    return adapter.engine.on_source_datagram(encode_source(stream, first, rows, 0, flags, session), now_ns)


def say_end(adapter: Adapter, ends: dict[int, int], now_ns: int, *, session: int = SESSION) -> list[AdapterEffect]:
    """Let the source report where its streams end."""
    found: list[AdapterEffect] = []
    for stream, end in ends.items():
        found += say(adapter, stream, end, [], now_ns, session=session, flags=END)
    return found


def ends_said(effects: list[AdapterEffect]) -> list[OutputPacket]:
    """The transmitted heartbeats that announce the end of a session."""
    return [packet for packet in transmitted(effects) if packet.flags & OutputFlag.END_OF_STREAM]


def test_the_active_announces_the_end_and_begins_the_next_session_with_all_numbers_at_one() -> None:
    active, _ = pair()
    active.source(1, 1, [1, 2])
    say_end(active, {1: 3, 2: 1}, 0)
    effects = say(active, 1, 1, [3], MS, session=NEXT)
    kinds = [type(effect) for effect in effects]
    assert [packet.session for packet in ends_said(effects)] == [SESSION]
    assert of(effects, SessionBegun) == [SessionBegun(SESSION, NEXT, is_complete=True)]
    (first,) = data(effects)
    assert (first.session, first.epoch, first.first_input_seq, first.first_message_seq) == (NEXT, 1, 1, 1)
    assert kinds.index(SessionBegun) > kinds.index(Transmit)
    assert active.engine.session == NEXT


def test_the_active_stays_in_a_session_of_which_a_stream_has_not_ended() -> None:
    active, _ = pair()
    say_end(active, {1: 1}, 0)
    assert not of(say(active, 1, 1, [3], MS, session=NEXT), SessionBegun)
    assert data(active.source(2, 1, [5], 2 * MS))[0].session == SESSION


def test_the_active_requests_from_the_source_journal_the_end_that_the_source_does_not_report() -> None:
    active, _ = pair()
    active.source(1, 1, [1])
    say(active, 1, 1, [3], MS, session=NEXT)
    asked = of(active.engine.on_timer(2 * MS), RequestSource)
    firsts = [(request.source_stream_id, request.ranges[0][0], request.session) for request in asked]
    assert firsts == [(1, 2, SESSION), (2, 1, SESSION)]


def test_after_the_grace_the_active_declares_missing_messages_lost_and_moves_on() -> None:
    active, _ = pair()
    active.source(1, 1, [1])
    active.source(1, 4, [4])
    say(active, 1, 1, [3], MS, session=NEXT)
    assert not of(active.engine.on_timer(2 * MS), SessionBegun)
    for now_ns in range(250 * MS, 5 * SECOND, 250 * MS):
        active.engine.on_lease_renewed(1, now_ns + LEASE_NS, now_ns)
        assert active.engine.session == SESSION
    now_ns = 5 * SECOND + MS
    active.engine.on_lease_renewed(1, now_ns + LEASE_NS, now_ns - 30 * MS)
    effects = active.engine.on_timer(now_ns)
    assert of(effects, RunsLost) == [RunsLost(CHANNEL, 1, 2, 3)]
    assert of(effects, SessionBegun) == [SessionBegun(SESSION, NEXT, is_complete=True)]
    assert ends_said(effects)[0].first_input_seq == 5


def test_a_backup_moves_on_when_it_has_applied_the_end_and_hears_the_active_in_the_next_session() -> None:
    active, backup = pair()
    for adapter in (active, backup):
        say_end(adapter, {1: 1, 2: 1}, 0)
        say(adapter, 1, 1, [3, 4], MS, session=NEXT)
    assert (active.engine.session, backup.engine.session) == (NEXT, SESSION)
    effects = active.engine.on_timer(20 * MS)
    heard = hear(backup, effects, 20 * MS)
    assert of(heard, SessionBegun) == [SessionBegun(SESSION, NEXT, is_complete=True)]
    (request,) = of(backup.engine.on_timer(40 * MS), RequestRuns)
    assert request.session == NEXT
    logged = active.engine.runs_since(CHANNEL, request.position, request.session)
    followed = backup.engine.on_answer(CHANNEL, logged.reply(), 41 * MS)
    assert [packet.session for packet in data(followed)] == [NEXT]
    assert (backup.state, backup.next_message_seq) == (ReplicaState.SYNCHRONIZED, active.next_message_seq)


def test_a_backup_that_lacks_the_end_applies_it_first() -> None:
    active, backup = pair()
    missed = active.source(1, 1, [1, 2])
    say_end(active, {1: 3, 2: 1}, 0)
    say(active, 1, 1, [3], MS, session=NEXT)
    hear(backup, active.engine.on_timer(20 * MS), 20 * MS)
    assert backup.engine.session == SESSION
    backup.source(1, 1, [1, 2], 21 * MS)
    hear(backup, missed, 21 * MS)
    say_end(backup, {1: 3, 2: 1}, 22 * MS)
    backup.engine.on_timer(23 * MS)
    assert backup.engine.session == NEXT


def test_the_decisions_of_the_previous_session_are_still_served() -> None:
    active, backup = pair()
    active.source(1, 1, [1, 2])
    say_end(active, {1: 3, 2: 1}, 0)
    say(active, 1, 1, [3], MS, session=NEXT)
    logged = active.engine.runs_since(CHANNEL, backup.replica.line.position(), SESSION)
    assert [run.first_source_seq for run in logged.reply().runs] == [1]
    with pytest.raises(NotActive, match=f"session {SESSION} was requested, but adapter 1 is in session {NEXT}"):
        active.engine.snapshot(CHANNEL, SESSION)


def test_an_answer_of_another_session_is_ignored() -> None:
    active, backup = pair()
    say_end(active, {1: 1, 2: 1}, 0)
    say(active, 1, 1, [3], MS, session=NEXT)
    snapshot = active.engine.snapshot(CHANNEL)
    backup.lose_place(MS)
    assert snapshot.session == NEXT
    assert backup.engine.on_answer(CHANNEL, snapshot, 2 * MS) == []
    assert backup.state is ReplicaState.JOINING


def test_an_adapter_never_returns_to_an_older_session() -> None:
    active, backup = pair()
    old = active.engine.on_timer(20 * MS)
    say_end(backup, {1: 1, 2: 1}, 0)
    say_end(active, {1: 1, 2: 1}, 0)
    say(active, 1, 1, [3], MS, session=NEXT)
    hear(backup, active.engine.on_timer(40 * MS), 40 * MS)
    assert backup.engine.session == NEXT
    hear(backup, old, 41 * MS)
    say(backup, 1, 1, [9], 41 * MS, session=SESSION)
    assert backup.engine.session == NEXT
    assert backup.counters.refusals[Refusal.WRONG_SESSION] > 0


def test_packets_of_at_most_two_later_sessions_are_held() -> None:
    active, _ = pair()
    for session in (NEXT, NEXT + 1, NEXT + 2):
        say(active, 1, 1, [3], MS, session=session)
    assert active.counters.refusals[Refusal.WRONG_SESSION] == 1


@pytest.mark.parametrize(("policy", "wanted"), [(SessionState.RESET, 7), (SessionState.CARRY, 8)])
def test_the_conversion_state_is_reset_or_carried_on(policy: SessionState, wanted: int) -> None:
    active = Adapter(1, session_state=policy)
    active.activate()
    active.source(1, 1, [1])
    say_end(active, {1: 2, 2: 1}, 0)
    say(active, 1, 1, [7], MS, session=NEXT)
    assert active.converter.sums[1] == wanted


def test_a_backup_of_a_feed_that_carries_its_state_takes_the_actives_state() -> None:
    active, backup = Adapter(1, session_state=SessionState.CARRY), Adapter(2, session_state=SessionState.CARRY)
    active.activate()
    backup.follow(active)
    say_end(active, {1: 1, 2: 1}, 0)
    say_end(backup, {1: 1, 2: 1}, 0)
    say(active, 1, 1, [3], MS, session=NEXT)
    hear(backup, active.engine.on_timer(20 * MS), 20 * MS)
    assert (backup.engine.session, backup.state) == (NEXT, ReplicaState.JOINING)
    backup.engine.on_answer(CHANNEL, active.engine.snapshot(CHANNEL), 21 * MS)
    assert backup.state is ReplicaState.SYNCHRONIZED
    assert backup.converter.sums == active.converter.sums


def test_the_final_heartbeat_of_a_session_is_kept_and_repeated_not_as_the_actives() -> None:
    active, _ = pair()
    say_end(active, {1: 1, 2: 1}, 0)
    effects = say(active, 1, 1, [3], MS, session=NEXT)
    (word,) = [effect.packet for effect in of(effects, AppendToJournal) if not effect.packet.runs]
    assert not word.flags & OutputFlag.FROM_ACTIVE
    assert word in ends_said(active.engine.on_timer(20 * MS))
    restarted = Adapter(1, session=NEXT)
    restarted.engine.resume_final_heartbeats([word], 0)
    assert ends_said(restarted.engine.on_timer(0)) == [word]


def test_a_backup_promoted_in_the_old_session_ends_it_before_it_begins_the_next() -> None:
    active, backup = pair()
    decided = active.source(1, 1, [1, 2])
    backup.source(1, 1, [1, 2])
    hear(backup, decided, 0)
    say_end(backup, {1: 3, 2: 2}, MS)
    say(backup, 1, 1, [3], MS, session=NEXT)
    backup.activate(epoch=2, now_ns=2 * MS)
    assert backup.engine.session == SESSION
    effects = backup.source(2, 1, [9], 3 * MS)
    assert [(packet.session, packet.epoch) for packet in data(effects)] == [(SESSION, 2), (NEXT, 2)]


def decided_again(policy: SessionState) -> list[tuple[int, int]]:
    """(session, epoch) of each packet of an heir that decides the old session's end again, and knows decisions of the
    new session."""
    active, heir = Adapter(1, session_state=policy), Adapter(2, session_state=policy)
    active.activate()
    heir.follow(active)
    active.source(2, 1, [9])  # the heir does not hear this decision
    say_end(active, {1: 1, 2: 2}, 0)
    decided = say(active, 1, 1, [3], MS, session=NEXT)
    say_end(heir, {1: 1, 2: 2}, MS)
    say(heir, 1, 1, [3], MS, session=NEXT)
    hear(heir, decided, MS)
    heir.activate(epoch=2, now_ns=2 * MS)
    return [(packet.session, packet.epoch) for packet in data(heir.source(2, 1, [9], 3 * MS))]


def test_an_heir_that_decides_the_old_session_again_and_carries_its_state_decides_the_new_one_again() -> None:
    assert decided_again(SessionState.CARRY) == [(SESSION, 2), (NEXT, 2)]


def test_an_heir_that_decides_the_old_session_again_and_resets_its_state_keeps_the_new_sessions_decisions() -> None:
    assert decided_again(SessionState.RESET) == [(SESSION, 2), (NEXT, 1)]


def test_an_heir_that_applied_all_of_the_old_session_keeps_the_new_sessions_decisions() -> None:
    for policy in SessionState:
        active, heir = Adapter(1, session_state=policy), Adapter(2, session_state=policy)
        active.activate()
        heir.follow(active)
        active.source(2, 1, [9])  # the heir does not hear this decision
        heir.source(2, 1, [9])
        say_end(active, {1: 1, 2: 2}, 0)
        decided = say(active, 1, 1, [3], MS, session=NEXT)
        say_end(heir, {1: 1, 2: 2}, MS)
        say(heir, 1, 1, [3], MS, session=NEXT)
        hear(heir, decided, MS)
        missed = active.engine.runs_since(CHANNEL, heir.replica.intake.position(), SESSION)
        heir.engine.on_answer(CHANNEL, missed.reply(), 2 * MS)
        heir.activate(epoch=2, now_ns=2 * MS)  # before the next event, at which it would change session as a backup
        assert (heir.engine.session, heir.state) == (SESSION, ReplicaState.ACTIVE)
        effects = heir.engine.on_timer(3 * MS) + say(heir, 1, 2, [4], 4 * MS, session=NEXT)
        decisions = [(packet.session, packet.epoch, packet.first_input_seq) for packet in data(effects)]
        assert decisions == [(NEXT, 1, 1), (NEXT, 2, 2)]
        say(active, 1, 2, [4], 4 * MS, session=NEXT)
        assert heir.converter.sums == active.converter.sums


def test_a_backup_that_carries_its_state_keeps_the_new_sessions_decisions_until_it_has_a_snapshot() -> None:
    first, backup, active = (Adapter(each, session_state=SessionState.CARRY) for each in (1, 2, 3))
    first.activate()
    for adapter in (backup, active):
        adapter.follow(first)
    hear(backup, active.activate(epoch=2), 0)
    hear(backup, active.source(2, 1, [9]), 0)
    backup.source(2, 1, [9])
    for adapter in (active, backup):
        say_end(adapter, {1: 1, 2: 2}, 0)
    say(active, 1, 1, [], MS, session=NEXT, flags=SourceFlag.HEARTBEAT)
    snapshot = active.engine.snapshot(CHANNEL)
    decided = data(say(active, 1, 1, [3], 2 * MS, session=NEXT))
    say(backup, 1, 1, [3], 2 * MS, session=NEXT)
    for packet in decided:
        backup.engine.on_output_packet(packet, 2 * MS)
    assert (backup.engine.session, backup.state) == (NEXT, ReplicaState.JOINING)
    backup.engine.on_answer(CHANNEL, snapshot, 3 * MS)
    assert (backup.state, backup.next_message_seq) == (ReplicaState.SYNCHRONIZED, active.next_message_seq)
    assert backup.converter.sums == active.converter.sums


def test_an_heir_that_waits_for_the_new_sessions_snapshot_decides_its_messages_again() -> None:
    """It cannot know whether its state is the one at the session's beginning, where those decisions begin."""
    active, heir = (Adapter(each, session_state=SessionState.CARRY) for each in (1, 2))
    active.activate()
    heir.follow(active)
    for adapter in (active, heir):
        say_end(adapter, {1: 1, 2: 1}, 0)
    decided = say(active, 1, 1, [3], MS, session=NEXT)
    say(heir, 1, 1, [3], MS, session=NEXT)
    hear(heir, decided, MS)
    assert (heir.engine.session, heir.state) == (NEXT, ReplicaState.JOINING)
    effects = heir.activate(epoch=2, now_ns=2 * MS)
    assert [(packet.session, packet.epoch, packet.first_input_seq) for packet in data(effects)] == [(NEXT, 2, 1)]


def test_a_state_reports_the_session() -> None:
    active, backup = pair()
    say_end(active, {1: 1, 2: 1}, 0)
    say(active, 1, 1, [3], MS, session=NEXT)
    say_end(backup, {1: 1, 2: 1}, 0)
    assert active.report(2 * MS).session == NEXT
    assert of(active.tell(backup, 2 * MS), SessionBegun) == [SessionBegun(SESSION, NEXT, is_complete=True)]


def test_a_failed_adapter_follows_and_stays_failed() -> None:
    active, backup = pair()
    backup.engine.on_failed("an admin", 0)
    say_end(active, {1: 1, 2: 1}, 0)
    say(active, 1, 1, [3], MS, session=NEXT)
    hear(backup, active.engine.on_timer(20 * MS), 20 * MS)
    assert (backup.engine.session, backup.state) == (NEXT, ReplicaState.FAILED)


def test_a_snapshot_names_its_session() -> None:
    active, _ = pair()
    snapshot = active.engine.snapshot(CHANNEL)
    assert isinstance(snapshot, ChannelSnapshot)
    assert snapshot.session == SESSION


def test_knowledge_of_the_group_is_kept_in_the_next_session() -> None:
    active, backup = pair()
    third = Adapter(3)
    third.follow(active)
    backup.replica.channel.out_of_sync_at_ns.append(MS)
    for adapter in (active, backup, third):
        say_end(adapter, {1: 1, 2: 1}, 0)
        say(adapter, 1, 1, [3], MS, session=NEXT)
    hear(third, active.engine.on_timer(20 * MS), 20 * MS)
    backup.engine.peers.others |= {3}
    assert of(third.tell(backup, 21 * MS), SessionBegun)  # learned from another backup, not from the active
    known = backup.replica.channel
    assert (known.active.adapter_id, known.active.epoch, known.active.heard_at_ns) == (1, 1, 21 * MS)
    assert list(known.out_of_sync_at_ns) == [MS]


def a_final_heartbeat(session: int = SESSION) -> OutputPacket:
    """A session's final heartbeat, as in an output journal."""
    active = Adapter(1, session=session)
    active.activate()
    effects = say_end(active, {1: 1, 2: 1}, 0, session=session) + say(active, 1, 1, [3], 0, session=session + 1)
    (word,) = [effect.packet for effect in of(effects, AppendToJournal) if not effect.packet.runs]
    return word


def test_the_final_heartbeat_is_repeated_with_every_heartbeat_for_a_second_and_then_once_a_second() -> None:
    word, restarted = a_final_heartbeat(), Adapter(1, session=NEXT)
    restarted.engine.resume_final_heartbeats([word], 0)
    said = []
    for now_ns in range(0, 4 * SECOND, 5 * MS):
        if ends_said(restarted.engine.on_timer(now_ns)):
            said.append(now_ns)
            deadline_ns = restarted.engine.next_deadline_ns()
            assert deadline_ns == now_ns + (10 * MS if now_ns < SECOND else SECOND)
    assert said == [*range(0, SECOND, 10 * MS), SECOND, 2 * SECOND, 3 * SECOND]


def test_the_final_heartbeats_of_the_two_previous_sessions_are_kept() -> None:
    words = [a_final_heartbeat(SESSION + number) for number in (2, 0, 3, 1)]
    restarted = Adapter(1, session=SESSION + 3)
    restarted.engine.resume_final_heartbeats(words, 0)
    said = ends_said(restarted.engine.on_timer(0))
    assert [word.session for word in said] == [SESSION + 1, SESSION + 2]


def test_a_backup_that_lacks_the_end_moves_on_a_grace_after_it_first_hears_the_next_session() -> None:
    active, backup = pair()
    active.source(1, 1, [1, 2])  # unheard
    say_end(active, {1: 3, 2: 1}, 0)
    say(active, 1, 1, [3], MS, session=NEXT)
    heard_at_ns = 20 * MS
    hear(backup, active.engine.on_timer(heard_at_ns), heard_at_ns)
    grace_ns = backup.engine.config.session_grace_ns
    assert not of(backup.engine.on_timer(heard_at_ns + grace_ns - 1), SessionBegun)
    effects = backup.engine.on_timer(heard_at_ns + grace_ns)
    assert of(effects, SessionBegun) == [SessionBegun(SESSION, NEXT, is_complete=False)]
    assert not ends_said(effects), "it does not know where the session ended"


def test_a_session_that_the_feed_has_left_is_skipped() -> None:
    active, backup = pair()
    say(backup, 1, 1, [3], MS, session=NEXT)
    for session in (SESSION, NEXT):
        say_end(active, {1: 1, 2: 1}, 0, session=session)
        say(active, 1, 1, [], MS, session=session + 1, flags=SourceFlag.HEARTBEAT)
        say_end(active, {1: 1, 2: 1}, 2 * MS, session=session + 1)
    assert active.engine.session == NEXT + 1
    say_end(backup, {1: 1, 2: 1}, MS)
    effects = hear(backup, active.engine.on_timer(20 * MS), 20 * MS)
    assert of(effects, SessionBegun) == [SessionBegun(SESSION, NEXT + 1, is_complete=True)]
    refused = backup.counters.refusals[Refusal.WRONG_SESSION]
    say(backup, 1, 2, [3], 21 * MS, session=NEXT)
    assert backup.counters.refusals[Refusal.WRONG_SESSION] == refused + 1


def test_an_acked_session_ends_only_when_every_decision_has_been_acknowledged() -> None:
    active, backup = pair(replica=ReplicaConfig(publish=PublishMode.ACKED))
    hear(active, backup.engine.on_timer(30 * MS), 30 * MS)
    announced = active.source(1, 1, [11], 31 * MS)
    say_end(active, {1: 2, 2: 1}, 31 * MS)
    assert not of(say(active, 1, 1, [3], 32 * MS, session=NEXT), SessionBegun)
    backup.source(1, 1, [11], 32 * MS)
    copies = hear(backup, announced, 33 * MS)
    assert of(hear(active, copies, 34 * MS) + active.engine.on_timer(40 * MS), SessionBegun)


def test_while_a_later_session_waits_the_adapter_checks_at_every_heartbeat() -> None:
    joining = Adapter(2)
    assert joining.engine.next_deadline_ns() is None
    say(joining, 1, 1, [3], MS, session=NEXT)
    joining.engine.on_timer(MS)
    assert joining.engine.next_deadline_ns() == 11 * MS


def in_session(session: int) -> OutputPacket:
    """A heartbeat of the active, adapter 1, in this session."""
    active = Adapter(1)
    active.activate()
    (beat, *_) = transmitted(active.engine.on_timer(20 * MS))
    return beat._replace(session=session)


def test_sessions_begin_in_their_order_whichever_was_heard_of_first() -> None:
    active, _ = pair()
    for session in (NEXT + 1, NEXT):
        assert not of(say(active, 1, 1, [3], MS, session=session), SessionBegun)
    effects = say_end(active, {1: 1, 2: 1}, 2 * MS)
    assert of(effects, SessionBegun) == [SessionBegun(SESSION, NEXT, is_complete=True)]


def test_a_session_before_one_in_which_an_adapter_is_active_is_refused() -> None:
    _, backup = pair()
    say(backup, 1, 1, [3], MS, session=NEXT + 1)
    say(backup, 1, 1, [3], MS, session=NEXT)
    assert backup.counters.refusals[Refusal.WRONG_SESSION] == 0, "only the source has begun a later one"
    backup.engine.on_output_packet(in_session(NEXT + 2), 2 * MS)
    say(backup, 1, 2, [4], 3 * MS, session=NEXT + 1)
    assert backup.counters.refusals[Refusal.WRONG_SESSION] == 1
    say(backup, 1, 1, [3], 3 * MS, session=NEXT + 3)
    assert backup.counters.refusals[Refusal.WRONG_SESSION] == 1


def test_the_grace_of_a_backup_counts_from_the_first_message_of_the_active_in_the_next_session() -> None:
    _, backup = pair()
    backup.engine.on_admin_message(0)
    beat = in_session(NEXT)
    begun = [
        now_ns
        for now_ns in range(100 * MS, 6 * SECOND, 100 * MS)
        if of(backup.engine.on_output_packet(beat, now_ns), SessionBegun)
    ]
    assert begun == [100 * MS + backup.engine.config.session_grace_ns]


def test_decisions_of_neither_the_current_nor_the_previous_session_are_refused() -> None:
    active, _ = pair()
    position = active.replica.line.position()
    with pytest.raises(NotActive, match=f"session {NEXT} was requested"):
        active.engine.runs_since(CHANNEL, position, NEXT)
    say_end(active, {1: 1, 2: 1}, 0)
    say(active, 1, 1, [3], MS, session=NEXT)
    assert active.engine.session == NEXT
    with pytest.raises(NotActive, match=f"session {NEXT + 1} was requested"):
        active.engine.runs_since(CHANNEL, position, NEXT + 1)


def test_an_adapter_that_lacks_the_end_of_a_session_or_has_failed_sends_no_final_heartbeat() -> None:
    _, backup = pair()
    backup.engine.on_admin_message(0)
    beat = in_session(NEXT)
    backup.engine.on_output_packet(beat, 30 * MS)
    effects = backup.engine.on_output_packet(beat, 30 * MS + backup.engine.config.session_grace_ns)
    assert of(effects, SessionBegun) == [SessionBegun(SESSION, NEXT, is_complete=False)]
    assert not [packet for packet in transmitted(effects) if packet.session == SESSION]
    _, failed = pair()
    say_end(failed, {1: 1, 2: 1}, 0)
    failed.engine.on_failed("an admin says so", MS)
    effects = failed.engine.on_output_packet(beat, 30 * MS)
    assert of(effects, SessionBegun) == [SessionBegun(SESSION, NEXT, is_complete=True)]
    assert not transmitted(effects)


def test_a_session_does_not_end_while_an_epoch_is_about_to_begin() -> None:
    _, backup = pair()
    say_end(backup, {1: 1, 2: 1}, 0)
    say(backup, 1, 1, [3], MS, session=NEXT)
    assert backup.engine._sessions.change_if_due(2, 10 * SECOND) == []
    assert backup.engine.session == SESSION


def test_an_adapter_whose_epoch_has_not_begun_changes_session_as_a_backup() -> None:
    active, heir = pair()
    heir.engine.on_admin_disconnected(30 * MS)
    assert heir.report(30 * MS).abstains
    assert heir.engine.on_lease_granted(2, 10 * SECOND, 31 * MS) == [], "its promise to the active has not ended"
    for adapter in (active, heir):
        say_end(adapter, {1: 1, 2: 1}, 32 * MS)
    effects = say(active, 1, 1, [3], 33 * MS, session=NEXT)
    assert of(hear(heir, effects, 33 * MS), SessionBegun) == [SessionBegun(SESSION, NEXT, is_complete=True)]


def test_the_grace_of_a_session_that_was_known_early_counts_from_the_beginning_of_the_session_before_it() -> None:
    active, _ = pair()
    active.engine.on_lease_renewed(1, 100 * SECOND, 0)
    for session in (NEXT, NEXT + 1):
        say(active, 1, 1, [3], MS, session=session)
    assert of(say_end(active, {1: 1, 2: 1}, 4 * SECOND), SessionBegun)
    active.engine.on_admin_message(9 * SECOND - 1)
    active.engine.on_timer(9 * SECOND - 1)
    assert active.engine.session == NEXT
    assert of(active.engine.on_timer(9 * SECOND), SessionBegun)


def test_messages_that_a_backup_has_are_given_up_only_after_a_second_grace() -> None:
    active, backup = pair()
    active.engine.on_lease_renewed(1, 100 * SECOND, 0)
    active.source(1, 4, [4])
    backup.source(1, 1, [1, 2, 3, 4])
    backup.engine.on_admin_message(2 * MS)
    backup.tell(active, 2 * MS)
    say(active, 1, 1, [3], 3 * MS, session=NEXT)
    lost = []
    for now_ns in (5 * SECOND + 3 * MS, 10 * SECOND + 2 * MS, 10 * SECOND + 3 * MS):
        active.engine.on_admin_message(now_ns)
        lost.append(of(active.engine.on_timer(now_ns), RunsLost))
    assert lost == [[], [], [RunsLost(CHANNEL, 1, 1, 3)]]


def test_after_a_change_of_session_the_final_heartbeat_is_repeated_at_every_heartbeat() -> None:
    active, _ = pair()
    active.engine.on_lease_renewed(1, 100 * SECOND, 0)
    say_end(active, {1: 1, 2: 1}, 0)
    assert ends_said(say(active, 1, 1, [3], MS, session=NEXT))
    for now_ns, count in ((11 * MS - 1, 0), (11 * MS, 1), (21 * MS, 1), (SECOND, 1), (SECOND + 10 * MS, 1)):
        assert len(ends_said(active.engine.on_timer(now_ns))) == count
    assert not ends_said(active.engine.on_timer(SECOND + 20 * MS)), "now it is repeated once a second"


def test_a_backup_that_heard_contradictory_decisions_of_the_next_session_joins_it_by_a_snapshot() -> None:
    active, backup = pair()
    say_end(active, {1: 1, 2: 1}, 0)
    decided = say(active, 1, 1, [3], MS, session=NEXT)
    heard = [packet for packet in transmitted(decided) if packet.session == NEXT]
    for packet in heard:
        runs = tuple(run._replace(first_message_seq=9) for run in packet.runs)
        backup.engine.on_output_packet(packet._replace(runs=runs), 2 * MS)
    say_end(backup, {1: 1, 2: 1}, 3 * MS)
    effects = backup.engine.on_timer(3 * MS)
    assert (backup.engine.session, backup.state) == (NEXT, ReplicaState.JOINING)
    assert of(effects + backup.engine.on_timer(4 * MS), RequestSnapshot)
    assert not backup.replica.status().available_source_seqs, "it has no place"
