"""The broker: the present state of one feed, and the notification of adapters and subscribers when it changes.

One lock guards the state; no code waits for the disk or the network while holding it. Each subscriber and each
attending adapter has a queue, which the thread of its stream drains.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from tandemfeed.admin_server.feed.adapter_starts import AdapterStarts
from tandemfeed.admin_server.feed.current_session import CurrentSession
from tandemfeed.admin_server.feed.descriptions import (
    AWAY,
    absent_adapters,
    copy_of,
    describe_adapter,
    describe_feed,
    describe_takeovers,
    history_epoch,
    limited_to,
    total_position,
    worst_state,
)
from tandemfeed.admin_server.feed.feed_operations import FeedOperations
from tandemfeed.admin_server.feed.key_ring import KeyRing
from tandemfeed.admin_server.feed.registered_processes import RegisteredProcesses
from tandemfeed.admin_server.feed.registrations import ProcessStart
from tandemfeed.admin_server.feed.streams import Attendance, Subscriber
from tandemfeed.admin_server.lease.lease_core import FeedLease
from tandemfeed.admin_server.lease.lease_decisions import LeaseDecision
from tandemfeed.admin_server.lease.lease_keeper import LeaseKeeper
from tandemfeed.admin_server.records.audit import AuditLog
from tandemfeed.admin_server.records.lease_records import ClusterRecords, RecordsUnavailable
from tandemfeed.admin_server.settings import AdapterSettings, FeedSettings
from tandemfeed.feedcore.replica.states import ReplicaState
from tandemfeed.v1 import admin_pb2, common_pb2

LOG = logging.getLogger("tandemfeed.admin_server.feed.broker")
PAUSE_S_MAX = 600.0  # the validity of keys follows the wall clock, which may be changed; leases do not depend on it


class FeedBroker:
    """The changing state of one feed.

    Args:
        records: the durable state.
    """

    def __init__(self, feed: FeedSettings, records: ClusterRecords, audit: AuditLog) -> None:
        self.feed = feed
        self.attending: dict[int, Attendance] = {}
        self.states: dict[int, common_pb2.FeedAdapterState] = {}
        self._records, self._audit = records, audit
        self._keeper = LeaseKeeper(feed, records, audit, self.attending)
        self._keeper.restore()
        channel_ids = [channel.channel_id for channel in feed.channels]
        self._keys = KeyRing(records, feed.feed_id, channel_ids, source_is_sealed=feed.source_is_sealed)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.operations = FeedOperations(feed, self._keeper, records, self.attending, self._changed, self._perform)
        self._processes = RegisteredProcesses(feed, records, self.lease.config.term_ns)
        self._known = absent_adapters(feed, records.registrations(feed.feed_id))
        self._starts = AdapterStarts(records.starts(feed.feed_id), channel_ids)
        self._sessions = CurrentSession(feed, records)
        self._subscribers: dict[int, Subscriber] = {}
        self._is_stopped = False
        self._resumed: dict[int, int] = {}  # adapter_id -> incarnation of a start that registered again
        self._timekeeper = threading.Thread(target=self._keep_time, name=f"lease-{feed.name}", daemon=True)
        self._timekeeper.start()

    @property
    def lease(self) -> FeedLease:
        """The feed's lease."""
        return self._keeper.lease

    # ---- adapters ----

    def register(
        self, adapter: AdapterSettings, request: admin_pb2.RegisterRequest, process: ProcessStart
    ) -> common_pb2.AdapterDescription:
        """Register a start of an adapter; return its description, with the incarnation of this start.

        This announces the start to all adapters and subscribers before the adapter sends its first packet.

        Args:
            process: the process that registers.

        Raises:
            AnotherProcess, ReturnAwaited: another process is registered as this adapter, and it attends or is awaited.
        """
        feed_id, adapter_id = self.feed.feed_id, adapter.adapter_id
        with self._lock:
            self._check(adapter, process, request.replace)
            resumed = self._starts.resumable(adapter_id, request)
        start = resumed or self._records.new_start(feed_id, adapter_id, request.public_key)
        self._records.note_registration(feed_id, adapter_id, start.incarnation, request.rpc_endpoint)
        with self._lock:
            self._check(adapter, process, request.replace)  # another may have registered during the disk write
            self._processes.note_registered(adapter_id, process, start.incarnation)
            replaced = self._replaced_by(adapter, start.incarnation)
        self._processes.save(adapter_id)
        if replaced is not None:
            self.leave(replaced)
            replaced.end()
        with self._lock:
            if resumed is None:
                self._starts.begin(adapter_id, start)
            else:
                self._starts.note_counters(adapter_id, start.incarnation, request.next_packet_counters)
                self._resumed[adapter_id] = start.incarnation
            self._known[adapter_id] = describe_adapter(
                adapter, start.incarnation, request.rpc_endpoint, ReplicaState.JOINING.value
            )
            description = self._described(adapter_id)
            self._announce()
        self._audit.write("registered", feed=self.feed.name, adapter=adapter.name, incarnation=start.incarnation)
        return description

    def _replaced_by(self, adapter: AdapterSettings, incarnation: int) -> Attendance | None:
        """The attending process that a new start replaces. The lock is held."""
        replaced = self.attending.get(adapter.adapter_id)
        if replaced is None or replaced.incarnation == incarnation:
            return None
        if self.lease.holder == adapter.adapter_id:
            reason = f"another process has replaced this one as {adapter.name}"
            replaced.order(lease_lost=admin_pb2.LeaseLost(epoch=self.lease.epoch, reason=reason))
        return replaced

    def _check(self, adapter: AdapterSettings, start: ProcessStart, is_replacing: bool) -> None:
        """Raise unless this process may register. The lock is held."""
        self._processes.check(adapter, start, self.attending.get(adapter.adapter_id), is_replacing)

    def attend(self, adapter: AdapterSettings, incarnation: int, report_id: int) -> Attendance:
        """Begin the adapter's stream, whose first report is `report_id`."""
        attendance = Attendance(adapter, incarnation, report_id, time.monotonic_ns())
        with self._lock:
            if self._is_stopped:  # the stream began while this server was becoming a standby
                attendance.end()
                return attendance
            former = self.attending.get(adapter.adapter_id)
            self.attending[adapter.adapter_id] = attendance
            self._processes.note_attended(attendance, True)
            if self._resumed.get(adapter.adapter_id) == incarnation:
                self.lease.on_resume(adapter.adapter_id)
            else:
                self._perform(self.lease.on_attend(adapter.adapter_id, time.monotonic_ns()))
            if former is not None:
                former.end()
            if (reason := self.lease.candidates.failed.get(adapter.adapter_id)) is not None:
                attendance.order(failed=admin_pb2.AdapterFailed(reason=reason))
            self._announce()
        self._processes.save_if_possible(adapter.adapter_id)
        self._audit.write("attending", feed=self.feed.name, adapter=adapter.name, incarnation=incarnation)
        return attendance

    def report(self, attendance: Attendance, report: admin_pb2.AdapterReport) -> None:
        """Process a report: the adapter's state, its requests, or both."""
        adapter_id = attendance.adapter.adapter_id
        with self._lock:
            if self.attending.get(adapter_id) is not attendance:
                return
            attendance.report_id, attendance.heard_at_ns = report.report_id, time.monotonic_ns()
            if report.renew_epoch and self._keeper.renew(attendance, report):
                self._announce()
            self._starts.note_counters(adapter_id, attendance.incarnation, report.next_packet_counters)
            if report.HasField("state"):
                attendance.order_if_room(report_heard=admin_pb2.ReportHeard(report_id=report.report_id))
                self._note_state(adapter_id, report.state)
            if report.accepted_epoch:
                self._perform(self.lease.on_offer_accepted(adapter_id, report.accepted_epoch, time.monotonic_ns()))
            if report.released_epoch:
                self._perform(self.lease.on_released(adapter_id, report.released_epoch, time.monotonic_ns()))
            if report.next_epoch_after:
                self._perform(self.lease.next_epoch(adapter_id, report.next_epoch_after, time.monotonic_ns()))
            if report.hand_over_epoch and (adapter_id, report.hand_over_epoch) == (self.lease.holder, self.lease.epoch):
                self.operations.hand_over_on_request(adapter_id, report.hand_over_heir)
        if report.fail_reason:
            self.operations.fail_on_request(attendance.adapter, report.fail_reason)

    def leave(self, attendance: Attendance, *, has_ended: bool = False) -> None:
        """The adapter's stream ended. Args: has_ended: its process is known to have ended."""
        adapter_id = attendance.adapter.adapter_id
        with self._lock:
            if self.attending.get(adapter_id) is not attendance or self._is_stopped:
                return  # a server that stops ends all streams: this says nothing about the adapters
            del self.attending[adapter_id]
            self._processes.note_attended(attendance, False)
            if adapter_id in self._known:
                self._known[adapter_id].replica_state = AWAY
            self._perform(self.lease.on_gone(adapter_id, time.monotonic_ns(), has_ended=has_ended))
            self._announce()
        self._processes.save_if_possible(adapter_id)
        self._audit.write("left", feed=self.feed.name, adapter=attendance.adapter.name)

    def end(self, incarnation: int) -> None:
        """Note that this start of an adapter has ended, even if its stream is still open."""
        with self._lock:
            ended = next((each for each in self.attending.values() if each.incarnation == incarnation), None)
        if ended is not None:
            self.leave(ended, has_ended=True)
            ended.end()
            name = ended.adapter.name
            self._audit.write("ended", feed=self.feed.name, adapter=name, incarnation=incarnation)

    # ---- subscribers ----

    def subscribe(self, identity: str, channel_ids: frozenset[int]) -> Subscriber:
        """A client's stream began; its first update is due immediately."""
        subscriber = Subscriber(identity, channel_ids)
        subscriber.notify()
        with self._lock:
            self._subscribers[id(subscriber)] = subscriber
            if self._is_stopped:  # the stream began while this server was becoming a standby
                subscriber.end()
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """A client's stream ended."""
        with self._lock:
            self._subscribers.pop(id(subscriber), None)
        subscriber.end()

    def update_for(self, channel_ids: frozenset[int], *, is_first: bool) -> admin_pb2.SubscriptionUpdate:
        """The present grant, limited to these channels."""
        with self._lock:
            adapters = [limited_to(self._described(adapter_id), channel_ids) for adapter_id in self._known]
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
        """The feed in its present session, limited to these channels (None: all)."""
        return describe_feed(self.feed, self._sessions.session, channel_ids)

    def keys(self, channel_ids: Iterable[int]) -> list[common_pb2.StreamKey]:
        """The channels' keys, ordered by the start of their validity."""
        return self._keys.keys(channel_ids)

    def decision_keys(self) -> list[admin_pb2.DecisionKey]:
        """The decision keys of every channel. Only the feed's adapters may have them, never a subscriber."""
        return self._keys.decision_keys()

    def source_keys(self) -> list[common_pb2.StreamKey]:
        """The source keys. Only the feed's source and its adapters may have them, never a subscriber."""
        return self._keys.source_keys()

    def adapters(self) -> list[common_pb2.AdapterDescription]:
        """Every adapter that has ever registered."""
        with self._lock:
            return [self._described(adapter_id) for adapter_id in self._known]

    def status(self) -> admin_pb2.FeedStatus:
        """The feed's status for administrators, with every configured adapter."""
        with self._lock:
            rows = {
                adapter.adapter_id: self._known.get(adapter.adapter_id) or describe_adapter(adapter, 0, "", AWAY)
                for adapter in self.feed.adapters
            }
            status = admin_pb2.FeedStatus(
                feed=self.describe(),
                epoch=self.lease.epoch,
                active_adapter_id=max(self.lease.holder, 0),
                adapters=[
                    admin_pb2.AdapterStatus(
                        adapter=description,
                        state=self.states.get(adapter_id),
                        attending=adapter_id in self.attending,
                        failed_reason=self.lease.candidates.failed.get(adapter_id, ""),
                    )
                    for adapter_id, description in sorted(rows.items())
                ],
                subscriber_count=len(self._subscribers),
            )
            describe_takeovers(status, self.lease, time.monotonic_ns(), time.time_ns())
            return status

    def stop(self) -> None:
        """End every stream."""
        with self._lock:
            self._is_stopped = True
            for attendance in self.attending.values():
                attendance.end()
            for subscriber in self._subscribers.values():
                subscriber.end()
            self.operations.is_stopped = True
            self._changed.notify_all()
        self._timekeeper.join()

    # ---- inside; the lock is held ----

    def _described(self, adapter_id: int) -> common_pb2.AdapterDescription:
        """A copy of an adapter's description, with its starts that are valid now."""
        description = copy_of(self._known[adapter_id])
        description.starts.extend(self._starts.announced(adapter_id, time.time_ns()))
        return description

    def _note_state(self, adapter_id: int, state: common_pb2.FeedAdapterState) -> None:
        self.states[adapter_id] = state
        session_changed = self._sessions.note(state.session)
        worst = worst_state(state)
        if worst is None:
            return
        known = self._known[adapter_id]
        moved, known.replica_state = known.replica_state != worst.value, worst.value
        decisions = self.lease.on_report(
            adapter_id,
            worst,
            total_position(state),
            state.health.score,
            time.monotonic_ns(),
            history_epoch=history_epoch(state),
            abstains=state.abstains,
            session=state.session,
        )
        self._perform(decisions)
        if moved or session_changed:
            self._announce()
        elif not self.lease.holder:
            self._changed.notify_all()  # the adapter is a candidate again, so the lease may have a deadline now

    def _perform(self, decisions: list[LeaseDecision], *, announces: bool = False) -> None:
        """Perform decisions of the lease core. Args: announces: announce the feed's state even if it is unchanged."""
        if self._keeper.perform(decisions) or announces:
            self._announce()
        elif decisions:
            self._changed.notify_all()  # the next deadline may be earlier now

    def _announce(self) -> None:
        changed = admin_pb2.ClusterChanged(
            adapters=[self._described(adapter_id) for adapter_id in self._known],
            keys=self.keys(channel.channel_id for channel in self.feed.channels),
            decision_keys=self.decision_keys(),
            source_keys=self.source_keys(),
            active_adapter_id=max(self.lease.holder, 0),
            epoch=self.lease.epoch,
        )
        for attendance in self.attending.values():
            attendance.order_if_room(cluster_changed=changed)
        for subscriber in self._subscribers.values():
            subscriber.notify()
        self._changed.notify_all()

    # ---- the timekeeper's thread ----

    def _keep_time(self) -> None:
        """Run the lease's timer, and prepare epochs and keys before they are needed."""
        while True:
            with self._lock:
                if self._is_stopped:
                    return
                self._perform(self.lease.on_timer(time.monotonic_ns()))
                needs_epochs = self._keeper.needs_epochs
            if needs_epochs:
                self._keeper.reserve()
            if time.time_ns() >= self._keys.next_change_unix_ns:
                self._renew_keys()
            self._withdraw_starts()
            with self._lock:
                if not self._is_stopped:
                    self._changed.wait(self._pause_s())

    def _renew_keys(self) -> None:
        """Create keys that are due, drop expired ones, and announce the result."""
        try:
            self._keys.refresh(time.time_ns())
        except RecordsUnavailable:
            LOG.exception("could not renew the stream keys", extra={"feed": self.feed.name})
            return
        with self._lock:
            self._announce()

    def _withdraw_starts(self) -> None:
        """Withdraw the former starts whose time is over, and announce the change."""
        with self._lock:
            if self._starts.withdraw(time.time_ns()) and not self._is_stopped:
                self._announce()

    def _pause_s(self) -> float:
        next_change_unix_ns = min(self._keys.next_change_unix_ns, self._starts.next_change_unix_ns())
        pause_s = max((next_change_unix_ns - time.time_ns()) / 1e9, 1.0)
        deadline_ns = self.lease.next_deadline_ns()
        if deadline_ns is not None:
            pause_s = min(pause_s, max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9))
        return min(pause_s, PAUSE_S_MAX)
