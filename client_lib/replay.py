"""Gap filling in the background: asks the adapters' replay services in turn and leaves what comes in the mailbox.

One thread, so one request at a time. Per channel only the newest request waits: it names every gap that is still
open, so it replaces an older one. Must never touch a merger: what is missing, and when to ask again, the merger knows.

An adapter that refuses, does not answer in time or has not all of it is followed by the next one, which is asked for
the rest. Nobody is waited for longer than HURRY_S while there is another one to ask, nor for longer than SILENCE_MAX_S
at all; who failed is left out for a while, longer each time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import grpc

from client_lib.errors import ClientError, status_of
from client_lib.grant import GrantedAdapter
from client_lib.pending_replay import PendingReplay
from client_lib.session import Session
from feedcore.merge.effects import RequestReplay
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0  # a long replay goes on in the next request
SILENCE_MAX_S = 1.0  # before and between chunks: a vanished host must not hold up the others
HURRY_S = 0.15  # the same while another adapter can be asked: everything after the gap waits
AVOID_NS = 1_000_000_000  # after a failure; doubled for each further one
AVOID_MAX_NS = 30_000_000_000
LOGIN_AGAIN_NS = 5_000_000_000  # after an administration server that did not answer
assert HURRY_S < SILENCE_MAX_S < CALL_TIMEOUT_S


class ReplayCall(Protocol):
    """What a streaming call is to this thread."""

    def __iter__(self) -> Iterator[replay_pb2.ReplayChunk]: ...

    def cancel(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """Output packets in plaintext, as one adapter's replay service sent them."""

    adapter_id: int
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
        self._failures: dict[str, tuple[int, int]] = {}  # by endpoint: how often in a row, avoided until
        self._login_at_ns = 0
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
                adapters = self._adapters
            self._forget_endpoints_but({adapter.rpc_endpoint for adapter in adapters})
            self._perform(request, adapters)
            self._renewed_token()  # for the next one: this thread has time now

    def _perform(self, request: RequestReplay, adapters: tuple[GrantedAdapter, ...]) -> None:
        """Ask one after the other until as many copies as wanted are here, or everybody has been asked."""
        copies_left = request.copy_count
        pending = PendingReplay(request)
        in_turn = self._in_turn(adapters, request)
        for adapter in in_turn:
            if self._is_closed:
                return
            self._ask(adapter, pending, SILENCE_MAX_S if adapter is in_turn[-1] else HURRY_S)
            if pending.is_empty:
                copies_left -= 1
                if not copies_left:
                    return
                pending = PendingReplay(request)  # another adapter's copy of all of it

    def _in_turn(self, adapters: tuple[GrantedAdapter, ...], request: RequestReplay) -> list[GrantedAdapter]:
        """Every request begins with another adapter; whose copy is here already comes late, who is silent last.

        Who has just failed is left out, unless everybody has.
        """
        if not adapters:
            return []
        self._turn = (self._turn + 1) % len(adapters)
        ordered = adapters[self._turn :] + adapters[: self._turn]
        now_ns = time.monotonic_ns()
        answering = [each for each in ordered if self._failures.get(each.rpc_endpoint, (0, 0))[1] <= now_ns]
        return sorted(answering or ordered, key=lambda adapter: request.lateness(adapter.adapter_id))

    def _forget_endpoints_but(self, endpoints: set[str]) -> None:
        for endpoint in self._channels.keys() - endpoints:
            self._channels.pop(endpoint).close()
            self._failures.pop(endpoint, None)

    def _ask(self, adapter: GrantedAdapter, pending: PendingReplay, patience_s: float) -> None:
        """Ask one adapter for what is still wanted, and note what came."""
        if self._ask_once(adapter, pending, patience_s) is grpc.StatusCode.UNAUTHENTICATED:
            self._ask_once(adapter, pending, patience_s)  # with a new token

    def _ask_once(self, adapter: GrantedAdapter, pending: PendingReplay, patience_s: float) -> grpc.StatusCode:
        endpoint = adapter.rpc_endpoint
        token = self._token()
        call = replay_pb2_grpc.ReplayStub(self._channel(endpoint)).Replay(pending.message(), timeout=CALL_TIMEOUT_S)
        with self._condition:
            self._call = call
            if self._is_closed:
                call.cancel()
        try:
            self._read(call, adapter, pending, patience_s)
        except grpc.RpcError as error:
            code, details = status_of(error)
            log.info("replay failed", extra={"adapter": adapter.name, "code": code.name, "details": details})
            if code is grpc.StatusCode.UNAUTHENTICATED:
                self._session.forget_token(token)
                return code
            times = self._failures.get(endpoint, (0, 0))[0]
            avoid_ns = min(AVOID_NS << min(times, 16), AVOID_MAX_NS)
            self._failures[endpoint] = (times + 1, time.monotonic_ns() + avoid_ns)
            return code
        finally:
            self._call = None
        self._failures.pop(endpoint, None)
        return grpc.StatusCode.OK

    def _read(self, call: ReplayCall, adapter: GrantedAdapter, pending: PendingReplay, patience_s: float) -> None:
        """Pass on what comes; raises grpc.RpcError as the call does, or when it falls silent."""
        chunks = iter(call)
        while True:
            watchdog = threading.Timer(patience_s, call.cancel)
            watchdog.start()
            try:
                chunk = next(chunks)
            except StopIteration:
                return
            finally:
                watchdog.cancel()
            pending.arrived(chunk.packets)
            if not self._deliver(Replayed(adapter.adapter_id, tuple(chunk.packets))):
                call.cancel()
                return

    def _token(self) -> str:
        """The token at hand, however old: whoever finds it too old says so. Only without one is a login waited for."""
        return self._session.token_at_hand() or self._renewed_token()

    def _renewed_token(self) -> str:
        """A token that is good for a while, unless the administration server has just not answered."""
        if time.monotonic_ns() >= self._login_at_ns:
            try:
                self._session.ensure_token()
            except ClientError:
                self._login_at_ns = time.monotonic_ns() + LOGIN_AGAIN_NS
        return self._session.token_at_hand()

    def _channel(self, endpoint: str) -> grpc.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self._session.open_channel(endpoint)
        return channel
