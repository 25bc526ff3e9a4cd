"""Authentication of this process at the admin server: SCRAM-SHA-256 (RFC 5802, RFC 7677) with the `scramp` library.

The secret never travels, and the server proves that it knows the verifier.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import grpc
import scramp

from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.rpc import open_channel
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

MECHANISM = "SCRAM-SHA-256"
PATIENCE_S = 10.0
PATIENCE_WITH_TOKEN_S = 0.5  # the present token serves meanwhile
TRY_AGAIN_NS = 10_000_000_000


class AuthenticationRefused(Exception):
    """The admin server does not accept the identity and secret, or failed to prove itself."""


@dataclass(frozen=True, slots=True)
class Login:
    """A token and when it expires (wall clock)."""

    token: str = field(repr=False)
    expires_unix_ns: int


def login(servers: str | AdminServers, ca_pem: bytes, identity: str, secret: str, *, timeout_s: float = 10) -> Login:
    """Authenticate once, at whichever server is active.

    Args:
        servers: host:port, or host:port,host:port, or existing knowledge about them.

    Raises:
        AuthenticationRefused: wrong identity or secret, or a server that is not what it claims to be.
        grpc.RpcError: no server can be reached.
    """
    known = AdminServers(servers) if isinstance(servers, str) else servers

    def ask(address: str, try_timeout_s: float) -> Login:
        return _login_at(address, ca_pem, identity, secret, try_timeout_s, is_only=not known.are_several)

    return ask_active(known, ask, timeout_s)


def _login_at(endpoint: str, ca_pem: bytes, identity: str, secret: str, timeout_s: float, *, is_only: bool) -> Login:
    with open_channel(endpoint, ca_pem) as channel:
        stub = admin_pb2_grpc.AuthenticationStub(channel)
        try:
            client = scramp.ScramClient([MECHANISM], identity, secret)
            begun = stub.Begin(
                admin_pb2.BeginAuthenticationRequest(client_first=client.get_client_first()),
                timeout=timeout_s,
                wait_for_ready=is_only,  # with several servers, skip one that is unreachable
            )
            client.set_server_first(begun.server_first)
            finished = stub.Finish(
                admin_pb2.FinishAuthenticationRequest(
                    conversation_id=begun.conversation_id, client_final=client.get_client_final()
                ),
                timeout=timeout_s,
            )
            client.set_server_final(finished.server_final)
        except scramp.ScramException as refused:
            raise AuthenticationRefused(f"{identity}: {refused}") from refused
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise AuthenticationRefused(f"{identity}: {error.details()}") from error
            raise
    return Login(finished.token, finished.expires_unix_ns)


class TokenSource:
    """Keeps a valid token: logs in again at half the token's life. Thread-safe.

    While no server answers, the present token serves for the rest of its life, and only an occasional caller waits for
    a login attempt. So the cluster's processes continue to talk to each other without the admin server.
    """

    def __init__(self, servers: str | AdminServers, ca_pem: bytes, identity: str, secret: str) -> None:
        known = AdminServers(servers) if isinstance(servers, str) else servers
        self._arguments = (known, ca_pem, identity, secret)
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at_ns = self._expires_at_ns = 0

    def __call__(self) -> str:
        """The token; logs in if there is none or half its life is over.

        Raises:
            AuthenticationRefused, grpc.RpcError: as in `login`; the latter only if no valid token is left.
        """
        with self._lock:
            now_ns = time.time_ns()
            if now_ns >= self._renew_at_ns:
                self._renew(now_ns)
            return self._token

    def _renew(self, now_ns: int) -> None:
        is_valid = now_ns < self._expires_at_ns
        try:
            fresh = login(*self._arguments, timeout_s=PATIENCE_WITH_TOKEN_S if is_valid else PATIENCE_S)
        except grpc.RpcError:
            if not is_valid:
                raise
            self._renew_at_ns = min(now_ns + TRY_AGAIN_NS, self._expires_at_ns)
            return
        self._token, self._expires_at_ns = fresh.token, fresh.expires_unix_ns
        self._renew_at_ns = now_ns + max(0, fresh.expires_unix_ns - now_ns) // 2
