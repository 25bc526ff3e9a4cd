"""Keeps a process's token valid, and proves it to each server that the process calls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import grpc

from tandemfeed.runtime.threads import start_thread
from tandemfeed.transport.calls.admin_servers import AdminServers
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.transport.calls.credentials import Credential, CredentialUnusable
from tandemfeed.transport.calls.login import AuthenticationRefused, Login, login
from tandemfeed.transport.calls.login_schedule import LoginSchedule
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.v1 import admin_pb2

LOG = logging.getLogger("tandemfeed.transport.calls.token_source")
PATIENCE_S = 10.0
PATIENCE_WITH_TOKEN_S = 0.5  # the present token serves meanwhile
LogIn = Callable[..., Login]


class TokenSource:
    """Keeps a valid token: logs in again at half the token's life. Thread-safe.

    While no server answers, the present token serves for the rest of its life, and only a call to the admin server
    waits for a login. So the cluster's processes continue to talk to each other without the admin server, and no
    backup is late with its promise to the active.

    Owner: `_changing` of the schedule and the login; `_renewing` is held during a login, so there is at most one.

    Args:
        log_in: as `login`.
        now_ns: the monotonic clock.
    """

    def __init__(
        self,
        servers: str | AdminServers,
        ca_pem: bytes,
        identity: str,
        credential: Credential,
        *,
        log_in: LogIn = login,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        known = AdminServers(servers) if isinstance(servers, str) else servers
        self._arguments = (known, ca_pem, identity, credential)
        self._log_in, self._now_ns = log_in, now_ns
        self._renewing, self._changing = threading.Lock(), threading.Lock()
        self._schedule = LoginSchedule()
        self._login: Login | None = None
        self._refusal = ""  # why the last login was refused

    def __call__(self, server_name: str) -> str:
        """What to send to this server; logs in if there is no token, half its life is over, or it was refused.

        Raises:
            AuthenticationRefused, CredentialUnusable, grpc.RpcError: as in `login`; the latter two only if no valid
                token is left. A refusal of the credential is raised again until the next login is due.
        """
        present, is_due, refusal = self._state()
        if refusal and not is_due and (present is None or server_name == ADMIN_SERVER):
            raise AuthenticationRefused(refusal)
        if present is None or (is_due and server_name == ADMIN_SERVER):
            present = self._renewed(present)
        elif is_due:
            self._renew_aside()
        return present.bearer(server_name)

    def renew(self) -> bool:
        """Log in again at the next call, because the present token was revoked, or the servers' key has changed.

        A server that refuses every token sees no flood of logins: the pauses between them double, up to ten seconds.

        Returns:
            False if it is too soon; True if a call that failed should be repeated at once.
        """
        with self._changing:
            return self._schedule.on_token_refused(self._now_ns())

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

    # ---- inside ----

    def _state(self) -> tuple[Login | None, bool, str]:
        """(the present token's login, if it is valid; whether to log in; why the last login was refused, if it was)."""
        with self._changing:
            now_ns = self._now_ns()
            present = self._login if self._schedule.has_token(now_ns) else None
            return present, self._schedule.is_due(now_ns), self._refusal

    def _renew_aside(self) -> None:
        """Log in in a thread, unless another one is at it."""
        if not self._renewing.acquire(blocking=False):
            return

        def renew() -> None:
            try:
                self._renew()
            except AuthenticationRefused:
                pass  # the next call to the admin server says so
            finally:
                self._renewing.release()

        try:
            start_thread(renew, "login", self._on_failed)
        except BaseException:
            self._renewing.release()
            raise

    def _on_failed(self, name: str, failure: BaseException) -> None:
        """The present token serves, and a later call tries again: it raises what fails then."""
        LOG.error("could not log in", extra={"failed_thread": name}, exc_info=failure)
        with self._changing:
            self._schedule.on_unreachable(self._now_ns())

    def _renewed(self, present: Login | None) -> Login:
        """Log in, unless another thread is at it and there is a token meanwhile."""
        if not self._renewing.acquire(blocking=present is None):
            assert present is not None
            return present
        try:
            present, is_due, refusal = self._state()  # another thread may just have logged in, or have been refused
            if refusal and not is_due:
                raise AuthenticationRefused(refusal)
            return self._renew() if present is None or is_due else present
        finally:
            self._renewing.release()

    def _renew(self) -> Login:
        """Log in. With `_renewing` held."""
        began_ns, (present, _, _) = self._now_ns(), self._state()
        has_time = present is not None and not self._schedule.is_refused
        try:
            fresh = self._log_in(*self._arguments, timeout_s=PATIENCE_WITH_TOKEN_S if has_time else PATIENCE_S)
        except (grpc.RpcError, CredentialUnusable):  # the latter: the file is being replaced
            with self._changing:
                self._refusal = ""
                self._schedule.on_unreachable(began_ns)
            if present is None:
                raise
            return present
        except AuthenticationRefused as refused:
            with self._changing:
                self._refusal = str(refused) or type(refused).__name__
                self._schedule.on_login_refused(self._now_ns())
            raise
        with self._changing:
            self._login, self._refusal = fresh, ""
            self._schedule.on_login(began_ns, fresh.life_ns)
        return fresh
