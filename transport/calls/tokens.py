"""What a caller sends to prove who it is, and how a server checks it.

A bearer is TOKEN~PROOF, as in SD-JWT with key binding (RFC 9901). The token is a JWT (EdDSA, RFC 8037) of the admin
server: it names the caller and its rights, and is bound to the public key of the caller's login (`cnf`, RFC 7800). The
proof is a JWT that the caller signs with that key; its audience is one server. So a server that receives a bearer
cannot use it at another server, and neither part is of use without the other.

A verifier must never accept a token without a proof for its own server name.
"""

from __future__ import annotations

import base64
import binascii
import time
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tandemfeed.transport.calls.revoked_tokens import RevokedTokens

TOKEN_ISSUER = "tandemfeed"
TOKEN_ALGORITHM = "EdDSA"
PROOF_VALID_S = 300  # callers make a new one after half of it, so clocks may differ by the other half
SEPARATOR = "~"  # not in a JWT
KEY_SIZE = 32


class TokenRefused(Exception):
    """The token is not the admin server's, has expired, or is not proved; the text says which."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of an RPC.

    Attributes:
        identity: the authenticated name.
        roles: some of client, adapter, source, admin.
        topics: patterns of the topics granted for subscription.
        feeds: names of the feeds that the caller is an adapter of.
        expires_unix_ns: when its token expires.
        issued_unix_ns: when its token was issued.
    """

    identity: str
    roles: frozenset[str]
    topics: tuple[str, ...]
    feeds: frozenset[str] = frozenset()
    expires_unix_ns: int = 0
    issued_unix_ns: int = 0

    def is_adapter_of(self, feed: str) -> bool:
        """True if the caller may act as an adapter of this feed. A token for one feed does not open another's."""
        return "adapter" in self.roles and feed in self.feeds


class TokenVerifier:
    """Checks bearers with the admin server's raw Ed25519 public key.

    Args:
        server_name: this server's name (`transport.calls.server_names`).
        public_key_raw: 32 bytes; None: refuse everything until `trust` is called, for a server that must know its own
            address before it can register and learn the key.
        revoked: the tokens to refuse although they have not expired.
    """

    def __init__(
        self, server_name: str, public_key_raw: bytes | None = None, revoked: RevokedTokens | None = None
    ) -> None:
        self._server_name = server_name
        self.revoked = revoked or RevokedTokens()
        self._key: Ed25519PublicKey | None = None
        if public_key_raw is not None:
            self.trust(public_key_raw)

    def trust(self, public_key_raw: bytes) -> None:
        """Check with this key from now on."""
        self._key = Ed25519PublicKey.from_public_bytes(public_key_raw)

    def verify(self, bearer: str) -> Caller:
        """The caller that the token names.

        Raises:
            TokenRefused: the text says why.
        """
        if self._key is None:
            raise TokenRefused("this server is not registered yet")
        token, _, proof = bearer.partition(SEPARATOR)
        try:
            claims = jwt.decode(
                token,
                self._key,
                algorithms=[TOKEN_ALGORITHM],
                issuer=TOKEN_ISSUER,
                options={"require": ["exp", "sub"], "verify_iat": False},  # this host's clock may be late
            )
        except jwt.PyJWTError as refused:
            raise TokenRefused(str(refused)) from refused
        self._verify_proof(proof, _key_in(claims))
        caller = Caller(
            str(claims["sub"]),
            frozenset(claims.get("roles", ())),
            tuple(claims.get("topics", ())),
            frozenset(claims.get("feeds", ())),
            int(claims["exp"] * 1_000_000_000),
            round(float(claims.get("iat", 0)) * 1e9),
        )
        self.require_valid(caller)
        return caller

    def require_valid(self, caller: Caller) -> None:
        """Check again, while a call runs, that the caller's token has not been revoked.

        Raises:
            TokenRefused: it has.
        """
        if self.revoked.covers(caller.identity, caller.issued_unix_ns):
            raise TokenRefused("it was revoked")

    def _verify_proof(self, proof: str, key: Ed25519PublicKey) -> None:
        try:
            jwt.decode(
                proof,
                key,
                algorithms=[TOKEN_ALGORITHM],
                audience=self._server_name,
                options={"require": ["exp", "aud"], "strict_aud": True},
            )
        except jwt.PyJWTError as refused:
            raise TokenRefused(f"no proof of its key for {self._server_name}: {refused}") from refused


def make_proof(key: Ed25519PrivateKey, server_name: str, *, valid_s: int = PROOF_VALID_S) -> str:
    """The proof, for one server, that the caller has the key that its token is bound to."""
    return jwt.encode({"aud": server_name, "exp": int(time.time()) + valid_s}, key, algorithm=TOKEN_ALGORITHM)


def binding(public_key_raw: bytes) -> dict[str, Any]:
    """The claims that bind a token to a key (RFC 7800, RFC 8037)."""
    return {"cnf": {"jwk": {"kty": "OKP", "crv": "Ed25519", "x": key_to_text(public_key_raw)}}}


def key_to_text(public_key_raw: bytes) -> str:
    """A public key in base64url without padding: in a token, and as the client's nonce of a login."""
    return base64.urlsafe_b64encode(public_key_raw).decode().rstrip("=")


def key_from_text(text: str) -> bytes:
    """The public key in a text of `key_to_text`.

    Raises:
        ValueError: it is not one.
    """
    try:
        raw = base64.b64decode(text + "=", altchars=b"-_", validate=True)
    except binascii.Error as bad:
        raise ValueError(f"{text!r} is not base64url without padding: {bad}") from bad
    if len(raw) != KEY_SIZE:
        raise ValueError(f"{text!r} has {len(raw)} bytes; an Ed25519 public key has {KEY_SIZE}")
    return raw


def _key_in(claims: dict[str, Any]) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(key_from_text(claims["cnf"]["jwk"]["x"]))
    except (KeyError, TypeError, ValueError) as missing:
        raise TokenRefused("it is bound to no key; run one version of the cluster's software") from missing
