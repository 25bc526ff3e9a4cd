"""The adapter's side of AdapterRegistry: registers, attends, and passes the admin server's orders on.

If the server goes away, the registry retries while the adapter continues. With several servers, it finds the active
one. It sends no reports and counts no lease: the loop does both (`report_sender`), on the streams that it opens here.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import threading
from collections.abc import Callable, Mapping

import grpc

from tandemfeed.adapter.reporting.report_sender import ReportStream
from tandemfeed.runtime.threads import OnFailure, end_process, start_thread
from tandemfeed.transport.calls.admin_servers import TRY_TIMEOUT_S, AdminServers, is_elsewhere
from tandemfeed.transport.calls.channels import open_channel, status_of
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.reachability import failure_text
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.process_shell import StopSignal
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart, announced_starts
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

LOG = logging.getLogger("tandemfeed.adapter.reporting.registry")
RETRY_PAUSE_S = 0.2  # never longer: a lease holder must be back within the lease's term
REGISTER_TIMEOUT_S = 10.0
LOOK_FOR_STOP_S = 0.05
# If an earlier process of this adapter died or hung just now, the server may not have noticed it. So the registration
# is repeated, after pauses that double from RETRY_PAUSE_S up to this: three seconds in all.
REPLACED_PAUSE_S_MAX = 1.6
NONCE_SIZE = 16


class AnotherProcessRuns(Exception):
    """Another process is registered as this adapter; the text comes from the admin server and names it."""


class Registry:
    """The connection to the admin server. Owner: its thread, and until `start` the thread that registers.

    Args:
        servers: host:port of the admin server, or of all admin servers, separated by commas.
        on_order: called in the registry's thread with each order.
        on_registered: called with each reply to a registration, the first one included.
        on_begun: called in the registry's thread with each new stream, on which nothing has been sent yet. The loop
            sends the first report, which renews the lease.
        on_lost: called in the registry's thread when that stream, and the orders, have ended.
        on_replaced: called in the registry's thread, with the admin server's reason, when another process has replaced
            this one. The registry has ended by then, and this process must end.
        next_counters: returns each channel's first unused packet counter, from which a new receiver accepts packets.
            Called in the registry's thread, as `unicast_endpoint` is.
        unicast_endpoint: returns where this adapter serves unicast clients; empty: nowhere yet.
        tokens: returns a valid token.
        request: the registration. The registry fills in the process.
        on_failure: called if the thread ends by an unexpected exception. Without it no lease is renewed or granted.
    """

    def __init__(
        self,
        servers: str,
        ca_pem: bytes,
        tokens: TokenSource,
        request: admin_pb2.RegisterRequest,
        *,
        on_order: Callable[[admin_pb2.AdapterOrder], object],
        on_registered: Callable[[admin_pb2.RegisterReply], object],
        on_begun: Callable[[ReportStream], object],
        on_lost: Callable[[ReportStream], object],
        on_replaced: Callable[[str], object],
        next_counters: Callable[[], Mapping[int, int]],
        unicast_endpoint: Callable[[], str] = lambda: "",
        on_failure: OnFailure = end_process,
    ) -> None:
        self._servers = AdminServers(servers, pause_s=RETRY_PAUSE_S, pause_max_s=RETRY_PAUSE_S)
        self._asked = self._servers.current
        self._ca_pem, self._tokens, self._request = ca_pem, tokens, request
        self._on_order, self._on_registered = on_order, on_registered
        self._on_begun, self._on_lost, self._on_replaced = on_begun, on_lost, on_replaced
        self._next_counters, self._unicast_endpoint = next_counters, unicast_endpoint
        self._on_failure = on_failure
        request.process_nonce = secrets.token_bytes(NONCE_SIZE)
        request.process_id, request.host = os.getpid(), socket.gethostname()
        self._stopped = threading.Event()
        self._channel: grpc.Channel | None = None
        self._thread: threading.Thread | None = None

    @property
    def server(self) -> str:
        """host:port of the admin server that was asked last."""
        return self._asked

    def register(self, stop: StopSignal) -> admin_pb2.RegisterReply | None:
        """Register, and wait for the server as long as it takes; None if the stop signal came first.

        Raises:
            AuthenticationRefused, grpc.RpcError: the server refuses this adapter; retrying does not help.
            AnotherProcessRuns: another process is registered as this adapter, and still reports.
        """
        level = logging.WARNING
        pause_s = RETRY_PAUSE_S
        while not stop.is_set:
            try:
                return self._register_once(stop)
            except grpc.FutureCancelledError:
                break
            except grpc.RpcError as error:
                if (refusal := _another_process(error)) is not None:
                    if pause_s > REPLACED_PAUSE_S_MAX:
                        raise AnotherProcessRuns(refusal) from error
                    LOG.log(level, "refused; retrying, in case that process has just ended", extra={"why": refusal})
                    level = logging.DEBUG
                    select.select([stop], [], [], pause_s)
                    pause_s *= 2
                    continue
                if not is_elsewhere(error):
                    raise
                if level == logging.WARNING:  # warn once: an outage may be long
                    why = failure_text(error, self._asked, self._ca_pem)
                    LOG.warning("the admin server does not answer; retrying", extra={"why": why})
                    level = logging.DEBUG
                select.select([stop], [], [], self._servers.move_on(self._asked, error))
        return None

    def start(self) -> None:
        """Begin to exchange reports and orders with the server."""
        self._thread = start_thread(self._keep_attending, "registry", self._on_failure)

    def stop(self) -> None:
        """Leave: the server sees the stream end."""
        self._stopped.set()
        if (channel := self._channel) is not None:
            channel.close()

    # ---- inside ----

    def _register_once(self, stop: StopSignal | None = None) -> admin_pb2.RegisterReply:
        if self._channel is not None:
            self._channel.close()
        self._asked = self._servers.current
        self._channel = open_channel(self._asked, self._ca_pem, ADMIN_SERVER, self._tokens)
        for channel_id, counter in self._next_counters().items():
            self._request.next_packet_counters[channel_id] = counter
        self._request.unicast_endpoint = self._unicast_endpoint()
        timeout_s = TRY_TIMEOUT_S if self._servers.are_several else REGISTER_TIMEOUT_S
        call = admin_pb2_grpc.AdapterRegistryStub(self._channel).Register.future(self._request, timeout=timeout_s)
        done = threading.Event()
        call.add_done_callback(lambda _call: done.set())
        while not done.wait(LOOK_FOR_STOP_S):
            if self._stopped.is_set() or (stop is not None and stop.is_set):
                call.cancel()
        reply = call.result()
        self._servers.answered(self._asked)
        own = own_start(reply)
        self._request.resume_incarnation, self._request.resume_salt = own.incarnation, own.salt
        self._request.resume_proof = reply.start_proof
        self._request.replace = False  # only once: two processes with --replace would replace each other forever
        self._on_registered(reply)
        return reply

    def _keep_attending(self) -> None:
        is_first, level = True, logging.WARNING
        while not self._stopped.is_set():
            error: Exception | None = None
            try:
                if not is_first:
                    self._register_once()
                    LOG.info("registered again", extra={"server": self._asked})
                is_first, level = False, logging.WARNING
                self._attend()
                why = "the server ended the stream"
            except grpc.FutureCancelledError:
                return  # stopped while it registered again
            except (grpc.RpcError, AuthenticationRefused, ValueError) as failed:
                if (refusal := _another_process(failed)) is not None:
                    LOG.error("another process replaced this one; ending", extra={"why": refusal})
                    self._on_replaced(refusal)
                    return
                error, why = failed, str(failed)[:300]  # ValueError: the channel was closed under us
                if self._tokens.renew_after(failed):
                    continue
            if not self._stopped.is_set():
                LOG.log(level, "lost the admin server; retrying", extra={"why": why})
                level = logging.DEBUG  # warn once per outage
                self._stopped.wait(self._servers.move_on(self._asked, error))

    def _attend(self) -> None:
        assert self._channel is not None
        stream = ReportStream(self._request.resume_incarnation)
        orders = admin_pb2_grpc.AdapterRegistryStub(self._channel).Attend(stream.taken())
        self._on_begun(stream)
        try:
            for order in orders:
                self._on_order(order)
        finally:
            stream.end()
            self._on_lost(stream)


def _another_process(error: Exception) -> str | None:
    """The server's text if it refused the registration because another process runs as this adapter."""
    code, details = status_of(error)
    return details if code is grpc.StatusCode.ALREADY_EXISTS else None


def own_start(registered: admin_pb2.RegisterReply) -> AnnouncedStart:
    """This start of the adapter, as the admin server has just announced it.

    Raises:
        ValueError: the server speaks another version, or is not an admin server.
    """
    for start in announced_starts([registered.self]):
        if start.incarnation == registered.self.incarnation:
            return start
    raise ValueError(
        "the admin server's reply has no salt for this start of the adapter; "
        "run the admin server and the adapters in the same version"
    )
