"""What is done to a feed on purpose: hand-over, failing and readmitting an adapter; asked by an admin or by an adapter.

Shares the broker's lock, and waits for the disk only without it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from admin_server.lease_core import Offer
from admin_server.lease_decisions import HandOverRefused, LeaseDecision
from admin_server.lease_keeper import LeaseKeeper
from admin_server.lease_records import LeaseRecords, RecordsUnavailable
from admin_server.settings import AdapterSettings, FeedSettings
from admin_server.streams import Attendance
from tandemfeed.v1 import admin_pb2

LOG = logging.getLogger("admin_server.feed_operations")


class OperationRefused(Exception):
    """The feed does not allow it now; the text says why."""


class Perform(Protocol):
    """Performs decisions of the lease core with the broker's lock held."""

    def __call__(self, decisions: list[LeaseDecision], *, tells: bool = False) -> None:
        """Perform them; `tells`: tell everybody how the cluster is even if they change nothing."""


class FeedOperations:
    """The operations on one feed. Safe to call from any thread that does not hold the lock, but where it says so.

    Args:
        changed: notified whenever something changed; holds the broker's lock.
        attending: adapter_id -> its open stream; the broker's own, read here.

    Attributes:
        is_stopped: the server ends; nobody waits any more.
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
        self._one_at_a_time = threading.Lock()  # else two could be failed, each because the other is left
        self._refusals: dict[int, str] = {}
        self.is_stopped = False

    def hand_over(self, heir: AdapterSettings | None, by: str, *, is_failing: bool = False) -> tuple[int, str]:
        """Have another adapter take over, None: the best backup; returns (epoch, name of the active).

        Waits until the heir holds the lease, at most a lease's term.

        Args:
            by: who wants it, for the audit log.
            is_failing: the active is to be failed then.

        Raises:
            OperationRefused: nothing changes, or the offer was withdrawn.
        """
        lease = self._keeper.lease
        with self._changed:
            offer = self._offer(None if heir is None else heir.adapter_id, by, is_failing=is_failing)
            while lease.offer is offer and not self.is_stopped:
                self._changed.wait()  # the lease has a deadline for the offer: the timekeeper ends it
            if lease.holder != offer.heir or lease.epoch < offer.epoch:
                raise OperationRefused(
                    f"{self._name(offer.heir)} has not taken over within the lease's term; see the audit log for why"
                )
            return lease.epoch, self._name(offer.heir)

    def relieve(self, adapter_id: int, heir_id: int) -> None:
        """The active asks that a backup take over; it asks again if that one cannot now. With the lock held.

        Args:
            heir_id: the backup; 0: the best.
        """
        try:
            self._offer(heir_id or None, self._name(adapter_id))
        except OperationRefused as refused:
            LOG.info("the active is not relieved", extra={"feed": self._feed.name, "why": str(refused)})

    def fail(self, adapter: AdapterSettings, reason: str, by: str, *, is_forced: bool = False) -> None:
        """Take an adapter out; if it is active it hands over first.

        Raises:
            OperationRefused: it is the last synchronised backup and nobody forces it, or there is no heir.
            RecordsUnavailable: it cannot be written down, and is not failed.
        """
        with self._changed:
            is_active = self._keeper.lease.holder == adapter.adapter_id
            heirs = self._keeper.lease.candidates.heirs(adapter.adapter_id, time.monotonic_ns())
        if is_active:
            if len(heirs) == 1 and not is_forced:
                raise OperationRefused(
                    f"without {adapter.name}, {self._name(heirs[0])} would be active with no synchronised backup"
                )
            self.hand_over(None, by, is_failing=True)
        self._fail(adapter, reason, by, is_own_wish=False, is_forced=is_forced)

    def fail_as_asked(self, adapter: AdapterSettings, reason: str) -> None:
        """The adapter itself asks to be failed: by policy it is the unhealthiest of the backups."""
        if adapter.adapter_id in self._keeper.lease.candidates.failed:
            return
        try:
            self._fail(adapter, reason, adapter.name, is_own_wish=True, is_forced=False)
        except OperationRefused as refused:
            if self._refusals.get(adapter.adapter_id) != str(refused):  # it may go on asking: said once
                self._refusals[adapter.adapter_id] = str(refused)
                self._keeper.note("adapter not failed", adapter=adapter.name, asked=reason, why=str(refused))
        except RecordsUnavailable:
            LOG.exception("an adapter that asked to be failed is not", extra={"adapter": adapter.name, "asked": reason})

    def readmit(self, adapter: AdapterSettings, by: str) -> None:
        """Let a failed adapter in again.

        Raises:
            OperationRefused: it is not failed.
            RecordsUnavailable: it cannot be written down, and stays failed.
        """
        candidates = self._keeper.lease.candidates
        with self._one_at_a_time:
            with self._changed:
                if adapter.adapter_id not in candidates.failed and not candidates.says_it_failed(adapter.adapter_id):
                    raise OperationRefused(f"{adapter.name} is not failed")
            self._records.note_readmitted(self._feed.feed_id, adapter.adapter_id)
            with self._changed:
                self._keeper.lease.readmit(adapter.adapter_id)
                if (attendance := self._attending.get(adapter.adapter_id)) is not None:
                    attendance.order(readmitted=admin_pb2.AdapterReadmitted())
                self._refusals.pop(adapter.adapter_id, None)
                self._keeper.note("adapter readmitted", adapter=adapter.name, by=by)
                self._perform([], tells=True)

    # ---- inside ----

    def _fail(self, adapter: AdapterSettings, reason: str, by: str, *, is_own_wish: bool, is_forced: bool) -> None:
        """Written down before it is told: who was told must stay failed, whatever dies."""
        with self._one_at_a_time:
            with self._changed:
                if (refusal := self._refusal(adapter, is_own_wish, is_forced)) is not None:
                    raise OperationRefused(refusal)
            self._records.note_failed(self._feed.feed_id, adapter.adapter_id, reason)
            with self._changed:
                refusal = self._refusal(adapter, is_own_wish, is_forced)  # others may have gone meanwhile
                if refusal is None:
                    decisions = self._keeper.lease.fail(adapter.adapter_id, reason, time.monotonic_ns())
                    if (attendance := self._attending.get(adapter.adapter_id)) is not None:
                        attendance.order(failed=admin_pb2.AdapterFailed(reason=reason))
                    self._keeper.note("adapter failed", adapter=adapter.name, reason=reason, by=by)
                    self._perform(decisions, tells=True)
            if refusal is not None:
                self._records.note_readmitted(self._feed.feed_id, adapter.adapter_id)
                raise OperationRefused(refusal)

    def _refusal(self, adapter: AdapterSettings, is_own_wish: bool, is_forced: bool) -> str | None:
        refusal = self._keeper.lease.refusal_to_fail(
            adapter.adapter_id, time.monotonic_ns(), is_own_wish=is_own_wish, is_forced=is_forced
        )
        return None if refusal is None else f"{adapter.name} {refusal}"

    def _offer(self, heir: int | None, by: str, *, is_failing: bool = False) -> Offer:
        """Offer and order; or raise OperationRefused. With the lock held."""
        lease = self._keeper.lease
        if not self._keeper.may_offer:
            raise OperationRefused("this server may promise no epoch just now: its records are out of reach")
        decisions = lease.hand_over(heir, time.monotonic_ns(), is_failing=is_failing)
        if isinstance(refused := decisions[0], HandOverRefused):
            who = f"{self._name(refused.adapter_id)} " if refused.adapter_id else ""
            raise OperationRefused(who + refused.reason)
        offer = lease.offer
        assert offer is not None
        self._keeper.note("hand-over asked", by=by, heir=self._name(offer.heir))
        self._perform(decisions)
        return offer

    def _name(self, adapter_id: int) -> str:
        return next((each.name for each in self._feed.adapters if each.adapter_id == adapter_id), str(adapter_id))
