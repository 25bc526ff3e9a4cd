"""What other adapters say, checked before it reaches the engine: refused, counted and told once a while, never raised.

A peer may be of another version, misconfigured or compromised: what it sends must be of the adapter that was asked, of
this feed's channels and source streams, and possible at all (`adapter.translation` says what is not).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from adapter.translation import buckets_from_chunks, peer_state_from_proto, runs_from_proto, snapshot_from_chunks
from feedcore.counters import Counter, CounterSet
from feedcore.replica.channel_state import Buckets, ChannelSnapshot, PeerState, RunsReply
from feedcore.replica.effects import AdapterEffect
from feedcore.wire.position import MessageStreamState
from feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.v1 import common_pb2, sync_pb2

LOG = logging.getLogger("adapter.peer_input")
TELL_EVERY_NS = 10_000_000_000
Said = TypeVar("Said")


class Seldom:
    """Says whether it is time to tell of the same thing again. Safe to call from any thread."""

    def __init__(self, every_ns: int = TELL_EVERY_NS) -> None:
        self._every_ns = every_ns
        self._lock = threading.Lock()
        self._told_at_ns: dict[object, int] = {}
        self._untold: dict[object, int] = {}

    def take(self, subject: object, now_ns: int) -> int | None:
        """How often it happened since it was last told, this time included; None: not now."""
        with self._lock:
            count = self._untold.pop(subject, 0) + 1
            told_at_ns = self._told_at_ns.get(subject)
            if told_at_ns is not None and now_ns - told_at_ns < self._every_ns:
                self._untold[subject] = count
                return None
            self._told_at_ns[subject] = now_ns
            return count


class PeerInput:
    """The check.

    Args:
        streams: channel_id -> its source streams, of this feed.
        post: has the loop's thread run something; counters are changed there alone.
    """

    def __init__(
        self,
        streams: Mapping[int, frozenset[int]],
        counters: CounterSet,
        post: Callable[[Callable[[int], list[AdapterEffect]]], None],
    ) -> None:
        self._streams, self._counters, self._post = streams, counters, post
        self._seldom = Seldom()

    def state(self, adapter_id: int, message: common_pb2.FeedAdapterState) -> PeerState:
        """The state that this adapter told of itself.

        Raises:
            PacketRefused: saying why; so do the others here.
        """
        if message.adapter_id != adapter_id:
            raise PacketRefused(Refusal.WRONG_ADAPTER, f"it speaks as adapter {message.adapter_id}")
        state = _possible(lambda: peer_state_from_proto(message))
        told = [status.channel_id for status in state.channels]
        if len(set(told)) != len(told):
            raise PacketRefused(Refusal.MALFORMED, f"it tells of a channel twice: {told[:8]}")
        for status in state.channels:
            self._check_position(status.channel_id, status.position)
        return state

    def snapshot(self, channel_id: int, chunks: list[sync_pb2.SnapshotChunk]) -> ChannelSnapshot:
        """A channel's snapshot."""
        snapshot = _possible(lambda: snapshot_from_chunks(channel_id, chunks))
        self._check_position(channel_id, snapshot.position)
        if snapshot.position.epoch != snapshot.lineage.epoch:
            raise PacketRefused(
                Refusal.MALFORMED, f"position of epoch {snapshot.position.epoch}, history {snapshot.lineage.entries}"
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
            raise PacketRefused(Refusal.UNKNOWN_STREAM, f"runs of source streams {sorted(foreign)[:8]}")
        return reply

    def refuse(self, adapter_id: int, what: str, refused: PacketRefused) -> None:
        """Count it, and tell it unless that was done a moment ago; from any thread."""
        self._post(lambda _now_ns: self._count(refused.reason))
        count = self._seldom.take((adapter_id, what, refused.reason), time.monotonic_ns())
        if count is not None:
            extra = {"adapter": adapter_id, "what": what, "why": str(refused)[:300], "count": count}
            LOG.warning("refused what another adapter says", extra=extra)

    def _count(self, reason: Refusal) -> list[AdapterEffect]:
        self._counters.refuse(reason)
        self._counters.add(Counter.PEER_ANSWERS_REFUSED)
        return []

    def _check_position(self, channel_id: int, position: MessageStreamState) -> None:
        streams = self._streams.get(channel_id)
        if streams is None:
            raise PacketRefused(Refusal.WRONG_CHANNEL, f"channel {channel_id} is none of this feed's")
        if position.next_source_seqs.keys() != streams:
            raise PacketRefused(
                Refusal.WRONG_CHANNEL,
                f"channel {channel_id} is fed by source streams {sorted(streams)}, "
                f"not by {sorted(position.next_source_seqs)[:8]}",
            )


def _possible(read: Callable[[], Said]) -> Said:
    try:
        return read()
    except ValueError as impossible:
        raise PacketRefused(Refusal.MALFORMED, str(impossible)) from impossible
