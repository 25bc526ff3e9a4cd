"""The broker: what the cluster looks like right now, and who must be told when it changes.

One lock, no waiting inside it. Subscribers and attending adapters each have a queue that their stream's thread drains.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from admin_server.audit import AuditLog
from admin_server.lease_core import FeedLease, Granted, LeaseConfig, LeaseDecision, Vacated
from admin_server.settings import AdapterSettings, FeedSettings
from admin_server.store import EPOCH_BLOCK, Store
from feedcore.states import ReplicaState
from tandemfeed.v1 import admin_pb2, common_pb2

LOG = logging.getLogger("admin_server.broker")
AWAY = "away"


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
    """Everything that changes about one feed."""

    def __init__(self, feed: FeedSettings, store: Store, audit: AuditLog) -> None:
        self.feed = feed
        self.lease = FeedLease(
            LeaseConfig(ttl_ns=feed.lease_ttl_ns, fresh_ns=max(feed.lease_ttl_ns, 4 * feed.sync_interval_ns))
        )
        self.attending: dict[int, Attendance] = {}
        self.states: dict[int, common_pb2.FeedAdapterState] = {}
        self._store, self._audit = store, audit
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._known: dict[int, common_pb2.AdapterDescription] = {}
        self._subscribers: dict[int, Subscriber] = {}
        self._is_stopped = False
        self._resumed: dict[int, int] = {}  # adapter_id -> incarnation that came back after a restart of the server
        self._unwritten: Granted | None = None
        self._restore()
        threading.Thread(target=self._keep_time, name=f"lease-{feed.name}", daemon=True).start()

    def _restore(self) -> None:
        """Go on behind a former life of the server.

        Its holder, if written down in time, may go on in the same epoch; epochs that were reserved and perhaps granted
        without being written down must not come again.
        """
        feed_id = self.feed.feed_id
        reserved_end = self._store.reserved_end(feed_id)
        held = self._store.last_lease(feed_id)
        self._restored_holder = held[1] if held else 0
        if held:
            self.lease.restore(held[0], held[1], time.monotonic_ns(), next_epoch=reserved_end + 1)
        elif reserved_end:
            self.lease.restore(reserved_end, 0, time.monotonic_ns(), next_epoch=reserved_end + 1)
        self._reserved_end = self._store.reserve_epochs(feed_id, reserved_end)

    # ---- adapters ----

    def register(self, adapter: AdapterSettings, rpc_endpoint: str, resume_incarnation: int) -> int:
        """A (re)start of an adapter: its incarnation, and its place in what others are told."""
        feed_id = self.feed.feed_id
        resumed = resume_incarnation and self._store.is_newest_incarnation(
            feed_id, adapter.adapter_id, resume_incarnation
        )
        incarnation = resume_incarnation if resumed else self._store.new_incarnation(feed_id, adapter.adapter_id)
        with self._lock:
            self._known[adapter.adapter_id] = common_pb2.AdapterDescription(
                adapter_id=adapter.adapter_id,
                name=adapter.name,
                rpc_endpoint=rpc_endpoint,
                groups=dict(adapter.groups),
                incarnation=incarnation,
                replica_state=ReplicaState.JOINING.value,
            )
            if resumed:
                self._resumed[adapter.adapter_id] = incarnation
        self._audit.write("registered", feed=self.feed.name, adapter=adapter.name, incarnation=incarnation)
        return incarnation

    def attend(self, adapter: AdapterSettings, incarnation: int, report_id: int) -> Attendance:
        """The adapter's stream began, with this report."""
        attendance = Attendance(adapter, incarnation, report_id)
        with self._lock:
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
            if self.attending.get(adapter_id) is not attendance:
                return
            del self.attending[adapter_id]
            if adapter_id in self._known:
                self._known[adapter_id].replica_state = AWAY
            self._perform(self.lease.on_gone(adapter_id, time.monotonic_ns()))
            self._tell_everybody()

    # ---- subscribers ----

    def subscribe(self, identity: str, channel_ids: frozenset[int]) -> Subscriber:
        """A client's stream began; its first update is due at once."""
        subscriber = Subscriber(identity, channel_ids)
        subscriber.updates.put(True)
        with self._lock:
            self._subscribers[id(subscriber)] = subscriber
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """A client's stream ended."""
        with self._lock:
            self._subscribers.pop(id(subscriber), None)
        subscriber.updates.put(None)

    def update_for(self, channel_ids: frozenset[int], *, is_first: bool) -> admin_pb2.SubscriptionUpdate:
        """The grant as it stands: just the channels granted."""
        with self._lock:
            adapters = [self._limited(description, channel_ids) for description in self._known.values()]
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
        feed = self.feed
        wanted = None if channel_ids is None else set(channel_ids)
        return common_pb2.FeedDescription(
            feed_id=feed.feed_id,
            name=feed.name,
            session=feed.session,
            channels=[
                common_pb2.ChannelDescription(
                    channel_id=channel.channel_id,
                    topic=channel.topic,
                    source_stream_ids=channel.source_stream_ids,
                )
                for channel in feed.channels
                if wanted is None or channel.channel_id in wanted
            ],
            source_streams=[
                common_pb2.SourceStreamDescription(
                    source_stream_id=stream.source_stream_id, name=stream.name, group=stream.group
                )
                for stream in feed.source_streams
            ],
            source_replay_endpoint=feed.source_replay_endpoint,
            datagram_size_max=feed.datagram_size_max,
        )

    def keys(self, channel_ids: Iterable[int]) -> list[common_pb2.StreamKey]:
        """The channels' keys."""
        return [key for channel in sorted(channel_ids) for key in self._store.stream_keys(self.feed.feed_id, channel)]

    def adapters(self) -> list[common_pb2.AdapterDescription]:
        """Every adapter that ever registered since the server started."""
        with self._lock:
            return list(self._known.values())

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

    # ---- inside; the lock is held ----

    def _renew(self, attendance: Attendance, report: admin_pb2.AdapterReport) -> None:
        if self.lease.renew(attendance.adapter.adapter_id, report.renew_epoch, time.monotonic_ns()):
            renewed = admin_pb2.LeaseRenewed(
                epoch=report.renew_epoch, ttl_ns=self.feed.lease_ttl_ns, report_id=report.report_id
            )
            attendance.orders.put(admin_pb2.AdapterOrder(lease_renewed=renewed))
        else:
            lost = admin_pb2.LeaseLost(epoch=report.renew_epoch, reason="the lease is not this adapter's any more")
            attendance.orders.put(admin_pb2.AdapterOrder(lease_lost=lost))

    def _note_state(self, adapter_id: int, state: common_pb2.FeedAdapterState) -> None:
        self.states[adapter_id] = state
        worst = _worst_state(state)
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

    def _perform(self, decisions: list[LeaseDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, Vacated):
                LOG.info(
                    "lease vacated", extra={"feed": self.feed.name, "epoch": decision.epoch, "why": decision.reason}
                )
                self._audit.write("lease vacated", feed=self.feed.name, epoch=decision.epoch, reason=decision.reason)
            else:
                self._grant(decision)
        if decisions:
            self._tell_everybody()

    def _grant(self, granted: Granted) -> None:
        assert granted.epoch <= self._reserved_end, "an epoch is granted only when it is on the disk"
        attendance = self.attending[granted.adapter_id]
        lease = admin_pb2.LeaseGranted(
            epoch=granted.epoch, ttl_ns=self.feed.lease_ttl_ns, report_id=attendance.report_id
        )
        attendance.orders.put(admin_pb2.AdapterOrder(lease_granted=lease))
        LOG.info("lease granted", extra={"feed": self.feed.name, "epoch": granted.epoch, "adapter": granted.adapter_id})
        self._audit.write("lease granted", feed=self.feed.name, epoch=granted.epoch, adapter_id=granted.adapter_id)
        self._unwritten = granted
        self._changed.notify_all()  # the time keeper writes the holder down, behind the grant

    def _tell_everybody(self) -> None:
        changed = admin_pb2.ClusterChanged(
            adapters=list(self._known.values()),
            keys=self.keys(channel.channel_id for channel in self.feed.channels),
            active_adapter_id=max(self.lease.holder, 0),
            epoch=self.lease.epoch,
        )
        for attendance in self.attending.values():
            attendance.orders.put(admin_pb2.AdapterOrder(cluster_changed=changed))
        for subscriber in self._subscribers.values():
            subscriber.updates.put(True)
        self._changed.notify_all()

    def _keep_time(self) -> None:
        """The lease's clock, and what is written to the disk behind a grant."""
        while True:
            with self._lock:
                if self._is_stopped:
                    return
                self._perform(self.lease.on_timer(time.monotonic_ns()))
                unwritten, self._unwritten = self._unwritten, None
                needs_block = self.lease.epoch + EPOCH_BLOCK // 2 > self._reserved_end
            feed_id = self.feed.feed_id
            if unwritten is not None:
                self._store.note_lease(feed_id, unwritten.epoch, unwritten.adapter_id)
            if needs_block:
                end = self._store.reserve_epochs(feed_id, self._reserved_end)
            with self._lock:
                if needs_block:
                    self._reserved_end = end
                if self._unwritten is None and not self._is_stopped:
                    self._changed.wait(self._pause_s())

    def _pause_s(self) -> float | None:
        deadline_ns = self.lease.next_deadline_ns()
        return None if deadline_ns is None else max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)

    @staticmethod
    def _limited(
        description: common_pb2.AdapterDescription, channel_ids: frozenset[int]
    ) -> common_pb2.AdapterDescription:
        """An adapter as a client may see it: only the groups of granted channels."""
        limited = common_pb2.AdapterDescription()
        limited.CopyFrom(description)
        for channel_id in [channel for channel in limited.groups if channel not in channel_ids]:
            del limited.groups[channel_id]
        return limited


# From the best to the worst: an adapter is as good as its worst channel.
_ORDER = [
    ReplicaState.ACTIVE,
    ReplicaState.SYNCHRONIZED,
    ReplicaState.DETACHED,
    ReplicaState.AHEAD,
    ReplicaState.RESYNCHRONIZING,
    ReplicaState.JOINING,
    ReplicaState.FAILED,
]


def _worst_state(state: common_pb2.FeedAdapterState) -> ReplicaState | None:
    """None if a channel's state is not one we know."""
    try:
        return max((ReplicaState(channel.replica_state) for channel in state.channels), key=_ORDER.index, default=None)
    except ValueError:
        LOG.warning("unknown replica state reported", extra={"adapter": state.adapter_id})
        return None
