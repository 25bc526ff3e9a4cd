"""One endpoint that an adapter calls, a peer or the feed source: its connection and the threads that wait for it.

Each endpoint has its own threads, so an endpoint that is gone or hangs does not delay calls to others. They start with
the object, so they have the priority of the thread that makes it, whichever calls. At most one call of a kind runs at a
time; the engine repeats requests for what is still missing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future

import grpc

from tandemfeed.adapter.peers.peer_input import LogThrottle
from tandemfeed.feedcore.replica.channel_state import PeerState
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.runtime.threads import OnFailure, start_thread
from tandemfeed.transport.scheduling import started_pool
from tandemfeed.v1 import common_pb2, sync_pb2, sync_pb2_grpc

LOG = logging.getLogger("tandemfeed.adapter.peers.peer_link")
QUICK_THREAD_COUNT = 2
BULK_THREAD_COUNT = 2  # for snapshots and source messages, so that long calls do not delay quick ones
FOLLOW_PAUSE_S = 0.1  # before following again after a lost connection


class CallLine:
    """Calls to one endpoint.

    Args:
        channel: the connection; closed by `close`.
        clock_ns: the monotonic clock.

    Owner: `_ended` for which calls are running and whether the line is closed.
    """

    def __init__(self, name: str, channel: grpc.Channel, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.channel = channel
        self._clock_ns = clock_ns
        self._quick = started_pool(QUICK_THREAD_COUNT, f"call-{name}")
        self._bulk = started_pool(BULK_THREAD_COUNT, f"bulk-{name}")
        self._busy: set[Hashable] = set()
        self._ended = threading.Condition()  # notified when a call ends; guards `_busy`
        self._is_closed = False
        self._throttle = LogThrottle()
        self._name = name

    def submit(
        self,
        kind: Hashable,
        call: Callable[[], None],
        on_refused: Callable[[PacketRefused], None],
        *,
        is_bulk: bool = False,
    ) -> None:
        """Call in a thread, unless a call of this kind is running. Never blocks.

        Args:
            on_refused: called if the answer is refused.
        """

        def run() -> None:
            try:
                call()
            except PacketRefused as refused:
                on_refused(refused)
            except (grpc.RpcError, ValueError) as error:  # ValueError: the connection was closed under us
                self._log_failure(kind, error)
            finally:
                with self._ended:
                    self._busy.discard(kind)
                    self._ended.notify_all()

        with self._ended:
            if self._is_closed or kind in self._busy:
                return
            self._busy.add(kind)
            (self._bulk if is_bulk else self._quick).submit(run).add_done_callback(_log_bug)

    def close(self) -> None:
        """Cancel all calls."""
        with self._ended:
            self._is_closed = True
        self.channel.close()
        for pool in (self._quick, self._bulk):
            pool.shutdown(wait=False, cancel_futures=True)

    def _log_failure(self, kind: Hashable, error: Exception) -> None:
        count = None if self._is_closed else self._throttle.take(kind, self._clock_ns())
        if count is not None:
            extra = {"whom": self._name, "kind": str(kind), "why": str(error)[:300], "count": count}
            LOG.info("a call failed; it will be repeated", extra=extra)


def _log_bug(done: Future[None]) -> None:
    """Log an exception that no call should raise. The thread pool would swallow it."""
    if not done.cancelled() and (bug := done.exception()) is not None:
        LOG.error("a call failed because of a bug", exc_info=bug)


class PeerLink:
    """Another adapter at one address: calls to it, and the stream of its states.

    Args:
        own_id: the id of the adapter that follows.
        read_state: checks a state; raises PacketRefused.
        on_state: called with each valid state, and the proof of an epoch that came with it, in the following thread.
        on_refused: called with the reason for each refused state.
        on_failure: called if the following thread ends by an unexpected exception. Without it this adapter knows
            nothing of the peer.

    Owner: `_lock` for the open call, which `close` cancels.
    """

    def __init__(
        self,
        adapter_id: int,
        channel: grpc.Channel,
        own_id: int,
        read_state: Callable[[int, common_pb2.FeedAdapterState], PeerState],
        on_state: Callable[[PeerState, bytes], None],
        on_refused: Callable[[int, str, PacketRefused], None],
        on_failure: OnFailure,
    ) -> None:
        self.line = CallLine(str(adapter_id), channel)
        self.stub = sync_pb2_grpc.AdapterSyncStub(channel)
        self._adapter_id, self._own_id = adapter_id, own_id
        self._read_state, self._on_state, self._on_refused = read_state, on_state, on_refused
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._call: grpc.Call | None = None
        self._thread = start_thread(self._follow, f"follow-{adapter_id}", on_failure)

    def close(self) -> None:
        """The peer is gone or has moved: end every thread that waits for it at this address."""
        self._closed.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()
        self.line.close()

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                call = self.stub.Follow(sync_pb2.FollowRequest(adapter_id=self._own_id))
                with self._lock:
                    self._call = call
                    if self._closed.is_set():  # closed while the call started, so nothing else cancels it
                        call.cancel()
                for state in call:
                    self._take(state)
            except (grpc.RpcError, ValueError) as error:
                LOG.debug("following ended", extra={"adapter": self._adapter_id, "why": str(error)[:300]})
            self._closed.wait(FOLLOW_PAUSE_S)

    def _take(self, message: common_pb2.FeedAdapterState) -> None:
        try:
            state = self._read_state(self._adapter_id, message)
        except PacketRefused as refused:
            self._on_refused(self._adapter_id, "state", refused)
        else:
            self._on_state(state, message.epoch_proof)
