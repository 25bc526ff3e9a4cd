"""Authentication of this process at the admin server: SCRAM-SHA-256 (RFC 5802, RFC 7677) by the `scramp` library.

The secret never travels, and the server proves that it knows the verifier.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import grpc
import scramp

from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from transport.rpc import open_channel

MECHANISM = "SCRAM-SHA-256"
RENEW_BEFORE_EXPIRY_NS = 60 * 1_000_000_000  # or a quarter of a shorter token's life


class AuthenticationRefused(Exception):
    """The admin server does not accept the identity and secret, or failed to prove itself."""


@dataclass(frozen=True, slots=True)
class Login:
    """A token and when it expires (wall clock)."""

    token: str
    expires_unix_ns: int


def login(endpoint: str, ca_pem: bytes, identity: str, secret: str, *, timeout_s: float = 10) -> Login:
    """Authenticate once.

    Raises:
        AuthenticationRefused: wrong identity or secret, or a server that is not who it says.
        grpc.RpcError: the server cannot be reached.
    """
    with open_channel(endpoint, ca_pem) as channel:
        stub = admin_pb2_grpc.AuthenticationStub(channel)
        try:
            client = scramp.ScramClient([MECHANISM], identity, secret)
            begun = stub.Begin(
                admin_pb2.BeginAuthenticationRequest(client_first=client.get_client_first()),
                timeout=timeout_s,
                wait_for_ready=True,
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
    """A token that is always fresh: logs in again before it expires. Safe to call from any thread."""

    def __init__(self, endpoint: str, ca_pem: bytes, identity: str, secret: str) -> None:
        self._arguments = (endpoint, ca_pem, identity, secret)
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at_ns = 0

    def __call__(self) -> str:
        """The token; logs in if there is none or it is about to expire.

        Raises:
            AuthenticationRefused, grpc.RpcError: as `login` does.
        """
        with self._lock:
            now_ns = time.time_ns()
            if now_ns >= self._renew_at_ns:
                fresh = login(*self._arguments)
                self._token = fresh.token
                margin_ns = min(RENEW_BEFORE_EXPIRY_NS, (fresh.expires_unix_ns - now_ns) // 4)
                self._renew_at_ns = fresh.expires_unix_ns - margin_ns
            return self._token
