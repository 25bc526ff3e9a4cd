"""Authentication by SCRAM-SHA-256 over a real TLS connection, against a small server that uses scramp."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import scramp

from tandemfeed.transport.calls.login import AuthenticationRefused, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.client_lib.toy_cluster import make_certificates

SERVICE = "tandemfeed.v1.Authentication"
MECHANISM = scramp.ScramMechanism("SCRAM-SHA-256")
IDENTITY, SECRET = "ann", "correct horse"


class ToyAuthentication(admin_pb2_grpc.AuthenticationServicer):
    """Knows one identity. Its tokens are numbered, and valid for `token_life_s`."""

    def __init__(self) -> None:
        self.token_life_s = 3_600.0
        self.logins = 0
        self.is_impostor = False
        self._verifier = MECHANISM.make_auth_info(SECRET)
        self._conversations: dict[str, Any] = {}

    def Begin(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        def look_up(identity: str) -> Any:
            if identity != IDENTITY:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown identity")
            return self._verifier

        server = MECHANISM.make_server(look_up)
        server.set_client_first(request.client_first)
        number = str(len(self._conversations))
        self._conversations[number] = server
        return admin_pb2.BeginAuthenticationReply(conversation_id=number, server_first=server.get_server_first())

    def Finish(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        server = self._conversations[request.conversation_id]
        try:
            server.set_client_final(request.client_final)
        except scramp.ScramException:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong secret")
        self.logins += 1
        proof = "v=" + "A" * 43 + "=" if self.is_impostor else server.get_server_final()
        return admin_pb2.FinishAuthenticationReply(
            server_final=proof,
            token=f"token {self.logins}",
            expires_unix_ns=time.time_ns() + int(self.token_life_s * 1e9),
        )


@pytest.fixture(scope="module")
def certificates() -> tuple[bytes, bytes, bytes]:
    return make_certificates(ADMIN_SERVER)


@pytest.fixture
def toy() -> ToyAuthentication:
    return ToyAuthentication()


@pytest.fixture
def server(toy: ToyAuthentication, certificates: tuple[bytes, bytes, bytes]) -> Iterator[RpcServer]:
    running = serve(
        [lambda server: admin_pb2_grpc.add_AuthenticationServicer_to_server(toy, server)],
        [SERVICE],
        "127.0.0.1:0",
        certificates[1],
        certificates[2],
        [Authorization(TokenVerifier(ADMIN_SERVER), {}, frozenset({SERVICE}))],
    )
    yield running
    running.stop()


def test_the_correct_secret_yields_a_token(server: RpcServer, certificates: tuple[bytes, bytes, bytes]) -> None:
    got = login(server.endpoint, certificates[0], IDENTITY, SECRET)
    assert got.token == "token 1"
    assert got.expires_unix_ns > time.time_ns()


@pytest.mark.parametrize(("identity", "secret"), [(IDENTITY, "wrong"), ("stranger", SECRET), (IDENTITY, "")])
def test_a_wrong_identity_or_secret_is_refused(
    identity: str, secret: str, server: RpcServer, certificates: tuple[bytes, bytes, bytes]
) -> None:
    with pytest.raises(AuthenticationRefused, match=identity):
        login(server.endpoint, certificates[0], identity, secret)


def test_a_server_that_cannot_prove_itself_is_refused(
    toy: ToyAuthentication, server: RpcServer, certificates: tuple[bytes, bytes, bytes]
) -> None:
    toy.is_impostor = True
    with pytest.raises(AuthenticationRefused, match=IDENTITY):
        login(server.endpoint, certificates[0], IDENTITY, SECRET)


def test_an_unreachable_server_causes_an_rpc_error_within_the_time_out(
    certificates: tuple[bytes, bytes, bytes],
) -> None:
    with pytest.raises(grpc.RpcError) as unreachable:
        login("127.0.0.1:9", certificates[0], IDENTITY, SECRET, timeout_s=0.5)
    assert unreachable.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
