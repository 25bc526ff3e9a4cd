"""Secured calls: TLS channels and servers, and which roles may call which services.

Every call carries a bearer (`transport.calls.tokens`), except calls to public services. Every process checks bearers
with only the admin server's public key. This module must never allow a call to a service that is not listed, and never
open a channel to a server without checking its name.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tandemfeed.transport.calls.tokens import Caller, TokenRefused, TokenVerifier

MESSAGE_SIZE_MAX = 64 << 20  # a snapshot chunk or a replay chunk, with room
PUBLIC_SERVICES = frozenset(
    {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection"}
)
_SIZE_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
]
# For a host that vanishes (a dead process's connections break immediately). A stalled machine has time to answer.
_PING_TIMEOUT_MS = 5_000
_CONNECT_TIMEOUT_MS = 2_000  # a busy host needs more than the few milliseconds of a handshake; a dead one never answers
# Both are needed: otherwise the library waits a minute for a ping's answer, whatever the keep-alive's time-out.
_PING_TIMEOUT_OPTIONS = [
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
]

PORT_MAX = 65_535
BIND_REFUSALS = {
    errno.EADDRINUSE: "another process listens there; end it, or choose another address",
    errno.EADDRNOTAVAIL: "this host does not have that address",
}

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
BearerFor: TypeAlias = Callable[[str], str]


# Per call, not per thread: a thread of the server serves different callers in turn.
_CALLERS: WeakKeyDictionary[grpc.ServicerContext, Caller] = WeakKeyDictionary()


def caller_of(context: grpc.ServicerContext) -> Caller:
    """The authenticated caller of the RPC with this context."""
    caller = _CALLERS.get(context)
    assert caller is not None, "the service is public, so its caller is not authenticated"
    return caller


class AuthorizationInterceptor(grpc.ServerInterceptor):
    """Lets a call through if its token has one of the service's roles.

    Args:
        verifier: checks tokens.
        roles_by_service: full service name -> roles that may call it. Calls to a service that is neither here nor
            public are refused.
        public_services: need no token.
    """

    def __init__(
        self,
        verifier: TokenVerifier,
        roles_by_service: Mapping[str, frozenset[str]],
        public_services: frozenset[str] = frozenset(),
    ) -> None:
        self._verifier = verifier
        self._roles = roles_by_service
        self._public = PUBLIC_SERVICES | public_services

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the handler with the caller's identity, or refuse."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        service = str(handler_call_details.method).strip("/").partition("/")[0]
        if service in self._public:
            return handler
        metadata = dict(handler_call_details.invocation_metadata or ())
        scheme, _, token = str(metadata.get("authorization", "")).partition(" ")
        if scheme != "Bearer" or not token:
            return _refuse(handler, grpc.StatusCode.UNAUTHENTICATED, f"{service} needs a token; authenticate first")
        try:
            caller = self._verifier.verify(token)
        except TokenRefused as refused:
            return _refuse(handler, grpc.StatusCode.UNAUTHENTICATED, f"token refused: {refused}; authenticate again")
        needed = self._roles.get(service, frozenset())
        if not caller.roles & needed:
            wanted = " or ".join(sorted(needed))
            rule = f"requires the role {wanted}" if wanted else "is not listed and cannot be called"
            text = f"{service} {rule}; {caller.identity} has {sorted(caller.roles)}"
            return _refuse(handler, grpc.StatusCode.PERMISSION_DENIED, text)
        return _with_caller(handler, caller)


def rebuild(handler: Handler, behavior: Callable[..., Any]) -> Handler:
    """A handler of the same kind with this behaviour."""
    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    maker = makers[bool(handler.request_streaming), bool(handler.response_streaming)]
    return maker(
        behavior,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def behavior_of(handler: Handler) -> Callable[..., Any]:
    """A handler's behaviour, whichever of the four kinds it is."""
    found = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    assert found is not None
    return found


def _refuse(handler: Handler, code: grpc.StatusCode, text: str) -> Handler:
    def refuse(_request: Any, context: grpc.ServicerContext) -> Any:
        context.abort(code, text)

    def refuse_stream(_request: Any, context: grpc.ServicerContext) -> Any:
        yield context.abort(code, text)  # a generator, as a streaming handler must be; abort raises

    return rebuild(handler, refuse_stream if handler.response_streaming else refuse)


def _with_caller(handler: Handler, caller: Caller) -> Handler:
    behavior = behavior_of(handler)

    def serve_unary(request: Any, context: grpc.ServicerContext) -> Any:
        _CALLERS[context] = caller
        return behavior(request, context)

    def serve_stream(request: Any, context: grpc.ServicerContext) -> Any:
        _CALLERS[context] = caller
        yield from behavior(request, context)

    return rebuild(handler, serve_stream if handler.response_streaming else serve_unary)


class _BearerPlugin(grpc.AuthMetadataPlugin):
    """Adds a bearer for this server to every call. `bearer` is called each time, so that tokens can be renewed."""

    def __init__(self, server_name: str, bearer: BearerFor) -> None:
        self._server_name, self._bearer = server_name, bearer

    def __call__(self, _context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        """grpc's hook."""
        callback((("authorization", f"Bearer {self._bearer(self._server_name)}"),), None)


def open_channel(
    endpoint: str,
    ca_pem: bytes,
    server_name: str,
    bearer: BearerFor | None = None,
    *,
    certificate: tuple[bytes, bytes] | None = None,
) -> grpc.Channel:
    """A TLS channel that soon notices a dead peer and, given bearers, authenticates every call.

    Args:
        server_name: what the server's certificate must name (`transport.calls.server_names`), at any address.
        bearer: server name -> what to send to that server.
        certificate: (certificate, key) of this client in PEM format, for a port that requires them.
    """
    chain, key = certificate or (None, None)
    credentials = grpc.ssl_channel_credentials(ca_pem, key, chain)
    if bearer is not None:
        credentials = grpc.composite_channel_credentials(
            credentials, grpc.metadata_call_credentials(_BearerPlugin(server_name, bearer))
        )
    options = [
        *_SIZE_OPTIONS,
        ("grpc.ssl_target_name_override", server_name),  # TLS itself checks it, in place of the address
        ("grpc.keepalive_time_ms", 2_000),
        *_PING_TIMEOUT_OPTIONS,
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),  # the time limit of an attempt, whatever its name says
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Channels with the same arguments would share a connection; each role of a process keeps its own.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.secure_channel(endpoint, credentials, options=options)


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """Status code and details of a failed call."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if not callable(code) or not callable(details):  # raised outside a call
        return grpc.StatusCode.UNKNOWN, str(error)
    return code() or grpc.StatusCode.UNKNOWN, details() or ""


@dataclass(frozen=True, slots=True)
class RpcServer:
    """A running server. Attributes: endpoint, mutual_tls_endpoint: host:port as bound; "" if there is none."""

    server: grpc.Server
    endpoint: str
    mutual_tls_endpoint: str
    service_names: tuple[str, ...]
    checker: health.HealthServicer

    def set_serving(self, *, is_serving: bool) -> None:
        """Set whether health checks report the services as serving; the process itself stays healthy."""
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self.service_names:
            self.checker.set(name, status)

    def stop(self, grace_s: float = 0.5) -> None:
        """Finish calls within the grace period, then stop."""
        self.server.stop(grace_s).wait()


@dataclass(frozen=True, slots=True)
class MutualTls:
    """A port that requires a client's certificate. Attributes: authority_pem: whose certificates are accepted."""

    listen: str
    authority_pem: bytes


def serve(
    registrations: Sequence[Callable[[grpc.Server], None]],
    service_names: Sequence[str],
    listen: str,
    certificate_pem: bytes,
    key_pem: bytes,
    interceptors: Sequence[grpc.ServerInterceptor],
    *,
    thread_count: int = 32,
    mutual_tls: MutualTls | None = None,
) -> RpcServer:
    """Start a TLS server with the standard health service and reflection.

    Args:
        registrations: each adds a servicer to the server.
        service_names: full names, for health and reflection.
        listen: host:port; port 0 takes a free one.
        mutual_tls: a second port, which requires a client's certificate.
        thread_count: each streaming call occupies a thread; further calls are refused with RESOURCE_EXHAUSTED.

    Raises:
        OSError: the address cannot be bound.
    """
    server = grpc.server(
        ThreadPoolExecutor(thread_count, thread_name_prefix="rpc"),
        interceptors=list(interceptors),
        maximum_concurrent_rpcs=thread_count,
        options=[
            *_SIZE_OPTIONS,
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 2_000),
            *_PING_TIMEOUT_OPTIONS,
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
            ("grpc.http2.max_ping_strikes", 0),
        ],
    )
    for register in registrations:
        register(server)
    checker = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    reflection.enable_server_reflection((*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    credentials = grpc.ssl_server_credentials([(key_pem, certificate_pem)])
    endpoint, mutual_tls_endpoint = _listen(server, listen, credentials), ""
    if mutual_tls is not None:
        requiring = grpc.ssl_server_credentials([(key_pem, certificate_pem)], mutual_tls.authority_pem, True)
        mutual_tls_endpoint = _listen(server, mutual_tls.listen, requiring)
    server.start()
    running = RpcServer(server, endpoint, mutual_tls_endpoint, tuple(service_names), checker)
    checker.set("", health_pb2.HealthCheckResponse.SERVING)
    running.set_serving(is_serving=True)
    return running


def _listen(server: grpc.Server, listen: str, credentials: grpc.ServerCredentials) -> str:
    """Make a server listen; return the address as bound."""
    _check_listen_address(listen)
    try:
        port = server.add_secure_port(listen, credentials)
    except RuntimeError as refused:
        raise OSError(f"cannot listen on {listen}: {refused}") from refused
    return f"{listen.rpartition(':')[0]}:{port}"


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
