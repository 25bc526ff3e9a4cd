"""The Authentication service: the server side of SCRAM-SHA-256 (RFC 5802, RFC 7677), and the tokens that it issues.

A caller cannot distinguish an unknown identity from a wrong secret: an unknown identity is checked against a decoy
verifier in the same steps.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import grpc
import jwt
import scramp

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.policy.rules import IdentitySettings
from tandemfeed.admin_server.records.state_folder import MECHANISM, StateFolder
from tandemfeed.transport.calls.tokens import TOKEN_ALGORITHM, TOKEN_ISSUER, binding, key_from_text
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

TOKEN_VALID_S = 3_600
NUMERIC_DATE_NS = 1_000  # the claim `iat` is a float of seconds, which is more precise than this
CONVERSATION_COUNT_MAX = 1_024  # unfinished ones; beyond this limit the oldest is forgotten
CONVERSATION_VALID_S = 30.0
CLIENT_FIRST_SIZE_MAX = 1_024  # characters; unauthenticated callers must not fill memory or the audit log
REFUSED = "authentication failed: unknown identity or wrong secret"


@dataclass(frozen=True, slots=True)
class _Conversation:
    server: scramp.core.ScramServer
    identity: str
    public_key: bytes = field(repr=False)  # the client's nonce; the token is bound to it
    began_at_s: float


class AuthenticationService(admin_pb2_grpc.AuthenticationServicer):
    """Exchanges proof of a shared secret for a token.

    Args:
        prepare_token: records what a token is about to grant; returns the time from which on it must be issued, in ns.
    """

    def __init__(
        self,
        folder: StateFolder,
        policy: Mapping[str, IdentitySettings],
        audit: AuditLog,
        prepare_token: Callable[[IdentitySettings], int],
    ) -> None:
        self._folder, self._policy, self._audit = folder, policy, audit
        self._prepare_token = prepare_token
        self._mechanism = scramp.ScramMechanism(MECHANISM)
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()
        self._lock = threading.Lock()

    def Begin(  # noqa: N802
        self, request: admin_pb2.BeginAuthenticationRequest, context: grpc.ServicerContext
    ) -> admin_pb2.BeginAuthenticationReply:
        """First half: return the salt and the server's nonce."""
        if len(request.client_first) > CLIENT_FIRST_SIZE_MAX:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"client_first has {len(request.client_first)} characters; at most {CLIENT_FIRST_SIZE_MAX} are allowed",
            )
        claimed: list[str] = []  # the identity in the message

        def look_up(identity: str) -> tuple[bytes, bytes, bytes, int]:
            claimed.append(identity)
            known = self._folder.verifier(identity) if identity in self._policy else None
            return known or self._folder.decoy_verifier(identity)

        server = self._mechanism.make_server(look_up)
        try:
            server.set_client_first(request.client_first)
            reply = server.get_server_first()
        except scramp.ScramException as malformed:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"client_first is not a SCRAM message: {malformed}")
        try:
            public_key = _key_in(request.client_first)
        except ValueError as bad:
            detail = f"the nonce of client_first must be the public key for the token: {bad}; use this server's version"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
        conversation_id = secrets.token_urlsafe(18)
        with self._lock:
            self._conversations[conversation_id] = _Conversation(server, claimed[0], public_key, time.monotonic())
            while len(self._conversations) > CONVERSATION_COUNT_MAX:
                self._conversations.popitem(last=False)
        return admin_pb2.BeginAuthenticationReply(conversation_id=conversation_id, server_first=reply)

    def Finish(  # noqa: N802
        self, request: admin_pb2.FinishAuthenticationRequest, context: grpc.ServicerContext
    ) -> admin_pb2.FinishAuthenticationReply:
        """Second half: check the client's proof; return the server's proof and a token."""
        with self._lock:
            conversation = self._conversations.pop(request.conversation_id, None)
        if conversation is None or time.monotonic() - conversation.began_at_s > CONVERSATION_VALID_S:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "this login is unknown or has expired; log in again")
        try:
            conversation.server.set_client_final(request.client_final)
            final = conversation.server.get_server_final()
        except scramp.ScramException:
            self._refuse(conversation.identity, context)
        identity = self._policy.get(conversation.identity)
        if identity is None:
            self._refuse(conversation.identity, context)
        token, expires_unix_ns = self.issue_token(identity, conversation.public_key)
        self._audit.write("authenticated", identity=identity.name, peer=context.peer())
        return admin_pb2.FinishAuthenticationReply(server_final=final, token=token, expires_unix_ns=expires_unix_ns)

    def issue_token(
        self, identity: IdentitySettings, public_key: bytes, valid_s: int = TOKEN_VALID_S
    ) -> tuple[str, int]:
        """(token, expiry). The token names the identity, its roles, the topics it may subscribe to and its feeds.

        Args:
            public_key: of the caller's login; the token is of no use without the private key.
        """
        now = int(time.time())
        issued_unix_ns = max(time.time_ns(), self._prepare_token(identity) + NUMERIC_DATE_NS)
        claims = {
            "iss": TOKEN_ISSUER,
            "sub": identity.name,
            "roles": sorted(identity.roles),
            "topics": list(identity.subscribe),
            "feeds": list(identity.feeds),
            "iat": issued_unix_ns / 1e9,
            "exp": now + valid_s,
            **binding(public_key),
        }
        token = jwt.encode(claims, self._folder.token_key, algorithm=TOKEN_ALGORITHM)
        return token, (now + valid_s) * 1_000_000_000

    def _refuse(self, identity: str, context: grpc.ServicerContext) -> NoReturn:
        self._audit.refuse(
            context, grpc.StatusCode.UNAUTHENTICATED, REFUSED, "authentication refused", identity=identity
        )


def _key_in(client_first: str) -> bytes:
    """The public key that is the nonce of a client-first message (RFC 5802, which escapes commas in names).

    Raises:
        ValueError: the nonce is not a key.
    """
    nonce = next(part for part in client_first.split(",")[2:] if part.startswith("r="))
    return key_from_text(nonce[2:])
