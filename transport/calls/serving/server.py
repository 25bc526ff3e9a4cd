"""Starts and stops gRPC servers: TLS, limits, the standard health service, reflection on request."""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from tandemfeed.runtime.threads import watch_threads
from tandemfeed.transport.calls.channels import MESSAGE_SIZE_MAX, PING_TIMEOUT_OPTIONS
from tandemfeed.transport.calls.serving.call_context import CallAborted, CallContext
from tandemfeed.transport.calls.serving.handling import CallHandling, Gate
from tandemfeed.transport.calls.serving.health import HealthService
from tandemfeed.transport.calls.serving.limits import CallLimits
from tandemfeed.transport.calls.serving.loop_thread import run_on_loop, serving_loop

LOG = logging.getLogger("tandemfeed.transport.calls.serving")
STOP_TIMEOUT_S = 10.0  # beyond the grace period
HEALTH_NAME = "grpc.health.v1.Health"
PORT_MAX = 65_535
BIND_REFUSALS = {
    errno.EADDRINUSE: "another process listens there; end it, or choose another address",
    errno.EADDRNOTAVAIL: "this host does not have that address",
}
REQUEST_SIZE_MAX = 256 << 10  # the largest are adapters' reports of a hundred channels, and replays of 10,000 ranges
CONNECTION_COUNT_MAX = 12_000  # an idle one takes 70 KiB
FILES_RESERVED = 1_000  # of the process's open files, for everything that is not a connection
_IDENTITY_ONLY = 1  # of the compression algorithms' bits: a compressed request is refused before it is read
_OPTIONS = [
    ("grpc.max_receive_message_length", REQUEST_SIZE_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
    ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
    ("grpc.max_concurrent_streams", 128),  # of one connection; a client needs one for each subscription
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),  # without a call; callers connect again when they need to
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 2_000),
    *PING_TIMEOUT_OPTIONS,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
]


@dataclass(frozen=True, slots=True)
class MutualTls:
    """A port that requires a client's certificate. Attributes: authority_pem: whose certificates are accepted."""

    listen: str
    authority_pem: bytes


@dataclass(frozen=True, slots=True)
class RpcServer:
    """A running server. Attributes: endpoint, mutual_tls_endpoint: host:port as bound; "" if there is none."""

    endpoint: str
    mutual_tls_endpoint: str
    _server: aio.Server
    _handling: CallHandling
    _health: HealthService
    _service_names: tuple[str, ...]

    def set_serving(self, *, is_serving: bool) -> None:
        """Set whether health checks report the services as serving; the process itself stays healthy."""
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        serving_loop().call_soon_threadsafe(self._health.set, status, *self._service_names)

    def stop(self, grace_s: float = 0.5) -> None:
        """Finish calls within the grace period, then stop. When this returns, no handler runs.

        Except if the library does not end: rarely, it never returns from its own stop. Then the end of the process
        ends the server, which must not wait for it.
        """
        try:
            run_on_loop(self._stop(grace_s), grace_s + STOP_TIMEOUT_S)
        except TimeoutError:
            LOG.error("the gRPC server did not stop; leaving it to the end of the process")

    async def _stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)
        await self._handling.wait_until_idle()


def serve(
    registrations: Sequence[Callable[[Any], None]],
    service_names: Sequence[str],
    listen: str,
    certificate_pem: bytes,
    key_pem: bytes,
    gates: Sequence[Gate],
    *,
    on_refused: Callable[[CallContext, CallAborted], None] | None = None,
    unavailable: tuple[type[Exception], ...] = (),
    offers_reflection: bool = False,
    settle: Callable[[], Awaitable[None]] | None = None,
    mutual_tls: MutualTls | None = None,
    limits: Mapping[str, CallLimits] | None = None,
) -> RpcServer:
    """Start a TLS server with the standard health service.

    Args:
        registrations: each adds a servicer to what it is given.
        service_names: full names, for health and reflection.
        listen: host:port; port 0 takes a free one.
        gates, on_refused, unavailable, settle, limits: see `CallHandling`.
        offers_reflection: describe the services to callers with the role admin (server reflection).
        mutual_tls: a second port, which requires a client's certificate.

    Raises:
        OSError: the address cannot be bound.
    """
    handling, health = CallHandling(gates, on_refused, unavailable, settle, limits), HealthService()
    for register in registrations:
        register(handling)
    health_pb2_grpc.add_HealthServicer_to_server(health, handling)
    if offers_reflection:
        reflected = ReflectionServicer((*service_names, HEALTH_NAME, reflection.SERVICE_NAME))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, handling)
    own = [(key_pem, certificate_pem)]
    ports = [(listen, grpc.ssl_server_credentials(own))]
    if mutual_tls is not None:
        ports.append((mutual_tls.listen, grpc.ssl_server_credentials(own, mutual_tls.authority_pem, True)))
    for address, _ in ports:
        _check_listen_address(address)
    health.set(health_pb2.HealthCheckResponse.SERVING, "", *service_names)
    watch_threads(lambda: serving_loop().call_soon_threadsafe(health.fail))
    server, endpoints = run_on_loop(_start(handling, ports))
    return RpcServer(endpoints[0], "".join(endpoints[1:]), server, handling, health, tuple(service_names))


async def _start(
    handling: CallHandling, ports: Sequence[tuple[str, grpc.ServerCredentials]]
) -> tuple[aio.Server, list[str]]:
    """A started server, and its addresses as bound."""
    limit = ("grpc.max_allowed_incoming_connections", _connection_count_max())
    server, endpoints = aio.server(handlers=[handling], options=[*_OPTIONS, limit]), []
    for listen, credentials in ports:
        try:
            port = server.add_secure_port(listen, credentials)
        except RuntimeError as refused:
            raise OSError(f"cannot listen on {listen}: {refused}") from refused
        endpoints.append(f"{listen.rpartition(':')[0]}:{port}")
    await server.start()
    return server, endpoints


def _connection_count_max() -> int:
    """How many connections to accept, after raising this process's limit of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = max(soft, min(hard, CONNECTION_COUNT_MAX + FILES_RESERVED))
    with contextlib.suppress(ValueError, OSError):  # a container may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(soft - FILES_RESERVED, soft // 2), CONNECTION_COUNT_MAX)


def _check_listen_address(listen: str) -> None:
    """Say why an address cannot be bound. (grpc prints a line of its own, and does not say why.)"""
    host, separator, port = listen.rpartition(":")
    if not (separator and port.isdecimal() and int(port) <= PORT_MAX):
        raise OSError(f"cannot listen on {listen}: it must be HOST:PORT, such as 127.0.0.1:7400")
    try:
        places = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM)
    except socket.gaierror:
        raise OSError(f"cannot listen on {listen}: the host name {host} cannot be resolved; check the name") from None
    refusals: list[OSError] = []
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as grpc does
                probe.bind(place)
        except OSError as refused:
            refusals.append(refused)
    if len(refusals) == len(places):  # grpc, too, is content with one of several
        why = BIND_REFUSALS.get(refusals[-1].errno or 0, str(refusals[-1].strerror).lower())
        raise OSError(f"cannot listen on {listen}: {why}")
