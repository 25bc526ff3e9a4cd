"""Authentication of this process at the admin server, by a secret, a certificate or an outside issuer's token.

With a secret, it is SCRAM-SHA-256 (RFC 5802, RFC 7677): the secret never travels, and the server proves that it knows
the verifier. The client's nonce is a new public key, so that both proofs cover it. The other ways send this key over
TLS, to a server whose name TLS has checked. The token is bound to the key, so it is of no use to anyone who sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import scramp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel, status_of
from tandemfeed.transport.calls.credentials import CertificateFiles, Credential, TokenFile
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.tokens import PROOF_VALID_S, SEPARATOR, key_to_text, life_of, make_proof
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

MECHANISM = "SCRAM-SHA-256"
PROOF_KEPT_NS = PROOF_VALID_S * 1_000_000_000 // 2


class AuthenticationRefused(Exception):
    """The admin server does not accept the identity and its credential, or failed to prove itself."""


@dataclass(frozen=True, slots=True)
class Login:
    """A token, and the key that it is bound to.

    Attributes:
        expires_unix_ns: by the server's wall clock.
        life_ns: for how long the token is valid from the login on, whatever the clocks say.
    """

    token: str = field(repr=False)
    expires_unix_ns: int
    key: Ed25519PrivateKey = field(repr=False)
    life_ns: int = 0
    _proofs: dict[str, tuple[str, int]] = field(default_factory=dict, repr=False)  # by server: proof, when made

    def bearer(self, server_name: str, now_unix_ns: int | None = None) -> str:
        """What to send to this server; of no use at another one. Thread-safe.

        Args:
            now_unix_ns: the wall clock's time; None: that of this host. After a step either way, the proof is made
                again, because it is valid by this clock.
        """
        now_ns = time.time_ns() if now_unix_ns is None else now_unix_ns
        proof, made_at_ns = self._proofs.get(server_name, ("", now_ns - PROOF_KEPT_NS))
        if not 0 <= now_ns - made_at_ns < PROOF_KEPT_NS:
            proof = make_proof(self.key, server_name, now_unix_s=now_ns // 1_000_000_000)
            self._proofs[server_name] = proof, now_ns
        return f"{self.token}{SEPARATOR}{proof}"


def login(
    servers: str | AdminServers, ca_pem: bytes, identity: str, credential: Credential, *, timeout_s: float = 10
) -> Login:
    """Authenticate once, at whichever server is active.

    Args:
        servers: host:port, or host:port,host:port, or existing knowledge about them.
        identity: with a certificate or token, "" or what it must name.
        credential: a secret, or the files of a credential.

    Raises:
        AuthenticationRefused: the identity or its credential is wrong, or a server is not what it claims to be.
        CredentialUnusable: a file of the credential cannot be used, such as an expired certificate.
        grpc.RpcError: no server can be reached.
    """
    known = AdminServers(servers) if isinstance(servers, str) else servers
    return ask_active(known, _asker(ca_pem, identity, credential, is_only=not known.are_several), timeout_s)


def _asker(ca_pem: bytes, identity: str, credential: Credential, *, is_only: bool) -> Callable[[str, float], Login]:
    """What logs in at one server, given its address and a time limit."""

    def ask(address: str, timeout_s: float) -> Login:
        # With several servers, one that is unreachable is skipped.
        call = {"timeout": timeout_s, "wait_for_ready": is_only}
        key = Ed25519PrivateKey.generate()
        try:
            match credential:
                case CertificateFiles():
                    reply = _log_in_with_certificate(address, ca_pem, credential, key, call)
                case TokenFile():
                    reply = _log_in_with_token(address, ca_pem, credential, key, call)
                case _:
                    secret = credential if isinstance(credential, str) else credential.read()
                    return _log_in_with_secret(address, ca_pem, identity, secret, key, call)
        except grpc.RpcError as error:
            if status_of(error)[0] is grpc.StatusCode.UNAUTHENTICATED:
                raise AuthenticationRefused(f"{identity}: {status_of(error)[1]}".removeprefix(": ")) from error
            raise
        if identity not in ("", reply.identity):
            raise AuthenticationRefused(f"the credential is that of {reply.identity}, not of {identity}")
        return _made(reply, key)

    return ask


def _log_in_with_secret(
    address: str, ca_pem: bytes, identity: str, secret: str, key: Ed25519PrivateKey, call: dict[str, Any]
) -> Login:
    nonce = key_to_text(_public(key))
    with open_channel(address, ca_pem, ADMIN_SERVER) as channel:
        stub = admin_pb2_grpc.AuthenticationStub(channel)
        try:
            client = scramp.ScramClient([MECHANISM], identity, secret, c_nonce=nonce)
            begun = stub.Begin(admin_pb2.BeginAuthenticationRequest(client_first=client.get_client_first()), **call)
            client.set_server_first(begun.server_first)
            finished = stub.Finish(
                admin_pb2.FinishAuthenticationRequest(
                    conversation_id=begun.conversation_id, client_final=client.get_client_final()
                ),
                **call,
            )
            client.set_server_final(finished.server_final)
        except scramp.ScramException as refused:
            raise AuthenticationRefused(f"{identity}: {refused}") from refused
    return _made(finished, key)


def _log_in_with_certificate(
    address: str, ca_pem: bytes, files: CertificateFiles, key: Ed25519PrivateKey, call: dict[str, Any]
) -> admin_pb2.LogInReply:
    """Ask for the port that requires certificates, and log in there."""
    files.check(ca_pem)
    certificate = files.read()
    with open_channel(address, ca_pem, ADMIN_SERVER) as channel:
        ways = admin_pb2_grpc.AuthenticationStub(channel).GetLoginWays(admin_pb2.GetLoginWaysRequest(), **call)
    if not ways.mutual_tls_port:
        raise AuthenticationRefused(f"{address} accepts no certificates; start it with --listen-mutual-tls")
    secured = f"{address.rpartition(':')[0]}:{ways.mutual_tls_port}"
    with open_channel(secured, ca_pem, ADMIN_SERVER, certificate=certificate) as channel:
        request = admin_pb2.LogInWithCertificateRequest(public_key=_public(key))
        return admin_pb2_grpc.AuthenticationStub(channel).LogInWithCertificate(request, **call)


def _log_in_with_token(
    address: str, ca_pem: bytes, file: TokenFile, key: Ed25519PrivateKey, call: dict[str, Any]
) -> admin_pb2.LogInReply:
    request = admin_pb2.LogInWithTokenRequest(token=file.read(), public_key=_public(key))
    with open_channel(address, ca_pem, ADMIN_SERVER) as channel:
        return admin_pb2_grpc.AuthenticationStub(channel).LogInWithToken(request, **call)


def _made(reply: admin_pb2.LogInReply | admin_pb2.FinishAuthenticationReply, key: Ed25519PrivateKey) -> Login:
    life_ns = life_of(reply.token) or max(0, reply.expires_unix_ns - time.time_ns())
    return Login(reply.token, reply.expires_unix_ns, key, life_ns)


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()
