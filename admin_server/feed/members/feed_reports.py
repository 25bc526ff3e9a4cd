"""What a feed's adapters and sources reported last, and when, and which of them are away: what operators must see."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping

from tandemfeed.admin_server.feed.descriptions import (
    AWAY,
    describe_adapter,
    describe_feed,
    describe_takeovers,
    event_to_proto,
)
from tandemfeed.admin_server.feed.members.registered_processes import RegisteredProcesses
from tandemfeed.admin_server.feed.members.replay_limits import ReplayLimits
from tandemfeed.admin_server.feed.members.sources import FeedSources
from tandemfeed.admin_server.lease.lease_keeper import LeaseKeeper
from tandemfeed.admin_server.settings import FeedSettings
from tandemfeed.v1 import admin_pb2, common_pb2


class FeedReports:
    """The newest reports of one feed. One thread at a time.

    Attributes:
        sources: the processes that send the feed's source packets; any thread may use it.
    """

    def __init__(
        self, feed: FeedSettings, keeper: LeaseKeeper, processes: RegisteredProcesses, replay_limits: ReplayLimits
    ) -> None:
        self._feed, self._keeper, self._processes, self._replay_limits = feed, keeper, processes, replay_limits
        self._began_at_ns, self._began_unix_ns = time.monotonic_ns(), time.time_ns()
        self.sources = FeedSources()
        self._states: dict[int, common_pb2.FeedAdapterState] = {}
        self._heard: dict[int, tuple[int, int]] = {}  # adapter_id -> (monotonic, wall clock)
        self._away_since_unix_ns: dict[int, int] = {}

    def note(self, adapter_id: int, state: common_pb2.FeedAdapterState) -> None:
        """An adapter reported its state."""
        self._states[adapter_id], self._heard[adapter_id] = state, (time.monotonic_ns(), time.time_ns())

    def on_attend(self, adapter_id: int) -> None:
        """Its stream began."""
        self._away_since_unix_ns.pop(adapter_id, None)
        self._keeper.history.note("attending", {"adapter_id": adapter_id}, time.time_ns())

    def on_leave(self, adapter_id: int) -> None:
        """Its stream ended. Called last, because a takeover is urgent."""
        self._away_since_unix_ns[adapter_id] = now_unix_ns = time.time_ns()
        self._keeper.history.note("left", {"adapter_id": adapter_id}, now_unix_ns)

    def status(
        self,
        session: int,
        known: Mapping[int, common_pb2.AdapterDescription],
        attending: Container[int],
        subscriber_count: int,
    ) -> admin_pb2.FeedStatus:
        """The feed's status for administrators, with every configured adapter.

        Args:
            known: the adapters that have ever registered.
            attending: the adapters whose streams are open.
        """
        lease, now_ns = self._keeper.lease, time.monotonic_ns()
        lease.note_time(now_ns)
        status = admin_pb2.FeedStatus(
            feed=describe_feed(self._feed, session),
            epoch=lease.epoch,
            active_adapter_id=max(lease.holder, 0),
            adapters=[
                self._adapter_status(
                    known.get(each.adapter_id) or describe_adapter(each, 0, "", AWAY),
                    attending=each.adapter_id in attending,
                    now_ns=now_ns,
                )
                for each in sorted(self._feed.adapters, key=lambda adapter: adapter.adapter_id)
            ],
            subscriber_count=subscriber_count,
            sources=self.sources.statuses(now_ns, lease.resumed_at_ns),
            server_started_unix_ns=self._began_unix_ns,
            now_unix_ns=time.time_ns(),
            has_no_synchronized_backup=not lease.candidates.synchronized_backups(lease.holder, now_ns),
        )
        if (began := self._keeper.history.epoch_began(lease.epoch)) is not None:
            status.epoch_began.CopyFrom(event_to_proto(began))
        describe_takeovers(status, lease, now_ns, status.now_unix_ns)
        return status

    def _adapter_status(
        self, description: common_pb2.AdapterDescription, *, attending: bool, now_ns: int
    ) -> admin_pb2.AdapterStatus:
        adapter_id, candidates = description.adapter_id, self._keeper.lease.candidates
        heard_at_ns, heard_unix_ns = self._heard.get(adapter_id, (self._began_at_ns, 0))
        process = self._processes.registered(adapter_id)
        return admin_pb2.AdapterStatus(
            adapter=description,
            state=self._states.get(adapter_id),
            attending=attending,
            failed_reason=candidates.failed.get(adapter_id, ""),
            drained_reason=candidates.drained.get(adapter_id, ""),
            replay_bytes_per_s_max=self._replay_limits.of(adapter_id),
            heard_unix_ns=heard_unix_ns,
            silence_ns=now_ns - max(heard_at_ns, self._keeper.lease.resumed_at_ns),
            away_since_unix_ns=self._away_since_unix_ns.get(adapter_id, 0),
            host="" if process is None else process.host,
            process_id=0 if process is None else process.process_id,
        )
