"""Operations on a feed that an administrator or an adapter requests: hand over, fail an adapter, readmit it.

They share the broker's lock, and release it before they wait for the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from tandemfeed.admin_server.lease_core import Offer
from tandemfeed.admin_server.lease_decisions import HandOverRefused, LeaseDecision
from tandemfeed.admin_server.lease_keeper import LeaseKeeper
from tandemfeed.admin_server.lease_records import LeaseRecords, RecordsUnavailable
from tandemfeed.admin_server.settings import AdapterSettings, FeedSettings
from tandemfeed.admin_server.streams import Attendance
from tandemfeed.v1 import admin_pb2

LOG = logging.getLogger("tandemfeed.admin_server.feed_operations")


class OperationRefused(Exception):
    """The feed's present state does not allow the operation; the text says why."""


class Perform(Protocol):
    """Performs decisions of the lease core. The caller holds the broker's lock."""

    def __call__(self, decisions: list[LeaseDecision], *, announces: bool = False) -> None:
        """Perform them; `announces`: announce the feed's state even if they do not change it."""


class FeedOperations:
    """The operations on one feed. Safe to call from any thread; unless stated, the caller must not hold the lock.

    Args:
        attending: adapter_id -> its open stream; the broker changes this mapping, which is only read here.
        changed: notified of every change; its lock is the broker's.

    Attributes:
        is_stopped: the server is stopping, so operations stop waiting.
    """

    def __init__(
        self,
        feed: FeedSettings,
        keeper: LeaseKeeper,
        records: LeaseRecords,
        attending: Mapping[int, Attendance],
        changed: threading.Condition,
        perform: Perform,
    ) -> None:
        self._feed, self._keeper, self._records = feed, keeper, records
        self._attending, self._changed, self._perform = attending, changed, perform
        self._one_at_a_time = threading.Lock()  # otherwise two adapters could be failed, each because the other remains
        self._refusals: dict[int, str] = {}
        self.is_stopped = False

    def hand_over(self, heir: AdapterSettings | None, by: str, *, is_failing: bool = False) -> tuple[int, str]:
        """Hand over to another adapter; return (epoch, name of the active).

        Waits until the heir holds the lease, at most for one lease term.

        Args:
            heir: the adapter that takes over; None: the best backup.
            by: the requester, for the audit log.
            is_failing: the active will be failed afterwards.

        Raises:
            OperationRefused: the hand-over was not possible, or its offer was withdrawn.
        """
        lease = self._keeper.lease
        with self._changed:
            offer = self._offer(None if heir is None else heir.adapter_id, by, is_failing=is_failing)
            while lease.offer is offer and not self.is_stopped:
                self._changed.wait()  # the timekeeper ends the offer at its deadline
            if lease.holder != offer.heir or lease.epoch < offer.epoch:
                raise OperationRefused(
                    f"{self._name(offer.heir)} did not take over within the lease term; the audit log says why"
                )
            return lease.epoch, self._name(offer.heir)

    def hand_over_on_request(self, adapter_id: int, heir_id: int) -> None:
        """Begin a hand-over that the active requested; it repeats the request if no backup can take over now.

        The caller holds the lock.

        Args:
            heir_id: the backup; 0: the best.
        """
        try:
            self._offer(heir_id or None, self._name(adapter_id))
        except OperationRefused as refused:
            LOG.info("refused the active's hand-over request", extra={"feed": self._feed.name, "why": str(refused)})

    def fail(self, adapter: AdapterSettings, reason: str, by: str, *, is_forced: bool = False) -> None:
        """Take an adapter out of its feed; if it is active, it hands over first.

        Raises:
            OperationRefused: it is the last synchronised backup and `is_forced` is false, or there is no heir.
            RecordsUnavailable: the change could not be recorded; the adapter is not failed.
        """
        with self._changed:
            is_active = self._keeper.lease.holder == adapter.adapter_id
            heirs = self._keeper.lease.candidates.heirs(adapter.adapter_id, time.monotonic_ns())
        if is_active:
            if len(heirs) == 1 and not is_forced:
                raise OperationRefused(
                    f"without {adapter.name}, {self._name(heirs[0])} would be active with no synchronised backup; "
                    "use --force to fail it anyway"
                )
            self.hand_over(None, by, is_failing=True)
        self._fail(adapter, reason, by, is_own_request=False, is_forced=is_forced)

    def fail_on_request(self, adapter: AdapterSettings, reason: str) -> None:
        """Fail an adapter that requests it, because by policy it is the least healthy backup."""
        if adapter.adapter_id in self._keeper.lease.candidates.failed:
            return
        try:
            self._fail(adapter, reason, adapter.name, is_own_request=True, is_forced=False)
        except OperationRefused as refused:
            if self._refusals.get(adapter.adapter_id) != str(refused):  # it may repeat the request: recorded once
                self._refusals[adapter.adapter_id] = str(refused)
                self._keeper.note("adapter not failed", adapter=adapter.name, asked=reason, why=str(refused))
        except RecordsUnavailable:
            LOG.exception("could not fail an adapter on its request", extra={"adapter": adapter.name, "asked": reason})

    def readmit(self, adapter: AdapterSettings, by: str) -> None:
        """Return a failed adapter to its feed.

        Raises:
            OperationRefused: it is not failed.
            RecordsUnavailable: the change could not be recorded; the adapter stays failed.
        """
        candidates = self._keeper.lease.candidates
        with self._one_at_a_time:
            with self._changed:
                if adapter.adapter_id not in candidates.failed and not candidates.reports_failed(adapter.adapter_id):
                    raise OperationRefused(f"{adapter.name} is not failed")
            self._records.note_readmitted(self._feed.feed_id, adapter.adapter_id)
            with self._changed:
                self._keeper.lease.readmit(adapter.adapter_id)
                if (attendance := self._attending.get(adapter.adapter_id)) is not None:
                    attendance.order(readmitted=admin_pb2.AdapterReadmitted())
                self._refusals.pop(adapter.adapter_id, None)
                self._keeper.note("adapter readmitted", adapter=adapter.name, by=by)
                self._perform([], announces=True)

    # ---- inside ----

    def _fail(self, adapter: AdapterSettings, reason: str, by: str, *, is_own_request: bool, is_forced: bool) -> None:
        """Record the failure before telling the adapter, so that it stays failed after any crash."""
        with self._one_at_a_time:
            with self._changed:
                if (refusal := self._refusal(adapter, is_own_request, is_forced)) is not None:
                    raise OperationRefused(refusal)
            self._records.note_failed(self._feed.feed_id, adapter.adapter_id, reason)
            with self._changed:
                refusal = self._refusal(adapter, is_own_request, is_forced)  # others may have left during the write
                if refusal is None:
                    decisions = self._keeper.lease.fail(adapter.adapter_id, reason, time.monotonic_ns())
                    if (attendance := self._attending.get(adapter.adapter_id)) is not None:
                        attendance.order(failed=admin_pb2.AdapterFailed(reason=reason))
                    self._keeper.note("adapter failed", adapter=adapter.name, reason=reason, by=by)
                    self._perform(decisions, announces=True)
            if refusal is not None:
                self._records.note_readmitted(self._feed.feed_id, adapter.adapter_id)
                raise OperationRefused(refusal)

    def _refusal(self, adapter: AdapterSettings, is_own_request: bool, is_forced: bool) -> str | None:
        refusal = self._keeper.lease.refusal_to_fail(
            adapter.adapter_id, time.monotonic_ns(), is_own_request=is_own_request, is_forced=is_forced
        )
        return None if refusal is None else f"{adapter.name} {refusal}"

    def _offer(self, heir: int | None, by: str, *, is_failing: bool = False) -> Offer:
        """Offer the next epoch to the heir, or raise OperationRefused. The caller holds the lock."""
        lease = self._keeper.lease
        if not self._keeper.may_offer:
            raise OperationRefused("this server cannot offer an epoch now, because it cannot use its records")
        decisions = lease.hand_over(heir, time.monotonic_ns(), is_failing=is_failing)
        if isinstance(refused := decisions[0], HandOverRefused):
            who = f"{self._name(refused.adapter_id)} " if refused.adapter_id else ""
            raise OperationRefused(who + refused.reason)
        offer = lease.offer
        assert offer is not None
        self._keeper.note("hand-over requested", by=by, heir=self._name(offer.heir))
        self._perform(decisions)
        return offer

    def _name(self, adapter_id: int) -> str:
        return next((each.name for each in self._feed.adapters if each.adapter_id == adapter_id), str(adapter_id))
