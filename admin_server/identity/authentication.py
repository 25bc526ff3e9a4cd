"""The Authentication service: three ways to log in, one place that issues the token.

Every refusal of a way has one text, whatever its cause, so that a caller does not learn whether an identity exists; the
audit log has the cause. Failed logins are slowed down (`login_limits`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.identity.certificate_login import CertificateLogin
from tandemfeed.admin_server.identity.identity_book import IdentityBook
from tandemfeed.admin_server.identity.issuer_keys import KeysPending
from tandemfeed.admin_server.identity.login_limits import SECOND_NS, LoginLimits, address_of
from tandemfeed.admin_server.identity.scram import SecretLogin
from tandemfeed.admin_server.identity.token_login import TokenLogin
from tandemfeed.admin_server.identity.ways import NotProven, Proof, Way
from tandemfeed.admin_server.policy.rules import IdentitySettings
from tandemfeed.transport.calls.tokens import binding
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

TOKEN_VALID_S = 3_600
ISSUE_TRIES_MAX = 5  # of one login, while the policy changes
NUMERIC_DATE_NS = 1_000  # the claim `iat` is a float of seconds, which is more precise than this
REFUSALS = {
    "secret": "authentication failed: unknown identity or wrong secret",
    "certificate": "authentication failed: the certificate is not accepted; the server's audit log says why",
    "token": "authentication failed: the token is not accepted; the server's audit log says why",
}
Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways of logging in that a server offers. Attributes: mutual_tls_port: None: it asks for no certificates."""

    secret: SecretLogin
    certificate: CertificateLogin
    token: TokenLogin
    mutual_tls_port: Callable[[], int | None]


class AuthenticationService(admin_pb2_grpc.AuthenticationServicer):
    """Exchanges proof of an identity for a token.

    Args:
        sign: makes a token of claims.
        policy: what a token states about each identity now; disabled identities are not in it.
        prepare_token: records what a token is about to grant; returns the time from which on it must be issued, in ns.
        now_unix_ns: the wall clock, which the validity of tokens follows.

    Attributes:
        limits: of failed logins.
    """

    def __init__(
        self,
        sign: Callable[[Mapping[str, Any]], str],
        ways: Ways,
        policy: Mapping[str, IdentitySettings],
        identities: IdentityBook,
        audit: AuditLog,
        prepare_token: Callable[[IdentitySettings], int],
        now_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._now_unix_ns = now_unix_ns
        self._sign, self._ways = sign, ways
        self._policy, self._identities, self._audit = policy, identities, audit
        self._prepare_token = prepare_token
        self.limits, self._lock = LoginLimits(), threading.Lock()

    def Begin(  # noqa: N802
        self, request: admin_pb2.BeginAuthenticationRequest, context: grpc.ServicerContext
    ) -> admin_pb2.BeginAuthenticationReply:
        """Shared secret, first half: return the salt and the server's nonce."""
        return self._ways.secret.begin(request.client_first, context)

    def Finish(  # noqa: N802
        self, request: admin_pb2.FinishAuthenticationRequest, context: grpc.ServicerContext
    ) -> admin_pb2.FinishAuthenticationReply:
        """Shared secret, second half: check the client's proof; return the server's proof and a token."""
        proof, token, expires_unix_ns = self._log_in(self._ways.secret, request, context)
        return admin_pb2.FinishAuthenticationReply(
            server_final=proof.answer, token=token, expires_unix_ns=expires_unix_ns
        )

    def GetLoginWays(  # noqa: N802
        self, _request: admin_pb2.GetLoginWaysRequest, _context: grpc.ServicerContext
    ) -> admin_pb2.GetLoginWaysReply:
        """Which ways this server offers, besides secrets."""
        return admin_pb2.GetLoginWaysReply(
            mutual_tls_port=self._ways.mutual_tls_port() or 0, accepts_tokens=self._ways.token.is_offered
        )

    def LogInWithCertificate(  # noqa: N802
        self, request: admin_pb2.LogInWithCertificateRequest, context: grpc.ServicerContext
    ) -> admin_pb2.LogInReply:
        """The certificate of the connection."""
        return self._reply(*self._log_in(self._ways.certificate, request, context))

    def LogInWithToken(  # noqa: N802
        self, request: admin_pb2.LogInWithTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.LogInReply:
        """A signed token of an outside issuer."""
        return self._reply(*self._log_in(self._ways.token, request, context))

    @staticmethod
    def _reply(proof: Proof, token: str, expires_unix_ns: int) -> admin_pb2.LogInReply:
        return admin_pb2.LogInReply(token=token, expires_unix_ns=expires_unix_ns, identity=proof.identity)

    def _log_in(self, way: Way[Request], request: Request, context: grpc.ServicerContext) -> tuple[Proof, str, int]:
        """(what was proved, token, expiry), or a refusal."""
        claimed, address = way.claimed(request, context), address_of(context.peer())
        with self._lock:
            wait_ns = self.limits.begin(claimed, address, time.monotonic_ns())
        if wait_ns:
            text = f"too many failed logins from this address; try again in {-(-wait_ns // SECOND_NS)} s"
            code, event = grpc.StatusCode.RESOURCE_EXHAUSTED, "authentication refused"
            self._audit.refuse(context, code, text, event, identity=claimed, way=way.name, why="too many failures")
        try:
            proof = way.prove(request, context)
            identity = self._policy.get(proof.identity)
            if identity is None:
                raise NotProven(f"{proof.identity} is disabled or not in the policy")
        except KeysPending:
            with self._lock:
                self.limits.withdraw(claimed, address)
            context.abort(grpc.StatusCode.UNAVAILABLE, "the keys of the token's issuer are being fetched; try again")
        except NotProven as why:
            code, text, event = grpc.StatusCode.UNAUTHENTICATED, REFUSALS[way.name], "authentication refused"
            self._audit.refuse(context, code, text, event, identity=claimed, way=way.name, why=str(why))
        with self._lock:
            self.limits.succeeded(claimed, address)
        token, expires_unix_ns = self._issue(identity, proof, context)
        self._audit.write("authenticated", identity=identity.name, way=way.name, peer=context.peer())
        self._identities.note_login(identity.name, way.name)
        return proof, token, expires_unix_ns

    def _issue(self, identity: IdentitySettings, proof: Proof, context: grpc.ServicerContext) -> tuple[str, int]:
        """(token, expiry) of what the identity may do now.

        The policy is asked again after what the token grants was recorded: a right that is lost later is found there,
        and ends the token.
        """
        for _ in range(ISSUE_TRIES_MAX):
            issued = self.issue_token(identity, proof.public_key, until_unix_ns=proof.until_unix_ns)
            present = self._policy.get(identity.name)
            if present == identity:
                return issued
            if present is None:
                text = "the identity was disabled, or removed from the policy, meanwhile"
                context.abort(grpc.StatusCode.UNAUTHENTICATED, text)
            identity = present
        context.abort(grpc.StatusCode.UNAVAILABLE, "the policy changes too often; try again")
        raise AssertionError("abort raises")

    def issue_token(
        self,
        identity: IdentitySettings,
        public_key: bytes,
        valid_s: int = TOKEN_VALID_S,
        until_unix_ns: int | None = None,
    ) -> tuple[str, int]:
        """(token, expiry). The token names the identity, its roles, the topics it may subscribe to and its feeds.

        Args:
            public_key: of the caller's login; the token is of no use without the private key.
            until_unix_ns: when what the caller proved expires; the token expires then, if that is earlier.
        """
        # With its fraction: a token is refused if its identity's secret was replaced, or lost a right, after this.
        earliest_unix_ns = max(self._prepare_token(identity), self._identities.tokens_from(identity.name))
        now_unix_ns = self._now_unix_ns()
        issued_unix_ns = max(now_unix_ns, earliest_unix_ns + NUMERIC_DATE_NS)
        expires = now_unix_ns // SECOND_NS + valid_s
        if until_unix_ns is not None:
            expires = min(expires, until_unix_ns // SECOND_NS)
        claims = {
            "sub": identity.name,
            "roles": sorted(identity.roles),
            "topics": list(identity.subscribe),
            "contribute": list(identity.contribute),
            "feeds": list(identity.feeds),
            "iat": issued_unix_ns / 1e9,
            "exp": expires,
            **binding(public_key),
        }
        return self._sign(claims), expires * SECOND_NS
