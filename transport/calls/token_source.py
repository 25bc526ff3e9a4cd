"""Keeps a process's token valid, and proves it to each server that the process calls."""

from __future__ import annotations

import contextlib
import threading
import time

import grpc

from tandemfeed.transport.calls.admin_servers import AdminServers
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.transport.calls.credentials import Credential, CredentialUnusable
from tandemfeed.transport.calls.login import AuthenticationRefused, Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.v1 import admin_pb2

PATIENCE_S = 10.0
PATIENCE_WITH_TOKEN_S = 0.5  # the present token serves meanwhile
TRY_AGAIN_NS = 10_000_000_000
REFUSED_PAUSE_MIN_NS = 100_000_000
SERVED_NS = 2_000_000_000  # a token that was not refused for so long had been accepted


class TokenSource:
    """Keeps a valid token: logs in again at half the token's life. Thread-safe.

    While no server answers, the present token serves for the rest of its life, and only a call to the admin server
    waits for a login. So the cluster's processes continue to talk to each other without the admin server, and no
    backup is late with its promise to the active.
    """

    def __init__(self, servers: str | AdminServers, ca_pem: bytes, identity: str, credential: Credential) -> None:
        known = AdminServers(servers) if isinstance(servers, str) else servers
        self._arguments = (known, ca_pem, identity, credential)
        self._renewing = threading.Lock()  # held during a login
        self._login: Login | None = None
        self._is_refused = False  # the admin server does not accept the present token
        self._renew_at_ns = self._refused_at_ns = 0
        self._refused_pause_ns = REFUSED_PAUSE_MIN_NS

    def __call__(self, server_name: str) -> str:
        """What to send to this server; logs in if there is no token, half its life is over, or it was refused.

        Raises:
            AuthenticationRefused, CredentialUnusable, grpc.RpcError: as in `login`; the latter two only if no valid
                token is left.
        """
        present, now_ns = self._valid(), time.time_ns()
        if present is None or (now_ns >= self._renew_at_ns and server_name == ADMIN_SERVER):
            present = self._renewed(present)
        elif now_ns >= self._renew_at_ns and not self._renewing.locked():
            threading.Thread(target=self._renew_aside, args=(present,), name="login", daemon=True).start()
        return present.bearer(server_name)

    def renew(self) -> bool:
        """Log in again at the next call, because the present token was revoked, or the servers' key has changed.

        A server that refuses every token sees no flood of logins: the pauses between them double, up to ten seconds.

        Returns:
            False if it is too soon; True if a call that failed should be repeated at once.
        """
        now_ns = time.time_ns()
        allowed_at_ns = self._refused_at_ns + self._refused_pause_ns
        if now_ns < allowed_at_ns:
            return False
        has_served = now_ns >= allowed_at_ns + SERVED_NS
        self._refused_pause_ns = REFUSED_PAUSE_MIN_NS if has_served else min(2 * self._refused_pause_ns, TRY_AGAIN_NS)
        self._refused_at_ns = now_ns
        self._is_refused, self._renew_at_ns = True, 0
        return True

    def renew_after(self, failed: Exception) -> bool:
        """Like `renew`, if a call failed because the server does not accept the token; else False."""
        is_refused = isinstance(failed, grpc.RpcError) and status_of(failed)[0] is grpc.StatusCode.UNAUTHENTICATED
        return is_refused and self.renew()

    def adopt_trust(
        self,
        message: admin_pb2.RegisterReply | admin_pb2.ClusterChanged | admin_pb2.SourceReported,
        verifier: TokenVerifier,
    ) -> None:
        """Accept just the tokens that the admin server accepts now, and log in again if this process's is none."""
        verifier.trust(message.token_keys)
        verifier.revoked.receive(message.revoked_tokens)
        if (present := self._login) is not None and not verifier.accepts(present.token):
            self.renew()

    def _valid(self) -> Login | None:
        present = self._login
        return present if present is not None and time.time_ns() < present.expires_unix_ns else None

    def _renew_aside(self, present: Login) -> None:
        with contextlib.suppress(AuthenticationRefused):  # the next call to the admin server says so
            self._renewed(present)

    def _renewed(self, present: Login | None) -> Login:
        """Log in, unless another thread is at it and there is a token meanwhile."""
        if not self._renewing.acquire(blocking=present is None):
            assert present is not None
            return present
        try:
            present = self._valid()
            if present is None or time.time_ns() >= self._renew_at_ns:
                present = self._login = self._renew(present)
            return present
        finally:
            self._renewing.release()

    def _renew(self, present: Login | None) -> Login:
        has_time = present is not None and not self._is_refused
        now_ns = time.time_ns()
        try:
            fresh = login(*self._arguments, timeout_s=PATIENCE_WITH_TOKEN_S if has_time else PATIENCE_S)
        except (grpc.RpcError, CredentialUnusable):  # the latter: the file is being replaced
            if present is None:
                raise
            if not self._is_refused:  # else the next call tries again
                self._renew_at_ns = min(now_ns + TRY_AGAIN_NS, present.expires_unix_ns)
            return present
        self._is_refused = False
        self._renew_at_ns = now_ns + max(0, fresh.expires_unix_ns - now_ns) // 2
        return fresh
