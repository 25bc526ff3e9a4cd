"""A client's one call to the administration server, for all its subscriptions. The shell of `CallCore`.

A thread makes the call and reads it. If the server is lost, subscriptions continue with their present grants, and the
thread calls again when the server returns or another one is active. It logs in again if the token is no longer valid,
and renews the call before the token expires. Only a refusal ends a subscription.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import grpc

from tandemfeed.client_lib.errors import AdminUnavailable, AuthenticationRefused, ClientError, client_error
from tandemfeed.client_lib.login.call_core import Answered, CallAgain, CallCore, Granted, Lost, Outcome
from tandemfeed.client_lib.login.grant import Grant, TopicsRevoked
from tandemfeed.client_lib.login.session import Session
from tandemfeed.feedcore.topics import TopicEntry
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

log = logging.getLogger(__name__)

RENEW_AGAIN_S = 5.0  # after a login that failed; there are several tries before the token expires
GrantLetter = Grant | TopicsRevoked
Outbox = queue.SimpleQueue[admin_pb2.SubscriptionRequest | None]


@dataclass(slots=True)
class _Receiver:
    """Whom a subscription's letters go to. Attributes: first: the first grant, or why there is none."""

    deliver: Callable[[GrantLetter], object]
    is_granted: bool = False
    first: queue.SimpleQueue[Grant | ClientError] = field(default_factory=queue.SimpleQueue)

    def take(self, letter: GrantLetter | ClientError) -> None:
        """Pass a letter on: to the application that waits for the first grant, or to its subscription."""
        if isinstance(letter, ClientError) or not self.is_granted:
            assert not isinstance(letter, TopicsRevoked)
            self.is_granted = not isinstance(letter, ClientError)
            self.first.put(letter)
        else:
            self.deliver(letter)


class GrantStream:
    """The subscriptions of one client at the administration server. Safe to call from any thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._core = CallCore()
        self._receivers: dict[int, _Receiver] = {}  # by subscription_id
        self._answers: dict[int, queue.SimpleQueue[ClientError | None]] = {}  # by request_id
        self._changed = threading.Condition()
        self._outbox: Outbox | None = None  # of the present call
        self._call: grpc.Call | None = None
        self._asked = session.servers.current
        self._closed = threading.Event()
        self._renewal: threading.Timer | None = None
        self._thread: threading.Thread | None = None

    # ---- the application ----

    def subscribe(
        self,
        feed: str,
        topics: Iterable[TopicEntry],
        deliver: Callable[[GrantLetter], object],
        timeout_s: float,
        unicast_key: bytes = b"",
    ) -> tuple[int, Grant]:
        """Subscribe; return the subscription's id and its first grant.

        Args:
            deliver: called in the stream's thread with each later grant and revocation; must not block.
            unicast_key: the public key with which the subscription connects to adapters; empty: it does not.

        Raises:
            ClientError: the refusal, or AdminUnavailable after the time-out. In both cases nothing is subscribed.
        """
        receiver = _Receiver(deliver)
        with self._changed:
            subscription_id, request = self._core.subscribe(feed, topics, unicast_key)
            self._receivers[subscription_id] = receiver
            self._send(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tandemfeed-grants", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        try:
            outcome = receiver.first.get(timeout=timeout_s)
        except queue.Empty:
            outcome = AdminUnavailable(
                f"administration server {self._asked} did not answer Subscribe within {timeout_s} s"
            )
        if isinstance(outcome, ClientError):
            self.cancel(subscription_id)
            raise outcome
        return subscription_id, outcome

    def modify(self, subscription_id: int, topics: Iterable[TopicEntry], timeout_s: float) -> None:
        """Change a subscription, and wait until the server has accepted the change. The grant follows as a letter.

        While no server can be reached, this waits for one.

        Raises:
            ClientError: the refusal, or AdminUnavailable. In both cases nothing has changed.
            ValueError: the subscription has ended.
        """
        answer: queue.SimpleQueue[ClientError | None] = queue.SimpleQueue()
        give_up_at_s = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(lambda: self._is_answerable(subscription_id), timeout_s)
            if subscription_id not in self._core.requests:
                raise ValueError("the subscription has ended")
            if self._outbox is None:
                raise AdminUnavailable(f"administration server {self._asked} cannot be reached; modify again later")
            request = self._core.modify(subscription_id, topics)
            self._answers[request.request_id] = answer
            self._send(request)
        try:
            error = answer.get(timeout=max(give_up_at_s - time.monotonic(), 0))
        except queue.Empty:
            error = AdminUnavailable(f"administration server {self._asked} did not answer within {timeout_s} s")
        finally:
            self._answers.pop(request.request_id, None)
        if error is not None:
            raise error

    def cancel(self, subscription_id: int) -> None:
        """End a subscription; does not wait for the server."""
        with self._changed:
            self._receivers.pop(subscription_id, None)
            request = self._core.cancel(subscription_id)
            self._changed.notify_all()
            if not self._core.requests and self._call is not None:
                self._call.cancel()  # the call is not needed any more
            elif request is not None:
                self._send(request)

    def close(self) -> None:
        """End all subscriptions and the thread."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
            if self._call is not None:
                self._call.cancel()
        if self._thread is not None:
            self._thread.join()

    # ---- the thread ----

    def _run(self) -> None:
        while self._has_work():
            failure: BaseException | None = None
            try:
                self._make_call()
            except ClientError as error:
                failure = error.__cause__
                self._on_failed(error)
            if not self._closed.is_set() and self._core.requests:
                self._closed.wait(self._session.servers.move_on(self._asked, failure))

    def _has_work(self) -> bool:
        """Wait until there is a subscription. False: the stream is closed."""
        with self._changed:
            while not self._core.requests and not self._closed.is_set():
                self._changed.wait()
            return not self._closed.is_set()

    def _make_call(self) -> None:
        """Call, and pass updates on until the call ends, without an error if the server stops serving."""
        session = self._session
        session.ensure_token()
        token = session.current_token()
        self._asked = session.servers.current
        channel = session.open_channel(self._asked, ADMIN_SERVER)
        outbox: Outbox = queue.SimpleQueue()
        try:
            call = admin_pb2_grpc.StreamAdministrationStub(channel).Subscribe(iter(outbox.get, None))
            self._begin_call(call, outbox)
            for update in call:
                session.servers.answered(self._asked)
                self._on_update(update)
        except grpc.RpcError as error:
            if self._closed.is_set() or not self._core.requests:
                return
            if status_of(error)[0] is grpc.StatusCode.CANCELLED:  # for want of subscriptions; one has begun since
                return
            refusal = client_error(error, self._asked)
            if isinstance(refusal, AuthenticationRefused):
                session.forget_token(token)  # expired, or this server signs with another key
                session.ensure_token()
                return
            raise refusal from error
        finally:
            self._end_call(outbox)
            channel.close()

    def _begin_call(self, call: grpc.Call, outbox: Outbox) -> None:
        with self._changed:
            self._call, self._outbox = call, outbox
            self._changed.notify_all()
            for request in self._core.on_call():
                outbox.put(request)
            if self._closed.is_set() or not self._core.requests:
                call.cancel()
            self._renew_after(self._session.renew_in_s)

    def _end_call(self, outbox: Outbox) -> None:
        with self._changed:
            if self._call is not None:
                self._call.cancel()
            self._call = self._outbox = None
            outbox.put(None)
            if self._renewal is not None:
                self._renewal.cancel()
            lost = AdminUnavailable(f"lost administration server {self._asked} before it answered")
            for answer in self._answers.values():
                answer.put(lost)

    def _on_failed(self, error: ClientError) -> None:
        """The call has failed: keep what a later call can continue, and end the rest."""
        log.info("lost the administration server; retrying", extra={"details": str(error)})
        is_away = isinstance(error, AdminUnavailable)
        with self._changed:
            for subscription_id, request in list(self._core.requests.items()):
                if not (is_away and (request.granted is not None or self._session.servers.are_several)):
                    self._perform(self._core.on_rejected(subscription_id, error))

    def _on_update(self, update: admin_pb2.SubscriptionUpdate) -> None:
        with self._changed:
            self._perform(self._core.on_update(update))

    def _perform(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Answered(request_id, error):
                    if (answer := self._answers.get(request_id)) is not None:
                        answer.put(error)
                case Granted(subscription_id, grant):
                    if (receiver := self._receivers.get(subscription_id)) is not None:
                        receiver.take(grant)
                case Lost(subscription_id, revoked, error):
                    self._changed.notify_all()
                    if (receiver := self._receivers.get(subscription_id)) is not None:
                        receiver.take(error if error is not None and not receiver.is_granted else revoked)
                case CallAgain(error):
                    raise AdminUnavailable(str(error)) from error

    def _is_answerable(self, subscription_id: int) -> bool:
        """Whether a change need not wait: a call can take it, or nothing ever will."""
        return self._outbox is not None or self._closed.is_set() or subscription_id not in self._core.requests

    def _send(self, request: admin_pb2.SubscriptionRequest) -> None:
        """Send on the present call; without one, the next call requests everything again."""
        if self._outbox is not None:
            self._outbox.put(request)

    # ---- renewal, in a timer's thread ----

    def _renew_after(self, pause_s: float) -> None:
        self._renewal = threading.Timer(pause_s, self._renew, (self._outbox,))
        self._renewal.daemon = True
        self._renewal.start()

    def _renew(self, outbox: Outbox | None) -> None:
        """Renew the login on the call for which the timer ran; a later call has a timer of its own."""
        try:
            self._session.ensure_token()
        except ClientError as error:
            log.warning("could not renew the login; trying again", extra={"details": str(error)})
            pause_s, bearer = RENEW_AGAIN_S, ""
        else:
            pause_s, bearer = self._session.renew_in_s, self._session.bearer(ADMIN_SERVER)
        with self._changed:
            if outbox is None or self._outbox is not outbox:
                return
            if bearer:
                self._send(self._core.renew(bearer))
            self._renew_after(pause_s)
