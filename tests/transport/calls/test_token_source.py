"""A process's token: renewed in time, replaced when it is refused, and never waited for where it need not be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.transport.calls.credentials import CredentialUnusable
from tandemfeed.transport.calls.login import AuthenticationRefused, Login
from tandemfeed.transport.calls.login_schedule import REFUSED_PAUSE_MIN_NS, SERVED_NS, TRY_AGAIN_NS
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import PATIENCE_S, PATIENCE_WITH_TOKEN_S, TokenSource
from tandemfeed.transport.calls.tokens import SEPARATOR, TokenVerifier, binding, sign_token
from tandemfeed.v1 import admin_pb2
from tests.transport.calls.announced_keys import announced

TOKEN_LIFE_NS = 3_600_000_000_000
PEER = "adapter-b"
WAIT_S = 60.0


class Unreachable(grpc.RpcError):
    """What a call to a server that is away ends with."""


class ToyLogins:
    """In place of `login`: numbers the tokens, at a time that the test sets.

    Attributes:
        now_ns: of the monotonic clock.
        running_count_max: how many logins ran at the same time.
    """

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000
        self.running_count_max = self._running_count = 0
        self.token_life_ns = TOKEN_LIFE_NS
        self.failure: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.patience_s: list[float] = []

    def __call__(self, *_arguments: Any, timeout_s: float) -> Login:
        self.patience_s.append(timeout_s)
        self._running_count += 1
        self.running_count_max = max(self.running_count_max, self._running_count)
        assert self.may_answer.wait(WAIT_S)
        self._running_count -= 1
        if self.failure is not None:
            raise self.failure
        return Login(f"token {len(self.patience_s)}", 0, Ed25519PrivateKey.generate(), self.token_life_ns)

    def pass_time(self, life_share: float) -> None:
        """Let this share of a token's life pass."""
        self.now_ns += int(life_share * TOKEN_LIFE_NS)


@pytest.fixture
def logins() -> ToyLogins:
    return ToyLogins()


@pytest.fixture
def source(logins: ToyLogins) -> TokenSource:
    return TokenSource("127.0.0.1:1", b"", "ann", "correct horse", log_in=logins, now_ns=lambda: logins.now_ns)


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


HOUR_NS = 3_600_000_000_000


@pytest.fixture(params=[-HOUR_NS, HOUR_NS], ids=["an hour back", "an hour ahead"])
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Steps the wall clock of this host."""
    steps = [0]
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + steps[0])
    monkeypatch.setattr(time, "time", lambda: (real_ns() + steps[0]) / 1e9)
    return lambda: steps.__setitem__(0, request.param)


def test_after_a_step_of_the_wall_clock_a_refused_token_leads_to_a_login_as_soon_as_otherwise(
    source: TokenSource, logins: ToyLogins, step: Callable[[], None]
) -> None:
    assert token_of(source) == "token 1"
    assert source.renew()
    assert token_of(source) == "token 2"
    step()
    logins.now_ns += REFUSED_PAUSE_MIN_NS
    assert source.renew_after(refusal(grpc.StatusCode.UNAUTHENTICATED))
    assert token_of(source) == "token 3"


def test_a_step_of_the_wall_clock_changes_neither_the_life_nor_the_renewal_of_a_token(
    source: TokenSource, logins: ToyLogins, step: Callable[[], None]
) -> None:
    assert token_of(source) == "token 1"
    step()
    assert [token_of(source), token_of(source, PEER)] == ["token 1"] * 2
    logins.pass_time(0.51)
    assert token_of(source) == "token 2"


def test_a_login_that_failed_is_tried_again_while_the_token_serves(source: TokenSource, logins: ToyLogins) -> None:
    assert token_of(source) == "token 1"
    logins.pass_time(0.51)
    for failure in (Unreachable(), CredentialUnusable("the file is being replaced")):  # fails once, fails twice
        logins.failure = failure
        before = len(logins.patience_s)
        assert token_of(source) == "token 1"
        assert len(logins.patience_s) == before + 1
        logins.now_ns += TRY_AGAIN_NS
    logins.failure = None  # comes back
    assert token_of(source) == "token 4"
    assert logins.patience_s == [PATIENCE_S, *[PATIENCE_WITH_TOKEN_S] * 3]


def test_a_login_aside_that_failed_is_tried_again_while_the_token_serves(
    source: TokenSource, logins: ToyLogins, caplog: pytest.LogCaptureFixture
) -> None:
    assert token_of(source) == "token 1"
    logins.pass_time(0.51)
    for failure in (Unreachable(), AuthenticationRefused("ann: disabled"), ValueError("broken")):
        logins.failure = failure
        before = len(logins.patience_s)
        for _ in range(2):  # the second is too soon
            assert token_of(source, PEER) == "token 1"
            await_background_login()
        assert len(logins.patience_s) == before + 1
        logins.now_ns += TRY_AGAIN_NS
    assert [record.message for record in caplog.records] == ["could not log in"], "only the unexpected failure"
    logins.failure = None
    assert token_of(source, PEER) == "token 1"
    await_background_login()
    assert token_of(source, PEER) == "token 5"


def test_a_refused_credential_is_reported_to_every_call_and_tried_ever_more_rarely(
    source: TokenSource, logins: ToyLogins
) -> None:
    logins.failure = AuthenticationRefused("ann: disabled")
    ended_at_ns = logins.now_ns + 20 * TRY_AGAIN_NS
    while logins.now_ns < ended_at_ns:
        for server in (ADMIN_SERVER, PEER):
            with pytest.raises(AuthenticationRefused, match="ann: disabled"):
                source(server)
        logins.now_ns += REFUSED_PAUSE_MIN_NS
    assert 20 <= len(logins.patience_s) <= 30
    logins.failure = None
    logins.now_ns += TRY_AGAIN_NS
    assert token_of(source) == f"token {len(logins.patience_s)}"
    logins.failure = AuthenticationRefused("ann: disabled again")
    logins.now_ns += 2 * TOKEN_LIFE_NS
    with pytest.raises(AuthenticationRefused, match="disabled again"):
        source(PEER)


def test_an_unreachable_server_is_not_reported_as_the_refusal_before_it(source: TokenSource, logins: ToyLogins) -> None:
    assert token_of(source) == "token 1"
    logins.pass_time(0.51)
    logins.failure = AuthenticationRefused("ann: disabled")
    with pytest.raises(AuthenticationRefused):
        source(ADMIN_SERVER)
    logins.failure = Unreachable()
    logins.now_ns += TRY_AGAIN_NS
    assert [token_of(source), token_of(source)] == ["token 1", "token 1"]


def test_calls_that_reconnect_during_a_renewal_begin_no_second_one(source: TokenSource, logins: ToyLogins) -> None:
    assert token_of(source) == "token 1"
    logins.may_answer.clear()
    logins.pass_time(0.6)
    together = threading.Barrier(8)

    def reconnect() -> None:
        together.wait(WAIT_S)
        for _ in range(50):
            source(PEER)
            source(ADMIN_SERVER)

    callers = [threading.Thread(target=reconnect) for _ in range(7)]
    for caller in callers:
        caller.start()
    together.wait(WAIT_S)
    assert token_of(source, PEER) == "token 1"
    logins.may_answer.set()
    for caller in callers:
        caller.join(WAIT_S)
    await_background_login()
    assert token_of(source) == "token 2"
    assert (len(logins.patience_s), logins.running_count_max) == (2, 1)
    logins.pass_time(0.6)
    assert token_of(source) == "token 3", "the one renewal of this half life"
    assert len(logins.patience_s) == 3


def test_a_token_that_the_servers_do_not_trust_any_more_leads_to_a_new_login(logins: ToyLogins) -> None:
    key, own, verifier = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate(), TokenVerifier(ADMIN_SERVER)

    def log_in(*arguments: Any, timeout_s: float) -> Login:
        logins(*arguments, timeout_s=timeout_s)
        now_s = int(time.time())
        claims = {"sub": "ann", "iat": now_s, "exp": now_s + 600, **binding(own.public_key().public_bytes_raw())}
        return Login(sign_token(claims, key), 0, own, TOKEN_LIFE_NS)

    source = TokenSource("127.0.0.1:1", b"", "ann", "x", log_in=log_in, now_ns=lambda: logins.now_ns)
    source(ADMIN_SERVER)
    source.adopt_trust(admin_pb2.RegisterReply(token_keys=announced(key)), verifier)
    source(ADMIN_SERVER)
    assert len(logins.patience_s) == 1, "its key is trusted"
    source.adopt_trust(admin_pb2.RegisterReply(token_keys=announced(Ed25519PrivateKey.generate())), verifier)
    source(ADMIN_SERVER)
    assert len(logins.patience_s) == 2
