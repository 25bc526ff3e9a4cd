"""The client's login: obtains a token, and renews it before it expires. Used at the start and by background threads,
never by the loop. A secret is not sent: that login is a challenge-response."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import grpc

from tandemfeed.client_lib.errors import AdminUnavailable, AuthenticationRefused, client_error
from tandemfeed.client_lib.patient_wait import again_if_paused
from tandemfeed.transport.calls import login as transport_login
from tandemfeed.transport.calls.admin_servers import AdminServers
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.credentials import Credential, CredentialUnusable
from tandemfeed.transport.calls.reachability import Unreachable, call_or_explain

RETRY_AFTER_S = 0.2  # when no administration server has answered; doubled after each further round
RETRY_AFTER_MAX_S = 3.0
RENEW_BEFORE_NS = 60_000_000_000  # time for slow logins before the token expires; at most half of its life
LIFE_MIN_NS = 1_000_000_000  # of a token: a server that says less is not asked again immediately


class Session:
    """The login of one identity at one cluster.

    Args:
        servers: host:port of the administration server, or host:port,host:port if there are several.
        ca_pem: the certificate authority that signs the certificates of all servers of the cluster.
        timeout_s: how long a login may take.
        now_ns: the monotonic clock. A token's life is a duration, so the wall clock decides nothing here.
    """

    def __init__(
        self,
        servers: str,
        ca_pem: bytes,
        identity: str,
        credential: Credential,
        *,
        timeout_s: float = 10,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.servers = AdminServers(servers, pause_s=RETRY_AFTER_S, pause_max_s=RETRY_AFTER_MAX_S)
        self.identity = identity
        self._ca_pem = ca_pem
        self._credential = credential
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._login: transport_login.Login | None = None
        self._now_ns, self._renew_at_ns = now_ns, 0

    def ensure_token(self) -> None:
        """Ensure that the token is valid, with a new login if necessary.

        Raises:
            AuthenticationRefused: wrong identity, or wrong or unreadable credential.
            AdminUnavailable: no administration server answered.
        """
        with self._lock:
            began_ns = self._now_ns()
            if self._login is not None and began_ns < self._renew_at_ns:
                return
            try:
                self._login = self._new_login()
            except (transport_login.AuthenticationRefused, CredentialUnusable) as refused:
                raise AuthenticationRefused(str(refused)) from refused
            except grpc.RpcError as error:
                raise client_error(error, self.servers.current) from error
            life_ns = max(self._login.life_ns, LIFE_MIN_NS)
            self._renew_at_ns = began_ns + life_ns - min(RENEW_BEFORE_NS, life_ns // 2)

    def _new_login(self) -> transport_login.Login:
        known = self.servers, self._ca_pem, self.identity, self._credential
        try:
            return again_if_paused(
                lambda: call_or_explain(
                    lambda timeout_s: transport_login.login(*known, timeout_s=timeout_s),
                    self.servers.addresses,
                    self._ca_pem,
                    timeout_s=self._timeout_s,
                ),
                (grpc.RpcError, Unreachable),
            )
        except Unreachable as unreachable:
            raise AdminUnavailable(f"administration server {unreachable}") from unreachable

    def current_token(self) -> str:
        """The token of the last login, even if it is old; empty if there is none or a service refused it."""
        current = self._login
        return "" if current is None else current.token

    @property
    def renew_in_s(self) -> float:
        """In how many seconds `ensure_token` will log in again."""
        return max(0.0, (self._renew_at_ns - self._now_ns()) / 1e9) if self._login is not None else 0.0

    def bearer(self, server_name: str) -> str:
        """The current token, proved for a server; empty if there is none."""
        current = self._login
        return "" if current is None else current.bearer(server_name)

    def forget_token(self, token: str) -> None:
        """Discard a token that a service refused, so that the next call logs in again."""
        with self._lock:
            if self._login is not None and self._login.token == token:
                self._login = None

    def open_channel(self, endpoint: str, server_name: str) -> grpc.Channel:
        """A TLS channel to a server of the cluster; each call sends the current token, proved for this server.

        Args:
            server_name: what the server's certificate must name.
        """
        return open_channel(endpoint, self._ca_pem, server_name, self.bearer)
