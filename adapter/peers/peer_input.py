"""Checks what other adapters send before it reaches the engine. Refused input is counted and logged at intervals.

A peer may run another version, be misconfigured, or be compromised. Its message must come from the adapter that was
asked, concern this feed's channels and source streams, and be possible at all (`adapter.peers.translation` checks
that).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from tandemfeed.adapter.peers.translation import (
    buckets_from_chunks,
    peer_state_from_proto,
    runs_from_proto,
    snapshot_from_chunks,
)
from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.replica.channel_state import Buckets, ChannelSnapshot, PeerState, RunsReply
from tandemfeed.feedcore.replica.effects import AdapterEffect
from tandemfeed.feedcore.wire.position import MessageStreamState
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.v1 import common_pb2, sync_pb2

LOG = logging.getLogger("tandemfeed.adapter.peers.peer_input")
LOG_INTERVAL_NS = 10_000_000_000
Message = TypeVar("Message")


class LogThrottle:
    """Limits log lines about one subject to one per interval. Owner: `_lock`, so any thread may use it."""

    def __init__(self, interval_ns: int = LOG_INTERVAL_NS) -> None:
        self._interval_ns = interval_ns
        self._lock = threading.Lock()
        self._logged_at_ns: dict[object, int] = {}
        self._unlogged: dict[object, int] = {}

    def take(self, subject: object, now_ns: int) -> int | None:
        """Count an event. If it is time to log, the number of events since the last log line; else None."""
        with self._lock:
            count = self._unlogged.pop(subject, 0) + 1
            logged_at_ns = self._logged_at_ns.get(subject)
            if logged_at_ns is not None and now_ns - logged_at_ns < self._interval_ns:
                self._unlogged[subject] = count
                return None
            self._logged_at_ns[subject] = now_ns
            return count


class PeerInput:
    """The check.

    Args:
        streams: channel_id -> its source streams, of this feed.
        post: runs a function in the loop's thread, the only one that changes counters.
        clock_ns: the monotonic clock.
    """

    def __init__(
        self,
        streams: Mapping[int, frozenset[int]],
        counters: CounterSet,
        post: Callable[[Callable[[int], list[AdapterEffect]]], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._streams, self._counters, self._post, self._clock_ns = streams, counters, post, clock_ns
        self._throttle = LogThrottle()

    def state(self, adapter_id: int, message: common_pb2.FeedAdapterState) -> PeerState:
        """The state that an adapter sent about itself.

        Raises:
            PacketRefused: the state is refused; the text says why. The other methods raise it too.
        """
        if message.adapter_id != adapter_id:
            raise PacketRefused(
                Refusal.WRONG_ADAPTER, f"adapter {adapter_id} sent the state of adapter {message.adapter_id}"
            )
        state = _possible(lambda: peer_state_from_proto(message))
        channel_ids = [status.channel_id for status in state.channels]
        if len(set(channel_ids)) != len(channel_ids):
            raise PacketRefused(Refusal.MALFORMED, f"the state lists a channel twice: {channel_ids[:8]}")
        for status in state.channels:
            self._check_position(status.channel_id, status.position)
        return state

    def snapshot(self, channel_id: int, chunks: list[sync_pb2.SnapshotChunk]) -> ChannelSnapshot:
        """A channel's snapshot."""
        snapshot = _possible(lambda: snapshot_from_chunks(channel_id, chunks))
        self._check_position(channel_id, snapshot.position)
        if snapshot.position.epoch != snapshot.lineage.epoch:
            raise PacketRefused(
                Refusal.MALFORMED,
                f"the position is of epoch {snapshot.position.epoch}, but the lineage is {snapshot.lineage.entries}",
            )
        return snapshot

    def buckets(self, channel_id: int, chunks: list[sync_pb2.SnapshotChunk]) -> Buckets:
        """Some buckets of a channel."""
        buckets = _possible(lambda: buckets_from_chunks(chunks))
        self._check_position(channel_id, buckets.position)
        return buckets

    def runs(self, channel_id: int, message: sync_pb2.GetRunsReply) -> RunsReply:
        """Decisions of a channel."""
        reply = _possible(lambda: runs_from_proto(message))
        foreign = {run.source_stream_id for run in reply.runs} - self._streams[channel_id]
        if foreign:
            raise PacketRefused(Refusal.UNKNOWN_STREAM, f"runs of unknown source streams {sorted(foreign)[:8]}")
        return reply

    def refuse(self, adapter_id: int, what: str, refused: PacketRefused) -> None:
        """Count a refusal and log it at intervals. May be called from any thread."""
        self._post(lambda _now_ns: self._count(refused.reason))
        count = self._throttle.take((adapter_id, what, refused.reason), self._clock_ns())
        if count is not None:
            extra = {"adapter": adapter_id, "what": what, "why": str(refused)[:300], "count": count}
            LOG.warning("refused a message of another adapter", extra=extra)

    def _count(self, reason: Refusal) -> list[AdapterEffect]:
        self._counters.refuse(reason)
        self._counters.add(Counter.PEER_ANSWERS_REFUSED)
        return []

    def _check_position(self, channel_id: int, position: MessageStreamState) -> None:
        streams = self._streams.get(channel_id)
        if streams is None:
            raise PacketRefused(Refusal.WRONG_CHANNEL, f"this feed has no channel {channel_id}")
        if position.next_source_seqs.keys() != streams:
            raise PacketRefused(
                Refusal.WRONG_CHANNEL,
                f"channel {channel_id} has source streams {sorted(streams)}, "
                f"but the position has {sorted(position.next_source_seqs)[:8]}",
            )


def _possible(read: Callable[[], Message]) -> Message:
    try:
        return read()
    except ValueError as impossible:
        raise PacketRefused(Refusal.MALFORMED, str(impossible)) from impossible
