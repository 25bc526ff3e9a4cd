"""Performs the lease decisions of one feed: records them, audits them, and turns them into orders. Decides nothing.

Part of `feed.feed_state.FeedState`, which calls it with its lock held, except for `restore` and `reserve`: only these
may wait for the disk. The holder of a lease is recorded before the grant is sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.feed.feed_history import FeedHistory
from tandemfeed.admin_server.feed.streams import Attendance
from tandemfeed.admin_server.lease.epoch_prover import EpochProver
from tandemfeed.admin_server.lease.lease_core import FeedLease, LeaseConfig
from tandemfeed.admin_server.lease.lease_decisions import (
    Granted,
    HandedOver,
    HandOverRefused,
    LeaseDecision,
    Offered,
    OfferWithdrawn,
    OrderedHandOver,
    Renewed,
    TermNoted,
    Vacated,
)
from tandemfeed.admin_server.records.lease_records import EPOCH_BLOCK, LeaseRecords, RecordsUnavailable
from tandemfeed.admin_server.settings import MS, FeedSettings
from tandemfeed.transport.calls.server_proofs import Prover
from tandemfeed.v1 import admin_pb2

LOG = logging.getLogger("tandemfeed.admin_server.lease.lease_keeper")


class LeaseKeeper:
    """Performs the decisions of a feed's lease core.

    Args:
        attending: adapter_id -> its open stream; the owner changes this mapping, which is only read here.
        prove: signs a statement of this server.

    Attributes:
        history: the feed's last events.
    """

    def __init__(
        self,
        feed: FeedSettings,
        records: LeaseRecords,
        audit: AuditLog,
        attending: Mapping[int, Attendance],
        prove: Prover = lambda _statement: b"",
    ) -> None:
        config = LeaseConfig(
            ttl_ns=feed.lease_ttl_ns,
            fresh_ns=max(feed.lease_ttl_ns, 4 * feed.sync_interval_ns),
            grace_ns=feed.wait_for_better_ms * MS,
            first_grace_ns=feed.wait_at_first_start_ms * MS,
        )
        self.lease = FeedLease(config, frozenset(adapter.adapter_id for adapter in feed.adapters))
        self._feed, self._records, self._audit, self._attending = feed, records, audit, attending
        self._prover = EpochProver(feed.feed_id, prove)
        self._reserved_end = 0
        self._noted_ttl_ns = feed.lease_ttl_ns
        self._notes: list[tuple[str, dict[str, object]]] = []
        names = {adapter.adapter_id: adapter.name for adapter in feed.adapters}
        self.history = FeedHistory(feed.feed_id, records, lambda adapter_id: names.get(adapter_id, str(adapter_id)))

    def restore(self) -> None:
        """Continue from the records that the previous server left.

        The holder may continue in its epoch. Reserved epochs are never granted again, because the previous server's
        machine may have died after a grant and before the record of it was on the disk.
        """
        feed_id = self._feed.feed_id
        reserved_end = self._records.reserved_end(feed_id)
        epoch, holder = self._records.last_lease(feed_id) or (reserved_end, 0)
        failed = self._records.failed_adapters(feed_id)
        noted_ttl_ns = self._records.noted_ttl_ns(feed_id)
        drained = self._records.drained_adapters(feed_id)
        self.lease.restore(epoch, holder, time.monotonic_ns(), reserved_end + 1, failed, noted_ttl_ns, drained)
        self._note_ttl(self.lease.terms.noted_ttl_ns)
        self._reserved_end = self._records.reserve_epochs(feed_id, reserved_end)

    # ---- reserving epochs ----

    @property
    def reserved_end(self) -> int:
        """The last reserved epoch."""
        return self._reserved_end

    def skip_epochs(self, after: int, reserved_end: int) -> None:
        """Grant only epochs after this one, up to the reserved end. The owner holds its lock."""
        self.lease.skip_epochs(after)
        self._reserved_end = max(self._reserved_end, reserved_end)

    @property
    def needs_epochs(self) -> bool:
        """True if half of the reserved block or more has been used."""
        return self.lease.next_epoch_number + EPOCH_BLOCK // 2 > self._reserved_end + 1

    @property
    def may_offer(self) -> bool:
        """True if an epoch may be offered: one is reserved, and no other server can be active."""
        return self.lease.next_epoch_number <= self._reserved_end and self._records.may_grant()

    def reserve(self) -> int:
        """Reserve another block of epochs; return its end. May wait for the disk or the network, without the lock."""
        try:
            return self._records.reserve_epochs(self._feed.feed_id, self._reserved_end)
        except RecordsUnavailable:  # half a block is left, and the timekeeper tries again when it next runs
            LOG.exception("could not reserve epochs", extra={"feed": self._feed.name})
            return 0

    def note_reserved(self, reserved_end: int) -> None:
        """Epochs up to this one are reserved. The owner holds its lock."""
        self._reserved_end = max(self._reserved_end, reserved_end)

    # ---- decisions ----

    def renew(self, attendance: Attendance, report: admin_pb2.AdapterReport) -> bool:
        """Answer a request for renewal; True if the feed's state changed."""
        if not self._records.may_grant():
            return False  # neither renewed nor lost, because another server may have taken over
        epoch = report.renew_epoch
        decisions = self.lease.renew(attendance.adapter.adapter_id, epoch, time.monotonic_ns())
        if not decisions:
            reason = "this adapter no longer holds the lease"
            attendance.order(lease_lost=admin_pb2.LeaseLost(epoch=epoch, reason=reason))
        return self.perform(decisions)

    def perform(self, decisions: list[LeaseDecision]) -> bool:
        """Record each decision and send its order, in sequence; audit them afterwards, because orders are urgent.

        Returns:
            True if a change must be announced.
        """
        for decision in decisions:
            match decision:
                case Granted():
                    self._grant(decision)
                case Renewed(adapter_id, epoch):
                    self._renewed(self._attending[adapter_id], epoch)
                case Vacated(epoch, reason):
                    self._audit_later("lease vacated", epoch=epoch, reason=reason)
                case TermNoted(ttl_ns):
                    self._note_ttl(ttl_ns)
                case Offered():
                    self._offer(decision)
                case OrderedHandOver(holder, epoch, heir):
                    order = admin_pb2.HandOver(epoch=epoch, heir_adapter_id=heir)
                    self._attending[holder].order(hand_over=order)
                case HandedOver(adapter_id, epoch, former):
                    self._record_holder(epoch, adapter_id)
                    self._audit_later("lease handed over", epoch=epoch, adapter_id=adapter_id, former=former)
                case OfferWithdrawn():
                    self._withdraw(decision)
                case HandOverRefused():
                    raise AssertionError("the caller handles a refusal")
        notes, self._notes = self._notes, []
        for event, fields in notes:
            self.note(event, **fields)
        return any(not isinstance(decision, Renewed | TermNoted | Offered | OrderedHandOver) for decision in decisions)

    @property
    def epoch_proof(self) -> bytes:
        """The proof that the holder holds its epoch; empty: there is none."""
        return self._prover.datagram(self.lease.epoch, self.lease.holder)

    def note(self, event: str, **fields: object) -> None:
        """Log and audit an event. Waits for no disk, because a takeover must not."""
        LOG.info(event, extra={"feed": self._feed.name, **fields})
        self.history.note(event, fields, time.time_ns())
        self._audit.note(event, feed=self._feed.name, **fields)

    # ---- inside ----

    @property
    def _ttl_ns(self) -> int:
        """The term to announce; never longer than the recorded one, which a restarted server waits for."""
        return min(self.lease.terms.ttl_ns, self._noted_ttl_ns)

    def _note_ttl(self, ttl_ns: int) -> None:
        try:
            self._records.note_ttl(self._feed.feed_id, ttl_ns)
        except RecordsUnavailable:  # announced terms stay as they are; the store waits longer, which is safe
            LOG.exception("could not record the lease term", extra={"feed": self._feed.name})
            return
        if ttl_ns != self._noted_ttl_ns:
            self._audit_later("lease term changed", ttl_ms=ttl_ns // 1_000_000)
        self._noted_ttl_ns = ttl_ns

    def _audit_later(self, event: str, **fields: object) -> None:
        """Log and audit an event after the orders have been sent."""
        self._notes.append((event, fields))

    def _grant(self, granted: Granted) -> None:
        if granted.epoch > self._reserved_end:
            # The disk has failed for dozens of grants. A feed without an active is better than an epoch used twice.
            extra = {"feed": self._feed.name, "epoch": granted.epoch}
            LOG.error("did not grant the lease: no reserved epoch is left", extra=extra)
            return
        if not self._records.may_grant():
            LOG.warning("did not grant the lease: another admin server may be active", extra={"feed": self._feed.name})
            return
        attendance = self._attending[granted.adapter_id]
        self._record_holder(granted.epoch, granted.adapter_id)
        attendance.grant(granted.epoch, self._ttl_ns, self._prover.datagram(granted.epoch, granted.adapter_id))
        self._audit_later("lease granted", epoch=granted.epoch, adapter_id=granted.adapter_id)

    def _renewed(self, attendance: Attendance, epoch: int) -> None:
        renewed = admin_pb2.LeaseRenewed(epoch=epoch, ttl_ns=self._ttl_ns, report_id=attendance.report_id)
        attendance.order_if_room(lease_renewed=renewed)

    def _offer(self, offered: Offered) -> None:
        heir = self._attending[offered.heir]
        self._record_holder(offered.epoch, offered.heir)  # the heir may be active before this server hears of it
        order = admin_pb2.LeaseOffered(
            epoch=offered.epoch,
            after_epoch=offered.after_epoch,
            ttl_ns=self._ttl_ns,
            report_id=heir.report_id,
            epoch_proof=self._prover.datagram(offered.epoch, offered.heir),
        )
        heir.order(lease_offered=order)
        self._audit_later("lease offered", epoch=offered.epoch, adapter_id=offered.heir)

    def _withdraw(self, withdrawn: OfferWithdrawn) -> None:
        if self.lease.holder > 0:
            self._record_holder(self.lease.epoch, self.lease.holder)
        if (heir := self._attending.get(withdrawn.heir)) is not None:
            heir.order(lease_lost=admin_pb2.LeaseLost(epoch=withdrawn.epoch, reason=withdrawn.reason))
        self._audit_later("offer withdrawn", epoch=withdrawn.epoch, adapter_id=withdrawn.heir, reason=withdrawn.reason)

    def _record_holder(self, epoch: int, adapter_id: int) -> None:
        try:
            self._records.note_lease(self._feed.feed_id, epoch, adapter_id)
        except RecordsUnavailable:  # safe: the epoch is reserved, and only a restart needs the holder
            LOG.exception("could not record the lease holder", extra={"feed": self._feed.name})
