"""The admin server's orders about an adapter's role, as events for the loop.

A lease counts from the report that the order answers, never from when the order arrives: this is computed in the loop,
which sent the report.
"""

from __future__ import annotations

from functools import partial

from tandemfeed.adapter.mailbox import Event
from tandemfeed.adapter.peers.epoch_knowledge import EpochKnowledge
from tandemfeed.adapter.reporting.report_sender import ReportSender
from tandemfeed.feedcore.replica.effects import AdapterEffect
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.v1 import admin_pb2


def role_event(
    order: admin_pb2.AdapterOrder, engine: AdapterEngine, reports: ReportSender, epochs: EpochKnowledge
) -> Event | None:
    """What the loop does about an order; None if the order is not about this adapter's role."""
    match order.WhichOneof("order"):
        case "lease_granted":
            return partial(_take_grant, order.lease_granted, engine, reports, epochs)
        case "lease_renewed":
            renewed = order.lease_renewed
            return lambda now_ns: engine.on_lease_renewed(renewed.epoch, reports.valid_until_ns(renewed), now_ns)
        case "lease_lost":
            lost = order.lease_lost
            return lambda now_ns: engine.on_lease_lost(lost.epoch, lost.reason, now_ns)
        case "lease_offered":
            return partial(_take_offer, order.lease_offered, engine, reports, epochs)
        case "hand_over":
            over = order.hand_over
            return lambda now_ns: engine.on_hand_over(over.epoch, over.heir_adapter_id, now_ns)
        case "failed":
            reason = order.failed.reason
            return lambda now_ns: engine.on_failed(reason, now_ns)
        case "readmitted":
            return engine.on_readmitted
    return None


def _take_grant(
    granted: admin_pb2.LeaseGranted, engine: AdapterEngine, reports: ReportSender, epochs: EpochKnowledge, now_ns: int
) -> list[AdapterEffect]:
    epochs.keep(granted.epoch_proof)
    return engine.on_lease_granted(granted.epoch, reports.valid_until_ns(granted), now_ns)


def _take_offer(
    offered: admin_pb2.LeaseOffered, engine: AdapterEngine, reports: ReportSender, epochs: EpochKnowledge, now_ns: int
) -> list[AdapterEffect]:
    epochs.keep(offered.epoch_proof)
    return engine.on_lease_offered(offered.epoch, offered.after_epoch, reports.valid_until_ns(offered), now_ns)


def makes_urgent(order: admin_pb2.AdapterOrder) -> bool:
    """True if this adapter becomes active, or no other one is."""
    match order.WhichOneof("order"):
        case "lease_granted" | "lease_offered":
            return True
        case "cluster_changed":
            return not order.cluster_changed.active_adapter_id
    return False
