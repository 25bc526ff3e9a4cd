"""Login by shared secret: the server side of SCRAM-SHA-256 (RFC 5802, RFC 7677).

A caller cannot distinguish an unknown identity from a wrong secret: an unknown identity is checked against a decoy
verifier in the same steps. While a former secret is valid, a proof may fit either of two verifiers with one salt.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import scramp

from tandemfeed.admin_server.identity.verifiers import MECHANISM, Verifier
from tandemfeed.admin_server.identity.ways import NotProven, Proof
from tandemfeed.transport.calls.tokens import key_from_text
from tandemfeed.v1 import admin_pb2

CONVERSATION_COUNT_MAX = 1_024  # unfinished ones; beyond this limit the oldest is forgotten
CONVERSATION_VALID_S = 30.0
CLIENT_FIRST_SIZE_MAX = 1_024  # characters; unauthenticated callers must not fill memory or the audit log


@dataclass(frozen=True, slots=True)
class _Conversation:
    servers: tuple[scramp.core.ScramServer, ...]  # one for each verifier; the caller sees what they have in common
    identity: str
    public_key: bytes = field(repr=False)  # the client's nonce; the token is bound to it
    began_at_s: float


class SecretLogin:
    """The logins in progress, and their ends.

    Args:
        verifiers: those that an identity's proof may fit, with equal salts; decoys for an unknown identity.
    """

    name = "secret"

    def __init__(self, verifiers: Callable[[str], tuple[Verifier, ...]]) -> None:
        self._verifiers = verifiers
        self._mechanism = scramp.ScramMechanism(MECHANISM)
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, client_first: str, context: grpc.ServicerContext) -> admin_pb2.BeginAuthenticationReply:
        """First half: return the salt and the server's nonce."""
        if len(client_first) > CLIENT_FIRST_SIZE_MAX:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"client_first has {len(client_first)} characters; at most {CLIENT_FIRST_SIZE_MAX} are allowed",
            )
        try:
            servers, identity = self._servers(client_first)
            replies = {server.get_server_first() for server in servers}
        except scramp.ScramException as malformed:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"client_first is not a SCRAM message: {malformed}")
        assert len(replies) == 1, "the verifiers of an identity have different salts"
        try:
            public_key = _key_in(client_first)
        except ValueError as bad:
            detail = f"the nonce of client_first must be the public key for the token: {bad}; use this server's version"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
        conversation_id = secrets.token_urlsafe(18)
        with self._lock:
            self._conversations[conversation_id] = _Conversation(servers, identity, public_key, time.monotonic())
            while len(self._conversations) > CONVERSATION_COUNT_MAX:
                self._conversations.popitem(last=False)
        return admin_pb2.BeginAuthenticationReply(conversation_id=conversation_id, server_first=replies.pop())

    def claimed(self, request: admin_pb2.FinishAuthenticationRequest, context: grpc.ServicerContext) -> str:
        """The identity that the login began with."""
        with self._lock:
            conversation = self._conversations.get(request.conversation_id)
        if conversation is None or time.monotonic() - conversation.began_at_s > CONVERSATION_VALID_S:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "this login is unknown or has expired; log in again")
        return conversation.identity

    def prove(self, request: admin_pb2.FinishAuthenticationRequest, _context: grpc.ServicerContext) -> Proof:
        """Second half: check the client's proof, once."""
        with self._lock:
            conversation = self._conversations.pop(request.conversation_id, None)
        if conversation is None:
            raise NotProven("another call has used this login")
        answers = [_answer(server, request.client_final) for server in conversation.servers]  # all, in equal time
        for answer in answers:
            if answer:
                return Proof(conversation.identity, conversation.public_key, answer=answer)
        raise NotProven("unknown identity or wrong secret")

    def _servers(self, client_first: str) -> tuple[tuple[scramp.core.ScramServer, ...], str]:
        """A server for each verifier of the identity in the message, and that identity."""
        claimed: list[str] = []
        nonce = secrets.token_urlsafe(18)

        def server_with(verifier_at: Callable[[str], Verifier]) -> scramp.core.ScramServer:
            server = self._mechanism.make_server(lambda name: verifier_at(name).for_scram(), s_nonce=nonce)
            server.set_client_first(client_first)
            return server

        verifiers: list[Verifier] = []

        def first_of(identity: str) -> Verifier:
            claimed.append(identity)
            verifiers.extend(self._verifiers(identity))
            return verifiers[0]

        servers = [server_with(first_of)]
        servers += [server_with(lambda _name, each=each: each) for each in verifiers[1:]]  # type: ignore[misc]
        return tuple(servers), claimed[0]


def _answer(server: scramp.core.ScramServer, client_final: str) -> str:
    """The server's proof; empty if the client's is wrong."""
    try:
        server.set_client_final(client_final)
        final: str = server.get_server_final()
    except scramp.ScramException:
        return ""
    return final


def _key_in(client_first: str) -> bytes:
    """The public key that is the nonce of a client-first message (RFC 5802, which escapes commas in names).

    Raises:
        ValueError: the nonce is not a key.
    """
    nonce = next(part for part in client_first.split(",")[2:] if part.startswith("r="))
    return key_from_text(nonce[2:])
