"""A process's token: renewed in time, replaced when it is refused, and never waited for where it need not be."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.transport.calls import token_source
from tandemfeed.transport.calls.login import AuthenticationRefused, Login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import REFUSED_PAUSE_MIN_NS, SERVED_NS, TRY_AGAIN_NS, TokenSource
from tandemfeed.transport.calls.tokens import SEPARATOR

TOKEN_LIFE_NS = 3_600_000_000_000
PEER = "adapter-b"
WAIT_S = 60.0


class Unreachable(grpc.RpcError):
    """What a call to a server that is away ends with."""


class ToyLogins:
    """In place of `login`: numbers the tokens, at a time that the test sets."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000
        self.token_life_ns = TOKEN_LIFE_NS
        self.failure: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.patience_s: list[float] = []

    def __call__(self, *_arguments: Any, timeout_s: float) -> Login:
        self.patience_s.append(timeout_s)
        assert self.may_answer.wait(WAIT_S)
        if self.failure is not None:
            raise self.failure
        return Login(f"token {len(self.patience_s)}", self.now_ns + self.token_life_ns, Ed25519PrivateKey.generate())

    def pass_time(self, life_share: float) -> None:
        """Let this share of a token's life pass."""
        self.now_ns += int(life_share * TOKEN_LIFE_NS)


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> ToyLogins:
    toy = ToyLogins()
    monkeypatch.setattr(token_source, "login", toy)
    monkeypatch.setattr(token_source, "time", SimpleNamespace(time_ns=lambda: toy.now_ns))
    return toy


@pytest.fixture
def source(logins: ToyLogins) -> TokenSource:
    return TokenSource("127.0.0.1:1", b"", "ann", "correct horse")


def token_of(source: TokenSource, server_name: str = ADMIN_SERVER) -> str:
    """The token that the source would send at present."""
    return source(server_name).partition(SEPARATOR)[0]


def await_background_login() -> None:
    """Wait until no thread logs in."""
    for thread in threading.enumerate():
        if thread.name == "login":
            thread.join(WAIT_S)


def test_it_keeps_its_token_for_half_its_life(source: TokenSource, logins: ToyLogins) -> None:
    assert [token_of(source), token_of(source)] == ["token 1", "token 1"]
    logins.pass_time(0.49)
    assert token_of(source) == "token 1"
    logins.pass_time(0.02)
    assert token_of(source) == "token 2"


def test_it_logs_in_again_when_its_token_has_expired(source: TokenSource, logins: ToyLogins) -> None:
    logins.token_life_ns = -1
    assert [token_of(source), token_of(source, PEER)] == ["token 1", "token 2"]


def test_while_no_server_answers_the_present_token_serves_until_it_expires(
    source: TokenSource, logins: ToyLogins
) -> None:
    assert token_of(source) == "token 1"
    logins.failure = Unreachable()
    logins.pass_time(0.6)
    assert [token_of(source), token_of(source)] == ["token 1", "token 1"]
    assert len(logins.patience_s) == 2, "the second call does not try again yet"
    logins.pass_time(0.41)
    with pytest.raises(grpc.RpcError):
        token_of(source)
    with pytest.raises(grpc.RpcError):
        token_of(source, PEER)


def test_a_call_to_a_peer_does_not_wait_for_a_login(source: TokenSource, logins: ToyLogins) -> None:
    assert token_of(source) == "token 1"
    logins.may_answer.clear()
    logins.pass_time(0.6)
    assert [token_of(source, PEER) for _ in range(3)] == ["token 1"] * 3
    assert token_of(source) == "token 1", "another thread logs in, so this one need not wait"
    logins.may_answer.set()
    await_background_login()
    assert token_of(source, PEER) == "token 2"
    assert len(logins.patience_s) == 2


def test_a_refused_identity_is_reported_to_a_call_to_the_admin_server(source: TokenSource, logins: ToyLogins) -> None:
    assert token_of(source) == "token 1"
    logins.failure = AuthenticationRefused("ann: disabled")
    logins.pass_time(0.6)
    assert token_of(source, PEER) == "token 1"
    await_background_login()
    with pytest.raises(AuthenticationRefused, match="disabled"):
        token_of(source)


def test_after_a_refusal_each_call_to_the_admin_server_tries_to_log_in_until_one_succeeds(
    source: TokenSource, logins: ToyLogins
) -> None:
    assert token_of(source) == "token 1"
    assert source.renew()
    logins.failure = Unreachable()
    assert [token_of(source), token_of(source)] == ["token 1", "token 1"]
    assert len(set(logins.patience_s)) == 1, "as patient as without a token, since the present one is of no use"
    logins.failure = None
    assert [token_of(source), token_of(source)] == ["token 4", "token 4"]


def test_a_server_that_refuses_every_token_sees_ever_fewer_logins(source: TokenSource, logins: ToyLogins) -> None:
    def logins_in(duration_ns: int) -> int:
        before, until_ns = len(logins.patience_s), logins.now_ns + duration_ns
        while logins.now_ns < until_ns:
            token_of(source)
            source.renew()
            logins.now_ns += REFUSED_PAUSE_MIN_NS
        return len(logins.patience_s) - before

    logins_in(6 * TRY_AGAIN_NS)
    assert logins_in(10 * TRY_AGAIN_NS) <= 10
    logins.now_ns += 2 * TRY_AGAIN_NS
    assert source.renew(), "the token has served for a while"
    assert token_of(source) == f"token {len(logins.patience_s)}"


def test_keys_that_are_replaced_every_few_seconds_delay_no_login(source: TokenSource, logins: ToyLogins) -> None:
    for count in range(1, 21):
        assert token_of(source) == f"token {count}"
        assert source.renew()
        logins.now_ns += SERVED_NS + REFUSED_PAUSE_MIN_NS


def test_only_an_unauthenticated_call_makes_it_log_in_again(source: TokenSource, logins: ToyLogins) -> None:
    assert token_of(source) == "token 1"
    assert not source.renew_after(Unreachable())
    assert not source.renew_after(ValueError("closed"))
    assert token_of(source) == "token 1"
    assert source.renew_after(refusal(grpc.StatusCode.UNAUTHENTICATED))
    assert token_of(source) == "token 2"


def refusal(code: grpc.StatusCode) -> grpc.RpcError:
    """A call's failure with this code."""
    failure = Unreachable()
    failure.code, failure.details = lambda: code, lambda: ""  # type: ignore[attr-defined]
    return failure
