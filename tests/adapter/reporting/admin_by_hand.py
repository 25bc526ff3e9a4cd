"""An admin server for an adapter's connections, which fails as a test says, and may accept no token any more."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from tandemfeed.transport.calls.credentials import TokenFile
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.serving.call_context import CallContext, in_thread, send_initial_metadata
from tandemfeed.transport.process_shell import Connection
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.adapter.server_by_hand import WAIT_S, ServerByHand
from tests.client_lib.toy_cluster import make_certificates

MS = 1_000_000
CA, CERTIFICATE, KEY = make_certificates(ADMIN_SERVER)
REGISTRY, AUTHENTICATION = "tandemfeed.v1.AdapterRegistry", "tandemfeed.v1.Authentication"


class AdminByHand(ServerByHand, admin_pb2_grpc.AuthenticationServicer, admin_pb2_grpc.AdapterRegistryServicer):
    """The server.

    Attributes:
        reports: every report with the time when it was received, by the monotonic clock.
        endings: the incarnations whose end was reported.
        ttl_ns: of the leases that it renews.
        is_holding: answers to reports wait.
        is_silent: registrations are not answered.
        registrations: every request.
    """

    def __init__(self, folder: Path) -> None:
        self.reports: list[tuple[admin_pb2.AdapterReport, int]] = []
        self.endings: list[int] = []
        self.ttl_ns = 300 * MS
        self.is_holding = self.is_silent = False
        self.registrations: list[admin_pb2.RegisterRequest] = []
        self._tokens: set[str] = set()
        self.credential = TokenFile(folder / "token")
        self.credential.path.write_text("a token of an outside issuer")
        super().__init__(
            [REGISTRY, AUTHENTICATION],
            [
                lambda server: admin_pb2_grpc.add_AuthenticationServicer_to_server(self, server),
                lambda server: admin_pb2_grpc.add_AdapterRegistryServicer_to_server(self, server),
            ],
            (CERTIFICATE, KEY),
        )

    @property
    def connection(self) -> Connection:
        """How an adapter reaches it."""
        return Connection(self.endpoint, CA, "", self.credential)

    def accept_no_token(self) -> None:
        """No token issued so far is accepted any more, and every stream ends."""
        self._tokens.clear()
        self.end_streams()

    def answer(self) -> None:
        """Give the answers that are held back."""

        def answer() -> None:
            self.is_holding = self.is_silent = False

        self.change(answer)

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
        self.registrations.append(request)
        with self.changed:
            assert self.changed.wait_for(lambda: not self.is_silent, WAIT_S)
        reply = admin_pb2.RegisterReply(notice_key=bytes(32))
        reply.self.adapter_id, reply.self.incarnation = 1, 7
        reply.self.starts.add(incarnation=7, salt=bytes(32), public_key=request.public_key)
        return reply

    async def Attend(  # noqa: N802
        self, requests: AsyncIterator[admin_pb2.AdapterReport], context: grpc.ServicerContext
    ) -> AsyncIterator[admin_pb2.AdapterOrder]:
        """Answer every report; a renewal is granted."""
        async for report in self.until_ended(requests, context):
            received = report, time.monotonic_ns()
            self.change(lambda received=received: self.reports.append(received))  # type: ignore[misc]
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
        async for ended in self.until_ended(requests, context):
            incarnation = ended.incarnation
            self.change(lambda incarnation=incarnation: self.endings.append(incarnation))  # type: ignore[misc]
        return admin_pb2.GuardReply()

    # ---- inside ----

    def check(self, call: CallContext) -> None:
        """Refuse tokens that are not accepted any more."""
        if call.service == REGISTRY:
            bearer = next(str(value) for key, value in call.invocation_metadata() if key == "authorization")
            if bearer.removeprefix("Bearer ").partition("~")[0] not in self._tokens:
                call.abort(grpc.StatusCode.UNAUTHENTICATED, "the token was revoked")

    def _hold(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: not self.is_holding, WAIT_S)
