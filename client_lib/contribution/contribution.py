"""Contributing messages to a topic: durable and numbered once, whatever ends or starts again meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import grpc

from tandemfeed.client_lib.contribution.outbox import Outbox, Request
from tandemfeed.client_lib.errors import (
    AdminUnavailable,
    AuthorizationRefused,
    ClientError,
    LimitReached,
    client_error,
)
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.messages.message import Message, MessageClasses, load_messages
from tandemfeed.client_lib.patient_wait import PatientWait, again_if_paused
from tandemfeed.feedcore.documents.xml_document import parse_document
from tandemfeed.transport.calls.admin_servers import ask_active
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, source_gateway
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, contribution_pb2, contribution_pb2_grpc

INSTANCE_SIZE = 16
FIND_TIMEOUT_S = 12.0
CALL_TIMEOUT_S = 3.0  # of each try: a gateway gives up after 2 s, and one that was paused must not keep the caller
PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
# The gateway is away, restarting or busy: what was asked may have been done.
UNCLEAR = {
    grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED,
}  # fmt: skip
# Or it is full, or the token expired or was revoked.
RETRIED = UNCLEAR | {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED}
# A former gateway, which was paused while another one took over, does not know what that one has accepted since.
STALE_VERDICTS = {grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.FAILED_PRECONDITION}
STALE_PATIENCE_S = 6.0  # a gateway that took over reports itself within 2 s, also to a server that has just started
Reply = TypeVar("Reply")


class ContributionRefused(ClientError):
    """The gateway refused the messages, and accepted none of the request: they do not fit the feed's source format."""


class ContributionInDoubt(ClientError):
    """No answer came in time: the messages may have been accepted or not. The next call sends them again first, with
    the same numbers, so they are accepted once."""


class ContributionSuperseded(ClientError):
    """Another process contributes under the producer's name. What it has sent counts."""


class ContributionId(NamedTuple):
    """Names an accepted message: on its topic, and among those of the client's identity."""

    producer: str
    number: int

    def __str__(self) -> str:
        return f"{self.producer}-{self.number}"


class Contribution:
    """A producer's contributions to one topic; made by `Client.contribute`. Thread-safe: its calls take turns.

    Each call has a twin for asyncio, whose name ends in `_async`.
    """

    def __init__(self, session: Session, topic: str, producer: str, timeout_s: float) -> None:
        self.topic, self.producer = topic, producer
        self._session, self._timeout_s = session, timeout_s
        self._instance = os.urandom(INSTANCE_SIZE)
        self._turn = threading.RLock()
        self._outbox: Outbox | None = None
        self._target: admin_pb2.FindContributionGatewayReply | None = None
        self._channel: grpc.Channel | None = None
        self._served_by = ""  # the gateway that accepted the last request

    def open(self) -> None:
        """Find the gateway, and become the one process that contributes under the producer's name.

        Raises:
            AuthorizationRefused: the topic takes no contributions, or they are not granted.
            AdminUnavailable: no administration server answered.
            ContributionInDoubt: the gateway did not answer.
        """
        with self._turn:
            if self._outbox is not None:
                return
            if self._channel is None:
                self._use(self._find(max(self._timeout_s, FIND_TIMEOUT_S)))
            request = contribution_pb2.OpenProducerRequest(
                topic=self.topic, producer=self.producer, instance=self._instance
            )
            self._outbox = Outbox(self._call("Open", request).next_number)

    @property
    def next_number(self) -> int:
        """The number of the next message: messages before it were accepted, also those of earlier processes. A process
        that makes the same messages again after a crash continues with the message of this number."""
        with self._turn:
            return self._opened().next_number

    @property
    def feed(self) -> str:
        """The name of the feed."""
        return self._found().feed

    @property
    def messages(self) -> MessageClasses:
        """The classes of the messages that the topic takes.

        Raises:
            ClientError: the feed's source format names no message schema.
        """
        document = self._found().source_format
        named = parse_document(document.content, "source format").attributes.get("sbe", "")
        files = {str(PurePosixPath(name)): content for name, content in document.files.items()}
        if str(PurePosixPath(named)) not in files:
            raise ClientError(
                f"the source format of feed {self.feed} names no message schema; build its messages as bytes"
            )
        return load_messages(files[str(PurePosixPath(named))])

    def send(self, message: Message | bytes, *, hold_s: float = 0) -> ContributionId:
        """Contribute a message: it is durable at the gateway when this returns.

        Args:
            message: of `messages`, or the bytes of one (SBE header and body).
            hold_s: for how long it stays pending at least, so that it can be cancelled.

        Raises:
            ContributionRefused, LimitReached, AuthorizationRefused: it was not accepted.
            ContributionInDoubt: it may have been accepted; the next call sends it again first.
            ContributionSuperseded: another process contributes under the producer's name.
        """
        return self.send_many((message,), hold_s=hold_s)[0]

    def send_many(self, messages: Iterable[Message | bytes], *, hold_s: float = 0) -> list[ContributionId]:
        """Contribute messages in this order; they are durable when this returns. See `send`.

        If one is refused, those before its request were accepted, and none from that request on; `next_number` says
        where that is.
        """
        with self._turn:
            self._deliver()  # what is in doubt comes first
            numbers = self._opened().add([bytes(each) for each in messages], round(hold_s * 1e9))
            self._deliver()
            return [ContributionId(self.producer, number) for number in numbers]

    def cancel(self, ids: ContributionId | Iterable[ContributionId]) -> list[ContributionId]:
        """Cancel messages that are pending; durable when this returns.

        Returns:
            Those that are cancelled, by this call or before. The others were sent.
        """
        chosen = [ids] if isinstance(ids, ContributionId) else list(ids)
        if any(each.producer != self.producer for each in chosen):
            raise ValueError(f"an id is of another producer than {self.producer!r}; cancel it with that one")
        numbers = [each.number for each in chosen]
        if not numbers:
            return []
        cancelled = self._cancel(self.producer, numbers).numbers
        return [ContributionId(self.producer, number) for number in cancelled]

    def cancel_all(self, *, every_producer: bool = False) -> int:
        """Cancel everything that is pending of this producer, or of all producers of the identity; durable when this
        returns. Returns how many messages were cancelled."""
        return self._cancel("" if every_producer else self.producer, ()).count

    def close(self) -> None:
        """Close the connection. What was accepted is sent all the same."""
        with self._turn:
            if self._channel is not None:
                self._channel.close()
            self._channel = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    # ---- for asyncio ----

    async def open_async(self) -> None:
        """As `open`."""
        await asyncio.to_thread(self.open)

    async def send_async(self, message: Message | bytes, *, hold_s: float = 0) -> ContributionId:
        """As `send`."""
        return (await self.send_many_async((message,), hold_s=hold_s))[0]

    async def send_many_async(self, messages: Iterable[Message | bytes], *, hold_s: float = 0) -> list[ContributionId]:
        """As `send_many`. If the task is cancelled, the messages may be sent all the same."""
        chosen = list(messages)
        return await asyncio.to_thread(lambda: self.send_many(chosen, hold_s=hold_s))

    async def cancel_async(self, ids: ContributionId | Iterable[ContributionId]) -> list[ContributionId]:
        """As `cancel`."""
        return await asyncio.to_thread(self.cancel, ids)

    async def cancel_all_async(self, *, every_producer: bool = False) -> int:
        """As `cancel_all`."""
        return await asyncio.to_thread(lambda: self.cancel_all(every_producer=every_producer))

    # ---- inside ----

    def _opened(self) -> Outbox:
        self.open()
        assert self._outbox is not None
        return self._outbox

    def _found(self) -> admin_pb2.FindContributionGatewayReply:
        self.open()
        assert self._target is not None
        return self._target

    def _find(self, timeout_s: float) -> admin_pb2.FindContributionGatewayReply:
        self._session.ensure_token()
        request = admin_pb2.FindContributionGatewayRequest(topic=self.topic)

        def ask(address: str, time_left_s: float) -> admin_pb2.FindContributionGatewayReply:
            with self._session.open_channel(address, ADMIN_SERVER) as channel:
                stub = admin_pb2_grpc.StreamAdministrationStub(channel)
                return stub.FindContributionGateway(request, timeout=time_left_s)

        try:
            return again_if_paused(lambda: ask_active(self._session.servers, ask, timeout_s), grpc.RpcError)
        except grpc.RpcError as error:
            raise client_error(error, self._session.servers.current, (self.topic,)) from error

    def _use(self, target: admin_pb2.FindContributionGatewayReply) -> None:
        """Call this gateway from now on."""
        if self._target is None or target.endpoint != self._target.endpoint or self._channel is None:
            if self._channel is not None:
                self._channel.close()
            self._channel = self._session.open_channel(target.endpoint, source_gateway(target.feed))
        self._target = target

    def _find_again(self) -> None:
        """Another gateway may hold the feed's contributions by now. It knows what the former one has accepted."""
        with suppress(ClientError):  # it can be found later
            self._use(self._find(CALL_TIMEOUT_S))

    def _deliver(self) -> None:
        """Send every request until it is accepted."""
        outbox = self._opened()
        while (request := outbox.request) is not None:
            try:
                self._call("Contribute", self._wire(request))
            except ContributionInDoubt:
                outbox.is_in_doubt = True
                raise
            except LimitReached as full:
                if outbox.is_in_doubt:  # an earlier call may have succeeded
                    raise ContributionInDoubt(str(full)) from full
                outbox.refused()
                raise
            except (ContributionRefused, AuthorizationRefused):
                outbox.refused()
                raise
            outbox.accepted()

    def _wire(self, request: Request) -> contribution_pb2.ContributeRequest:
        return contribution_pb2.ContributeRequest(
            topic=self.topic,
            producer=self.producer,
            instance=self._instance,
            first_number=request.first_number,
            messages=request.messages,
            hold_ns=request.hold_ns,
        )

    def _cancel(self, producer: str, numbers: Sequence[int]) -> contribution_pb2.CancelContributionsReply:
        request = contribution_pb2.CancelContributionsRequest(topic=self.topic, producer=producer, numbers=numbers)
        with self._turn:
            self.open()
            reply: contribution_pb2.CancelContributionsReply = self._call("Cancel", request)
        return reply

    def _call(self, method: str, request: Any) -> Any:
        """Call the gateway until it answers: every request may be sent again."""
        if self._channel is None:
            raise ValueError("the contribution is closed; call Client.contribute again")
        with PatientWait(self._timeout_s) as wait:
            return self._call_patiently(method, request, wait)

    def _call_patiently(self, method: str, request: Any, wait: PatientWait) -> Any:
        pause_s, is_renewed, is_in_doubt = PAUSE_S, False, False
        while True:
            token = self._session.current_token()
            try:
                self._session.ensure_token()
                reply = self._call_once(method, request)
                self._served_by = self._endpoint
                return reply
            except grpc.RpcError as error:
                code, details = status_of(error)
                is_stale = code is grpc.StatusCode.PERMISSION_DENIED and not is_renewed
                if is_stale or code is grpc.StatusCode.UNAUTHENTICATED:
                    self._session.forget_token(token)  # it may be older than the right, or was revoked
                    is_renewed = True
                elif code not in RETRIED and not self._may_be_outdated(code, wait.waited_s):
                    raise _refusal(code, details, self.topic) from error
                is_in_doubt |= code in UNCLEAR
            except AdminUnavailable as away:
                code, details = grpc.StatusCode.UNAVAILABLE, str(away)
            pause = pause_s * random.uniform(0.5, 1.0)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            if pause >= wait.left_s:
                if code is grpc.StatusCode.RESOURCE_EXHAUSTED and not is_in_doubt:
                    raise LimitReached(details)
                raise ContributionInDoubt(f"not accepted within {self._timeout_s:g} s: {details}")
            time.sleep(pause)
            if code in UNCLEAR | STALE_VERDICTS:
                self._find_again()

    @property
    def _endpoint(self) -> str:
        return "" if self._target is None else self._target.endpoint

    def _call_once(self, method: str, request: Any) -> Any:
        assert self._channel is not None
        call: Callable[..., Any] = getattr(contribution_pb2_grpc.ContributionStub(self._channel), method)
        return call(request, timeout=CALL_TIMEOUT_S)

    def _may_be_outdated(self, code: grpc.StatusCode, waited_s: float) -> bool:
        """True if a refusal may come from a former gateway: another one has accepted the last request. It is believed
        when no other gateway was found for long."""
        return code in STALE_VERDICTS and self._served_by not in ("", self._endpoint) and waited_s < STALE_PATIENCE_S


def _refusal(code: grpc.StatusCode, details: str, topic: str) -> ClientError:
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return AuthorizationRefused(details, (topic,))
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return ContributionSuperseded(details)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return ContributionRefused(details)
    return ClientError(f"contribution gateway: {code.name}: {details}")
