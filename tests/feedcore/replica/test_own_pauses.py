"""A pause of an adapter's own process is not held against the others (docs/protocol.md clause 11).

After a pause the timer is served first, before anything that waits in the process's queues: the worst order.
"""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel_state import Buckets
from tandemfeed.feedcore.replica.config import PublishMode, ReplicaConfig, SessionState
from tandemfeed.feedcore.replica.effects import AdapterEffect, RequestBuckets, RequestHandOver, RunsLost
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.feedcore.replica.engines import CHANNEL, MS, SECOND, Adapter, data, hear, of, pair
from tests.simulation.toy_feed import SESSION, encode_source

LONG_LEASE_NS = 1 << 60


def served(adapter: Adapter, until_ns: int) -> list[AdapterEffect]:
    """Serve every deadline up to a time, as a shell does that is not paused."""
    found: list[AdapterEffect] = []
    while (due_ns := adapter.engine.next_deadline_ns()) is not None and due_ns <= until_ns:
        found += adapter.engine.on_timer(due_ns)
    return found


def awake(*adapters: Adapter, from_ns: int, until_ns: int) -> None:
    """Let adapters run and hear each other, in steps of 5 ms."""
    for now_ns in range(from_ns, until_ns + 1, 5 * MS):
        for each in adapters:
            effects = served(each, now_ns)
            for other in adapters:
                if other is not each:
                    hear(other, effects, now_ns)


def resumed(adapter: Adapter, now_ns: int) -> list[AdapterEffect]:
    """The first call after a pause: the timer's."""
    assert adapter.engine.next_deadline_ns() is not None
    effects = adapter.engine.on_timer(now_ns)
    adapter.engine.next_deadline_ns()
    return effects


def test_a_backup_that_was_paused_does_not_take_the_active_for_silent() -> None:
    active, backup = pair()
    awake(active, backup, from_ns=20 * MS, until_ns=200 * MS)
    resumed(backup, 900 * MS)
    assert backup.state is ReplicaState.SYNCHRONIZED
    assert backup.counters.counts[Counter.OWN_PAUSES] == 1
    assert backup.engine.report(900 * MS).abstains is False, "it heard the server until it was paused"


def test_a_backup_that_was_paused_still_notices_a_silent_active() -> None:
    active, backup = pair()
    awake(active, backup, from_ns=20 * MS, until_ns=200 * MS)
    resumed(backup, 900 * MS)
    served(backup, 900 * MS + backup.engine.config.replica.detach_after_ns)
    assert backup.state is ReplicaState.DETACHED


def test_what_a_backup_hears_after_its_pause_is_as_recent_as_ever() -> None:
    active, backup = pair()
    awake(active, backup, from_ns=20 * MS, until_ns=200 * MS)
    resumed(backup, 900 * MS)
    hear(backup, active.engine.on_timer(200 * MS + 25 * MS), 901 * MS)
    served(backup, 901 * MS + backup.engine.config.replica.detach_after_ns - 20 * MS)
    assert backup.state is ReplicaState.SYNCHRONIZED


def test_a_backup_that_was_paused_does_not_forward_provisionally() -> None:
    active, backup = pair()
    awake(active, backup, from_ns=20 * MS, until_ns=200 * MS)
    backup.engine.on_admin_message(200 * MS)
    backup.source(1, 1, [11], 200 * MS)
    resumed(backup, 5_200 * MS)
    assert backup.engine.has_admin(5_200 * MS)
    assert backup.state is ReplicaState.SYNCHRONIZED


def test_an_outage_of_the_server_before_a_pause_still_counts_after_it() -> None:
    active, backup = pair()
    awake(active, backup, from_ns=20 * MS, until_ns=200 * MS)
    backup.engine.on_admin_disconnected(200 * MS)
    resumed(backup, 900 * MS)
    assert not backup.engine.has_admin(900 * MS)


def test_an_active_that_was_paused_loses_its_lease_all_the_same() -> None:
    active, backup = pair()
    awake(active, backup, from_ns=20 * MS, until_ns=100 * MS)
    resumed(active, 900 * MS)
    assert active.state is ReplicaState.DETACHED
    assert active.counters.counts[Counter.LEASE_LAPSED] == 1


def test_an_active_that_was_paused_waits_for_acknowledgements_in_its_queues() -> None:
    config = ReplicaConfig(publish=PublishMode.ACKED)
    active, backup = pair(replica=config)
    decided = active.source(1, 1, [11], 30 * MS) + served(active, 40 * MS)
    backup.source(1, 1, [11], 30 * MS)
    hear(active, hear(backup, decided, 30 * MS), 30 * MS)  # from now on the active waits for acknowledgements
    announced = active.source(1, 2, [13], 40 * MS)
    assert data(announced)
    assert active.replica.is_holding
    backup.source(1, 2, [13], 40 * MS)
    acknowledgements = hear(backup, announced, 41 * MS)
    before = active.counters.counts[Counter.PACKETS_UNACKED]
    resumed(active, 200 * MS)
    assert active.counters.counts[Counter.PACKETS_UNACKED] == before
    assert active.replica.is_holding
    hear(active, acknowledgements, 201 * MS)
    assert not active.replica.is_holding


def test_an_active_that_was_paused_declares_no_source_gap_lost() -> None:
    active = Adapter(1)
    active.engine.on_lease_granted(1, LONG_LEASE_NS, 0)
    active.source(1, 5, [11], MS)
    declare_ns = active.engine.config.replica.tracker.declare_after_ns
    served(active, SECOND)
    assert of(resumed(active, SECOND + 2 * declare_ns), RunsLost) == []
    lost_at_ns = SECOND + 3 * declare_ns
    assert of(served(active, lost_at_ns), RunsLost), "while it is awake, the time passes"


def test_an_active_that_was_paused_requests_no_hand_over_for_what_its_queues_may_have() -> None:
    active, backup = pair()
    active.engine.on_lease_renewed(1, LONG_LEASE_NS, 30 * MS)
    backup.source(1, 1, [11, 13], 30 * MS)
    backup.tell(active, 40 * MS)
    active.source(1, 3, [17], 50 * MS)
    served(active, SECOND)
    declare_ns = active.engine.config.replica.tracker.declare_after_ns
    assert of(resumed(active, SECOND + declare_ns), RequestHandOver) == []


def test_an_heir_that_was_paused_waits_for_the_end_of_the_epoch_before() -> None:
    active, heir = pair()
    awake(active, heir, from_ns=20 * MS, until_ns=30 * MS)
    heir.engine.on_lease_offered(2, 1, LONG_LEASE_NS, 32 * MS)
    active.source(1, 1, [11, 13], 33 * MS)  # the heir has not heard this
    ended = active.engine.on_hand_over(1, 2, 34 * MS)
    hear(heir, ended, 35 * MS)
    assert heir.state is ReplicaState.SYNCHRONIZED
    resumed(heir, 500 * MS)
    assert heir.state is ReplicaState.SYNCHRONIZED, "what it lacks may wait in its queues"
    served(heir, 500 * MS + heir.engine.config.replica.promotion_patience_ns)
    assert heir.state is ReplicaState.ACTIVE


def test_a_backup_that_was_paused_does_not_give_up_a_repair() -> None:
    active, backup = pair(replica=ReplicaConfig(digest_interval_messages=2))
    rows = [11, 13, 17]
    backup.source(1, 1, rows, 30 * MS)
    backup.converter.sums[1] ^= 1 << 20
    hear(backup, active.source(1, 1, rows, 30 * MS), 31 * MS)
    asked = active.tell(backup, 32 * MS)
    assert len(of(asked, RequestBuckets)) == 1
    answer = active.engine.buckets(CHANNEL, of(asked, RequestBuckets)[0].buckets)
    for number in range(1, 6):  # more pauses than there are tries
        assert of(resumed(backup, 32 * MS + number * SECOND), RequestBuckets) == []
    assert isinstance(answer, Buckets)
    backup.engine.on_answer(CHANNEL, answer, 6 * SECOND)
    assert backup.converter.sums == active.converter.sums
    assert backup.state is not ReplicaState.JOINING


@pytest.mark.parametrize("session_state", list(SessionState))
def test_an_active_that_was_paused_gives_up_no_session(session_state: SessionState) -> None:
    active, backup = (Adapter(number, session_state=session_state) for number in (1, 2))
    active.engine.on_lease_granted(1, LONG_LEASE_NS, 0)
    backup.follow(active)
    awake(active, backup, from_ns=20 * MS, until_ns=100 * MS)
    later = encode_source(1, 1, [(1, 11)], 0, 0, session=SESSION + 1)
    active.engine.on_source_datagram(later, 100 * MS)
    backup.engine.on_source_datagram(later, 100 * MS)
    grace_ns = active.engine.config.session_grace_ns
    resumed(active, 100 * MS + 3 * grace_ns)
    assert active.engine.session == SESSION, "the rest of the session may wait in its queues"
    served(active, 100 * MS + 6 * grace_ns)
    assert active.engine.session == SESSION + 1
