"""The service for the other adapters of the feed. Questions about the engine are answered in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import grpc

from tandemfeed.adapter.mailbox import Mailbox
from tandemfeed.adapter.peers.translation import position_from_proto, runs_to_proto, state_chunks
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.input.decision_log import DecisionLogTooShort
from tandemfeed.feedcore.replica.sessions import NotActive
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.transport.calls.serving.call_context import caller_of, in_thread
from tandemfeed.v1 import common_pb2, sync_pb2, sync_pb2_grpc

ROLES_BY_SERVICE = {
    "tandemfeed.v1.AdapterSync": frozenset({"adapter"}),
    "tandemfeed.v1.Replay": frozenset({"client", "adapter"}),
}
Answer = TypeVar("Answer")


class AdapterSyncService(sync_pb2_grpc.AdapterSyncServicer):
    """Serves the other adapters of the feed; adapters of other feeds are refused.

    It exists before the engine, because the registration needs the service's address and the engine needs the
    registration's reply. Until `serve_for` is called, no token is accepted, so no call gets this far.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._engine: AdapterEngine
        self._state: Callable[[], common_pb2.FeedAdapterState]
        self._interval_s = 0.1
        self._feed = ""

    def serve_for(
        self, engine: AdapterEngine, feed: str, state: Callable[[], common_pb2.FeedAdapterState], sync_interval_ns: int
    ) -> None:
        """Serve this engine from now on.

        Args:
            feed: the feed's name.
            state: returns the adapter's report; called in the loop's thread.
        """
        self._engine, self._feed, self._state = engine, feed, state
        self._interval_s = sync_interval_ns / 1e9

    async def Follow(  # noqa: N802
        self, request: sync_pb2.FollowRequest, context: grpc.ServicerContext
    ) -> AsyncIterator[common_pb2.FeedAdapterState]:
        """This adapter's state at every sync interval."""
        self._check_caller(context)
        while True:
            yield await in_thread(context, self._ask, self._state, context)
            await asyncio.sleep(self._interval_s)

    def GetSnapshot(  # noqa: N802
        self, request: sync_pb2.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[sync_pb2.SnapshotChunk]:
        """Conversion state at this adapter's position."""
        self._check_channel(request.channel_id, context)
        snapshot = self._ask(lambda: self._engine.snapshot(request.channel_id, request.session), context)
        state, session = snapshot.conversion_state, snapshot.session
        yield from state_chunks(snapshot.position, snapshot.lineage, snapshot.digests, state, session)

    def GetBuckets(  # noqa: N802
        self, request: sync_pb2.GetBucketsRequest, context: grpc.ServicerContext
    ) -> Iterator[sync_pb2.SnapshotChunk]:
        """Some buckets of the conversion state at this adapter's position."""
        self._check_channel(request.channel_id, context)
        chosen = tuple(request.buckets)
        buckets = self._ask(lambda: self._engine.buckets(request.channel_id, chosen, request.session), context)
        yield from state_chunks(buckets.position, Lineage(), buckets.digests, buckets.data, buckets.session)

    def GetRuns(  # noqa: N802
        self, request: sync_pb2.GetRunsRequest, context: grpc.ServicerContext
    ) -> sync_pb2.GetRunsReply:
        """The decisions after a position."""
        self._check_channel(request.channel_id, context)
        channel_id, wanted = request.channel_id, request.position
        session = request.session
        logged = self._ask(lambda: self._engine.runs_since(channel_id, position_from_proto(wanted), session), context)
        return runs_to_proto(logged.reply())

    # ---- inside ----

    def _ask(self, question: Callable[[], Answer], context: grpc.ServicerContext) -> Answer:
        """The loop's answer. If there is none, abort the call with the reason."""
        try:
            return self._mailbox.ask(question)
        except NotActive as passive:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(passive))
        except DecisionLogTooShort as short:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, str(short))
        except (IndexError, ValueError) as wrong:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is invalid: {wrong}")
        except TimeoutError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "this adapter's loop does not answer; retry")
        raise AssertionError("abort raises")

    def _check_caller(self, context: grpc.ServicerContext) -> None:
        caller = caller_of(context)
        if not caller.is_adapter_of(self._feed):
            refusal = f"{caller.identity} is not an adapter of feed {self._feed!r}"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)

    def _check_channel(self, channel_id: int, context: grpc.ServicerContext) -> None:
        self._check_caller(context)
        if channel_id not in self._engine.replicas:
            context.abort(grpc.StatusCode.NOT_FOUND, f"feed {self._feed!r} has no channel {channel_id}")
