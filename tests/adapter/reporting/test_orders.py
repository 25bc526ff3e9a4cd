"""What the loop does about each order; a lease counts from its report, however late the order is (protocol 6.2)."""

from __future__ import annotations

import pytest

from tandemfeed.adapter.mailbox import Event
from tandemfeed.adapter.peers.epoch_knowledge import EpochKnowledge
from tandemfeed.adapter.reporting.orders import makes_urgent, role_event
from tandemfeed.adapter.reporting.report_sender import ReportSender, ReportStream
from tandemfeed.feedcore.replica.effects import AcceptOffer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.v1 import admin_pb2
from tests.feedcore.replica.engines import MS, Adapter, of

TTL_NS, VALID_NS = 300 * MS, 270 * MS


class Ordered:
    """An adapter whose reports and clock a test controls; its newest report was sent at `sent_at_ns`."""

    def __init__(self) -> None:
        self.adapter, self.now_ns = Adapter(1), 1_000 * MS
        self.sender = ReportSender(dict, clock_ns=lambda: self.now_ns)
        self.stream = ReportStream(7)
        self.sender.begin(self.stream, 0)
        self.sent_at_ns, self.report_id = self.now_ns, 1
        self.epochs = EpochKnowledge(self.adapter.engine, self.adapter.counters, ())

    def event(self, **order: object) -> Event:
        ordered = admin_pb2.AdapterOrder(**order)  # type: ignore[arg-type]
        event = role_event(ordered, self.adapter.engine, self.sender, self.epochs)
        assert event is not None
        return event

    def grant(self, epoch: int) -> Event:
        lease = admin_pb2.LeaseGranted(epoch=epoch, ttl_ns=TTL_NS, report_id=self.report_id)
        return self.event(lease_granted=lease)


@pytest.fixture
def ordered() -> Ordered:
    return Ordered()


def test_a_grant_counts_from_its_report_and_not_from_its_arrival(ordered: Ordered) -> None:
    lease = ordered.adapter.engine.lease
    ordered.grant(5)(ordered.sent_at_ns + VALID_NS)  # a process that was paused takes it too late
    assert not lease.is_held
    ordered.grant(5)(ordered.sent_at_ns + VALID_NS - 1)
    assert lease.may_transmit(ordered.sent_at_ns + VALID_NS - 1)
    assert not lease.may_transmit(ordered.sent_at_ns + VALID_NS)


def test_a_renewal_counts_from_its_report_and_not_from_its_arrival(ordered: Ordered) -> None:
    lease = ordered.adapter.engine.lease
    ordered.grant(5)(ordered.sent_at_ns)
    ordered.now_ns += 100 * MS
    ordered.sender.send(admin_pb2.AdapterReport(renew_epoch=5))
    renewed = admin_pb2.LeaseRenewed(epoch=5, ttl_ns=TTL_NS, report_id=2)
    ordered.event(lease_renewed=renewed)(ordered.sent_at_ns + 250 * MS)
    assert lease.may_transmit(ordered.sent_at_ns + 100 * MS + VALID_NS - 1)
    assert not lease.may_transmit(ordered.sent_at_ns + 100 * MS + VALID_NS)


def test_an_offer_counts_from_its_report_and_not_from_its_arrival(ordered: Ordered) -> None:
    offered = admin_pb2.LeaseOffered(epoch=6, after_epoch=5, ttl_ns=TTL_NS, report_id=1)
    assert not of(ordered.event(lease_offered=offered)(ordered.sent_at_ns + VALID_NS), AcceptOffer)
    effects = ordered.event(lease_offered=offered)(ordered.sent_at_ns + VALID_NS - 1)
    assert of(effects, AcceptOffer) == [AcceptOffer(6)]


def test_an_answer_to_an_unknown_report_gives_no_lease(ordered: Ordered) -> None:
    lease = admin_pb2.LeaseGranted(epoch=5, ttl_ns=TTL_NS, report_id=2)
    ordered.event(lease_granted=lease)(ordered.sent_at_ns)
    assert not ordered.adapter.engine.lease.is_held


def test_the_other_orders_reach_the_engine(ordered: Ordered) -> None:
    adapter, now_ns = ordered.adapter, ordered.sent_at_ns
    ordered.grant(5)(now_ns)
    lost = admin_pb2.LeaseLost(epoch=5, reason="another adapter holds it")
    ordered.event(lease_lost=lost)(now_ns)
    assert not adapter.engine.lease.is_held
    ordered.event(failed=admin_pb2.AdapterFailed(reason="an operator's order"))(now_ns)
    assert adapter.state is ReplicaState.FAILED
    ordered.event(readmitted=admin_pb2.AdapterReadmitted())(now_ns)
    assert adapter.state is ReplicaState.JOINING


def test_an_active_hands_over_when_it_is_ordered_to(ordered: Ordered) -> None:
    ordered.grant(5)(ordered.sent_at_ns)
    over = admin_pb2.HandOver(epoch=5, heir_adapter_id=2)
    ordered.event(hand_over=over)(ordered.sent_at_ns)
    assert not ordered.adapter.engine.lease.is_held


def test_an_order_that_is_not_about_the_role_has_no_event(ordered: Ordered) -> None:
    heard = admin_pb2.AdapterOrder(report_heard=admin_pb2.ReportHeard(report_id=1))
    assert role_event(heard, ordered.adapter.engine, ordered.sender, ordered.epochs) is None


def test_an_adapter_is_needed_when_it_is_granted_or_offered_the_lease_or_none_is_active() -> None:
    def urgent(**order: object) -> bool:
        return makes_urgent(admin_pb2.AdapterOrder(**order))  # type: ignore[arg-type]

    assert urgent(lease_granted=admin_pb2.LeaseGranted())
    assert urgent(lease_offered=admin_pb2.LeaseOffered())
    assert urgent(cluster_changed=admin_pb2.ClusterChanged())
    assert not urgent(cluster_changed=admin_pb2.ClusterChanged(active_adapter_id=2))
    assert not urgent(report_heard=admin_pb2.ReportHeard())
