"""What an adapter's core refuses or ignores, and when it must be called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel_state import PeerState, RunsRefused
from tandemfeed.feedcore.replica.effects import (
    AcceptOffer,
    AdapterEffect,
    ReleaseLease,
    RenewLease,
    RequestToFail,
    StateMoved,
    Transmit,
)
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.input.decision_log import DecisionLogTooShort
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.replica.sessions import NotActive
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tandemfeed.feedcore.wire.refusal import Refusal
from tests.feedcore.replica.engines import CHANNEL, LEASE_NS, MS, SECOND, Adapter, data, hear, of, pair, transmitted
from tests.simulation.toy_feed import FEED_ID, SESSION, encode_source


def refusals(adapter: Adapter) -> dict[Refusal, int]:
    """The refusals counted, by reason."""
    return {reason: count for reason, count in adapter.counters.refusals.items() if count}


# ---- datagrams ----


def test_a_refused_source_packet_is_counted_by_its_reason_and_changes_nothing() -> None:
    active, _ = pair()
    good = encode_source(1, 1, [(1, 11)], 0, 0)
    assert active.engine.on_source_datagram(good + b"x", MS) == []
    assert active.engine.on_source_datagram(encode_source(9, 1, [(1, 11)], 0, 0), MS) == []
    assert refusals(active) == {Refusal.MALFORMED: 1, Refusal.UNKNOWN_STREAM: 1}
    assert active.counters.counts[Counter.SOURCE_PACKETS] == 0
    assert data(active.engine.on_source_datagram(good, MS))
    assert active.counters.counts[Counter.SOURCE_PACKETS] == 1
    assert sum(refusals(active).values()) == 2


def test_an_output_packet_of_another_feed_channel_or_stream_is_counted_by_its_reason() -> None:
    active, backup = pair()
    (packet,) = data(active.source(1, 1, [11], 30 * MS))
    backup.source(1, 1, [11], 30 * MS)
    strange_run = packet.runs[0]._replace(source_stream_id=9)
    for strange in (
        packet._replace(feed_id=FEED_ID + 1),
        packet._replace(channel_id=CHANNEL + 1),
        packet._replace(runs=(strange_run,)),
    ):
        assert not data(backup.engine.on_output_packet(strange, 31 * MS))
    assert refusals(backup) == {Refusal.WRONG_FEED: 1, Refusal.WRONG_CHANNEL: 1, Refusal.UNKNOWN_STREAM: 1}
    assert data(backup.engine.on_output_packet(packet, 32 * MS))


def test_an_adapter_learns_nothing_from_its_own_packets() -> None:
    active, backup = pair()
    (packet,) = data(active.source(1, 1, [11], 30 * MS))
    backup.source(1, 1, [11], 30 * MS)
    own = packet._replace(adapter_id=2, epoch=9)
    assert backup.engine.on_output_packet(own, 31 * MS) == []
    assert backup.engine.lease.last_epoch == 1


def test_an_adapter_learns_nothing_from_its_own_state() -> None:
    active, _ = pair()
    state = replace(active.report(30 * MS), adapter_id=1)
    assert active.engine.on_peer_state(state, 31 * MS) == []
    assert active.engine.peers.fresh(31 * MS) == []


def test_a_newer_epoch_ends_the_term_when_the_admin_server_vouches_for_it_and_not_before() -> None:
    active, _ = pair()
    (packet,) = data(active.source(1, 1, [11], 30 * MS))
    foreign = packet._replace(adapter_id=3, epoch=2)
    active.engine.on_output_packet(foreign._replace(flags=int(OutputFlag.PROVISIONAL)), 31 * MS)
    assert active.state is ReplicaState.ACTIVE
    active.engine.on_output_packet(foreign._replace(epoch=1), 31 * MS)
    assert active.state is ReplicaState.ACTIVE
    assert active.engine.on_output_packet(foreign, 31 * MS) == []
    assert active.state is ReplicaState.ACTIVE
    move, *_ = of(active.engine.on_epoch_vouched(2, 3, 32 * MS), StateMoved)
    assert (move.new, move.reason) == (ReplicaState.DETACHED, "epoch 2 has begun: it was granted to adapter 3")
    assert not active.engine.lease.is_held


# ---- the lease (clause 6) ----


def test_a_paused_active_fences_itself_before_anything_else() -> None:
    active, _ = pair()
    effects = active.source(1, 1, [11], LEASE_NS)
    assert isinstance(effects[0], StateMoved)
    assert not any(packet.flags & OutputFlag.FROM_ACTIVE for packet in data(effects))
    assert active.counters.counts[Counter.LEASE_LAPSED] == 1


LATE = 10 * SECOND
EVENTS: dict[str, Callable[[AdapterEngine], list[AdapterEffect]]] = {
    "timer": lambda engine: engine.on_timer(LATE),
    "admin message": lambda engine: engine.on_admin_message(LATE),
    "admin disconnected": lambda engine: engine.on_admin_disconnected(LATE),
    "this adapter is active": lambda engine: engine.on_cluster_changed(1, 1, LATE),
    "no adapter is active": lambda engine: engine.on_cluster_changed(0, 1, LATE),
    "grant that arrives too late": lambda engine: engine.on_lease_granted(2, LATE, LATE),
    "grant": lambda engine: engine.on_lease_granted(2, LATE + LEASE_NS, LATE),
    "offer": lambda engine: engine.on_lease_offered(2, 1, LATE + LEASE_NS, LATE),
    "order to hand over": lambda engine: engine.on_hand_over(1, 2, LATE),
    "renewal": lambda engine: engine.on_lease_renewed(1, LATE + LEASE_NS, LATE),
    "bad source datagram": lambda engine: engine.on_source_datagram(b"", LATE),
    "own state": lambda engine: engine.on_peer_state(PeerState(1, 1, 1, ()), LATE),
    "state in an old session": lambda engine: engine.on_peer_state(PeerState(2, 1, 1, (), session=SESSION - 1), LATE),
    "answer of another session": lambda engine: engine.on_answer(
        CHANNEL, RunsRefused("too old", session=SESSION + 1), LATE
    ),
}


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_first_ends_a_term_that_has_run_out(event: str) -> None:
    active, _ = pair()
    move, *_ = of(EVENTS[event](active.engine), StateMoved)
    assert (move.old, move.reason) == (ReplicaState.ACTIVE, "the lease on epoch 1 ran out")


def test_a_grant_that_arrives_while_abstaining_is_used_when_the_promise_has_ended() -> None:
    _, heir = pair()
    heir.engine.on_admin_disconnected(30 * MS)
    assert heir.report(30 * MS).abstains
    assert heir.engine.on_lease_granted(2, 10 * SECOND, 31 * MS) == []
    promise_ns = heir.engine._contact.abstains_until_ns
    heir.engine.on_timer(promise_ns - 1)
    assert heir.state is not ReplicaState.ACTIVE
    heir.engine.on_timer(promise_ns)
    assert heir.state is ReplicaState.ACTIVE
    assert not of(heir.engine.on_timer(promise_ns + MS), StateMoved)
    deadline_ns = heir.engine.next_deadline_ns()
    assert deadline_ns is not None
    assert deadline_ns > promise_ns + MS


def test_an_epoch_that_ended_elsewhere_while_this_adapter_abstained_does_not_begin() -> None:
    _, heir = pair()
    heir.engine.on_admin_disconnected(30 * MS)
    assert heir.report(30 * MS).abstains
    heir.engine.on_lease_granted(2, 10 * SECOND, 31 * MS)
    heir.engine.on_cluster_changed(1, 3, 32 * MS)
    heir.engine.on_timer(heir.engine._contact.abstains_until_ns)
    assert heir.state is not ReplicaState.ACTIVE


def test_an_adapter_catches_up_until_it_follows_or_is_to_be_active() -> None:
    active, backup = pair()
    assert not active.engine.is_catching_up
    assert not backup.engine.is_catching_up
    backup.lose_place(30 * MS)
    assert backup.engine.is_catching_up
    backup.engine.on_lease_offered(2, 1, 30 * MS + LEASE_NS, 30 * MS)
    assert not backup.engine.is_catching_up
    backup.engine.on_lease_lost(2, "withdrawn", 31 * MS)
    assert backup.engine.is_catching_up
    backup.follow(active, 32 * MS)
    assert not backup.engine.is_catching_up


def test_the_active_renews_its_lease_in_time() -> None:
    active, _ = pair()
    for beat_ns in range(0, 80 * MS, 5 * MS):
        if of(active.engine.on_timer(beat_ns), RenewLease):
            break
    assert 0 < beat_ns <= 75 * MS
    active.engine.on_lease_renewed(1, 100 * SECOND, beat_ns)
    active.engine.on_admin_message(10 * LEASE_NS)
    active.engine.on_timer(10 * LEASE_NS)
    assert active.state is ReplicaState.ACTIVE


def test_an_adapter_that_failed_drops_its_lease_and_its_offer() -> None:
    active, heir = pair()
    heir.engine.on_lease_offered(2, 1, 30 * MS + LEASE_NS, 30 * MS)
    heir.engine.on_failed("an admin says so", 31 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, 32 * MS), 33 * MS)
    assert heir.state is ReplicaState.FAILED
    assert not heir.engine.lease.is_held
    other = Adapter(3)
    other.activate()
    other.engine.on_failed("an admin says so", MS)
    assert not other.engine.lease.is_held


def test_an_heir_that_failed_before_its_epoch_began_does_not_begin_it_when_it_is_readmitted() -> None:
    active, heir = pair()
    active.source(1, 1, [11, 13], 30 * MS)  # unheard, so the heir lacks it
    heir.engine.on_lease_offered(2, 1, 32 * MS + LEASE_NS, 32 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, 33 * MS), 34 * MS)
    assert heir.engine.lease.is_held
    heir.engine.on_failed("an admin says so", 35 * MS)
    heir.engine.on_readmitted(SECOND)
    assert not transmitted(heir.engine.on_timer(SECOND + MS))
    assert (heir.state, heir.engine.lease.is_held) == (ReplicaState.JOINING, False)


def test_a_withdrawn_offer_is_not_used_and_the_loss_of_another_offer_changes_nothing() -> None:
    for lost_epoch, state in ((2, ReplicaState.SYNCHRONIZED), (7, ReplicaState.ACTIVE)):
        active, heir = pair()
        heir.engine.on_lease_offered(2, 1, 30 * MS + LEASE_NS, 30 * MS)
        heir.engine.on_lease_lost(lost_epoch, "withdrawn", 31 * MS)
        hear(heir, active.engine.on_hand_over(1, 2, 32 * MS), 33 * MS)
        assert heir.state is state


def test_an_offer_that_expired_or_whose_epoch_has_begun_is_not_accepted() -> None:
    _, heir = pair()
    assert not of(heir.engine.on_lease_offered(2, 1, 30 * MS, 30 * MS), AcceptOffer)
    assert not of(heir.engine.on_lease_offered(1, 0, SECOND, 30 * MS), AcceptOffer)
    assert of(heir.engine.on_lease_offered(2, 1, 30 * MS + 1, 30 * MS), AcceptOffer) == [AcceptOffer(2)]
    assert not of(heir.engine.on_timer(31 * MS), AcceptOffer), "accepted only once"


def test_an_offer_that_expired_leaves_no_deadline() -> None:
    _, heir = pair()
    heir.engine.on_lease_offered(2, 1, 30 * MS, 30 * MS)
    heir.engine.on_timer(30 * MS)
    deadline_ns = heir.engine.next_deadline_ns()
    assert deadline_ns is not None
    assert deadline_ns > 30 * MS


def test_an_offer_received_while_abstaining_is_accepted_afterwards_unless_its_epoch_began_elsewhere() -> None:
    for known_epoch, accepted in ((1, [AcceptOffer(2)]), (2, [])):
        _, heir = pair()
        assert heir.engine.on_admin_disconnected(30 * MS) == []
        assert heir.report(30 * MS).abstains
        assert not of(heir.engine.on_lease_offered(2, 1, 10 * SECOND, 31 * MS), AcceptOffer)
        heir.engine.on_cluster_changed(1, known_epoch, 32 * MS)
        deadline_ns = heir.engine._contact.abstains_until_ns
        assert of(heir.engine.on_timer(deadline_ns - 1), AcceptOffer) == []
        assert of(heir.engine.on_timer(deadline_ns), AcceptOffer) == accepted


def test_the_holder_of_a_lease_does_not_abstain() -> None:
    active, backup = pair()
    for adapter in (active, backup):
        adapter.engine.on_admin_disconnected(30 * MS)
    assert (active.report(31 * MS).abstains, backup.report(31 * MS).abstains) == (False, True)


def test_the_loss_of_another_adapters_lease_changes_nothing() -> None:
    active, _ = pair()
    assert active.engine.on_lease_lost(7, "another's", 30 * MS) == []
    assert active.state is ReplicaState.ACTIVE
    assert of(active.engine.on_lease_lost(1, "so it is", 30 * MS), StateMoved)


def test_the_active_releases_its_lease_only_if_the_order_names_its_epoch() -> None:
    active, _ = pair()
    assert not of(active.engine.on_hand_over(2, 2, 30 * MS), ReleaseLease)
    effects = active.engine.on_hand_over(1, 2, 30 * MS)
    assert of(effects, ReleaseLease) == [ReleaseLease(1)]
    assert not active.engine.lease.is_held
    assert active.counters.counts[Counter.HAND_OVERS] == 1
    assert active.replica.channel.active.adapter_id == 2


def test_the_heir_begins_only_at_the_announced_end_of_the_epoch_before_its_own_and_after_accepting() -> None:
    active, heir = pair()
    (packet,) = data(active.source(1, 1, [11], 30 * MS))
    heir.engine.on_lease_offered(2, 1, 30 * MS + LEASE_NS, 30 * MS)
    heir.engine.on_output_packet(packet, 31 * MS)
    assert not heir.engine.lease.is_held, "a packet without that announcement"
    (ended,) = [
        each for each in transmitted(active.engine.on_hand_over(1, 2, 32 * MS)) if each.flags & OutputFlag.EPOCH_ENDED
    ]
    heir.engine.on_output_packet(ended._replace(epoch=0), 33 * MS)
    assert not heir.engine.lease.is_held, "the end of another epoch"
    heir.engine.on_output_packet(ended, 33 * MS)
    assert heir.engine.lease.epoch == 2


def test_the_end_of_an_epoch_is_not_the_beginning_of_the_next_while_the_offer_is_not_accepted() -> None:
    active, heir = pair()
    heir.engine.on_admin_disconnected(30 * MS)
    assert heir.report(30 * MS).abstains
    heir.engine.on_lease_offered(2, 1, 30 * MS + LEASE_NS, 31 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, 32 * MS), 33 * MS)
    assert not heir.engine.lease.is_held


def test_an_offer_that_waits_for_the_end_of_the_promise_has_a_deadline() -> None:
    _, heir = pair()
    heir.engine.on_timer(30 * MS)
    heir.engine.on_admin_disconnected(30 * MS)
    assert heir.report(30 * MS).abstains
    promise_ns = heir.engine._contact.abstains_until_ns
    heir.engine.on_lease_offered(2, 1, 10 * SECOND, 31 * MS)
    for now_ns in range(31 * MS, promise_ns, MS):
        heir.engine.on_timer(now_ns)
    assert heir.engine.next_deadline_ns() == promise_ns
    assert of(heir.engine.on_timer(promise_ns), AcceptOffer)
    deadline_ns = heir.engine.next_deadline_ns()
    assert deadline_ns is not None
    assert deadline_ns > promise_ns


def test_an_epoch_that_waits_for_the_end_of_a_promise_cannot_be_handed_over() -> None:
    _, heir = pair()
    heir.engine.on_admin_disconnected(30 * MS)
    assert heir.report(30 * MS).abstains
    heir.engine.on_lease_granted(2, 10 * SECOND, 31 * MS)
    assert not of(heir.engine.on_hand_over(2, 1, 32 * MS), ReleaseLease)
    assert heir.engine.lease.epoch == 2


def test_a_report_of_an_adapter_in_contact_with_the_admin_server_promises_nothing() -> None:
    adapter = Adapter(1)
    adapter.engine.on_admin_message(0)
    assert not adapter.report(MS).abstains
    adapter.activate(1, 2 * MS)
    assert adapter.state is ReplicaState.ACTIVE


def test_an_adapter_that_is_back_in_contact_promises_something_only_to_an_active_that_it_hears() -> None:
    for hears_active in (True, False):
        active, backup = pair()
        active.engine.on_lease_renewed(1, 10 * SECOND, 20 * MS)
        backup.engine.on_admin_message(20 * MS)
        backup.engine.on_admin_disconnected(30 * MS)
        if hears_active:
            hear(backup, active.engine.on_timer(230 * MS), 230 * MS)
        backup.engine.on_admin_message(230 * MS)
        assert backup.report(231 * MS).abstains is hears_active


def test_a_backup_that_is_in_contact_again_renews_nothing() -> None:
    _, backup = pair()
    backup.engine.on_admin_disconnected(30 * MS)
    assert backup.engine.on_admin_message(31 * MS) == []
    assert not of(backup.engine.on_timer(32 * MS), RenewLease)


# ---- who is active ----


def test_an_admin_server_that_names_another_active_ends_the_term_only_with_a_newer_epoch() -> None:
    active, _ = pair()
    active.engine.on_cluster_changed(1, 2, 30 * MS, [1, 2])
    active.engine.on_cluster_changed(0, 2, 30 * MS)
    active.engine.on_cluster_changed(2, 1, 30 * MS)
    assert active.state is ReplicaState.ACTIVE
    active.engine.on_cluster_changed(2, 2, 30 * MS)
    assert active.state is ReplicaState.DETACHED


def test_the_other_adapters_of_the_feed_are_all_but_this_one() -> None:
    active, _ = pair()
    active.engine.on_cluster_changed(0, 0, 30 * MS, [1, 2, 3])
    assert active.engine.peers.others == {2, 3}
    active.engine.on_cluster_changed(0, 0, 30 * MS)
    assert active.engine.peers.others == {2, 3}


# ---- requests of other adapters ----


def test_only_the_active_serves_snapshots_and_buckets_and_only_replicas_with_a_place_serve_decisions() -> None:
    active, backup = pair()
    position = active.replica.line.position()
    text = "channel 1 is synchronized at adapter 2"
    with pytest.raises(NotActive, match=text):
        backup.engine.snapshot(CHANNEL)
    with pytest.raises(NotActive, match=text):
        backup.engine.buckets(CHANNEL, (1,))
    assert backup.engine.runs_since(CHANNEL, position, SESSION).reply().runs == ()
    backup.lose_place(30 * MS)
    with pytest.raises(NotActive, match="channel 1 is joining at adapter 2"):
        backup.engine.runs_since(CHANNEL, position)
    with pytest.raises(DecisionLogTooShort):
        active.engine.runs_since(CHANNEL, replace(position, next_input_seq=0))


def test_a_state_reports_the_adapters_identity_health_and_channels() -> None:
    active, _ = pair()
    assert active.report(MS).health == 1.0
    active.engine.health = 0.5
    state = active.engine.report(30 * MS, 4)
    assert (state.adapter_id, state.incarnation, state.session, state.health) == (1, 4, SESSION, 0.5)
    assert [status.state for status in state.channels] == [ReplicaState.ACTIVE]
    assert (state.abstains, state.out_of_sync) == (False, False)


def test_a_backup_requests_to_be_failed_again_after_a_pause() -> None:
    active, backup = pair()
    third = Adapter(3)
    third.follow(active)
    backup.engine.health = 0.2
    backup.replica.channel.out_of_sync_at_ns.extend([MS, 2 * MS, 3 * MS])
    assert of(third.tell(backup, 30 * MS), RequestToFail)
    pause_ns = backup.engine.config.failing.ask_every_ns
    assert not of(third.tell(backup, 30 * MS + pause_ns - 1), RequestToFail)
    assert of(third.tell(backup, 30 * MS + pause_ns), RequestToFail)


def test_an_unknown_channel_in_a_peers_state_is_ignored() -> None:
    active, backup = pair()
    state = active.report(30 * MS)
    strange = replace(state.channels[0], channel_id=CHANNEL + 1)
    backup.engine.on_peer_state(replace(state, channels=(strange,)), 31 * MS)
    assert backup.state is ReplicaState.SYNCHRONIZED
    assert of(backup.engine.on_timer(40 * MS), Transmit)


def test_the_time_of_each_source_streams_last_packet_is_known() -> None:
    active, _ = pair()
    active.source(1, 1, [11], 30 * MS)
    active.source(2, 1, [21], 31 * MS)
    active.source(1, 2, [12], 32 * MS)
    assert active.engine.source_heard_at_ns == {1: 32 * MS, 2: 31 * MS}


def test_a_state_that_names_no_session_is_of_the_current_one() -> None:
    active, backup = pair()
    backup.engine.on_peer_state(replace(active.report(30 * MS), session=0), 31 * MS)
    assert list(backup.replica.channel.available_at_peers) == [1]
