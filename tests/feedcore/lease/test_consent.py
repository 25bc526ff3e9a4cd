"""While no admin server is up, roles stay and a lease continues by the consent of all others (protocol clause 6.7)."""

from __future__ import annotations

from dataclasses import replace

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.config import ConsentConfig
from tandemfeed.feedcore.replica.effects import AcceptOffer, RenewLease
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.refusal import Refusal
from tests.feedcore.replica.engines import LEASE_NS, MS, Adapter, hear, of, pair

CONSENT = ConsentConfig.of(100 * MS)


def without_admin(*adapters: Adapter, now_ns: int) -> None:
    """Break the streams of these adapters to the admin server."""
    for adapter in adapters:
        adapter.engine.on_admin_disconnected(now_ns)


def exchange(active: Adapter, backup: Adapter, now_ns: int) -> None:
    """Play one sync interval: each sends its state to the other, the active first."""
    active.tell(backup, now_ns)
    backup.tell(active, now_ns + MS)


def test_the_active_continues_in_its_epoch_while_its_backup_abstains() -> None:
    active, backup = pair()
    without_admin(active, backup, now_ns=100 * MS)
    for step in range(1, 30):
        exchange(active, backup, 100 * MS + step * 100 * MS)
        active.engine.on_timer(150 * MS + step * 100 * MS)
        assert active.state is ReplicaState.ACTIVE
    assert active.engine.lease.epoch == 1
    assert active.engine.lease.is_by_consent
    assert active.counters.counts[Counter.LEASE_BY_CONSENT] == 1
    active.engine.on_lease_renewed(1, 4_000 * MS, 3_100 * MS)
    assert not active.engine.lease.is_by_consent


def test_a_backup_that_reaches_an_admin_server_consents_to_nothing() -> None:
    active, backup = pair()
    without_admin(active, now_ns=100 * MS)
    backup.engine.on_admin_message(150 * MS)
    exchange(active, backup, 200 * MS)
    active.engine.on_timer(LEASE_NS)
    assert active.state is not ReplicaState.ACTIVE


def test_one_silent_adapter_is_enough_to_withhold_consent() -> None:
    active, backup = pair()
    active.engine.peers.others |= {3}
    without_admin(active, backup, now_ns=100 * MS)
    exchange(active, backup, 200 * MS)
    active.engine.on_timer(LEASE_NS)
    assert active.state is not ReplicaState.ACTIVE


def test_an_adapter_that_knows_a_newer_epoch_withholds_consent() -> None:
    active, backup = pair()
    without_admin(active, backup, now_ns=100 * MS)
    active.tell(backup, 200 * MS)
    state = backup.report(201 * MS)
    newer = replace(state.channels[0], lineage=state.channels[0].lineage.opened(2, 1, 1))
    active.engine.on_epoch_vouched(2, 3, 202 * MS)
    active.engine.on_peer_state(replace(state, channels=(newer,)), 202 * MS)
    assert active.state is ReplicaState.DETACHED


def test_an_adapter_that_claims_a_newer_epoch_ends_no_term() -> None:
    active, backup = pair()
    without_admin(active, backup, now_ns=100 * MS)
    active.tell(backup, 200 * MS)
    state = backup.report(201 * MS)
    newer = replace(state.channels[0], lineage=state.channels[0].lineage.opened(2**32 - 1, 1, 1))
    active.engine.on_peer_state(replace(state, channels=(newer,)), 202 * MS)
    assert active.state is ReplicaState.ACTIVE
    assert active.counters.refusals[Refusal.UNVOUCHED] == 1


def test_a_paused_active_that_resumes_believes_no_old_promise() -> None:
    active, backup = pair()
    without_admin(active, backup, now_ns=100 * MS)
    exchange(active, backup, 200 * MS)
    waiting_in_the_socket = backup.report(250 * MS)
    late_ns = 200 * MS + CONSENT.abstain_ns
    active.engine.on_peer_state(waiting_in_the_socket, late_ns)
    assert active.state is ReplicaState.DETACHED


def test_an_adapter_that_promised_to_abstain_acts_on_a_grant_only_after_the_promise_has_ended() -> None:
    active, backup = pair()
    without_admin(backup, now_ns=100 * MS)
    backup.report(200 * MS)
    free_ns = 200 * MS + CONSENT.abstain_ns
    backup.engine.on_admin_message(210 * MS)
    backup.engine.on_lease_granted(2, free_ns + LEASE_NS, 220 * MS)
    backup.engine.on_timer(free_ns - 1)
    assert backup.state is not ReplicaState.ACTIVE
    backup.engine.on_timer(free_ns)
    assert backup.state is ReplicaState.ACTIVE
    assert active.engine.lease.epoch == 1


def test_a_promise_made_before_a_restart_counts_from_the_end_of_that_process() -> None:
    active, backup = Adapter(1), Adapter(2, previous_process_ended_ns=50 * MS)
    active.activate()
    backup.follow(active, 100 * MS)
    free_ns = 50 * MS + CONSENT.abstain_ns
    backup.engine.on_lease_granted(2, free_ns + LEASE_NS, 200 * MS)
    backup.engine.on_timer(free_ns - 1)
    assert backup.state is not ReplicaState.ACTIVE
    backup.engine.on_timer(free_ns)
    assert backup.state is ReplicaState.ACTIVE


def test_an_adapter_that_promised_to_abstain_accepts_an_offer_only_after_the_promise_has_ended() -> None:
    for valid_until_ns, accepted in ((900 * MS, [AcceptOffer(2)]), (210 * MS + CONSENT.abstain_ns // 2, [])):
        _, backup = pair()
        without_admin(backup, now_ns=100 * MS)
        backup.report(200 * MS)
        assert not of(backup.engine.on_lease_offered(2, 1, valid_until_ns, 220 * MS), AcceptOffer)
        free_ns = 200 * MS + CONSENT.abstain_ns
        assert (backup.engine.next_deadline_ns() or free_ns) <= free_ns
        assert not of(backup.engine.on_timer(free_ns - 1), AcceptOffer)
        assert of(backup.engine.on_timer(free_ns), AcceptOffer) == accepted


def test_a_later_offer_replaces_an_accepted_one_and_is_forgotten_when_it_is_withdrawn() -> None:
    active, backup = pair()
    assert of(backup.engine.on_lease_offered(2, 1, 900 * MS, 50 * MS), AcceptOffer) == [AcceptOffer(2)]
    without_admin(backup, now_ns=100 * MS)
    backup.report(200 * MS)
    assert not of(backup.engine.on_lease_offered(3, 1, 900 * MS, 220 * MS), AcceptOffer)
    backup.engine.on_lease_lost(3, "the store withdrew it", 230 * MS)
    assert not of(backup.engine.on_timer(200 * MS + CONSENT.abstain_ns), AcceptOffer)
    hear(backup, active.engine.on_hand_over(1, 2, 240 * MS), 250 * MS)
    assert not backup.engine.lease.is_held


def test_an_active_that_reaches_its_admin_server_does_not_rely_on_consent() -> None:
    active, backup = pair()
    without_admin(backup, now_ns=100 * MS)
    active.engine.on_admin_message(250 * MS)
    exchange(active, backup, 260 * MS)
    active.engine.on_timer(LEASE_NS)
    assert active.state is not ReplicaState.ACTIVE


def test_an_active_back_in_contact_renews_immediately_and_has_consent_until_the_answer() -> None:
    active, backup = pair()
    without_admin(active, backup, now_ns=100 * MS)
    exchange(active, backup, LEASE_NS - 10 * MS)
    active.engine.on_timer(LEASE_NS)
    assert active.engine.lease.is_by_consent
    active.engine.on_admin_message(LEASE_NS + MS)
    assert RenewLease(1) in active.engine.on_timer(LEASE_NS + MS)
    until_ns = active.engine.peers.consent_until_ns(1)
    assert until_ns > LEASE_NS + MS
    active.engine.on_timer(until_ns - 1)
    assert active.state is ReplicaState.ACTIVE
    active.engine.on_timer(until_ns)
    assert active.state is not ReplicaState.ACTIVE, "no admin server answered"


def test_an_epoch_without_a_holder_ends_no_term() -> None:
    active, _ = pair()
    active.engine.on_cluster_changed(0, 64, 100 * MS)  # a restored server that has lost its records
    assert active.state is ReplicaState.ACTIVE
    active.engine.on_cluster_changed(2, 65, 101 * MS)
    assert active.state is ReplicaState.DETACHED


def abstains(backup: Adapter, now_ns: int) -> bool:
    """True if its next state reports that it abstains."""
    return backup.engine.report(now_ns).abstains


def test_a_start_that_reaches_the_admin_server_late_does_not_count_as_an_outage() -> None:
    active, backup = pair()
    active.tell(backup, 500 * MS)
    backup.engine.on_admin_message(500 * MS)
    active.tell(backup, 510 * MS)
    assert not abstains(backup, 520 * MS)


def test_a_long_join_out_of_contact_does_not_count_as_an_outage() -> None:
    active, backup = Adapter(1), Adapter(2)
    active.activate(now_ns=400 * MS)
    backup.engine.on_admin_message(10 * MS)  # it is joining, and loads much state
    backup.follow(active, 500 * MS)
    active.tell(backup, 510 * MS)
    assert abstains(backup, 520 * MS), "out of contact"
    backup.engine.on_admin_message(530 * MS)
    assert not abstains(backup, 540 * MS)
    assert abstains_until(active, backup, 1_200 * MS) == 1_900 * MS, "later outages count"


def abstains_until(active: Adapter, backup: Adapter, back_at_ns: int) -> int:
    """When a backup that again hears the admin server and the active, every 50 ms, stops abstaining."""
    now_ns = back_at_ns
    while True:
        backup.engine.on_admin_message(now_ns)
        active.tell(backup, now_ns)
        if not abstains(backup, now_ns):
            return now_ns
        now_ns += 50 * MS
        assert now_ns < back_at_ns + 2 * CONSENT.settle_ns, "it abstains forever"


def test_back_in_contact_a_backup_abstains_for_as_long_as_it_was_out_of_it() -> None:
    active, backup = pair()
    backup.engine.on_admin_message(100 * MS)
    backup.engine.on_admin_disconnected(200 * MS)
    assert abstains_until(active, backup, 700 * MS) == 1_300 * MS
    assert abstains_until(active, backup, 1_600 * MS) == 1_900 * MS, "a silence is an outage too"
    backup.engine.on_admin_disconnected(1_900 * MS)
    assert abstains_until(active, backup, 9_000 * MS) == 9_000 * MS + CONSENT.settle_ns


def test_if_an_epoch_began_during_an_outage_the_backup_does_not_abstain_afterwards() -> None:
    active, backup = pair()
    backup.engine.on_admin_message(100 * MS)
    backup.engine.on_admin_disconnected(200 * MS)
    other = Adapter(3)
    other.follow(active, 210 * MS)
    active.engine.on_lease_lost(1, "a test says so", 300 * MS)
    hear(backup, other.activate(2, 310 * MS), 310 * MS)  # a server must have granted it
    assert abstains(backup, 320 * MS), "out of contact"
    assert abstains_until(other, backup, 700 * MS) == 700 * MS


def test_a_report_that_a_newer_one_overtook_gives_no_consent() -> None:
    active, backup = pair()
    without_admin(active, backup, now_ns=100 * MS)
    active.tell(backup, 200 * MS)
    overtaken = backup.report(201 * MS)
    assert overtaken.abstains
    backup.engine.on_admin_message(202 * MS)
    newest = backup.report(203 * MS)
    assert not newest.abstains
    active.engine.on_peer_state(newest, 204 * MS)
    active.engine.on_peer_state(overtaken, 205 * MS)
    active.engine.on_timer(LEASE_NS)
    assert active.state is not ReplicaState.ACTIVE


def test_consent_does_not_extend_a_lease_whose_epoch_has_not_begun() -> None:
    active, backup = pair()
    without_admin(backup, now_ns=100 * MS)
    backup.report(200 * MS)
    backup.engine.on_admin_message(210 * MS)
    expired_ns = 500 * MS  # before the backup's promise to the active ends
    backup.engine.on_lease_granted(2, expired_ns, 220 * MS)
    active.engine.on_lease_lost(1, "a test says so", 230 * MS)
    without_admin(active, backup, now_ns=240 * MS)
    exchange(backup, active, 250 * MS)
    backup.engine.peers.others |= {1}
    assert backup.engine.peers.consent_until_ns(2) > expired_ns
    backup.engine.on_timer(expired_ns - 1)
    assert backup.engine.lease.is_held
    backup.engine.on_timer(expired_ns)
    assert not backup.engine.lease.is_held
