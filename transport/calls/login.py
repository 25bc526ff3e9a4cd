"""Authentication of this process at the admin server: SCRAM-SHA-256 (RFC 5802, RFC 7677) with the `scramp` library.

The secret never travels, and the server proves that it knows the verifier. The client's nonce is a new public key, so
that both proofs cover it: the token is bound to this key, and is of no use to a server that relays the login.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import grpc
import scramp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.tokens import PROOF_VALID_S, SEPARATOR, key_to_text, make_proof
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

MECHANISM = "SCRAM-SHA-256"
PATIENCE_S = 10.0
PATIENCE_WITH_TOKEN_S = 0.5  # the present token serves meanwhile
TRY_AGAIN_NS = 10_000_000_000


class AuthenticationRefused(Exception):
    """The admin server does not accept the identity and secret, or failed to prove itself."""


@dataclass(frozen=True, slots=True)
class Login:
    """A token, when it expires (wall clock), and the key that it is bound to."""

    token: str = field(repr=False)
    expires_unix_ns: int
    key: Ed25519PrivateKey = field(repr=False)
    _proofs: dict[str, tuple[str, int]] = field(default_factory=dict, repr=False)  # by server: proof, when to renew

    def bearer(self, server_name: str) -> str:
        """What to send to this server; of no use at another one. Thread-safe."""
        now_ns = time.time_ns()
        proof, renew_at_ns = self._proofs.get(server_name, ("", 0))
        if now_ns >= renew_at_ns:
            proof = make_proof(self.key, server_name)
            self._proofs[server_name] = proof, now_ns + PROOF_VALID_S * 1_000_000_000 // 2
        return f"{self.token}{SEPARATOR}{proof}"


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
    key = Ed25519PrivateKey.generate()
    nonce = key_to_text(key.public_key().public_bytes_raw())
    with open_channel(endpoint, ca_pem, ADMIN_SERVER) as channel:
        stub = admin_pb2_grpc.AuthenticationStub(channel)
        try:
            client = scramp.ScramClient([MECHANISM], identity, secret, c_nonce=nonce)
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
    return Login(finished.token, finished.expires_unix_ns, key)


class TokenSource:
    """Keeps a valid token: logs in again at half the token's life. Thread-safe.

    While no server answers, the present token serves for the rest of its life, and only an occasional caller waits for
    a login attempt. So the cluster's processes continue to talk to each other without the admin server.
    """

    def __init__(self, servers: str | AdminServers, ca_pem: bytes, identity: str, secret: str) -> None:
        known = AdminServers(servers) if isinstance(servers, str) else servers
        self._arguments = (known, ca_pem, identity, secret)
        self._lock = threading.Lock()
        self._login: Login | None = None
        self._renew_at_ns = self._renewal_asked_at_ns = 0

    def __call__(self, server_name: str) -> str:
        """What to send to this server; logs in if there is no token or half its life is over.

        Raises:
            AuthenticationRefused, grpc.RpcError: as in `login`; the latter only if no valid token is left.
        """
        with self._lock:
            now_ns = time.time_ns()
            if self._login is None or now_ns >= self._renew_at_ns:
                self._login = self._renew(now_ns)
            return self._login.bearer(server_name)

    def renew(self) -> None:
        """Log in again at the next call, because the present token was revoked, or the servers' key has changed.

        At most every ten seconds, so that a server that refuses every token does not see a flood of logins.
        """
        with self._lock:
            now_ns = time.time_ns()
            if now_ns >= self._renewal_asked_at_ns + TRY_AGAIN_NS:
                self._renew_at_ns, self._renewal_asked_at_ns = 0, now_ns

    def _renew(self, now_ns: int) -> Login:
        present = self._login if self._login is not None and now_ns < self._login.expires_unix_ns else None
        try:
            fresh = login(*self._arguments, timeout_s=PATIENCE_S if present is None else PATIENCE_WITH_TOKEN_S)
        except grpc.RpcError:
            if present is None:
                raise
            self._renew_at_ns = min(now_ns + TRY_AGAIN_NS, present.expires_unix_ns)
            return present
        self._renew_at_ns = now_ns + max(0, fresh.expires_unix_ns - now_ns) // 2
        return fresh
