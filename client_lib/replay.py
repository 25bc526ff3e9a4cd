"""Gap filling in the background: asks the adapters' replay services in turn and leaves what comes in the mailbox.

One thread, so one request at a time. Per channel only the newest request waits: it names every hole that is still
open, so it replaces an older one. Must never touch a merger: what is missing, and when to ask again, the merger knows.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from client_lib.errors import ClientError, status_of
from client_lib.grant import GrantedAdapter
from client_lib.session import Session
from feedcore.merge_effects import RequestReplay
from tandemfeed.v1 import common_pb2, replay_pb2, replay_pb2_grpc

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0  # a long replay goes on in the next request
FIRST_REPLY_TIMEOUT_S = 1.0  # a vanished host must not hold up the others
AVOID_AFTER_FAILURE_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """Output packets in plaintext, as a replay service sent them."""

    packets: tuple[bytes, ...]


class ReplayWorker:
    """The thread that asks.

    Args:
        session: brings the tokens.
        deliver: leaves a letter for the loop, waiting for room; False once the loop is closed.
    """

    def __init__(self, session: Session, deliver: Callable[[Replayed], bool]) -> None:
        self._session = session
        self._deliver = deliver
        self._condition = threading.Condition()
        self._wanted: dict[int, RequestReplay] = {}  # by channel_id
        self._adapters: tuple[GrantedAdapter, ...] = ()
        self._turn = 0
        self._failed_at_ns: dict[str, int] = {}  # by endpoint
        self._channels: dict[str, grpc.Channel] = {}  # by endpoint
        self._call: grpc.Call | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="tandemfeed-replay", daemon=True)
        self._thread.start()

    def request(self, request: RequestReplay) -> None:
        """Ask soon; never blocks. The merger asks again for whatever does not come."""
        with self._condition:
            self._wanted[request.channel_id] = request
            self._condition.notify()

    def use_adapters(self, adapters: tuple[GrantedAdapter, ...]) -> None:
        """Whom to ask from now on."""
        with self._condition:
            self._adapters = tuple(adapter for adapter in adapters if adapter.rpc_endpoint)

    def close(self) -> None:
        """Break off the call under way and end the thread."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
            call = self._call
        if call is not None:
            call.cancel()
        self._thread.join()
        for channel in self._channels.values():
            channel.close()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._wanted and not self._is_closed:
                    self._condition.wait()
                if self._is_closed:
                    return
                request = self._wanted.pop(next(iter(self._wanted)))
                adapters = self._in_turn()
            self._forget_endpoints_but({adapter.rpc_endpoint for adapter in adapters})
            for adapter in adapters:
                if self._ask(adapter, request):
                    break

    def _in_turn(self) -> list[GrantedAdapter]:
        """Every request begins with another adapter, since the last one asked may not have had it all."""
        if not self._adapters:
            return []
        self._turn = (self._turn + 1) % len(self._adapters)
        ordered = self._adapters[self._turn :] + self._adapters[: self._turn]
        now_ns = time.monotonic_ns()

        def has_just_failed(adapter: GrantedAdapter) -> bool:
            failed_at_ns = self._failed_at_ns.get(adapter.rpc_endpoint)
            return failed_at_ns is not None and now_ns - failed_at_ns < AVOID_AFTER_FAILURE_NS

        return sorted(ordered, key=has_just_failed)

    def _forget_endpoints_but(self, endpoints: set[str]) -> None:
        for endpoint in self._channels.keys() - endpoints:
            self._channels.pop(endpoint).close()
            self._failed_at_ns.pop(endpoint, None)

    def _ask(self, adapter: GrantedAdapter, request: RequestReplay) -> bool:
        """Ask one adapter; True if it answered, were it with nothing."""
        with contextlib.suppress(ClientError):  # the administration server is away: an old token may still serve
            self._session.ensure_token()
        token = self._session.token_at_hand()
        ranges = [common_pb2.SequenceRange(first_seq=first, last_seq=last) for first, last in request.ranges]
        call = replay_pb2_grpc.ReplayStub(self._channel(adapter.rpc_endpoint)).Replay(
            replay_pb2.ReplayRequest(channel_id=request.channel_id, ranges=ranges), timeout=CALL_TIMEOUT_S
        )
        with self._condition:
            self._call = call
            if self._is_closed:
                call.cancel()
        watchdog = threading.Timer(FIRST_REPLY_TIMEOUT_S, call.cancel)
        watchdog.start()
        try:
            for chunk in call:
                watchdog.cancel()
                if not self._deliver(Replayed(tuple(chunk.packets))):
                    call.cancel()
                    return True
        except grpc.RpcError as error:
            code, details = status_of(error)
            if code is grpc.StatusCode.UNAUTHENTICATED:
                self._session.forget_token(token)
            self._failed_at_ns[adapter.rpc_endpoint] = time.monotonic_ns()
            log.info("replay failed", extra={"adapter": adapter.name, "code": code.name, "details": details})
            return False
        finally:
            watchdog.cancel()
            self._call = None
        self._failed_at_ns.pop(adapter.rpc_endpoint, None)
        return True

    def _channel(self, endpoint: str) -> grpc.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self._session.open_channel(endpoint)
        return channel
