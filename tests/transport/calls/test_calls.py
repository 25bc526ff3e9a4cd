"""Secured calls over real TLS connections: accepted calls, refused calls with their reasons, and a peer that dies."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.transport.calls.channels import BearerFor, open_channel, status_of
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.call_context import caller_of
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.tokens import (
    SEPARATOR,
    Caller,
    TokenRefused,
    TokenVerifier,
    binding,
    make_proof,
    sign_token,
)
from tests.client_lib.toy_cluster import make_certificates
from tests.transport.calls.announced_keys import announced, naming

KEY = Ed25519PrivateKey.generate()
CALLER_KEY = Ed25519PrivateKey.generate()
SERVER_NAME = "toy.tandemfeed.internal"
DEADLINE_S = 20
Call: TypeAlias = Callable[[Any, str], list[bytes]]


def token(
    identity: str = "ann", roles: tuple[str, ...] = ("client",), *, key: Any = KEY, valid_s: int = 60, **more: object
) -> str:
    claims: dict[str, Any] = {"iss": "tandemfeed", "sub": identity, "roles": list(roles), "topics": ["a.#"]}
    claims |= {"exp": int(time.time()) + valid_s} | binding(CALLER_KEY.public_key().public_bytes_raw())
    return jwt.encode(claims | more, key, algorithm="EdDSA", headers=naming(KEY))


def proved(token: str, *, key: Any = CALLER_KEY, valid_s: int = 60) -> BearerFor:
    """What the token's owner sends."""
    return lambda server_name: f"{token}{SEPARATOR}{make_proof(key, server_name, valid_s=valid_s)}"


def who(context: grpc.ServicerContext) -> bytes:
    return caller_of(context).identity.encode()


async def count_requests(requests: AsyncIterator[bytes], context: grpc.ServicerContext) -> bytes:
    return b"%d " % len([each async for each in requests]) + who(context)


async def answer_requests(requests: AsyncIterator[bytes], context: grpc.ServicerContext) -> AsyncIterator[bytes]:
    async for each in requests:
        yield each + who(context)


def handlers(service: str) -> grpc.GenericRpcHandler:
    """One method of each of the four kinds; each returns the caller's name."""
    return grpc.method_handlers_generic_handler(
        service,
        {
            "UnaryUnary": grpc.unary_unary_rpc_method_handler(lambda _request, context: who(context)),
            "UnaryStream": grpc.unary_stream_rpc_method_handler(
                lambda _request, context: (who(context) for _ in range(2))
            ),
            "StreamUnary": grpc.stream_unary_rpc_method_handler(count_requests),
            "StreamStream": grpc.stream_stream_rpc_method_handler(answer_requests),
        },
    )


SHAPES: dict[str, tuple[Call, list[bytes]]] = {
    "UnaryUnary": (lambda channel, name: [channel.unary_unary(name)(b"", timeout=DEADLINE_S)], [b"ann"]),
    "UnaryStream": (lambda channel, name: list(channel.unary_stream(name)(b"", timeout=DEADLINE_S)), [b"ann", b"ann"]),
    "StreamUnary": (
        lambda channel, name: [channel.stream_unary(name)(iter([b"1", b"2"]), timeout=DEADLINE_S)],
        [b"2 ann"],
    ),
    "StreamStream": (
        lambda channel, name: list(channel.stream_stream(name)(iter([b"1", b"2"]), timeout=DEADLINE_S)),
        [b"1ann", b"2ann"],
    ),
}


@pytest.fixture(scope="module")
def certificates() -> tuple[bytes, bytes, bytes]:
    return make_certificates(SERVER_NAME)


@pytest.fixture(scope="module")
def server(certificates: tuple[bytes, bytes, bytes]) -> Iterator[RpcServer]:
    _, certificate, key = certificates
    interceptor = Authorization(
        TokenVerifier(SERVER_NAME, announced(KEY)),
        {"toy.Clients": frozenset({"client"}), "toy.Admins": frozenset({"admin"})},
    )
    services = ("toy.Clients", "toy.Admins", "toy.Unlisted")
    running = serve(
        [lambda server: server.add_generic_rpc_handlers([handlers(each) for each in services])],
        services,
        "127.0.0.1:0",
        certificate,
        key,
        [interceptor],
    )
    yield running
    running.stop()


@pytest.fixture
def open_as(server: RpcServer, certificates: tuple[bytes, bytes, bytes]) -> Iterator[Callable[..., grpc.Channel]]:
    opened: list[grpc.Channel] = []

    def open_with(bearer: BearerFor | None) -> grpc.Channel:
        opened.append(open_channel(server.endpoint, certificates[0], SERVER_NAME, bearer))
        return opened[-1]

    yield open_with
    for channel in opened:
        channel.close()


def refusal_of(call: Call, channel: grpc.Channel, method: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        call(channel, method)
    error: Any = refused.value
    return error.code(), error.details() or ""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_call_of_any_shape_with_the_role_succeeds_and_its_caller_is_known(shape: str, open_as: Any) -> None:
    call, expected = SHAPES[shape]
    assert call(open_as(proved(token())), f"/toy.Clients/{shape}") == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_a_call_of_any_shape_without_a_token_is_unauthenticated(shape: str, open_as: Any) -> None:
    code, details = refusal_of(SHAPES[shape][0], open_as(None), f"/toy.Clients/{shape}")
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "toy.Clients needs a token" in details


@pytest.mark.parametrize("shape", SHAPES)
def test_the_error_for_a_call_of_any_shape_without_the_role_names_the_role(shape: str, open_as: Any) -> None:
    code, details = refusal_of(SHAPES[shape][0], open_as(proved(token())), f"/toy.Admins/{shape}")
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "role admin; ann has ['client']" in details


@pytest.mark.parametrize(
    ("bearer", "why"),
    [
        (lambda: token(valid_s=-10), "expired"),
        (lambda: token(key=Ed25519PrivateKey.generate()), "Signature"),
        (lambda: sign_token({}, Ed25519PrivateKey.generate()), "a key that is not accepted"),
        (lambda: token(iss="someone"), "issuer"),
        (lambda: "not-a-token", "segments"),
        (lambda: jwt.encode({"sub": "ann", "exp": 2**40}, "x" * 64, algorithm="HS256", headers=naming(KEY)), "alg"),
        (
            lambda: jwt.encode(
                {"sub": "ann", "roles": ["admin"], "exp": 2**40}, "", algorithm="none", headers=naming(KEY)
            ),
            "alg",
        ),
    ],
)
def test_a_bad_token_is_unauthenticated_with_the_reason(bearer: Callable[[], str], why: str, open_as: Any) -> None:
    code, details = refusal_of(SHAPES["UnaryUnary"][0], open_as(proved(bearer())), "/toy.Clients/UnaryUnary")
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert why.lower() in details.lower()


def test_an_unlisted_service_is_denied_to_every_caller(open_as: Any) -> None:
    everything = token(roles=("client", "adapter", "source", "admin"))
    code, details = refusal_of(SHAPES["UnaryUnary"][0], open_as(proved(everything)), "/toy.Unlisted/UnaryUnary")
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "cannot be called" in details


def test_concurrent_callers_are_never_confused(open_as: Any) -> None:
    channels = {name: open_as(proved(token(name))) for name in ("ann", "bob", "cid", "dora")}

    def call(name: str) -> bool:
        method = channels[name].stream_stream("/toy.Clients/StreamStream")
        return list(method(iter([b""] * 20), timeout=DEADLINE_S)) == [name.encode()] * 20

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, list(channels) * 10))


def test_a_channel_requests_its_token_for_every_call(open_as: Any) -> None:
    names = iter(["ann", "bob"])
    method = open_as(lambda server_name: proved(token(next(names)))(server_name)).unary_unary("/toy.Clients/UnaryUnary")
    assert [method(b"", timeout=DEADLINE_S) for _ in range(2)] == [b"ann", b"bob"]


def test_health_needs_no_token(open_as: Any) -> None:
    channel = open_as(None)
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "toy.Clients"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_server_with_a_certificate_of_another_ca_is_refused(server: RpcServer) -> None:
    stranger = make_certificates(SERVER_NAME)[0]
    with open_channel(server.endpoint, stranger, SERVER_NAME, proved(token())) as channel:
        code, _ = refusal_of(SHAPES["UnaryUnary"][0], channel, "/toy.Clients/UnaryUnary")
    assert code is grpc.StatusCode.UNAVAILABLE


def copy_bytes(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(65_536):
        target.sendall(data)


def test_a_server_whose_handshake_takes_half_a_second_is_reached(
    server: RpcServer, certificates: tuple[bytes, bytes, bytes]
) -> None:
    busy = socket.create_server(("127.0.0.1", 0))
    with (
        busy,
        ThreadPoolExecutor(2) as threads,
        open_channel(f"127.0.0.1:{busy.getsockname()[1]}", certificates[0], SERVER_NAME, proved(token())) as channel,
    ):
        answer = channel.unary_unary("/toy.Clients/UnaryUnary").future(b"", timeout=DEADLINE_S)
        near, _ = busy.accept()
        time.sleep(0.5)  # what is tested: a server that has no processor for so long
        host, port = server.endpoint.rsplit(":", 1)
        far = socket.create_connection((host, int(port)))
        try:
            threads.submit(copy_bytes, near, far)
            threads.submit(copy_bytes, far, near)
            assert answer.result() == b"ann"
        finally:
            for each in (near, far):
                with suppress(OSError):  # the other side has closed it
                    each.shutdown(socket.SHUT_RDWR)
                each.close()


def test_the_error_for_an_address_in_use_names_the_address(
    server: RpcServer, certificates: tuple[bytes, bytes, bytes]
) -> None:
    with pytest.raises(OSError, match=server.endpoint):
        serve([], [], server.endpoint, certificates[1], certificates[2], [])


def test_a_verifier_refuses_every_token_until_it_has_a_key() -> None:
    verifier, bearer = TokenVerifier(SERVER_NAME), proved(token())(SERVER_NAME)
    with pytest.raises(TokenRefused, match="not registered"):
        verifier.verify(bearer)
    verifier.trust(announced(KEY))
    caller = verifier.verify(bearer)
    known = {"expires_unix_ns": caller.expires_unix_ns, "token_key_id": naming(KEY)["kid"]}
    assert caller == Caller("ann", frozenset({"client"}), ("a.#",), **known)


DOTTED = st.lists(st.binary(max_size=20), max_size=4).map(lambda parts: b".".join(parts).decode("latin-1"))


@given(st.text(max_size=60) | DOTTED)
def test_the_verifier_refuses_any_malformed_token_and_raises_nothing_else(text: str) -> None:
    with pytest.raises(TokenRefused):
        TokenVerifier(SERVER_NAME, announced(KEY)).verify(text)


DOOMED_SERVER = """
import asyncio, json, sys, threading
from pathlib import Path
import grpc
from tandemfeed.transport.calls.serving.server import serve

folder = Path(sys.argv[1])
async def stream(_request, _context):
    yield b"begun"
    await asyncio.Event().wait()
handler = grpc.method_handlers_generic_handler("toy.Doomed", {"Stream": grpc.unary_stream_rpc_method_handler(stream)})
server = serve([lambda server: server.add_generic_rpc_handlers([handler])], ["toy.Doomed"], "127.0.0.1:0",
               (folder / "crt").read_bytes(), (folder / "key").read_bytes(), [])
print(json.dumps(server.endpoint), flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_silent_stream_of_a_peer_that_is_gone_ends_long_before_its_deadline(
    fate: signal.Signals, tmp_path: Path, certificates: tuple[bytes, bytes, bytes]
) -> None:
    """A killed process breaks its connection; a frozen process, like a vanished host, answers no ping."""
    for name, content in zip(("ca", "crt", "key"), certificates, strict=True):
        (tmp_path / name).write_bytes(content)
    with subprocess.Popen([sys.executable, "-c", DOOMED_SERVER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            with open_channel(json.loads(process.stdout.readline()), certificates[0], SERVER_NAME) as channel:
                method: Any = channel.unary_stream("/toy.Doomed/Stream")
                stream = method(b"", timeout=120)
                assert next(stream) == b"begun"
                process.send_signal(fate)
                with pytest.raises(grpc.RpcError) as ended:
                    next(stream)
                assert ended.value.code() is grpc.StatusCode.UNAVAILABLE  # not DEADLINE_EXCEEDED
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("127.0.0.1:{used}", "another process listens there; end it, or choose another address"),
        ("198.51.100.1:7400", "this host does not have that address"),
        ("no-such-host.invalid:7400", "the host name no-such-host.invalid cannot be resolved"),
        ("7400", "it must be HOST:PORT"),
        ("127.0.0.1:seven", "it must be HOST:PORT"),
        ("127.0.0.1:70000", "it must be HOST:PORT"),
    ],
)
def test_a_server_says_why_it_cannot_listen(listen: str, why: str, capfd: pytest.CaptureFixture[str]) -> None:
    _, certificate, key = make_certificates()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match=f"cannot listen on .*{why}"):
        serve([], [], listen.format(used=taken.getsockname()[1]), certificate, key, [])
    assert capfd.readouterr().err == ""  # grpc would print a line of its own


def test_a_failed_call_has_a_status_even_if_it_was_raised_outside_a_call() -> None:
    assert status_of(grpc.RpcError("closed")) == (grpc.StatusCode.UNKNOWN, "closed")
