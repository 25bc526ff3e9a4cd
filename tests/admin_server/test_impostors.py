"""Attacks that need a valid certificate, a valid token or a caught login, and fail nevertheless."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.client_lib import connect
from tandemfeed.client_lib.errors import AdminUnavailable
from tandemfeed.spark_feed.sending.gateway import describe_feed
from tandemfeed.transport.calls import token_source
from tandemfeed.transport.calls.channels import BearerFor, open_channel
from tandemfeed.transport.calls.login import AuthenticationRefused, Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, adapter_server, source_gateway
from tandemfeed.transport.calls.serving.server import serve
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.calls.tokens import SEPARATOR, key_to_text
from tandemfeed.transport.process_shell import Connection
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.cluster_files import ca_of, running_server, secret_of

AUTHENTICATION = "tandemfeed.v1.Authentication"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path) as running:
        yield running


class Relay(admin_pb2_grpc.AuthenticationServicer):
    """Passes logins on to the real server, and keeps what it sees. It may put its own key into a login."""

    def __init__(self, server: AdminServer) -> None:
        self._channel = open_channel(server.endpoint, ca_of(server), ADMIN_SERVER)
        self._real = admin_pb2_grpc.AuthenticationStub(self._channel)
        self.key = Ed25519PrivateKey.generate()
        self.puts_its_own_key = False
        self.logins = 0
        self.token = ""

    def Begin(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.logins += 1
        if self.puts_its_own_key:
            name, _, _ = request.client_first.rpartition("r=")
            request.client_first = f"{name}r={key_to_text(self.key.public_key().public_bytes_raw())}"
        return self._real.Begin(request)

    def Finish(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        reply = self._real.Finish(request)
        self.token = reply.token
        return reply

    def close(self) -> None:
        self._channel.close()


@contextmanager
def relaying(server: AdminServer, certificate: str) -> Iterator[tuple[str, Relay]]:
    """(the address of a relay that serves with this certificate of the state folder, the relay)."""
    relay = Relay(server)
    files = [(server.folder.path / f"{certificate}.{end}").read_bytes() for end in ("crt", "key")]
    registrations = [lambda made: admin_pb2_grpc.add_AuthenticationServicer_to_server(relay, made)]
    running = serve(registrations, [AUTHENTICATION], "127.0.0.1:0", files[0], files[1], [])
    yield running.endpoint, relay
    running.stop(0)
    relay.close()


@pytest.mark.parametrize("certificate", ["certs/reader", "certs/adapter-a", "certs/source"])
def test_every_caller_refuses_an_admin_server_with_the_certificate_of_another_identity(
    server: AdminServer,
    certificate: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(token_source, "PATIENCE_S", 0.5)
    monkeypatch.setattr("tandemfeed.spark_feed.sending.gateway.DESCRIBE_TIMEOUT_S", 0.5)
    monkeypatch.setattr("tandemfeed.admin_server.command.server_calls.LOGIN_TIMEOUT_S", 0.5)
    folder = server.folder.path
    with relaying(server, certificate) as (address, relay):
        files = [f"--ca={folder}/ca.pem", f"--secret-file={folder}/secrets/operator.secret"]
        with pytest.raises(SystemExit):
            admin(["feeds", f"--admin={address}", "--identity=operator", *files])
        assert f"its certificate is not an admin server's ({ADMIN_SERVER})" in capsys.readouterr().err
        with pytest.raises(AdminUnavailable, match="is not an admin server's"):
            connect(admin=address, ca=ca_of(server), identity="reader", secret=secret_of(server, "reader")).open()
        with pytest.raises(grpc.RpcError):  # an adapter
            TokenSource(address, ca_of(server), "adapter-a", secret_of(server, "adapter-a"))(ADMIN_SERVER)
        connection = Connection(address, ca_of(server), "source", secret_of(server, "source"))
        with pytest.raises(grpc.RpcError):
            describe_feed(connection, "equities")
        assert relay.logins == 0


def test_a_relayed_login_gives_the_relay_a_token_that_it_cannot_use(server: AdminServer) -> None:
    """Even one with the admin server's own certificate."""
    secret = secret_of(server, "operator")
    with relaying(server, "server") as (address, relay):
        session = login(address, ca_of(server), "operator", secret)
        assert relay.token == session.token
        assert code_of_status(server, session.bearer) is grpc.StatusCode.OK
        for bearer in (lambda _server: relay.token, Login(relay.token, 0, relay.key).bearer):
            assert code_of_status(server, bearer) is grpc.StatusCode.UNAUTHENTICATED


def test_a_relay_cannot_put_its_own_key_into_a_login(server: AdminServer) -> None:
    with relaying(server, "server") as (address, relay):
        relay.puts_its_own_key = True
        with pytest.raises((AuthenticationRefused, grpc.RpcError)):
            login(address, ca_of(server), "operator", secret_of(server, "operator"))
        assert relay.logins == 1
        assert not relay.token


@pytest.mark.parametrize("elsewhere", [adapter_server("equities", "b"), source_gateway("equities")])
def test_what_a_caller_sends_to_another_server_is_refused_by_the_admin_server(
    server: AdminServer, elsewhere: str
) -> None:
    session = login(server.endpoint, ca_of(server), "adapter-a", secret_of(server, "adapter-a"))
    caught = session.bearer(elsewhere)
    request = admin_pb2.RegisterRequest(
        feed="equities", adapter="a", rpc_endpoint="127.0.0.1:1", public_key=bytes(32), process_nonce=bytes(16)
    )
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, lambda _server: caught) as channel:
        with pytest.raises(grpc.RpcError, match=ADMIN_SERVER) as refused:
            admin_pb2_grpc.AdapterRegistryStub(channel).Register(request, timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer) as channel:
        assert admin_pb2_grpc.AdapterRegistryStub(channel).Register(request, timeout=20).self.name == "a"


def code_of_status(server: AdminServer, bearer: BearerFor) -> grpc.StatusCode:
    """What GetStatus answers."""
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, bearer) as channel:
        try:
            admin_pb2_grpc.OperationsStub(channel).GetStatus(admin_pb2.GetStatusRequest(), timeout=20)
        except grpc.RpcError as error:
            code = error.code()
            assert isinstance(code, grpc.StatusCode)
            return code
    return grpc.StatusCode.OK


def test_a_token_without_a_proof_is_refused(server: AdminServer) -> None:
    session = login(server.endpoint, ca_of(server), "operator", secret_of(server, "operator"))
    for bearer in (session.token, session.token + SEPARATOR, session.token + SEPARATOR + session.token):
        assert code_of_status(server, lambda _server, bearer=bearer: bearer) is grpc.StatusCode.UNAUTHENTICATED
