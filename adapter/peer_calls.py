"""The calls an adapter makes to its peers and to the feed source, in threads beside the loop; answers are posted to it.

No decision here: what to ask and whom is the engine's word. At most one call of a kind is under way at once; the engine
asks again for what is still missing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc

from adapter.mailbox import Mailbox
from adapter.translation import (
    buckets_from_chunks,
    peer_state_from_proto,
    position_to_proto,
    runs_from_proto,
    snapshot_from_chunks,
)
from feedcore.engine import AdapterEngine
from feedcore.position import MessageStreamState
from tandemfeed.v1 import common_pb2, replay_pb2, replay_pb2_grpc, sync_pb2, sync_pb2_grpc
from transport.rpc import open_channel

LOG = logging.getLogger("adapter.peer_calls")
CALL_TIMEOUT_S = 10.0
THREAD_COUNT = 4
FOLLOW_PAUSE_S = 0.2  # before following again after a lost connection


class PeerCalls:
    """Outgoing calls of one adapter."""

    def __init__(
        self,
        engine: AdapterEngine,
        mailbox: Mailbox,
        ca_pem: bytes,
        token: Callable[[], str],
        source_endpoint: str,
    ) -> None:
        self._engine, self._mailbox = engine, mailbox
        self._ca_pem, self._token = ca_pem, token
        self._source_endpoint = source_endpoint
        self._pool = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="peer-call")
        self._busy: set[object] = set()
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._endpoints: dict[int, str] = {}
        self._stopped = threading.Event()
        self._followed: dict[int, str] = {}
        self._follow_calls: dict[tuple[int, str], grpc.Call] = {}

    # ---- the engine's requests ----

    def request_source(self, stream: int, first: int, last: int) -> None:
        """Source messages from the source journal."""

        def call() -> None:
            stub = replay_pb2_grpc.SourceReplayStub(self._channel(self._source_endpoint))
            ranges = [common_pb2.SequenceRange(first_seq=first, last_seq=last)]
            request = replay_pb2.FillRequest(source_stream_id=stream, ranges=ranges)
            for chunk in stub.Fill(request, timeout=CALL_TIMEOUT_S):
                for datagram in chunk.datagrams:
                    self._mailbox.post(partial(self._engine.on_source_datagram, datagram))

        self._submit(("source", stream), call)

    def request_runs(self, channel_id: int, adapter_id: int, position: MessageStreamState) -> None:
        """Decisions behind a position."""

        def call() -> None:
            stub = sync_pb2_grpc.AdapterSyncStub(self._peer(adapter_id))
            request = sync_pb2.GetRunsRequest(channel_id=channel_id, position=position_to_proto(position))
            try:
                reply = runs_from_proto(stub.GetRuns(request, timeout=CALL_TIMEOUT_S))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.OUT_OF_RANGE:
                    raise
                reason = str(error.details())
                self._mailbox.post(partial(self._engine.on_runs_refused, channel_id, reason))
            else:
                self._mailbox.post(partial(self._engine.on_runs, channel_id, reply))

        self._submit(("runs", channel_id), call)

    def request_snapshot(self, channel_id: int, adapter_id: int) -> None:
        """Conversion state at a position."""

        def call() -> None:
            stub = sync_pb2_grpc.AdapterSyncStub(self._peer(adapter_id))
            request = sync_pb2.GetSnapshotRequest(channel_id=channel_id)
            snapshot = snapshot_from_chunks(channel_id, list(stub.GetSnapshot(request, timeout=CALL_TIMEOUT_S)))
            self._mailbox.post(partial(self._engine.on_snapshot, snapshot))

        self._submit(("snapshot", channel_id), call)

    def request_buckets(self, channel_id: int, adapter_id: int, buckets: tuple[int, ...]) -> None:
        """Some buckets of the conversion state at a position."""

        def call() -> None:
            stub = sync_pb2_grpc.AdapterSyncStub(self._peer(adapter_id))
            request = sync_pb2.GetBucketsRequest(channel_id=channel_id, buckets=buckets)
            answer = buckets_from_chunks(list(stub.GetBuckets(request, timeout=CALL_TIMEOUT_S)))
            self._mailbox.post(partial(self._engine.on_buckets, channel_id, answer))

        self._submit(("buckets", channel_id), call)

    # ---- the cluster ----

    def set_peers(self, endpoints: dict[int, str]) -> None:
        """Where the peers are now: every one of them is followed."""
        with self._lock:
            gone = {peer for peer in self._followed.items() if endpoints.get(peer[0]) != peer[1]}
            fresh = {peer for peer in endpoints.items() if peer[1] and self._followed.get(peer[0]) != peer[1]}
            self._endpoints = endpoints
            self._followed = {adapter_id: endpoint for adapter_id, endpoint in endpoints.items() if endpoint}
            calls = [self._follow_calls.pop(peer) for peer in gone if peer in self._follow_calls]
        for call in calls:
            call.cancel()
        for peer in fresh:
            threading.Thread(target=self._follow, args=peer, name=f"follow-{peer[0]}", daemon=True).start()

    def stop(self) -> None:
        """Give up everything under way."""
        self._stopped.set()
        self.set_peers({})
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for channel in self._channels.values():
                channel.close()

    # ---- inside ----

    def _follow(self, adapter_id: int, endpoint: str) -> None:
        """A peer's states, at every sync interval, for as long as it is there."""
        peer = adapter_id, endpoint
        while self._followed.get(adapter_id) == endpoint and not self._stopped.is_set():
            try:
                stub = sync_pb2_grpc.AdapterSyncStub(self._channel(endpoint))
                call = stub.Follow(sync_pb2.FollowRequest(adapter_id=self._engine.config.adapter_id))
                with self._lock:
                    self._follow_calls[peer] = call
                for state in call:
                    if state.adapter_id != adapter_id:
                        LOG.warning("a peer speaks as another", extra={"peer": adapter_id, "as": state.adapter_id})
                        break
                    self._mailbox.post(partial(self._engine.on_peer_state, peer_state_from_proto(state)))
            except (grpc.RpcError, ValueError) as error:
                LOG.debug("following ended", extra={"adapter": adapter_id, "why": str(error)})
            self._stopped.wait(FOLLOW_PAUSE_S)

    def _peer(self, adapter_id: int) -> grpc.Channel:
        with self._lock:
            endpoint = self._endpoints.get(adapter_id, "")
        if not endpoint:
            raise ConnectionError(f"adapter {adapter_id} has no known address")
        return self._channel(endpoint)

    def _channel(self, endpoint: str) -> grpc.Channel:
        with self._lock:
            if endpoint not in self._channels:
                self._channels[endpoint] = open_channel(endpoint, self._ca_pem, self._token)
            return self._channels[endpoint]

    def _submit(self, kind: object, call: Callable[[], None]) -> None:
        if kind in self._busy or self._stopped.is_set():
            return
        self._busy.add(kind)

        def run() -> None:
            try:
                call()
            except (grpc.RpcError, ConnectionError, ValueError) as error:
                LOG.info("a call failed; it will be asked again", extra={"kind": str(kind), "why": str(error)[:300]})
            finally:
                self._busy.discard(kind)

        self._pool.submit(run)
