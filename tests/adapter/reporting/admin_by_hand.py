"""An admin server for an adapter's connections, which fails as a test says: real logins, sockets, TLS and streams.

It can refuse calls, end streams, accept no token any more, and go away and come back at its address.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import grpc

from tandemfeed.transport.calls.credentials import TokenFile
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.serving.call_context import CallContext, in_thread, send_initial_metadata
from tandemfeed.transport.calls.serving.loop_thread import serving_loop
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.process_shell import Connection
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.client_lib.toy_cluster import make_certificates

Request = TypeVar("Request")
WAIT_S = 60.0
MS = 1_000_000
CA, CERTIFICATE, KEY = make_certificates(ADMIN_SERVER)
REGISTRY, AUTHENTICATION = "tandemfeed.v1.AdapterRegistry", "tandemfeed.v1.Authentication"


class AdminByHand(admin_pb2_grpc.AuthenticationServicer, admin_pb2_grpc.AdapterRegistryServicer):
    """The server.

    Attributes:
        log: what happened, in order: "login", and calls by the names of their methods.
        refusals: by method, the status of the next calls; then they are served.
        reports: every report with the time when it was received, by the monotonic clock.
        endings: the incarnations whose end was reported.
        ttl_ns: of the leases that it renews.
        is_holding: answers to reports wait.
    """

    def __init__(self, folder: Path) -> None:
        self.log: list[str] = []
        self.refusals: dict[str, deque[grpc.StatusCode]] = {}
        self.reports: list[tuple[admin_pb2.AdapterReport, int]] = []
        self.endings: list[int] = []
        self.ttl_ns = 300 * MS
        self.is_holding = False
        self._tokens: set[str] = set()
        self._changed = threading.Condition()
        self._endings: list[asyncio.Event] = []  # of the open streams
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        self.credential = TokenFile(folder / "token")
        self.credential.path.write_text("a token of an outside issuer")
        self._server: RpcServer | None = None
        self.start()

    @property
    def connection(self) -> Connection:
        """How an adapter reaches it."""
        return Connection(self.endpoint, CA, "", self.credential)

    # ---- what a test does ----

    def start(self) -> None:
        """Serve, at the same address as before."""
        self._server = serve(
            [
                lambda server: admin_pb2_grpc.add_AuthenticationServicer_to_server(self, server),
                lambda server: admin_pb2_grpc.add_AdapterRegistryServicer_to_server(self, server),
            ],
            [REGISTRY, AUTHENTICATION],
            self.endpoint,
            CERTIFICATE,
            KEY,
            [self._admit],
        )

    def stop(self) -> None:
        """Go away: every connection ends."""
        if self._server is not None:
            self.end_streams()
            self._server.stop(0)
            self._server = None

    def refuse(self, method: str, code: grpc.StatusCode, count: int = 1) -> None:
        """Refuse the next calls of a method."""
        self.refusals[method] = deque([code] * count)

    def end_streams(self) -> None:
        """End every open stream."""
        for ending in list(self._endings):
            serving_loop().call_soon_threadsafe(ending.set)

    def accept_no_token(self) -> None:
        """No token issued so far is accepted any more, and every stream ends."""
        self._tokens.clear()
        self.end_streams()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, which may become so only when `log`, `reports` or `endings` grow."""
        with self._changed:
            assert self._changed.wait_for(is_so, WAIT_S), (self.log, self.reports, self.endings)

    def wait_for_count(self, method: str, count: int) -> None:
        """Wait until a method was called so often, refused calls included."""
        self.wait_for(lambda: self.log.count(method) >= count)

    def answer(self) -> None:
        """Give the answers that are held back."""
        with self._changed:
            self.is_holding = False
            self._changed.notify_all()

    # ---- the services ----

    def LogInWithToken(  # noqa: N802
        self, _request: admin_pb2.LogInWithTokenRequest, _context: grpc.ServicerContext
    ) -> admin_pb2.LogInReply:
        """Issue a token."""
        token = f"token-{self.log.count('LogInWithToken')}"
        self._tokens.add(token)
        return admin_pb2.LogInReply(token=token, expires_unix_ns=time.time_ns() + 3_600 * 10**9, identity="adapter-a")

    def Register(  # noqa: N802
        self, request: admin_pb2.RegisterRequest, _context: grpc.ServicerContext
    ) -> admin_pb2.RegisterReply:
        """Register an adapter start, always the same one."""
        reply = admin_pb2.RegisterReply(notice_key=bytes(32))
        reply.self.adapter_id, reply.self.incarnation = 1, 7
        reply.self.starts.add(incarnation=7, salt=bytes(32), public_key=request.public_key)
        return reply

    async def Attend(  # noqa: N802
        self, requests: AsyncIterator[admin_pb2.AdapterReport], context: grpc.ServicerContext
    ) -> AsyncIterator[admin_pb2.AdapterOrder]:
        """Answer every report; a renewal is granted."""
        async for report in self._until_ended(requests, context):
            with self._changed:
                self.reports.append((report, time.monotonic_ns()))
                self._changed.notify_all()
            await in_thread(context, self._hold)
            if report.renew_epoch:
                lease = admin_pb2.LeaseRenewed(epoch=report.renew_epoch, ttl_ns=self.ttl_ns, report_id=report.report_id)
                yield admin_pb2.AdapterOrder(lease_renewed=lease)
            yield admin_pb2.AdapterOrder(report_heard=admin_pb2.ReportHeard(report_id=report.report_id))

    async def Guard(  # noqa: N802
        self, requests: AsyncIterator[admin_pb2.AdapterEnded], context: grpc.ServicerContext
    ) -> admin_pb2.GuardReply:
        """Note the ends that are reported."""
        await send_initial_metadata(context)
        async for ended in self._until_ended(requests, context):
            with self._changed:
                self.endings.append(ended.incarnation)
                self._changed.notify_all()
        return admin_pb2.GuardReply()

    # ---- inside ----

    def _admit(self, call: CallContext) -> None:
        method = call.method.rpartition("/")[2]
        with self._changed:
            self.log.append(method)
            self._changed.notify_all()
        if self.refusals.get(method):
            call.abort(self.refusals[method].popleft(), "refused by the test")
        if call.service == REGISTRY:
            bearer = next(str(value) for key, value in call.invocation_metadata() if key == "authorization")
            if bearer.removeprefix("Bearer ").partition("~")[0] not in self._tokens:
                call.abort(grpc.StatusCode.UNAUTHENTICATED, "the token was revoked")

    def _hold(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: not self.is_holding, WAIT_S)

    async def _until_ended(
        self, requests: AsyncIterator[Request], context: grpc.ServicerContext
    ) -> AsyncIterator[Request]:
        """The requests of a stream, until a test ends it."""
        ending = asyncio.Event()
        self._endings.append(ending)
        ended = asyncio.ensure_future(ending.wait())
        try:
            while True:
                coming = asyncio.ensure_future(anext(requests, None))
                await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    coming.cancel()
                    context.abort(grpc.StatusCode.UNAVAILABLE, "ended by the test")
                if (request := coming.result()) is None:
                    return
                yield request
        finally:
            ended.cancel()
            self._endings.remove(ending)
