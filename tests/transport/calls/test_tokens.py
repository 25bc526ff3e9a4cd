"""A bearer is accepted by the one server that it is for, while its token and its proof are valid."""

from __future__ import annotations

import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.transport.calls.login import Login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, adapter_server, source_gateway
from tandemfeed.transport.calls.tokens import (
    PROOF_VALID_S,
    SEPARATOR,
    TokenRefused,
    TokenVerifier,
    binding,
    key_from_text,
    key_to_text,
    make_proof,
    sign_token,
)
from tests.transport.calls.announced_keys import announced

ISSUER_KEY, CALLER_KEY = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
SERVERS = (ADMIN_SERVER, adapter_server("equities", "a"), adapter_server("equities", "b"), source_gateway("equities"))


def token(**more: Any) -> str:
    claims: dict[str, Any] = {"sub": "ann", "exp": int(time.time()) + 600}
    claims |= binding(CALLER_KEY.public_key().public_bytes_raw())
    return sign_token(claims | more, ISSUER_KEY)


def verify(bearer: str, server_name: str = ADMIN_SERVER) -> str:
    return TokenVerifier(server_name, announced(ISSUER_KEY)).verify(bearer).identity


@pytest.mark.parametrize("receiver", SERVERS)
@pytest.mark.parametrize("meant_for", SERVERS)
def test_a_bearer_serves_at_one_server_only(meant_for: str, receiver: str) -> None:
    bearer = Login(token(), 0, CALLER_KEY).bearer(meant_for)
    if receiver == meant_for:
        assert verify(bearer, receiver) == "ann"
    else:
        with pytest.raises(TokenRefused, match=receiver):
            verify(bearer, receiver)


def proof(key: Ed25519PrivateKey = CALLER_KEY, **claims: Any) -> str:
    return jwt.encode(claims, key, algorithm="EdDSA")


LATER = 2**40


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "garbage",
        make_proof(CALLER_KEY, ADMIN_SERVER, valid_s=-1),
        make_proof(Ed25519PrivateKey.generate(), ADMIN_SERVER),
        proof(aud=ADMIN_SERVER),  # never expires
        proof(exp=LATER),  # for any server
        proof(aud=list(SERVERS), exp=LATER),  # for several
        jwt.encode({"aud": ADMIN_SERVER, "exp": LATER}, "x" * 64, algorithm="HS256"),
        token(),
    ],
)
def test_a_token_with_a_bad_proof_is_refused(bad: str) -> None:
    with pytest.raises(TokenRefused, match="no proof of its key"):
        verify(token() + SEPARATOR + bad)


@pytest.mark.parametrize(
    "confirmation", [None, {}, {"jwk": {}}, {"jwk": {"x": 7}}, {"jwk": {"x": "short"}}, {"jwk": {"x": "!" * 43}}]
)
def test_a_token_that_is_bound_to_no_key_is_refused(confirmation: Any) -> None:
    with pytest.raises(TokenRefused, match="bound to no key"):
        verify(token(cnf=confirmation) + SEPARATOR + make_proof(CALLER_KEY, ADMIN_SERVER))


def test_an_expired_token_is_refused_with_a_valid_proof() -> None:
    with pytest.raises(TokenRefused, match="expired"):
        verify(token(exp=1) + SEPARATOR + make_proof(CALLER_KEY, ADMIN_SERVER))


def test_a_token_is_accepted_by_a_host_whose_clock_is_late() -> None:
    assert verify(Login(token(iat=int(time.time()) + 120), 0, CALLER_KEY).bearer(ADMIN_SERVER)) == "ann"


def test_a_login_makes_a_new_proof_before_the_last_one_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [1_000_000_000]
    monkeypatch.setattr("tandemfeed.transport.calls.login.time.time_ns", lambda: clock_s[0] * 1_000_000_000)
    monkeypatch.setattr("tandemfeed.transport.calls.tokens.time.time", lambda: clock_s[0])
    session = Login("token", 0, CALLER_KEY)
    first = session.bearer(ADMIN_SERVER)
    clock_s[0] += PROOF_VALID_S // 2 - 1
    assert session.bearer(ADMIN_SERVER) == first
    clock_s[0] += 1
    assert session.bearer(ADMIN_SERVER) != first


HOUR_S = 3_600


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_after_a_step_of_both_clocks_a_login_is_accepted_without_a_new_one(step_s: int) -> None:
    clock_s = [1_000_000_000]
    verifier = TokenVerifier(ADMIN_SERVER, announced(ISSUER_KEY), now_unix_ns=lambda: clock_s[0] * 1_000_000_000)
    session = Login(token(exp=clock_s[0] + 2 * HOUR_S), 0, CALLER_KEY)
    for _ in range(3):
        assert verifier.verify(session.bearer(ADMIN_SERVER, clock_s[0] * 1_000_000_000)).identity == "ann"
        clock_s[0] += PROOF_VALID_S // 2 - 1
    clock_s[0] += step_s
    assert verifier.verify(session.bearer(ADMIN_SERVER, clock_s[0] * 1_000_000_000)).identity == "ann"


def test_a_clock_that_is_set_right_again_gives_proofs_that_are_accepted() -> None:
    right_s = 1_000_000_000
    verifier = TokenVerifier(ADMIN_SERVER, announced(ISSUER_KEY), now_unix_ns=lambda: right_s * 1_000_000_000)
    session = Login(token(exp=right_s + HOUR_S), 0, CALLER_KEY)
    with pytest.raises(TokenRefused, match=r"no proof of its key .* expired 3,300 s ago by this host's clock"):
        verifier.verify(session.bearer(ADMIN_SERVER, (right_s - HOUR_S) * 1_000_000_000))
    assert verifier.verify(session.bearer(ADMIN_SERVER, right_s * 1_000_000_000)).identity == "ann"


@pytest.mark.parametrize("end", [None, "soon", [1]])
def test_a_token_without_an_end_is_refused(end: Any) -> None:
    with pytest.raises(TokenRefused):
        verify(token(exp=end) + SEPARATOR + make_proof(CALLER_KEY, ADMIN_SERVER))


@given(st.binary(min_size=32, max_size=32))
def test_a_key_is_read_from_its_text(key: bytes) -> None:
    assert key_from_text(key_to_text(key)) == key


@given(st.text(max_size=42) | st.text(min_size=44) | st.binary(max_size=31).map(key_to_text))
def test_a_text_that_is_not_a_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not base64url|has \d+ bytes|ASCII"):
        key_from_text(text)
