"""The broker of one feed: what adapters and subscribers request, in steps of state change, record and audit.

`FeedState` owns the feed's state and its lock. This module and `feed_operations` call it, and wait for the disk between
its steps, never inside one. Each attending adapter has a queue, which its stream drains. Each subscription's call is
notified, and makes the grant when it can send it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from tandemfeed.admin_server.feed.descriptions import describe_feed
from tandemfeed.admin_server.feed.feed_operations import FeedOperations
from tandemfeed.admin_server.feed.feed_state import FeedState
from tandemfeed.admin_server.feed.grants import feed_grant
from tandemfeed.admin_server.feed.key_ring import KeyRing
from tandemfeed.admin_server.feed.registrations import ProcessStart
from tandemfeed.admin_server.feed.streams import Attendance, Subscriber
from tandemfeed.admin_server.feed.timekeeper import Timekeeper
from tandemfeed.admin_server.lease.lease_core import FeedLease
from tandemfeed.admin_server.records.audit import AuditLog
from tandemfeed.admin_server.records.lease_records import ClusterRecords, RecordsUnavailable
from tandemfeed.admin_server.settings import AdapterSettings, FeedSettings
from tandemfeed.v1 import admin_pb2, common_pb2

LOG = logging.getLogger("tandemfeed.admin_server.feed.broker")


class FeedBroker:
    """One feed, as the services see it. Safe to call from any thread.

    Args:
        records: the durable state.

    Attributes:
        key_ring: the feed's keys. Only its adapters may have decision keys, only its source and adapters source keys.
        operations: what an administrator may request.
    """

    def __init__(self, feed: FeedSettings, records: ClusterRecords, audit: AuditLog) -> None:
        self.feed = feed
        self._records, self._audit = records, audit
        channel_ids = [channel.channel_id for channel in feed.channels]
        self._topics = {channel.topic: channel.channel_id for channel in feed.channels}
        self.key_ring = KeyRing(records, feed.feed_id, channel_ids, source_is_sealed=feed.source_is_sealed)
        self._state = FeedState(feed, records, audit, self.key_ring)
        self.operations = FeedOperations(feed, self._state, records)
        self._timekeeper = Timekeeper(feed.name, self._state, self.key_ring)
        self._timekeeper.start()

    @property
    def lease(self) -> FeedLease:
        """The feed's lease."""
        return self._state.lease

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
            OtherConversion: an attending adapter converts otherwise.
        """
        feed_id, adapter_id = self.feed.feed_id, adapter.adapter_id
        resumed = self._state.check_registration(adapter, request, process)
        start = resumed or self._records.new_start(feed_id, adapter_id, request.public_key)
        self._records.note_registration(feed_id, adapter_id, start.incarnation, request.rpc_endpoint)
        replaced = self._state.claim_registration(adapter, request, process, start.incarnation)
        self._state.processes.save(adapter_id)
        if replaced is not None:
            self.leave(replaced)
            replaced.end()
        description = self._state.begin_start(adapter, request, start, is_resumed=resumed is not None)
        self._audit.write("registered", feed=self.feed.name, adapter=adapter.name, incarnation=start.incarnation)
        return description

    def attend(self, adapter: AdapterSettings, incarnation: int, report_id: int) -> Attendance:
        """Begin the adapter's stream, whose first report is `report_id`."""
        attendance = Attendance(adapter, incarnation, report_id, time.monotonic_ns())
        if self._state.attend(attendance):
            self._state.processes.save_if_possible(adapter.adapter_id)
            self._audit.write("attending", feed=self.feed.name, adapter=adapter.name, incarnation=incarnation)
            if (difference := self._state.other_conversion(adapter.adapter_id)) is not None:
                self.operations.fail_on_request(adapter, difference)  # both registered before one attended
        return attendance

    def report(self, attendance: Attendance, report: admin_pb2.AdapterReport) -> None:
        """Process a report: the adapter's state, its requests, or both."""
        if self._state.report(attendance, report) and report.fail_reason:
            self.operations.fail_on_request(attendance.adapter, report.fail_reason)

    def leave(self, attendance: Attendance, *, has_ended: bool = False) -> None:
        """The adapter's stream ended. Args: has_ended: its process is known to have ended."""
        if self._state.leave(attendance, has_ended=has_ended):
            self._state.processes.save_if_possible(attendance.adapter.adapter_id)
            self._audit.write("left", feed=self.feed.name, adapter=attendance.adapter.name)

    def end(self, incarnation: int) -> None:
        """Note that this start of an adapter has ended, even if its stream is still open."""
        ended = self._state.attendance_of(incarnation)
        if ended is not None:
            self.leave(ended, has_ended=True)
            ended.end()
            self._audit.write("ended", feed=self.feed.name, adapter=ended.adapter.name, incarnation=incarnation)

    # ---- subscribers ----

    def subscribe(self, subscriber: Subscriber) -> None:
        """A client's subscription began, or has other channels."""
        self._state.add_subscriber(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """A client's subscription ended."""
        self._state.remove_subscriber(subscriber)

    def limit_subscribers(self, may_subscribe: Callable[[str, str], bool]) -> None:
        """The policy has changed: adapters serve no subscription more than it is granted, and its call says so.

        Args:
            may_subscribe: whether an identity is granted a topic now.
        """
        topics = {channel.channel_id: channel.topic for channel in self.feed.channels}
        self._state.limit_subscribers(lambda identity, channel_id: may_subscribe(identity, topics[channel_id]))

    @property
    def topics(self) -> Mapping[str, int]:
        """The channel_id of each topic."""
        return self._topics

    def grant(self, channel_ids: Iterable[int]) -> admin_pb2.Grant:
        """The present grant of these channels."""
        return feed_grant(self.feed, self._state.view(), self.key_ring.keys, frozenset(channel_ids))

    def replace_keys(self, topics: Collection[str]) -> None:
        """Replace the keys of channels that an identity has lost, so that it cannot read on with those it has."""
        lost = [channel for channel in self.feed.channels if channel.topic in topics]
        if not lost:
            return
        try:
            self.key_ring.replace(channel.channel_id for channel in lost)
        except RecordsUnavailable:
            LOG.exception("could not replace stream keys; retrying", extra={"feed": self.feed.name})
        else:
            self._state.note("keys replaced", topics=[channel.topic for channel in lost])
        self._state.announce()  # also wakes the timekeeper, which replaces them later if that failed

    # ---- descriptions ----

    def describe(self, channel_ids: Iterable[int] | None = None) -> common_pb2.FeedDescription:
        """The feed in its present session, limited to these channels (None: all)."""
        return describe_feed(self.feed, self._state.session, channel_ids)

    def adapters(self) -> list[common_pb2.AdapterDescription]:
        """Every adapter that has ever registered."""
        return self._state.adapters()

    def status(self) -> admin_pb2.FeedStatus:
        """The feed's status for administrators, with every configured adapter."""
        return self._state.status()

    def stop(self) -> None:
        """End every stream."""
        self._state.stop()
        self._timekeeper.join()
