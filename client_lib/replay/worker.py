"""Gap filling in the background: requests missing packets from the adapters' replay services, and puts the replies into
the mailbox.

One thread processes one request at a time. For each channel only the newest request waits; it contains every open gap,
so it replaces an older one. While an answer is on the way, or waits in the mailbox, the merger's repetitions are
ignored, because they would only fetch the same packets again; `ReplayEnded` comes after it. This module must never
touch a merger, which alone decides what is missing and when to ask again.

If an adapter refuses, does not answer in time or lacks a part, the next adapter is asked for the remainder. The wait
for an adapter is at most SILENCE_WITH_ALTERNATIVE_MAX_S if another adapter can be asked, otherwise SILENCE_MAX_S. An
adapter that failed is skipped for a while, longer after each further failure.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import grpc

from tandemfeed.client_lib.errors import ClientError
from tandemfeed.client_lib.login.grant import GrantedAdapter
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.patient_wait import PatientWait
from tandemfeed.client_lib.replay.pending_replay import PendingReplay
from tandemfeed.feedcore.merge.effects import RequestReplay
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_series import PacketSeries, decode_series
from tandemfeed.feedcore.wire.refusal import Refusal
from tandemfeed.runtime.threads import OnFailure, mark_unhealthy, start_thread
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0  # a longer replay continues in the next request
SILENCE_MAX_S = 1.0  # before and between chunks, so that a vanished host does not delay other requests for long
SILENCE_WITH_ALTERNATIVE_MAX_S = 0.15  # shorter, because all messages after the gap wait
BACKOFF_NS = 1_000_000_000  # after a failure; doubled after each further one
BACKOFF_MAX_NS = 30_000_000_000
LOGIN_RETRY_NS = 5_000_000_000  # after the administration server did not answer
assert SILENCE_WITH_ALTERNATIVE_MAX_S < SILENCE_MAX_S < CALL_TIMEOUT_S


class ReplayCall(Protocol):
    """The part of a streaming call that this module uses."""

    def __iter__(self) -> Iterator[replay_pb2.ReplayChunk]: ...

    def cancel(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """Output packets in plaintext, from one adapter's replay service.

    Attributes:
        parts: the packets in order; those that continue each other as series.
        refused: why packets among them could not be decoded.
    """

    adapter_id: int
    parts: tuple[OutputPacket | PacketSeries, ...]
    refused: tuple[Refusal, ...] = ()

    @property
    def packet_count(self) -> int:
        """All packets, refused ones included."""
        return sum(len(part) if isinstance(part, PacketSeries) else 1 for part in self.parts) + len(self.refused)


@dataclass(frozen=True, slots=True)
class ReplayEnded:
    """All letters of a request's answer precede this one; it may lack some or all of the packets.

    Attributes:
        is_answered: at least one adapter answered without an error.
    """

    request: RequestReplay
    is_answered: bool


class ReplayWorker:
    """The thread that calls the replay services.

    Args:
        session: provides tokens.
        deliver: puts a letter into the loop's mailbox, after waiting for room; False once the loop is closed.
        on_failure: called if a thread ends with an error.
        now_ns: the monotonic clock.
    """

    def __init__(
        self,
        session: Session,
        deliver: Callable[[Replayed | ReplayEnded], bool],
        on_failure: OnFailure = mark_unhealthy,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._session, self._now_ns = session, now_ns
        self._deliver = deliver
        self._condition = threading.Condition()
        self._requests: dict[int, RequestReplay] = {}  # by channel_id
        self._under_way: set[int] = set()  # the channels of requests whose end the loop has not seen
        self._adapters: tuple[GrantedAdapter, ...] = ()
        self._turn = 0
        self._failures: dict[str, tuple[int, int]] = {}  # by endpoint: consecutive failures, skipped until
        self._login_at_ns = 0
        self._channels: dict[str, grpc.Channel] = {}  # by endpoint
        self._call: grpc.Call | None = None
        self._is_closed = False
        self._thread = start_thread(self._run, "tandemfeed-replay", on_failure)

    def request(self, request: RequestReplay) -> None:
        """Queue a request, in place of one of the channel that waits, and unless one is under way; never blocks. The
        merger repeats requests for packets that do not arrive."""
        with self._condition:
            if request.channel_id not in self._under_way:
                self._requests[request.channel_id] = request
                self._condition.notify()

    def ended(self, channel_id: int) -> None:
        """Accept requests of a channel again: the loop has taken the whole answer to the last one."""
        with self._condition:
            self._under_way.discard(channel_id)

    def set_adapters(self, adapters: tuple[GrantedAdapter, ...]) -> None:
        """Set the adapters to ask."""
        with self._condition:
            self._adapters = tuple(adapter for adapter in adapters if adapter.rpc_endpoint)

    def close(self) -> None:
        """Cancel the present call and end the thread."""
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
                while not self._requests and not self._is_closed:
                    self._condition.wait()
                if self._is_closed:
                    return
                request = self._requests.pop(next(iter(self._requests)))
                self._under_way.add(request.channel_id)
                adapters = self._adapters
            self._forget_endpoints_but({adapter.rpc_endpoint for adapter in adapters})
            self._deliver(ReplayEnded(request, self._perform(request, adapters)))
            self._fresh_token()  # in advance, for the next request

    def _perform(self, request: RequestReplay, adapters: tuple[GrantedAdapter, ...]) -> bool:
        """Ask one adapter after another, until the requested number of copies has arrived or all have been asked.
        Returns whether one answered."""
        is_answered = False
        copies_left = request.copy_count
        pending = PendingReplay(request)
        in_order = self._in_order(adapters, request)
        for adapter in in_order:
            if self._is_closed:
                break
            is_last = adapter is in_order[-1]
            patience_s = SILENCE_MAX_S if is_last else SILENCE_WITH_ALTERNATIVE_MAX_S
            is_answered |= self._ask(adapter, pending, patience_s) is grpc.StatusCode.OK
            if pending.is_empty:
                copies_left -= 1
                if not copies_left:
                    break
                pending = PendingReplay(request)  # a complete copy from another adapter
        return is_answered

    def _in_order(self, adapters: tuple[GrantedAdapter, ...], request: RequestReplay) -> list[GrantedAdapter]:
        """The adapters to ask. Each request begins with a different one; adapters whose copy has already arrived come
        late, silent ones last. Adapters that recently failed are skipped, unless all have.
        """
        if not adapters:
            return []
        self._turn = (self._turn + 1) % len(adapters)
        ordered = adapters[self._turn :] + adapters[: self._turn]
        now_ns = self._now_ns()
        answering = [each for each in ordered if self._failures.get(each.rpc_endpoint, (0, 0))[1] <= now_ns]
        return sorted(answering or ordered, key=lambda adapter: request.lateness(adapter.adapter_id))

    def _forget_endpoints_but(self, endpoints: set[str]) -> None:
        for endpoint in self._channels.keys() - endpoints:
            self._channels.pop(endpoint).close()
            self._failures.pop(endpoint, None)

    def _ask(self, adapter: GrantedAdapter, pending: PendingReplay, patience_s: float) -> grpc.StatusCode:
        """Ask one adapter for the remainder, and remove what arrives."""
        code = self._ask_once(adapter, pending, patience_s)
        if code is grpc.StatusCode.UNAUTHENTICATED:
            code = self._ask_once(adapter, pending, patience_s)  # with a new token
        return code

    def _ask_once(self, adapter: GrantedAdapter, pending: PendingReplay, patience_s: float) -> grpc.StatusCode:
        endpoint, token = adapter.rpc_endpoint, self._token()
        call = replay_pb2_grpc.ReplayStub(self._channel(adapter)).Replay(pending.message(), timeout=CALL_TIMEOUT_S)
        with self._condition:
            self._call = call
            if self._is_closed:
                call.cancel()
        silence = PatientWait(patience_s, call.cancel)
        try:
            with silence:
                self._read(call, adapter, pending, silence)
        except grpc.RpcError as error:
            code, details = status_of(error)
            log.info("replay failed", extra={"adapter": adapter.name, "code": code.name, "details": details})
            if code is grpc.StatusCode.UNAUTHENTICATED:
                self._session.forget_token(token)
                return code
            if code is grpc.StatusCode.PERMISSION_DENIED:
                self._session.forget_token(token)  # it may be older than the right to a topic that was added
            if silence.was_paused:  # this process was paused meanwhile, so the adapter is not to blame
                return code
            times = self._failures.get(endpoint, (0, 0))[0]
            backoff_ns = min(BACKOFF_NS << min(times, 16), BACKOFF_MAX_NS)
            self._failures[endpoint] = (times + 1, self._now_ns() + backoff_ns)
            return code
        finally:
            self._call = None
        self._failures.pop(endpoint, None)
        return grpc.StatusCode.OK

    def _read(self, call: ReplayCall, adapter: GrantedAdapter, pending: PendingReplay, silence: PatientWait) -> None:
        """Pass on the packets; raises the call's grpc.RpcError, also when the call is silent for too long."""
        for chunk in call:
            silence.suspend()  # decoding and a full mailbox are not the adapter's fault
            if chunk.packets:  # else the adapter limits what it spends on replays, and says that it is alive
                parts, refused = decode_series(list(chunk.packets))
                pending.remove_received(parts)
                if not self._deliver(Replayed(adapter.adapter_id, tuple(parts), tuple(refused))):
                    call.cancel()
                    return
            silence.restart()

    def _token(self) -> str:
        """The present token, even if it is old, because the service refuses it if it has expired. Waits for a login
        only if there is no token."""
        return self._session.current_token() or self._fresh_token()

    def _fresh_token(self) -> str:
        """A token that is valid for some time, unless the administration server recently failed to answer."""
        if self._now_ns() >= self._login_at_ns:
            try:
                self._session.ensure_token()
            except ClientError:
                self._login_at_ns = self._now_ns() + LOGIN_RETRY_NS
        return self._session.current_token()

    def _channel(self, adapter: GrantedAdapter) -> grpc.Channel:
        endpoint = adapter.rpc_endpoint
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self._session.open_channel(endpoint, adapter.server_name)
        return channel
