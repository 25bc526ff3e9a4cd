"""Login by a signed token (JWT, RFC 7519) of an outside issuer, such as a company's single sign-on.

The token must be signed with a key of the issuer, for this audience, and be valid now. Our token is bound to the key of
the caller's login and expires with it. The issuer speaks only for the identities that its settings allow.
"""

from __future__ import annotations

from typing import Any

import grpc
import jwt

from tandemfeed.admin_server.identity.certificate_login import require_key
from tandemfeed.admin_server.identity.issuers import Issuer, Issuers
from tandemfeed.admin_server.identity.ways import NotProven, Proof
from tandemfeed.v1 import admin_pb2

TOKEN_SIZE_MAX = 16 << 10
NO_NAME = "a token without a name"  # what it counts as in limits and the audit log


class TokenLogin:
    """The way of callers with a token of an outside issuer."""

    name = "token"

    def __init__(self, issuers: Issuers) -> None:
        self._issuers = issuers

    @property
    def is_offered(self) -> bool:
        """Whether any issuer is configured."""
        return bool(self._issuers)

    def claimed(self, request: admin_pb2.LogInWithTokenRequest, context: grpc.ServicerContext) -> str:
        """The issuer's name for the caller, not verified yet."""
        require_key(request.public_key, context)
        if len(request.token) > TOKEN_SIZE_MAX:
            text = f"the token has {len(request.token)} characters; at most {TOKEN_SIZE_MAX} are allowed"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        try:
            claims = _unverified(request.token)
        except NotProven:
            return NO_NAME
        issuer = self._issuers.find(str(claims.get("iss")))
        return str(claims.get("sub" if issuer is None else issuer.settings.identity_claim, NO_NAME))

    def prove(self, request: admin_pb2.LogInWithTokenRequest, _context: grpc.ServicerContext) -> Proof:
        """Check the token.

        Raises:
            KeysPending: the issuer's keys are being requested.
        """
        issuer = self._issuers.find(str(_unverified(request.token).get("iss")))
        if issuer is None:
            raise NotProven("the token's issuer is not configured")
        claims = _verified(request.token, issuer)
        name = claims[issuer.settings.identity_claim]
        identity = issuer.identity_of(name) if isinstance(name, str) else None
        if not identity:
            raise NotProven(f"the issuer does not speak for {str(name)[:64]!r}")
        until_unix_s = int(claims["exp"]) + issuer.settings.leeway_s
        return Proof(identity, request.public_key, until_unix_s * 1_000_000_000)


def _unverified(token: str) -> dict[str, Any]:
    """What a token says. Who made it is not checked here."""
    try:
        return jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError as bad:
        raise NotProven(f"it is not a token: {bad}") from bad


def _verified(token: str, issuer: Issuer) -> dict[str, Any]:
    settings = issuer.settings
    try:
        header = jwt.get_unverified_header(token)
        algorithm = header["alg"]
        if algorithm not in settings.algorithms:
            raise NotProven(f"its algorithm is {str(algorithm)[:16]!r}, which is not allowed for this issuer")
        key = issuer.keys.find(header.get("kid"), algorithm)
        if key is None:
            raise NotProven("the issuer has no such key")
        return jwt.decode(
            token,
            key.public_key,
            algorithms=[algorithm],
            audience=settings.audience,
            issuer=settings.issuer,
            leeway=settings.leeway_s,
            # When it was issued decides nothing, and the issuer's clock may be ahead of a clock that was set back.
            options={"require": ["exp", "iss", "aud", settings.identity_claim], "verify_iat": False},
        )
    except (jwt.PyJWTError, KeyError) as refused:
        raise NotProven(str(refused)) from refused
