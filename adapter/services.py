"""What an adapter serves: AdapterSync for its peers, Replay for clients. Only the loop answers about the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import grpc

from adapter.mailbox import Mailbox
from adapter.output_journal import OutputJournal
from adapter.translation import position_from_proto, runs_to_proto, state_chunks
from feedcore.engine import AdapterEngine, DecisionLogTooShort, NotActive
from feedcore.lineage import Lineage
from feedcore.topics import any_topic_matches
from tandemfeed.v1 import common_pb2, replay_pb2, replay_pb2_grpc, sync_pb2, sync_pb2_grpc
from transport.rpc import caller_of

ROLES_BY_SERVICE = {
    "tandemfeed.v1.AdapterSync": frozenset({"adapter"}),
    "tandemfeed.v1.Replay": frozenset({"client", "adapter"}),
}
REPLAY_CHUNK_PACKETS = 256
REPLAY_MESSAGES_MAX = 1_000_000  # in one request: more is a catch-up, to be asked in parts


class AdapterSyncService(sync_pb2_grpc.AdapterSyncServicer):
    """For the other adapters of the feed.

    Made before the engine is (registering needs the service's address, the engine needs what registering answers);
    until `serve_for` is called no token is accepted, so nobody gets this far.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._engine: AdapterEngine
        self._state: Callable[[], common_pb2.FeedAdapterState]
        self._interval_s = 0.1

    def serve_for(
        self, engine: AdapterEngine, state: Callable[[], common_pb2.FeedAdapterState], sync_interval_ns: int
    ) -> None:
        """Serve for this engine from now on.

        Args:
            state: the adapter's report; asked in the loop's thread.
        """
        self._engine, self._state = engine, state
        self._interval_s = sync_interval_ns / 1e9

    def Follow(  # noqa: N802
        self, request: sync_pb2.FollowRequest, context: grpc.ServicerContext
    ) -> Iterator[common_pb2.FeedAdapterState]:
        """This adapter's state at every sync interval."""
        ended = threading.Event()
        context.add_callback(ended.set)
        while not ended.is_set():
            yield self._mailbox.ask(self._state)
            ended.wait(self._interval_s)

    def GetSnapshot(  # noqa: N802
        self, request: sync_pb2.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[sync_pb2.SnapshotChunk]:
        """Conversion state at this adapter's position."""
        self._check_channel(request.channel_id, context)
        try:
            snapshot = self._mailbox.ask(lambda: self._engine.snapshot(request.channel_id))
        except NotActive as passive:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(passive))
        yield from state_chunks(snapshot.position, snapshot.lineage, snapshot.digests, snapshot.conversion_state)

    def GetBuckets(  # noqa: N802
        self, request: sync_pb2.GetBucketsRequest, context: grpc.ServicerContext
    ) -> Iterator[sync_pb2.SnapshotChunk]:
        """Some buckets of the conversion state at this adapter's position."""
        self._check_channel(request.channel_id, context)
        chosen = tuple(request.buckets)
        try:
            buckets = self._mailbox.ask(lambda: self._engine.buckets(request.channel_id, chosen))
        except NotActive as passive:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(passive))
        except (IndexError, ValueError) as unknown:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"buckets {chosen[:8]}: {unknown}")
        yield from state_chunks(buckets.position, Lineage(), buckets.digests, buckets.data)

    def GetRuns(  # noqa: N802
        self, request: sync_pb2.GetRunsRequest, context: grpc.ServicerContext
    ) -> sync_pb2.GetRunsReply:
        """Decisions behind a position."""
        self._check_channel(request.channel_id, context)
        position = position_from_proto(request.position)
        try:
            return runs_to_proto(self._mailbox.ask(lambda: self._engine.runs_since(request.channel_id, position)))
        except NotActive as passive:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(passive))
        except DecisionLogTooShort as short:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, str(short))
        raise AssertionError("abort raises")

    def _check_channel(self, channel_id: int, context: grpc.ServicerContext) -> None:
        if channel_id not in self._engine.replicas:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no channel {channel_id} in feed {self._engine.config.feed_id}")


class ReplayService(replay_pb2_grpc.ReplayServicer):
    """For clients that miss messages.

    Attributes:
        topics: channel_id -> topic, of the channels served.
    """

    def __init__(self, journal: OutputJournal) -> None:
        self._journal = journal
        self.topics: Mapping[int, str] = {}

    def Replay(  # noqa: N802
        self, request: replay_pb2.ReplayRequest, context: grpc.ServicerContext
    ) -> Iterator[replay_pb2.ReplayChunk]:
        """What the output journal has of the ranges asked for."""
        caller = caller_of(context)
        topic = self.topics.get(request.channel_id)
        if topic is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no channel {request.channel_id}")
        if "adapter" not in caller.roles and not any_topic_matches(caller.topics, topic):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{caller.identity} is not granted the topic {topic!r}")
        wanted = sum(each.last_seq - each.first_seq + 1 for each in request.ranges)
        if wanted > REPLAY_MESSAGES_MAX:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"{wanted} messages in one request, at most {REPLAY_MESSAGES_MAX}"
            )
        packets: list[bytes] = []
        for each in request.ranges:
            for packet in self._journal.replay(request.channel_id, each.first_seq, each.last_seq):
                packets.append(packet)
                if len(packets) == REPLAY_CHUNK_PACKETS:
                    yield replay_pb2.ReplayChunk(packets=packets)
                    packets = []
        if packets:
            yield replay_pb2.ReplayChunk(packets=packets)
