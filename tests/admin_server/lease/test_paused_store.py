"""A pause of the lease store's own process is not held against the adapters (docs/protocol.md clause 11)."""

from __future__ import annotations

from tandemfeed.admin_server.lease.lease_core import FeedLease, Granted, Vacated
from tandemfeed.admin_server.lease.lease_decisions import HandedOver, Renewed
from tests.admin_server.lease.lease_by_hand import (
    ACTIVE,
    CONFIG,
    JOINING,
    SYNCHRONIZED,
    kinds,
    report,
    running,
)

MS = 1_000_000
TERM_NS = CONFIG.term_ns
PAUSE_NS = 10 * TERM_NS


def asked(lease: FeedLease) -> int:
    """When the shell calls the lease next: before every pause it has asked that."""
    deadline_ns = lease.next_deadline_ns()
    assert deadline_ns is not None
    return deadline_ns


def test_a_paused_store_renews_for_a_holder_whose_request_waited_in_its_queues() -> None:
    lease = running(2)
    due_ns = asked(lease)
    assert lease.on_timer(due_ns + PAUSE_NS) == [], "the timer comes before what waits in the queues"
    assert lease.renew(1, 1, due_ns + PAUSE_NS + 1) == [Renewed(1, 1)]
    assert (lease.holder, lease.epoch) == (1, 1)


def test_a_paused_store_renews_also_if_the_request_is_what_it_takes_first() -> None:
    lease = running(2)
    due_ns = asked(lease)
    assert lease.renew(1, 1, due_ns + PAUSE_NS) == [Renewed(1, 1)]


def test_a_store_that_was_paused_ends_the_term_of_a_holder_that_is_gone() -> None:
    lease = running(2)
    due_ns = asked(lease)
    lease.on_timer(due_ns + PAUSE_NS)
    report(lease, 2, SYNCHRONIZED, due_ns + PAUSE_NS + 1)
    assert asked(lease) == due_ns + PAUSE_NS + TERM_NS
    assert kinds(lease.on_timer(asked(lease))) == [Vacated, Granted]


def test_a_store_that_is_always_late_ends_a_term_after_three_times_its_length() -> None:
    lease = running(2)
    late_ns, now_ns = CONFIG.pause_after_ns, 0
    while lease.holder == 1:
        now_ns = asked(lease) + late_ns
        report(lease, 2, SYNCHRONIZED, now_ns)
        lease.on_timer(now_ns)
    assert now_ns <= 3 * (TERM_NS + late_ns), "each extension is served late again"
    assert lease.epoch == 2


def test_a_little_lateness_is_not_a_pause() -> None:
    lease = running(2)
    report(lease, 2, SYNCHRONIZED, TERM_NS - 1)
    assert kinds(lease.on_timer(asked(lease) + CONFIG.pause_after_ns - 1)) == [Vacated, Granted]


def test_a_death_during_a_pause_is_answered_by_a_grant_as_soon_as_it_is_read() -> None:
    lease = running(2)
    due_ns = asked(lease)
    report(lease, 2, SYNCHRONIZED, 5)
    lease.on_timer(due_ns + PAUSE_NS)
    assert kinds(lease.on_gone(1, due_ns + PAUSE_NS + 1, has_ended=True)) == [Vacated, Granted]


def test_an_heir_that_began_during_a_pause_keeps_the_lease() -> None:
    lease = running(2)
    lease.hand_over(2, 50)
    due_ns = asked(lease)
    assert lease.on_timer(due_ns + PAUSE_NS) == []
    assert kinds(lease.renew(2, 2, due_ns + PAUSE_NS + 1)) == [HandedOver, Renewed]


def test_a_poor_candidate_waits_for_as_long_as_the_store_was_awake() -> None:
    lease = FeedLease(CONFIG, frozenset({1, 2}))
    lease.on_attend(1, 0)
    report(lease, 1, JOINING, 0)
    due_ns = asked(lease)
    assert due_ns == CONFIG.first_grace_ns
    assert lease.on_timer(due_ns + PAUSE_NS) == [], "the better one's report may wait in the queues"
    lease.on_attend(2, due_ns + PAUSE_NS)
    assert report(lease, 2, SYNCHRONIZED, due_ns + PAUSE_NS + 1) == [Granted(2, 1)]


def test_the_time_of_the_last_pause_is_known() -> None:
    lease = running(2)
    assert lease.resumed_at_ns == 0
    due_ns = asked(lease)
    report(lease, 1, ACTIVE, due_ns + PAUSE_NS)
    assert lease.resumed_at_ns == due_ns + PAUSE_NS
