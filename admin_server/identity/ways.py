"""What the ways of logging in have in common: each turns a request into a proven identity and a key, or refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import grpc

Request = TypeVar("Request", contravariant=True)


class NotProven(Exception):
    """The caller is not who it claims to be. The text is for the audit log; the caller gets one text for all causes."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A caller has proved its identity.

    Attributes:
        public_key: of the caller's login (Ed25519, raw); the token is bound to it.
        until_unix_ns: when the proof itself expires, and the token with it; None: it has no end.
        answer: what the caller needs to check the server, if the way has such a step.
    """

    identity: str
    public_key: bytes = field(repr=False)
    until_unix_ns: int | None = None
    answer: str = ""


class Way(Protocol[Request]):
    """A way of logging in. Attributes: name: for the audit log and the list of identities."""

    name: str

    def claimed(self, request: Request, context: grpc.ServicerContext) -> str:
        """Who the caller says it is, for limits and the audit log. Ends the call if the request is malformed."""
        ...

    def prove(self, request: Request, context: grpc.ServicerContext) -> Proof:
        """Check the claim.

        Raises:
            NotProven: it is wrong, or nothing is known of the identity.
        """
        ...
