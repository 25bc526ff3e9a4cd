"""What a caller sends to prove who it is, and how a server checks it.

A bearer is TOKEN~PROOF, as in SD-JWT with key binding (RFC 9901). The token is a JWT (EdDSA, RFC 8037) of the admin
server: it names the caller and its rights, and is bound to the public key of the caller's login (`cnf`, RFC 7800). The
proof is a JWT that the caller signs with that key; its audience is one server. So a server that receives a bearer
cannot use it at another server, and neither part is of use without the other.

The keys that sign tokens rotate. A token names its key (`kid`), and a verifier has all keys that are accepted now.

A verifier must never accept a token without a proof for its own server name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.types import Options

from tandemfeed.transport.calls.revoked_tokens import RevokedTokens
from tandemfeed.v1 import common_pb2

TOKEN_ISSUER = "tandemfeed"
TOKEN_ALGORITHM = "EdDSA"
PROOF_VALID_S = 300  # callers make a new one after half of it, so clocks may differ by the other half
SEPARATOR = "~"  # not in a JWT
KEY_SIZE = 32
VERIFIED_COUNT_MAX = 4_096  # bearers that are remembered; each process that calls makes one every 150 s
KEY_ID_SIZE = 8  # of the digest of a key
# A token may state a later time of issue than now, because this host's clock may be late. Its end is checked here.
_TIMES: Options = {"verify_exp": False, "verify_iat": False}


class TokenRefused(Exception):
    """The token is not the admin server's, has expired, or is not proved; the text says which."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of an RPC.

    Attributes:
        identity: the authenticated name.
        roles: some of client, adapter, source, admin.
        topics: patterns of the topics granted for subscription.
        contribute: the topics to which it may contribute.
        feeds: names of the feeds that the caller is an adapter of.
        expires_unix_ns: when its token expires.
        issued_unix_ns: when its token was issued.
        token_key_id: names the key that signed its token.
    """

    identity: str
    roles: frozenset[str]
    topics: tuple[str, ...]
    feeds: frozenset[str] = frozenset()
    expires_unix_ns: int = 0
    issued_unix_ns: int = 0
    token_key_id: str = ""
    contribute: frozenset[str] = frozenset()

    def is_adapter_of(self, feed: str) -> bool:
        """True if the caller may act as an adapter of this feed. A token for one feed does not open another's."""
        return "adapter" in self.roles and feed in self.feeds


class TokenVerifier:
    """Checks bearers with the admin server's public keys. Safe to call from any thread.

    Args:
        server_name: this server's name (`transport.calls.server_names`).
        keys: as in `trust`; none: refuse everything until `trust` is called, for a server that must know its own
            address before it can register and learn the keys.
        now_unix_ns: the wall clock, by which keys, tokens and proofs end.

    Attributes:
        revoked: the tokens to refuse although they have not expired.
    """

    def __init__(
        self,
        server_name: str,
        keys: Iterable[common_pb2.TokenKey] = (),
        *,
        now_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._server_name, self._now_unix_ns = server_name, now_unix_ns
        self.revoked = RevokedTokens()
        self._keys: dict[str, tuple[Ed25519PublicKey, int]] = {}  # by key id; until when it is accepted, 0: no end
        self._verified: dict[str, _Verified] = {}  # by bearer, the oldest first
        self.trust(keys)

    def trust(self, keys: Iterable[common_pb2.TokenKey]) -> None:
        """Accept just these keys from now on, each until its end."""
        self._keys = {
            key_id_of(each.public_key): (
                Ed25519PublicKey.from_public_bytes(each.public_key),
                each.accepted_until_unix_ns,
            )
            for each in keys
        }  # replaced as a whole, because readers do not lock
        self._verified = {}

    def verify(self, bearer: str) -> Caller:
        """The caller that the token names.

        Callers send a bearer again and again. Its signatures are verified once, which takes most of the time of a short
        call; whether it has ended, or was revoked, is checked each time.

        Raises:
            TokenRefused: the text says why.
        """
        verified, known = self._verified, self._verified.get(bearer)
        if known is None:
            token, _, proof = bearer.partition(SEPARATOR)
            caller, bound_to = self._verify_token(token)
            known = _Verified(caller, self._verify_proof(proof, bound_to))
            while len(verified) >= VERIFIED_COUNT_MAX:
                with suppress(KeyError, StopIteration, RuntimeError):  # another thread is at it
                    del verified[next(iter(verified))]
            verified[bearer] = known  # not of the keys that `trust` may have replaced meanwhile
        else:
            self._require_not_over(known.caller.expires_unix_ns)
            self._require_not_over(known.proof_ends_unix_ns, self._no_proof)
        self.require_valid(known.caller)
        return known.caller

    def require_valid(self, caller: Caller) -> None:
        """Check again, while a call runs, that the caller's token has not been revoked, and its key not dropped.

        Raises:
            TokenRefused: it has.
        """
        self._key(caller.token_key_id)
        if self.revoked.covers(caller.identity, caller.issued_unix_ns):
            raise TokenRefused("it was revoked")

    def accepts(self, token: str) -> bool:
        """Whether this server would accept a token, with the proof that belongs to it."""
        try:
            caller, _ = self._verify_token(token)
            self.require_valid(caller)
        except TokenRefused:
            return False
        return True

    def _verify_token(self, token: str) -> tuple[Caller, Ed25519PublicKey]:
        """The caller that a token names, and the key that it is bound to."""
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid", ""))
            claims = jwt.decode(
                token,
                self._key(key_id),
                algorithms=[TOKEN_ALGORITHM],
                issuer=TOKEN_ISSUER,
                options={"require": ["exp", "sub"], **_TIMES},
            )
        except jwt.PyJWTError as refused:
            raise TokenRefused(str(refused)) from refused
        ends_unix_ns = _end_of(claims)
        self._require_not_over(ends_unix_ns)
        caller = Caller(
            str(claims["sub"]),
            frozenset(claims.get("roles", ())),
            tuple(claims.get("topics", ())),
            frozenset(claims.get("feeds", ())),
            ends_unix_ns,
            round(float(claims.get("iat", 0)) * 1e9),
            key_id,
            frozenset(claims.get("contribute", ())),
        )
        return caller, _key_in(claims)

    def _key(self, key_id: str) -> Ed25519PublicKey:
        if not self._keys:
            raise TokenRefused("this server is not registered yet")
        key, until_unix_ns = self._keys.get(key_id, (None, 0))
        if key is None or 0 < until_unix_ns <= self._now_unix_ns():
            raise TokenRefused("it was signed with a key that is not accepted")
        return key

    def _verify_proof(self, proof: str, key: Ed25519PublicKey) -> int:
        """Returns when the proof ends."""
        try:
            claims = jwt.decode(
                proof,
                key,
                algorithms=[TOKEN_ALGORITHM],
                audience=self._server_name,
                options={"require": ["exp", "aud"], "strict_aud": True, **_TIMES},
            )
        except jwt.PyJWTError as refused:
            raise TokenRefused(f"{self._no_proof}{refused}") from refused
        ends_unix_ns = _end_of(claims, self._no_proof)
        self._require_not_over(ends_unix_ns, self._no_proof)
        return ends_unix_ns

    @property
    def _no_proof(self) -> str:
        return f"no proof of its key for {self._server_name}: "

    def _require_not_over(self, ends_unix_ns: int, context: str = "") -> None:
        """Check the end of a token's or proof's life, RFC 7519 section 4.1.4."""
        over_for_ns = self._now_unix_ns() - ends_unix_ns
        if over_for_ns >= 0:
            raise TokenRefused(f"{context}it expired {over_for_ns // 1_000_000_000:,} s ago by this host's clock")


class _Verified(NamedTuple):
    """A bearer whose signatures are right."""

    caller: Caller
    proof_ends_unix_ns: int


def _end_of(claims: Mapping[str, Any], context: str = "") -> int:
    try:
        return int(float(claims["exp"]) * 1_000_000_000)
    except (TypeError, ValueError, OverflowError) as bad:
        raise TokenRefused(f"{context}its end {claims['exp']!r} is not a time") from bad


def sign_token(claims: Mapping[str, Any], key: Ed25519PrivateKey) -> str:
    """A token with these claims."""
    header = {"kid": key_id_of(key.public_key().public_bytes_raw())}
    return jwt.encode({"iss": TOKEN_ISSUER, **claims}, key, algorithm=TOKEN_ALGORITHM, headers=header)


def key_id_of(public_key_raw: bytes) -> str:
    """Names a key that signs tokens."""
    return hashlib.sha256(public_key_raw).digest()[:KEY_ID_SIZE].hex()


def make_proof(
    key: Ed25519PrivateKey, server_name: str, *, valid_s: int = PROOF_VALID_S, now_unix_s: float | None = None
) -> str:
    """The proof, for one server, that the caller has the key that its token is bound to.

    Args:
        now_unix_s: the wall clock's time; None: that of this host.
    """
    now_s = time.time() if now_unix_s is None else now_unix_s
    return jwt.encode({"aud": server_name, "exp": int(now_s) + valid_s}, key, algorithm=TOKEN_ALGORITHM)


def life_of(token: str) -> int:
    """For how long a token is valid, in ns; 0 if it does not say so. Its issuer's clock need not be this host's."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
        return max(0, int((float(claims["exp"]) - float(claims["iat"])) * 1e9))
    except (jwt.PyJWTError, KeyError, TypeError, ValueError):
        return 0


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
