"""The broker: what the cluster looks like right now, and who must be told when it changes.

One lock, and no waiting for the disk or the network inside it. Subscribers and attending adapters each have a queue
that their stream's thread drains. A lease's holder is written down before the holder hears of it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from admin_server.audit import AuditLog
from admin_server.descriptions import (
    AWAY,
    absent_adapters,
    copy_of,
    describe_adapter,
    describe_feed,
    limited_to,
    worst_state,
)
from admin_server.lease_core import FeedLease, Granted, LeaseConfig, LeaseDecision, Vacated
from admin_server.lease_records import EPOCH_BLOCK, ClusterRecords, LeaseRecords, RecordsUnavailable
from admin_server.settings import AdapterSettings, FeedSettings
from feedcore.states import ReplicaState
from tandemfeed.v1 import admin_pb2, common_pb2

LOG = logging.getLogger("admin_server.broker")
ORDERS_WAITING_MAX = 1_000  # an adapter that does not read: minutes of orders. Beyond, only a lease's fate is told


@dataclass(slots=True)
class Attendance:
    """One adapter's open stream. Attributes: orders: what its stream's thread sends; None ends it."""

    adapter: AdapterSettings
    incarnation: int
    report_id: int = 0  # the newest report heard
    orders: queue.SimpleQueue[admin_pb2.AdapterOrder | None] = field(default_factory=queue.SimpleQueue)


@dataclass(slots=True)
class Subscriber:
    """One client's open stream. Attributes: channel_ids: what it was granted."""

    identity: str
    channel_ids: frozenset[int]
    updates: queue.SimpleQueue[bool | None] = field(default_factory=queue.SimpleQueue)


class FeedBroker:
    """Everything that changes about one feed.

    Args:
        store: incarnations, registrations and keys.
        records: epochs, holders and failed adapters, if several servers share them; None: the store keeps them.
    """

    def __init__(
        self, feed: FeedSettings, store: ClusterRecords, audit: AuditLog, records: LeaseRecords | None = None
    ) -> None:
        self.feed = feed
        self.lease = FeedLease(
            LeaseConfig(ttl_ns=feed.lease_ttl_ns, fresh_ns=max(feed.lease_ttl_ns, 4 * feed.sync_interval_ns))
        )
        self.attending: dict[int, Attendance] = {}
        self.states: dict[int, common_pb2.FeedAdapterState] = {}
        self._store, self._audit = store, audit
        self._records: LeaseRecords = store if records is None else records
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._known: dict[int, common_pb2.AdapterDescription] = {}
        self._subscribers: dict[int, Subscriber] = {}
        self._is_stopped = False
        self._resumed: dict[int, int] = {}  # adapter_id -> incarnation that came back after a restart of the server
        self._keys: dict[int, list[common_pb2.StreamKey]] = {}
        self._restore()
        self._timekeeper = threading.Thread(target=self._keep_time, name=f"lease-{feed.name}", daemon=True)
        self._timekeeper.start()

    def _restore(self) -> None:
        """Go on behind a former life of the server.

        Its holder may go on in the same epoch; epochs that were reserved, and perhaps granted by a machine that died
        before it had that on the disk, must not come again.
        """
        feed_id = self.feed.feed_id
        self._known = absent_adapters(self.feed, self._store.registrations(feed_id))
        reserved_end = self._records.reserved_end(feed_id)
        held = self._records.last_lease(feed_id)
        self._restored_holder = held[1] if held else 0
        if held:
            self.lease.restore(held[0], held[1], time.monotonic_ns(), next_epoch=reserved_end + 1)
        elif reserved_end:
            self.lease.restore(reserved_end, 0, time.monotonic_ns(), next_epoch=reserved_end + 1)
        self._reserved_end = self._records.reserve_epochs(feed_id, reserved_end)
        self.keys(channel.channel_id for channel in self.feed.channels)  # none needs the disk later

    # ---- adapters ----

    def register(
        self, adapter: AdapterSettings, rpc_endpoint: str, resume_incarnation: int
    ) -> common_pb2.AdapterDescription:
        """A (re)start of an adapter: as others are told of it, with the incarnation of just this start."""
        feed_id = self.feed.feed_id
        resumed = resume_incarnation and self._store.is_newest_incarnation(
            feed_id, adapter.adapter_id, resume_incarnation
        )
        incarnation = resume_incarnation if resumed else self._store.new_incarnation(feed_id, adapter.adapter_id)
        self._store.note_registration(feed_id, adapter.adapter_id, incarnation, rpc_endpoint)
        with self._lock:
            description = describe_adapter(adapter, incarnation, rpc_endpoint, ReplicaState.JOINING.value)
            self._known[adapter.adapter_id] = description
            if resumed:
                self._resumed[adapter.adapter_id] = incarnation
        self._audit.write("registered", feed=self.feed.name, adapter=adapter.name, incarnation=incarnation)
        return copy_of(description)

    def attend(self, adapter: AdapterSettings, incarnation: int, report_id: int) -> Attendance:
        """The adapter's stream began, with this report."""
        attendance = Attendance(adapter, incarnation, report_id)
        with self._lock:
            if self._is_stopped:  # it came while this server was being deposed
                attendance.orders.put(None)
                return attendance
            former = self.attending.get(adapter.adapter_id)
            self.attending[adapter.adapter_id] = attendance
            now_ns = time.monotonic_ns()
            is_holder_back = self.lease.holder == adapter.adapter_id == self._restored_holder and former is None
            if is_holder_back and self._resumed.get(adapter.adapter_id) == incarnation:
                self.lease.on_resume(adapter.adapter_id)
            else:
                self._perform(self.lease.on_attend(adapter.adapter_id, now_ns))
            self._restored_holder = 0 if is_holder_back else self._restored_holder
            if former is not None:
                former.orders.put(None)
            self._tell_everybody()
        self._audit.write("attending", feed=self.feed.name, adapter=adapter.name, incarnation=incarnation)
        return attendance

    def report(self, attendance: Attendance, report: admin_pb2.AdapterReport) -> None:
        """The adapter told its state, or wants its lease renewed."""
        adapter_id = attendance.adapter.adapter_id
        with self._lock:
            if self.attending.get(adapter_id) is not attendance:
                return
            attendance.report_id = report.report_id
            if report.renew_epoch:
                self._renew(attendance, report)
            if report.HasField("state"):
                self._note_state(adapter_id, report.state)

    def leave(self, attendance: Attendance) -> None:
        """The adapter's stream ended."""
        adapter_id = attendance.adapter.adapter_id
        with self._lock:
            if self.attending.get(adapter_id) is not attendance or self._is_stopped:
                return  # a server that stops ends the streams itself: that is nobody's death
            del self.attending[adapter_id]
            if adapter_id in self._known:
                self._known[adapter_id].replica_state = AWAY
            self._perform(self.lease.on_gone(adapter_id, time.monotonic_ns()))
            self._tell_everybody()
        self._audit.write("left", feed=self.feed.name, adapter=attendance.adapter.name)

    # ---- subscribers ----

    def subscribe(self, identity: str, channel_ids: frozenset[int]) -> Subscriber:
        """A client's stream began; its first update is due at once."""
        subscriber = Subscriber(identity, channel_ids)
        subscriber.updates.put(True)
        with self._lock:
            self._subscribers[id(subscriber)] = subscriber
            if self._is_stopped:  # it came while this server was being deposed
                subscriber.updates.put(None)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """A client's stream ended."""
        with self._lock:
            self._subscribers.pop(id(subscriber), None)
        subscriber.updates.put(None)

    def update_for(self, channel_ids: frozenset[int], *, is_first: bool) -> admin_pb2.SubscriptionUpdate:
        """The grant as it stands: just the channels granted."""
        with self._lock:
            adapters = [limited_to(description, channel_ids) for description in self._known.values()]
            active, epoch = max(self.lease.holder, 0), self.lease.epoch
        return admin_pb2.SubscriptionUpdate(
            feed=self.describe(channel_ids),
            adapters=adapters,
            keys=self.keys(channel_ids),
            message_model=self.feed.message_model if is_first else b"",
            active_adapter_id=active,
            epoch=epoch,
        )

    # ---- descriptions ----

    def describe(self, channel_ids: Iterable[int] | None = None) -> common_pb2.FeedDescription:
        """The feed, with just these channels (None: all)."""
        return describe_feed(self.feed, channel_ids)

    def keys(self, channel_ids: Iterable[int]) -> list[common_pb2.StreamKey]:
        """The channels' keys; asks the store only when one of them has expired."""
        now = time.time_ns()
        wanted = sorted(channel_ids)
        for channel_id in wanted:
            known = self._keys.get(channel_id)
            if not known or any(key.expires_unix_ns <= now for key in known):
                self._keys[channel_id] = self._store.stream_keys(self.feed.feed_id, channel_id)
        return [key for channel_id in wanted for key in self._keys[channel_id]]

    def adapters(self) -> list[common_pb2.AdapterDescription]:
        """Every adapter that ever registered."""
        with self._lock:
            return [copy_of(description) for description in self._known.values()]

    def status(self) -> admin_pb2.FeedStatus:
        """For admins."""
        with self._lock:
            return admin_pb2.FeedStatus(
                feed=self.describe(),
                epoch=self.lease.epoch,
                active_adapter_id=max(self.lease.holder, 0),
                adapters=[
                    admin_pb2.AdapterStatus(
                        adapter=description, state=self.states.get(adapter_id), attending=adapter_id in self.attending
                    )
                    for adapter_id, description in sorted(self._known.items())
                ],
                subscriber_count=len(self._subscribers),
            )

    def stop(self) -> None:
        """End every stream."""
        with self._lock:
            self._is_stopped = True
            for attendance in self.attending.values():
                attendance.orders.put(None)
            for subscriber in self._subscribers.values():
                subscriber.updates.put(None)
            self._changed.notify_all()
        self._timekeeper.join()

    # ---- inside; the lock is held ----

    def _renew(self, attendance: Attendance, report: admin_pb2.AdapterReport) -> None:
        if not self._records.may_grant():
            return  # neither renewed nor lost: another server may know better
        if self.lease.renew(attendance.adapter.adapter_id, report.renew_epoch, time.monotonic_ns()):
            renewed = admin_pb2.LeaseRenewed(
                epoch=report.renew_epoch, ttl_ns=self.feed.lease_ttl_ns, report_id=report.report_id
            )
            self._order(attendance, admin_pb2.AdapterOrder(lease_renewed=renewed))
        else:
            lost = admin_pb2.LeaseLost(epoch=report.renew_epoch, reason="the lease is not this adapter's any more")
            attendance.orders.put(admin_pb2.AdapterOrder(lease_lost=lost))

    def _note_state(self, adapter_id: int, state: common_pb2.FeedAdapterState) -> None:
        self.states[adapter_id] = state
        worst = worst_state(state)
        if worst is None:
            return
        known = self._known[adapter_id]
        moved, known.replica_state = known.replica_state != worst.value, worst.value
        position = sum(channel.position.next_message_seq for channel in state.channels)
        decisions: list[LeaseDecision] = []
        if worst is not ReplicaState.ACTIVE:
            decisions = self.lease.on_report(adapter_id, worst, position, state.health.score, time.monotonic_ns())
        self._perform(decisions)
        if moved:
            self._tell_everybody()
        elif not self.lease.holder:
            self._changed.notify_all()  # who reports is a candidate again: the lease may have a deadline now

    def _perform(self, decisions: list[LeaseDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, Vacated):
                LOG.info(
                    "lease vacated", extra={"feed": self.feed.name, "epoch": decision.epoch, "why": decision.reason}
                )
                self._note("lease vacated", epoch=decision.epoch, reason=decision.reason)
            else:
                self._grant(decision)
        if decisions:
            self._tell_everybody()

    def _grant(self, granted: Granted) -> None:
        if granted.epoch > self._reserved_end:
            # The disk has failed for dozens of grants. An epoch might come twice: better nobody is active.
            LOG.error("no reserved epoch is left; not granted", extra={"feed": self.feed.name, "epoch": granted.epoch})
            return
        if not self._records.may_grant():
            LOG.warning("another server may be active; not granted", extra={"feed": self.feed.name})
            return
        attendance = self.attending[granted.adapter_id]
        lease = admin_pb2.LeaseGranted(
            epoch=granted.epoch, ttl_ns=self.feed.lease_ttl_ns, report_id=attendance.report_id
        )
        try:
            self._records.note_lease(self.feed.feed_id, granted.epoch, granted.adapter_id)
        except (
            RecordsUnavailable
        ):  # the epoch is reserved, so this grant is safe; only a restart would not know the holder
            LOG.exception("the holder of the lease could not be written down", extra={"feed": self.feed.name})
        attendance.orders.put(admin_pb2.AdapterOrder(lease_granted=lease))
        LOG.info("lease granted", extra={"feed": self.feed.name, "epoch": granted.epoch, "adapter": granted.adapter_id})
        self._note("lease granted", epoch=granted.epoch, adapter_id=granted.adapter_id)

    def _note(self, event: str, **fields: object) -> None:
        """Audit what must happen even when the disk is full: a takeover."""
        try:
            self._audit.write(event, feed=self.feed.name, **fields)
        except OSError:
            LOG.exception("the audit log cannot be written", extra={"lost": event, **fields})

    def _tell_everybody(self) -> None:
        changed = admin_pb2.ClusterChanged(
            adapters=list(self._known.values()),
            keys=self.keys(channel.channel_id for channel in self.feed.channels),
            active_adapter_id=max(self.lease.holder, 0),
            epoch=self.lease.epoch,
        )
        for attendance in self.attending.values():
            self._order(attendance, admin_pb2.AdapterOrder(cluster_changed=changed))
        for subscriber in self._subscribers.values():
            if subscriber.updates.empty():  # one that waits will find everything as it then is
                subscriber.updates.put(True)
        self._changed.notify_all()

    @staticmethod
    def _order(attendance: Attendance, order: admin_pb2.AdapterOrder) -> None:
        """Put what an adapter may miss: without renewals it stops by its own clock."""
        if attendance.orders.qsize() < ORDERS_WAITING_MAX:
            attendance.orders.put(order)

    def _keep_time(self) -> None:
        """The lease's clock, and the reservation of epochs ahead of their use."""
        while True:
            with self._lock:
                if self._is_stopped:
                    return
                self._perform(self.lease.on_timer(time.monotonic_ns()))
                needs_block = self.lease.epoch + EPOCH_BLOCK // 2 > self._reserved_end
            if needs_block:
                self._reserve()
            with self._lock:
                if not self._is_stopped:
                    self._changed.wait(self._pause_s())

    def _reserve(self) -> None:
        try:
            end = self._records.reserve_epochs(self.feed.feed_id, self._reserved_end)
        except RecordsUnavailable:  # half a block is left, and whatever wakes the timekeeper next tries again
            LOG.exception("no epochs could be reserved", extra={"feed": self.feed.name})
            return
        with self._lock:
            self._reserved_end = end

    def _pause_s(self) -> float | None:
        deadline_ns = self.lease.next_deadline_ns()
        return None if deadline_ns is None else max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
