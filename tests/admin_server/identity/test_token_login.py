"""Login with a token of an outside issuer: what is accepted, and what is refused with one text."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tandemfeed.admin_server.identity.authentication import REFUSALS, TOKEN_VALID_S
from tandemfeed.admin_server.identity.login_limits import LoginLimits
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.credentials import TokenFile
from tandemfeed.transport.calls.login import AuthenticationRefused, Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.cluster_files import ca_of, running_server
from tests.admin_server.identity.logins import ToyIssuer, audit_of


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> ToyIssuer:
    return ToyIssuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def server(issuer: ToyIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with running_server(tmp_path_factory.mktemp("server"), issuers=issuer.file) as running:
        yield running


@pytest.fixture(autouse=True)
def forgive(server: AdminServer) -> None:
    """The tests share an address."""
    server.authentication.limits = LoginLimits()


def log_in(server: AdminServer, folder: Path, token: str, identity: str = "") -> Login:
    (folder / "token").write_text(token + "\r\n")
    return login(server.endpoint, ca_of(server), identity, TokenFile(folder / "token"))


def test_a_token_of_the_issuer_logs_in_and_its_expiry_bounds_ours(
    server: AdminServer, issuer: ToyIssuer, tmp_path: Path
) -> None:
    session = log_in(server, tmp_path, issuer.token(valid_s=100))
    assert session.expires_unix_ns <= (time.time() + 131) * 1e9
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer) as channel:
        feeds = admin_pb2_grpc.StreamAdministrationStub(channel).ListFeeds(admin_pb2.ListFeedsRequest()).feeds
    assert [feed.name for feed in feeds] == ["equities"]
    assert log_in(server, tmp_path, issuer.token(valid_s=86_400)).expires_unix_ns <= (time.time() + TOKEN_VALID_S) * 1e9


def unsigned(issuer: ToyIssuer) -> str:
    return issuer.token(key="", algorithm="none")


def signed_with_the_public_key_as_a_secret(issuer: ToyIssuer) -> str:
    """The old attack on verifiers that take the algorithm from the token."""
    pem = issuer.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return issuer.token(key=base64.b64encode(pem).decode(), algorithm="HS256")


WRONG: dict[str, Any] = {
    "not a token": lambda issuer: "not a token",
    "unknown identity": lambda issuer: issuer.token("nobody"),
    "no identity": lambda issuer: issuer.token(sub=None),
    "an identity that is not a text": lambda issuer: issuer.token(sub=None, identity=7),
    "expired": lambda issuer: issuer.token(valid_s=-31),
    "no expiry": lambda issuer: issuer.token(exp=None),
    "not yet valid": lambda issuer: issuer.token(nbf=int(time.time()) + 100),
    "foreign issuer": lambda issuer: issuer.token(iss="https://other.example.com"),
    "no issuer": lambda issuer: issuer.token(iss=None),
    "wrong audience": lambda issuer: issuer.token(aud="another service"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "foreign key": lambda issuer: issuer.token(key=ec.generate_private_key(ec.SECP256R1())),
    "another algorithm": lambda issuer: issuer.token(key=rsa.generate_private_key(65_537, 2_048), algorithm="RS256"),
    "no signature": unsigned,
    "a signature with a shared key": signed_with_the_public_key_as_a_secret,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_every_wrong_token_is_refused_with_the_same_text(
    server: AdminServer, issuer: ToyIssuer, tmp_path: Path, wrong: str
) -> None:
    with pytest.raises(AuthenticationRefused) as refused:
        log_in(server, tmp_path, WRONG[wrong](issuer))
    assert str(refused.value) == REFUSALS["token"]
    assert audit_of(server, "authentication refused")[-1]["why"] != REFUSALS["token"]


def test_a_token_for_another_identity_than_the_caller_expects_is_an_error(
    server: AdminServer, issuer: ToyIssuer, tmp_path: Path
) -> None:
    with pytest.raises(AuthenticationRefused, match="the credential is that of reader, not of operator"):
        log_in(server, tmp_path, issuer.token(), "operator")


def test_a_small_difference_of_clocks_is_tolerated(server: AdminServer, issuer: ToyIssuer, tmp_path: Path) -> None:
    log_in(server, tmp_path, issuer.token(valid_s=-10))
    log_in(server, tmp_path, issuer.token(nbf=int(time.time()) + 10))


def test_keys_rotate_without_a_restart(server: AdminServer, issuer: ToyIssuer, tmp_path: Path) -> None:
    former = issuer.token()
    issuer.rotate("second", keeps=True)
    log_in(server, tmp_path, issuer.token())
    log_in(server, tmp_path, former)
    issuer.rotate("third")
    with pytest.raises(AuthenticationRefused):
        log_in(server, tmp_path, former)
    log_in(server, tmp_path, issuer.token())


def test_the_token_file_is_read_at_each_login(server: AdminServer, issuer: ToyIssuer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(issuer.token())
    clock_s = [0]
    source = TokenSource(server.endpoint, ca_of(server), "", TokenFile(file), now_ns=lambda: clock_s[0] * 1_000_000_000)
    first = source(ADMIN_SERVER)
    file.write_text(issuer.token(valid_s=-60))
    clock_s[0] += TOKEN_VALID_S // 2
    with pytest.raises(AuthenticationRefused):
        source(ADMIN_SERVER)
    clock_s[0] += 1
    file.write_text(issuer.token())
    assert source(ADMIN_SERVER) != first


def test_a_prefix_limits_the_identities_that_an_issuer_speaks_for(tmp_path: Path) -> None:
    issuer = ToyIssuer(tmp_path / "issuer", prefix="feeds/")
    with running_server(tmp_path / "server", issuers=issuer.file) as server:
        log_in(server, tmp_path, issuer.token("feeds/reader"))
        with pytest.raises(AuthenticationRefused):
            log_in(server, tmp_path, issuer.token("operator"))


def test_a_mapping_limits_the_identities_that_an_issuer_speaks_for_and_the_file_is_reloaded(tmp_path: Path) -> None:
    issuer = ToyIssuer(tmp_path / "issuer", identity_claim="email")
    text = issuer.file.read_text()
    issuer.file.write_text(text + 'identities = { "ann@example.com" = "reader" }\n')
    with running_server(tmp_path / "server", issuers=issuer.file) as server:
        log_in(server, tmp_path, issuer.token(email="ann@example.com"), "reader")
        for other in ("operator", "bob@example.com"):
            with pytest.raises(AuthenticationRefused):
                log_in(server, tmp_path, issuer.token(email=other))
        issuer.file.write_text(text + 'identities = { "bob@example.com" = "stranger" }\n')
        log_in(server, tmp_path, issuer.token(email="bob@example.com"), "stranger")
        issuer.file.write_text("this is not TOML")  # refused; the former issuers stay
        log_in(server, tmp_path, issuer.token(email="bob@example.com"), "stranger")


def test_a_server_without_issuers_accepts_no_token(tmp_path: Path) -> None:
    issuer = ToyIssuer(tmp_path / "issuer")
    with running_server(tmp_path / "server") as server:
        with pytest.raises(AuthenticationRefused) as refused:
            log_in(server, tmp_path, issuer.token())
        assert str(refused.value) == REFUSALS["token"]


def test_an_oversized_token_and_a_missing_key_are_invalid_arguments(server: AdminServer) -> None:
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel:
        stub = admin_pb2_grpc.AuthenticationStub(channel)
        for request in (
            admin_pb2.LogInWithTokenRequest(token="x" * 20_000, public_key=bytes(32)),
            admin_pb2.LogInWithTokenRequest(token="x", public_key=b"short"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                stub.LogInWithToken(request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
