"""One feed's lease as it is kept: the core's decisions written down, audited, and turned into orders. Decides nothing.

Every method but `restore` and `reserve` is called with the broker's lock held, and waits for no disk. A lease's holder
is written down before the holder hears of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from admin_server.audit import AuditLog
from admin_server.lease_core import FeedLease, LeaseConfig
from admin_server.lease_decisions import (
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
from admin_server.lease_records import EPOCH_BLOCK, LeaseRecords, RecordsUnavailable
from admin_server.settings import FeedSettings
from admin_server.streams import Attendance
from tandemfeed.v1 import admin_pb2

LOG = logging.getLogger("admin_server.lease_keeper")


class LeaseKeeper:
    """Performs what the lease core of a feed decides.

    Args:
        attending: adapter_id -> its open stream; the broker's own, read here.
    """

    def __init__(
        self, feed: FeedSettings, records: LeaseRecords, audit: AuditLog, attending: Mapping[int, Attendance]
    ) -> None:
        config = LeaseConfig(
            ttl_ns=feed.lease_ttl_ns,
            fresh_ns=max(feed.lease_ttl_ns, 4 * feed.sync_interval_ns),
            grace_ns=feed.wait_for_better_ns,
            first_grace_ns=feed.wait_at_first_start_ns,
        )
        self.lease = FeedLease(config, frozenset(adapter.adapter_id for adapter in feed.adapters))
        self._feed, self._records, self._audit, self._attending = feed, records, audit, attending
        self._reserved_end = 0
        self._noted_ttl_ns = feed.lease_ttl_ns
        self._notes: list[tuple[str, dict[str, object]]] = []

    def restore(self) -> None:
        """Go on behind a former life of the server.

        Its holder may go on in the same epoch; epochs that were reserved, and perhaps granted by a machine that died
        before it had that on the disk, must not come again.
        """
        feed_id = self._feed.feed_id
        reserved_end = self._records.reserved_end(feed_id)
        epoch, holder = self._records.last_lease(feed_id) or (reserved_end, 0)
        failed = self._records.failed_adapters(feed_id)
        noted_ttl_ns = self._records.noted_ttl_ns(feed_id)
        self.lease.restore(epoch, holder, time.monotonic_ns(), reserved_end + 1, failed, noted_ttl_ns)
        self._note_ttl(self.lease.terms.noted_ttl_ns)
        self._reserved_end = self._records.reserve_epochs(feed_id, reserved_end)

    # ---- epochs ahead of use ----

    @property
    def needs_epochs(self) -> bool:
        """Half a block or more is used up."""
        return self.lease.next_epoch_number + EPOCH_BLOCK // 2 > self._reserved_end + 1

    @property
    def may_offer(self) -> bool:
        """Another epoch may be promised: it is reserved, and no other server decides."""
        return self.lease.next_epoch_number <= self._reserved_end and self._records.may_grant()

    def reserve(self) -> None:
        """Reserve another block; takes the time that it takes."""
        try:
            self._reserved_end = self._records.reserve_epochs(self._feed.feed_id, self._reserved_end)
        except RecordsUnavailable:  # half a block is left, and whatever wakes the timekeeper next tries again
            LOG.exception("no epochs could be reserved", extra={"feed": self._feed.name})

    # ---- decisions ----

    def renew(self, attendance: Attendance, report: admin_pb2.AdapterReport) -> bool:
        """Answer a wish for renewal; True if another holds the lease now."""
        if not self._records.may_grant():
            return False  # neither renewed nor lost: another server may know better
        epoch = report.renew_epoch
        decisions = self.lease.renew(attendance.adapter.adapter_id, epoch, time.monotonic_ns())
        if not decisions:
            reason = "the lease is not this adapter's any more"
            attendance.order(lease_lost=admin_pb2.LeaseLost(epoch=epoch, reason=reason))
        return self.perform(decisions)

    def perform(self, decisions: list[LeaseDecision]) -> bool:
        """Write down and order, in the order of the decisions, and then audit them: somebody waits for an order.

        Returns:
            True if everybody should hear of a change.
        """
        for decision in decisions:
            match decision:
                case Granted():
                    self._grant(decision)
                case Renewed(adapter_id, epoch):
                    self._renewed(self._attending[adapter_id], epoch)
                case Vacated(epoch, reason):
                    self._decided("lease vacated", epoch=epoch, reason=reason)
                case TermNoted(ttl_ns):
                    self._note_ttl(ttl_ns)
                case Offered():
                    self._offer(decision)
                case OrderedHandOver(holder, epoch, heir):
                    order = admin_pb2.HandOver(epoch=epoch, heir_adapter_id=heir)
                    self._attending[holder].order(hand_over=order)
                case HandedOver(adapter_id, epoch, former):
                    self._write_down(epoch, adapter_id)
                    self._decided("lease handed over", epoch=epoch, adapter_id=adapter_id, former=former)
                case OfferWithdrawn():
                    self._withdraw(decision)
                case HandOverRefused():
                    raise AssertionError("a refusal is the caller's to hear")
        notes, self._notes = self._notes, []
        for event, fields in notes:
            self.note(event, **fields)
        return any(not isinstance(decision, Renewed | TermNoted | Offered | OrderedHandOver) for decision in decisions)

    def note(self, event: str, **fields: object) -> None:
        """Log, and audit what must happen even when the disk is full: a takeover."""
        LOG.info(event, extra={"feed": self._feed.name, **fields})
        try:
            self._audit.write(event, feed=self._feed.name, **fields)
        except OSError:
            LOG.exception("the audit log cannot be written", extra={"lost": event, **fields})

    # ---- inside ----

    @property
    def _ttl_ns(self) -> int:
        """The term to tell; never longer than what is written down, for the sake of a server that restarts."""
        return min(self.lease.terms.ttl_ns, self._noted_ttl_ns)

    def _note_ttl(self, ttl_ns: int) -> None:
        try:
            self._records.note_ttl(self._feed.feed_id, ttl_ns)
        except RecordsUnavailable:  # terms stay as long as they were: the store's own are longer, which is safe
            LOG.exception("the lease's term could not be written down", extra={"feed": self._feed.name})
            return
        if ttl_ns != self._noted_ttl_ns:
            self._decided("lease term changed", ttl_ms=ttl_ns // 1_000_000)
        self._noted_ttl_ns = ttl_ns

    def _decided(self, event: str, **fields: object) -> None:
        """To be noted behind the orders."""
        self._notes.append((event, fields))

    def _grant(self, granted: Granted) -> None:
        if granted.epoch > self._reserved_end:
            # The disk has failed for dozens of grants. An epoch might come twice: better nobody is active.
            LOG.error("no reserved epoch is left; not granted", extra={"feed": self._feed.name, "epoch": granted.epoch})
            return
        if not self._records.may_grant():
            LOG.warning("another server may be active; not granted", extra={"feed": self._feed.name})
            return
        attendance = self._attending[granted.adapter_id]
        self._write_down(granted.epoch, granted.adapter_id)
        lease = admin_pb2.LeaseGranted(epoch=granted.epoch, ttl_ns=self._ttl_ns, report_id=attendance.report_id)
        attendance.order(lease_granted=lease)
        self._decided("lease granted", epoch=granted.epoch, adapter_id=granted.adapter_id)

    def _renewed(self, attendance: Attendance, epoch: int) -> None:
        renewed = admin_pb2.LeaseRenewed(epoch=epoch, ttl_ns=self._ttl_ns, report_id=attendance.report_id)
        attendance.tell(lease_renewed=renewed)

    def _offer(self, offered: Offered) -> None:
        heir = self._attending[offered.heir]
        self._write_down(offered.epoch, offered.heir)  # it may be active before this server hears of it
        order = admin_pb2.LeaseOffered(
            epoch=offered.epoch,
            after_epoch=offered.after_epoch,
            ttl_ns=self._ttl_ns,
            report_id=heir.report_id,
        )
        heir.order(lease_offered=order)
        self._decided("lease offered", epoch=offered.epoch, adapter_id=offered.heir)

    def _withdraw(self, withdrawn: OfferWithdrawn) -> None:
        if self.lease.holder > 0:
            self._write_down(self.lease.epoch, self.lease.holder)
        if (heir := self._attending.get(withdrawn.heir)) is not None:
            heir.order(lease_lost=admin_pb2.LeaseLost(epoch=withdrawn.epoch, reason=withdrawn.reason))
        self._decided("offer withdrawn", epoch=withdrawn.epoch, adapter_id=withdrawn.heir, reason=withdrawn.reason)

    def _write_down(self, epoch: int, adapter_id: int) -> None:
        try:
            self._records.note_lease(self._feed.feed_id, epoch, adapter_id)
        except RecordsUnavailable:  # the epoch is reserved, so this is safe; only a restart would not know the holder
            LOG.exception("the holder of the lease could not be written down", extra={"feed": self._feed.name})
