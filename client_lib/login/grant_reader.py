"""Reads a subscription's update stream in the background and puts each update into the mailbox.

If the administration server is lost, the subscription continues with its present grant, and this thread subscribes
again when the server returns or another one is active. It logs in again if the token is no longer valid. Only a refusal
ends the thread, and it is a revocation.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

import grpc

from tandemfeed.client_lib.errors import (
    AdminUnavailable,
    AuthenticationRefused,
    ClientError,
    client_error,
)
from tandemfeed.client_lib.items import Revoked
from tandemfeed.client_lib.login.grant import GrantUpdated
from tandemfeed.client_lib.login.session import Session
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

log = logging.getLogger(__name__)

GrantLetter = GrantUpdated | Revoked


class GrantReader:
    """The thread that keeps one subscription's grant up to date.

    Args:
        session: provides logins.
        request: the subscription.
        deliver: puts a letter into the loop's mailbox.
    """

    def __init__(
        self, session: Session, request: admin_pb2.SubscribeRequest, deliver: Callable[[GrantLetter], bool]
    ) -> None:
        self._session = session
        self._request = request
        self._deliver = deliver
        self._first: queue.SimpleQueue[admin_pb2.SubscriptionUpdate | ClientError] = queue.SimpleQueue()
        self._is_granted = False
        self._asked = session.servers.current
        self._closed = threading.Event()
        self._call_lock = threading.Lock()
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._run, name="tandemfeed-grant", daemon=True)
        self._thread.start()

    def first(self, timeout_s: float) -> admin_pb2.SubscriptionUpdate:
        """Wait for the first update, which contains the whole grant.

        Raises:
            ClientError: the refusal, or AdminUnavailable after the time-out. In both cases the reader has ended.
        """
        try:
            outcome = self._first.get(timeout=timeout_s)
        except queue.Empty:
            outcome = AdminUnavailable(
                f"administration server {self._asked} did not answer Subscribe within {timeout_s} s"
            )
        if isinstance(outcome, ClientError):
            self.close()
            raise outcome
        return outcome

    def close(self) -> None:
        """Cancel the update stream and end the thread."""
        self._closed.set()
        with self._call_lock:
            if self._call is not None:
                self._call.cancel()
        self._thread.join()

    def _run(self) -> None:
        servers = self._session.servers
        while not self._closed.is_set():
            failure: BaseException | None = None
            try:
                self._read_one_call()
            except ClientError as error:
                if not isinstance(error, AdminUnavailable) or not (self._is_granted or servers.are_several):
                    self._end_with(error)
                    return
                failure = error.__cause__
                log.info("lost the administration server; retrying", extra={"details": str(error)})
            self._closed.wait(servers.move_on(self._asked, failure))

    def _end_with(self, error: ClientError) -> None:
        if self._is_granted:
            self._deliver(Revoked(str(error)))
        else:
            self._first.put(error)

    def _read_one_call(self) -> None:
        """Subscribe, and pass updates on until the stream ends.

        A stream ends without an error after a revocation or when the server stops; the next call tells which.
        """
        self._session.ensure_token()
        token = self._session.current_token()
        self._asked = self._session.servers.current
        channel = self._session.open_channel(self._asked, ADMIN_SERVER)
        is_whole = True
        try:
            call = admin_pb2_grpc.StreamAdministrationStub(channel).Subscribe(self._request)
            with self._call_lock:
                self._call = call
                if self._closed.is_set():
                    call.cancel()
            for update in call:
                self._session.servers.answered(self._asked)
                self._pass_on(update, is_whole)
                is_whole = False
        except grpc.RpcError as error:
            if self._closed.is_set():
                return
            refusal = client_error(error, self._asked, tuple(self._request.topics))
            if isinstance(refusal, AuthenticationRefused) and self._is_granted:
                self._session.forget_token(token)  # expired, or this server signs with another key
                self._session.ensure_token()
                return
            raise refusal from error
        finally:
            with self._call_lock:
                self._call = None
            channel.close()

    def _pass_on(self, update: admin_pb2.SubscriptionUpdate, is_whole: bool) -> None:
        if self._is_granted:
            self._deliver(GrantUpdated(update, is_whole))
        else:
            self._is_granted = True
            self._first.put(update)
