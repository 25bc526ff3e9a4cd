"""A client's one call to the administration server, for all its subscriptions. The shell of `CallCore`.

A thread makes the call and reads it. If the server is lost, subscriptions continue with their present grants, and the
thread calls again when the server returns or another one is active. It logs in again if the token is no longer valid. A
second thread renews the login and the call before the token expires. Only a refusal ends a subscription.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import grpc

from tandemfeed.client_lib.errors import (
    AdminUnavailable,
    AuthenticationRefused,
    ClientError,
    ThreadFailed,
    client_error,
)
from tandemfeed.client_lib.login.call_core import Answered, CallAgain, CallCore, Granted, Lost, Outcome
from tandemfeed.client_lib.login.grant import Grant, TopicsRevoked
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.patient_wait import PatientWait
from tandemfeed.feedcore.topics import TopicEntry
from tandemfeed.runtime.threads import OnFailure, mark_unhealthy, start_thread
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

log = logging.getLogger(__name__)

RENEW_AGAIN_S = 5.0  # after a login that failed; there are several tries before the token expires
GrantLetter = Grant | TopicsRevoked
Outbox = queue.SimpleQueue[admin_pb2.SubscriptionRequest | None]


class Call(Protocol):
    """A call to the administration server: its updates, until it ends or raises grpc.RpcError."""

    def __iter__(self) -> Iterator[admin_pb2.SubscriptionUpdate]: ...

    def cancel(self) -> bool: ...


MakeCall: TypeAlias = Callable[[Session, str, Iterator[admin_pb2.SubscriptionRequest]], AbstractContextManager[Call]]


@contextmanager
def make_call(session: Session, address: str, requests: Iterator[admin_pb2.SubscriptionRequest]) -> Iterator[Call]:
    """Call the server at an address."""
    with session.open_channel(address, ADMIN_SERVER) as channel:
        yield admin_pb2_grpc.StreamAdministrationStub(channel).Subscribe(requests)


@dataclass(slots=True)
class _Receiver:
    """Whom a subscription's letters go to. Attributes: first: the first grant, or why there is none."""

    deliver: Callable[[GrantLetter], object]
    fail: OnFailure
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
    """The subscriptions of one client at the administration server. Safe to call from any thread.

    Its threads run while there are subscriptions.

    Args:
        call: makes a call.
        now_ns: the monotonic clock.
    """

    def __init__(
        self, session: Session, call: MakeCall = make_call, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._session, self._make, self._now_ns = session, call, now_ns
        self._core = CallCore()
        self._receivers: dict[int, _Receiver] = {}  # by subscription_id
        self._answers: dict[int, queue.SimpleQueue[ClientError | None]] = {}  # by request_id
        self._changed = threading.Condition()
        self._outbox: Outbox | None = None  # of the present call
        self._call: Call | None = None
        self._asked = session.servers.current
        self._closed = threading.Event()
        self._renew_at_ns = 0
        self._threads: tuple[threading.Thread, ...] = ()  # while there are subscriptions

    # ---- the application ----

    def subscribe(
        self,
        feed: str,
        topics: Iterable[TopicEntry],
        deliver: Callable[[GrantLetter], object],
        timeout_s: float,
        unicast_key: bytes = b"",
        *,
        fail: OnFailure = mark_unhealthy,
    ) -> tuple[int, Grant]:
        """Subscribe; return the subscription's id and its first grant.

        Args:
            deliver: called in the stream's thread with each later grant and revocation; must not block.
            unicast_key: the public key with which the subscription connects to adapters; empty: it does not.
            fail: called if a thread of the stream ends with an error.

        Raises:
            ClientError: the refusal, or AdminUnavailable after the time-out. In both cases nothing is subscribed.
        """
        receiver = _Receiver(deliver, fail)
        with self._changed:
            subscription_id, request = self._core.subscribe(feed, topics, unicast_key)
            self._receivers[subscription_id] = receiver
            self._send(request)
        try:
            self._start_threads()
            with PatientWait(timeout_s) as wait:
                outcome = wait.take(receiver.first)
        except queue.Empty:
            outcome = AdminUnavailable(
                f"administration server {self._asked} did not answer Subscribe within {timeout_s} s"
            )
        except BaseException:  # the application is interrupted
            self.cancel(subscription_id)
            raise
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
        with PatientWait(timeout_s) as wait:
            request = self._begin_modification(subscription_id, topics, answer, wait)
            try:
                error = wait.take(answer)
            except queue.Empty:
                error = AdminUnavailable(f"administration server {self._asked} did not answer within {timeout_s} s")
            finally:
                self._answers.pop(request.request_id, None)
        if error is not None:
            raise error

    def _begin_modification(
        self,
        subscription_id: int,
        topics: Iterable[TopicEntry],
        answer: queue.SimpleQueue[ClientError | None],
        wait: PatientWait,
    ) -> admin_pb2.SubscriptionRequest:
        with self._changed:
            wait.until(lambda: self._is_answerable(subscription_id), self._changed.wait)
            if subscription_id not in self._core.requests:
                raise ValueError("the subscription has ended")
            if self._outbox is None:
                raise AdminUnavailable(f"administration server {self._asked} cannot be reached; modify again later")
            request = self._core.modify(subscription_id, topics)
            self._answers[request.request_id] = answer
            self._send(request)
            return request

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
        """End all subscriptions and the threads."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
            if self._call is not None:
                self._call.cancel()
            threads = self._threads
        for thread in threads:
            thread.join()

    def _start_threads(self) -> None:
        with self._changed:
            if not self._threads:
                self._threads = (
                    start_thread(self._run, "tandemfeed-grants", self._fail),
                    start_thread(self._renew, "tandemfeed-renewal", self._fail),
                )
            self._changed.notify_all()

    # ---- the thread of the call ----

    def _run(self) -> None:
        while self._has_work():
            failure: BaseException | None = None
            try:
                self._make_call()
            except ClientError as error:
                failure = error.__cause__
                self._on_failed(error)
            self._give_up_answers()
            if not self._closed.is_set() and self._core.requests:
                self._closed.wait(self._session.servers.move_on(self._asked, failure))

    def _has_work(self) -> bool:
        """Whether there is a subscription. If not, both threads end, and the next subscription starts others."""
        with self._changed:
            if self._core.requests and not self._closed.is_set():
                return True
            self._threads = ()
            self._changed.notify_all()
            return False

    def _make_call(self) -> None:
        """Call, and pass updates on until the call ends, without an error if the server stops serving."""
        session = self._session
        session.ensure_token()
        token = session.current_token()
        self._asked = session.servers.current
        outbox: Outbox = queue.SimpleQueue()
        try:
            with self._make(session, self._asked, iter(outbox.get, None)) as call:
                try:
                    self._begin_call(call, outbox)
                    for update in call:
                        session.servers.answered(self._asked)
                        self._on_update(update)
                finally:
                    self._end_call(call, outbox)
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

    def _begin_call(self, call: Call, outbox: Outbox) -> None:
        with self._changed:
            self._call, self._outbox = call, outbox
            for request in self._core.on_call():
                outbox.put(request)
            if self._closed.is_set() or not self._core.requests:
                call.cancel()
            self._renew_after(self._session.renew_in_s)

    def _end_call(self, call: Call, outbox: Outbox) -> None:
        with self._changed:
            call.cancel()
            self._call = self._outbox = None
            outbox.put(None)

    def _give_up_answers(self) -> None:
        """No call can bring the answers that were outstanding when it ended."""
        with self._changed:
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

    def _fail(self, name: str, failure: BaseException) -> None:
        """A thread ended with an error: every subscription raises it, and waits for nothing."""
        error = ThreadFailed(f"thread {name} ended with an unexpected error: {failure!r}")
        error.__cause__ = failure
        with self._changed:
            for receiver in self._receivers.values():
                receiver.fail(name, failure)
                receiver.first.put(error)
            for answer in self._answers.values():
                answer.put(error)
            self._receivers.clear()
            self._core.requests.clear()  # the other thread ends, and later subscriptions start new ones
            self._threads = ()
            self._changed.notify_all()
            if self._call is not None:
                self._call.cancel()

    def _is_answerable(self, subscription_id: int) -> bool:
        """Whether a change need not wait: a call can take it, or nothing ever will."""
        return self._outbox is not None or self._closed.is_set() or subscription_id not in self._core.requests

    def _send(self, request: admin_pb2.SubscriptionRequest) -> None:
        """Send on the present call; without one, the next call requests everything again."""
        if self._outbox is not None:
            self._outbox.put(request)

    # ---- the thread of renewals ----

    def _renew(self) -> None:
        """Renew the login before its token expires, once for each call and time, and prolong the call."""
        while (outbox := self._wait_for_renewal()) is not None:
            try:
                self._session.ensure_token()
            except ClientError as error:
                log.warning("could not renew the login; trying again", extra={"details": str(error)})
                pause_s, bearer = RENEW_AGAIN_S, ""
            else:
                pause_s, bearer = self._session.renew_in_s, self._session.bearer(ADMIN_SERVER)
            with self._changed:
                if self._outbox is outbox:  # else a new call has begun, with a time of its own
                    if bearer:
                        self._send(self._core.renew(bearer))
                    self._renew_after(pause_s)

    def _wait_for_renewal(self) -> Outbox | None:
        """Wait until the present call must be renewed; returns its outbox, or None at the end."""
        own = threading.current_thread()
        with self._changed:
            while own in self._threads and not self._closed.is_set():
                left_ns = self._renew_at_ns - self._now_ns()
                if self._outbox is not None and left_ns <= 0:
                    return self._outbox
                self._changed.wait(None if self._outbox is None else left_ns / 1e9)
        return None

    def _renew_after(self, pause_s: float) -> None:
        self._renew_at_ns = self._now_ns() + int(pause_s * 1e9)
        self._changed.notify_all()
