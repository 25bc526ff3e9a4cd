"""Callers that are silent, slow, many or malformed, against a real admin server: meanwhile renewals, attendance, and an
operator's login and status continue."""

from __future__ import annotations

import gzip
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.serving import lanes
from tandemfeed.transport.calls.serving.server import REQUEST_SIZE_MAX
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import PATIENT, ca_of, channel_as, running_server
from tests.admin_server.subscriber_by_hand import SubscriberCall

WAIT_S = 60
BEGIN = "/tandemfeed.v1.Authentication/Begin"
STATUS = "/tandemfeed.v1.Operations/GetStatus"
LASTING = PATIENT.replace("lease_ttl_ms = 2000", "lease_ttl_ms = 60000")  # no lease ends between two checks
SILENT_COUNT = 300  # more than a lane's places
MEMORY_MAX = 200 << 20


def endless() -> Iterator[bytes]:
    """Requests of a caller that never sends one, and never ends."""
    threading.Event().wait()
    yield b""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with running_server(tmp_path_factory.mktemp("flooded"), cluster_text=LASTING) as running:
        yield running


@pytest.fixture(scope="module")
def active(server: AdminServer) -> Adapter:
    """An adapter that holds the lease."""
    adapter = Adapter(server, "a")
    adapter.report(ReplicaState.SYNCHRONIZED)
    adapter.await_order("lease_granted")
    return adapter


@pytest.fixture
def check_service(server: AdminServer, active: Adapter) -> Callable[[], None]:
    """Fails if renewals, a new adapter's attendance, or an operator's login and status do not continue."""

    def check() -> None:
        active.report(ReplicaState.ACTIVE, renew_epoch=1)
        active.await_order("lease_renewed")
        other = Adapter(server, "b")
        other.await_order("report_heard")
        other.vanish()
        with channel_as(server, "operator") as channel:
            status = admin_pb2_grpc.OperationsStub(channel).GetStatus(admin_pb2.GetStatusRequest(), timeout=WAIT_S)
            assert status.feeds[0].active_adapter_id == 1

    return check


@contextmanager
def strangers(server: AdminServer, count: int = 1) -> Iterator[list[grpc.Channel]]:
    """Connections of callers without a token."""
    with ExitStack() as opened:
        yield [opened.enter_context(open_channel(server.endpoint, ca_of(server), ADMIN_SERVER)) for _ in range(count)]


@pytest.mark.parametrize("method", [BEGIN, STATUS, "/grpc.health.v1.Health/Watch"])
def test_silent_calls_starve_no_caller(method: str, server: AdminServer, check_service: Callable[[], None]) -> None:
    with strangers(server, 4) as channels:
        calls = [channels[at % 4].stream_stream(method)(endless(), wait_for_ready=True) for at in range(SILENT_COUNT)]
        check_service()
        for call in calls:
            call.cancel()


def test_a_request_that_does_not_arrive_ends_its_call(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "REQUEST_TIMEOUT_S", 0.2)
    with strangers(server) as (channel,), pytest.raises(grpc.RpcError) as ended:
        next(channel.stream_stream(BEGIN)(endless(), timeout=WAIT_S))
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert ended.value.details() == "the request did not arrive within 0.2 s"


def test_health_watchers_are_bounded_and_checks_still_answer(
    server: AdminServer, check_service: Callable[[], None]
) -> None:
    with strangers(server, 4) as channels:
        stubs = [health_pb2_grpc.HealthStub(each) for each in channels]
        watches = [stubs[at % 4].Watch(health_pb2.HealthCheckRequest()) for at in range(SILENT_COUNT)]
        codes = []
        for watch in watches:
            try:
                next(watch)
            except grpc.RpcError as refused:
                codes.append(refused.code())
        assert codes
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        stubs[0].Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
        check_service()
        for watch in watches:
            watch.cancel()


def test_a_flood_of_logins_starves_no_caller(server: AdminServer, check_service: Callable[[], None]) -> None:
    ended, request = threading.Event(), admin_pb2.BeginAuthenticationRequest(client_first="n,,n=a,r=b")

    def flood(channel: grpc.Channel) -> None:
        stub = admin_pb2_grpc.AuthenticationStub(channel)
        while not ended.is_set():
            calls = [stub.Begin.future(request) for _ in range(20)]
            for call in calls:
                with suppress(grpc.RpcError):
                    call.result()

    with strangers(server, 4) as channels:
        floods = [threading.Thread(target=flood, args=(each,)) for each in channels]
        for each in floods:
            each.start()
        try:
            check_service()
        finally:
            ended.set()
            for each in floods:
                each.join()


def test_subscribers_that_do_not_read_starve_no_caller(server: AdminServer, check_service: Callable[[], None]) -> None:
    with channel_as(server, "reader") as channel:
        subscribe = admin_pb2.SubscribeRequest(subscription_id=1, feed="equities")
        streams = [SubscriberCall(channel) for _ in range(100)]
        for stream in streams:
            stream.send(subscribe=subscribe)
        for _ in range(3):
            check_service()  # each makes updates for every stream
        for stream in streams:
            stream.close()


# Half of them TCP alone, half TLS and HTTP/2, from which nothing more comes.
IDLE_CALLER = """
import resource, socket, ssl, sys
host, port, name, ca, count = sys.argv[1:]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
context = ssl.create_default_context(cafile=ca)
context.set_alpn_protocols(["h2"])
kept = []
for at in range(int(count)):
    connection = socket.create_connection((host, int(port)), timeout=60)
    kept.append(context.wrap_socket(connection, server_hostname=name) if at % 2 else connection)
print("connected", flush=True)
sys.stdin.read()
"""


@contextmanager
def idle_connections(server: AdminServer, count: int) -> Iterator[None]:
    """Connections of another process, because a process may have fewer files open than both ends need."""
    host, port = server.endpoint.rsplit(":", 1)
    arguments = [host, port, ADMIN_SERVER, str(server.folder.path / "ca.pem"), str(count)]
    command = [sys.executable, "-c", IDLE_CALLER, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdin is not None
        assert caller.stdout is not None
        assert caller.stdout.readline() == "connected\n"
        yield
        caller.stdin.close()


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_idle_connections_leave_room_for_others(
    count: int, server: AdminServer, check_service: Callable[[], None]
) -> None:
    with idle_connections(server, count):
        check_service()


def refusal_of(channel: grpc.Channel, method: str, request: bytes, **options: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(method)(request, timeout=WAIT_S, **options)
    return refused.value.code()


def test_an_oversize_login_is_refused(server: AdminServer, check_service: Callable[[], None]) -> None:
    request = admin_pb2.BeginAuthenticationRequest(client_first="x" * (65 << 10)).SerializeToString()
    with strangers(server) as (channel,):
        assert refusal_of(channel, BEGIN, request) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refusal_of(channel, BEGIN, bytes(REQUEST_SIZE_MAX + 1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    check_service()


def test_a_compressed_request_is_refused_before_it_is_expanded(
    server: AdminServer, check_service: Callable[[], None]
) -> None:
    bomb = bytes(50 << 20)
    assert len(gzip.compress(bomb)) < 64 << 10
    before = psutil.Process().memory_info().rss
    with strangers(server) as (channel,):
        assert refusal_of(channel, BEGIN, bomb, compression=grpc.Compression.Gzip) is grpc.StatusCode.UNIMPLEMENTED
    assert psutil.Process().memory_info().rss - before < MEMORY_MAX
    check_service()


def test_garbage_on_the_port_harms_no_caller(server: AdminServer, check_service: Callable[[], None]) -> None:
    host, port = server.endpoint.rsplit(":", 1)
    context = ssl.create_default_context(cadata=ca_of(server).decode())
    context.set_alpn_protocols(["h2"])
    for at in range(60):
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=WAIT_S) as plain:
            if at % 2:
                plain.sendall(os.urandom(4_096))
            else:
                with context.wrap_socket(plain, server_hostname=ADMIN_SERVER) as secured:
                    frame = struct.pack(">I", at * 7)[1:] + os.urandom(600)
                    secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame)
                    secured.recv(4_096)
    check_service()


def methods_of(role: str) -> list[str]:
    """Every RPC that takes one request and that this role reaches."""
    services = {
        "": ["Authentication"],
        "reader": ["StreamAdministration"],
        "adapter-a": ["AdapterRegistry"],
        "operator": ["Operations", "PolicyAdministration"],
    }
    return [
        f"/tandemfeed.v1.{service}/{method.name}"
        for service in services[role]
        for method in admin_pb2.DESCRIPTOR.services_by_name[service].methods
    ]


@pytest.mark.parametrize("role", ["", "reader", "adapter-a", "operator"])
def test_fuzzed_requests_get_a_status_and_harm_no_caller(
    role: str, server: AdminServer, check_service: Callable[[], None]
) -> None:
    codes: set[grpc.StatusCode] = set()
    opened = open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) if not role else channel_as(server, role)
    with opened as channel:

        @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(st.sampled_from(methods_of(role)), st.binary(max_size=300))
        def send(method: str, request: bytes) -> None:
            call = channel.stream_stream(method)(iter([request]), timeout=WAIT_S)
            try:
                next(call)
            except StopIteration:
                pass
            except grpc.RpcError as refused:
                codes.add(refused.code())
            call.cancel()

        send()
    assert not codes & {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED}
    check_service()


def test_a_malformed_request_in_a_stream_ends_the_call(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        call = channel.stream_stream("/tandemfeed.v1.StreamAdministration/Subscribe")(iter([b"\x89"]), timeout=WAIT_S)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_malformed_request_is_an_invalid_argument(server: AdminServer) -> None:
    malformed = b"\xff\xff\xff"
    with pytest.raises(DecodeError):
        admin_pb2.BeginAuthenticationRequest.FromString(malformed)
    with strangers(server) as (channel,):
        assert refusal_of(channel, BEGIN, malformed) is grpc.StatusCode.INVALID_ARGUMENT
