"""Who we are to the cluster: logs in, and renews the token before it runs out. Used by background threads and at the
start, never by the loop. The secret stays in this process: the login is a challenge-response."""

from __future__ import annotations

import threading
import time

import grpc

from client_lib.errors import AuthenticationRefused, client_error
from transport import login as transport_login
from transport.admin_servers import AdminServers
from transport.rpc import open_channel

RETRY_AFTER_S = 0.2  # after no administration server answered; doubled for each further round
RETRY_AFTER_MAX_S = 3.0
RENEW_BEFORE_NS = 60_000_000_000  # room for slow logins before the token runs out


class Session:
    """One identity's standing with one cluster.

    Args:
        servers: host:port of the administration server; of all of them, with commas between, if there are several.
        ca_pem: certificate authority that all servers of the cluster are signed by.
        timeout_s: how long a login may take.
    """

    def __init__(self, servers: str, ca_pem: bytes, identity: str, secret: str, *, timeout_s: float = 10) -> None:
        self.servers = AdminServers(servers, pause_s=RETRY_AFTER_S, pause_max_s=RETRY_AFTER_MAX_S)
        self.identity = identity
        self._ca_pem = ca_pem
        self._secret = secret
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._login: transport_login.Login | None = None

    def ensure_token(self) -> None:
        """Have a valid token, by a new login if need be.

        Raises:
            AuthenticationRefused: wrong identity or secret.
            AdminUnavailable: no answer.
        """
        with self._lock:
            if self._login is not None and self._login.expires_unix_ns - time.time_ns() > RENEW_BEFORE_NS:
                return
            try:
                self._login = transport_login.login(
                    self.servers, self._ca_pem, self.identity, self._secret, timeout_s=self._timeout_s
                )
            except transport_login.AuthenticationRefused as refused:
                raise AuthenticationRefused(str(refused)) from refused
            except grpc.RpcError as error:
                raise client_error(error, self.servers.current) from error

    def token_at_hand(self) -> str:
        """The token of the last login, however old; empty if a service refused it."""
        current = self._login
        return "" if current is None else current.token

    def forget_token(self, token: str) -> None:
        """A service refused this token: log in again before the next call."""
        with self._lock:
            if self._login is not None and self._login.token == token:
                self._login = None

    def open_channel(self, endpoint: str) -> grpc.Channel:
        """A TLS channel to any service of the cluster; each call brings the token at hand."""
        return open_channel(endpoint, self._ca_pem, self.token_at_hand)
