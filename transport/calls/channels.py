"""Secured channels to servers, and the status of failed calls. This module must never open a channel to a server
without checking its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import grpc

MESSAGE_SIZE_MAX = 64 << 20  # a snapshot chunk or a replay chunk, with room
# For a host that vanishes (a dead process's connections break immediately). A stalled machine has time to answer.
_PING_TIMEOUT_MS = 5_000
_CONNECT_TIMEOUT_MS = 2_000  # a busy host needs more than the few milliseconds of a handshake; a dead one never answers
# Both are needed: otherwise the library waits a minute for a ping's answer, whatever the keep-alive's time-out.
PING_TIMEOUT_OPTIONS = [
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
]

BearerFor: TypeAlias = Callable[[str], str]


class NoBearer(grpc.RpcError):
    """A call that was not made, because there is no token for it."""

    def __init__(self, why: Exception) -> None:
        super().__init__(f"no token for the call: {why}")

    def code(self) -> grpc.StatusCode:
        """As of a call that could not be made."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """Why there is no token."""
        return str(self)


class _CallDetails(NamedTuple):
    """What an interceptor passes on."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]]
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _BearerInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds a bearer for this server to every call. `bearer` is called each time, so that tokens can be renewed.

    It runs in the caller's thread. An AuthMetadataPlugin runs in a thread of the library, which then waits for Python's
    lock. In a process that also serves with grpc.aio, whose calls into the library keep that lock, both can wait for
    ever.
    """

    def __init__(self, server_name: str, bearer: BearerFor) -> None:
        self._server_name, self._bearer = server_name, bearer

    def _add(self, continuation: Any, details: grpc.ClientCallDetails, request: Any) -> Any:
        try:
            bearer = self._bearer(self._server_name)
        except Exception as why:
            raise NoBearer(why) from why
        metadata = (*(details.metadata or ()), ("authorization", f"Bearer {bearer}"))
        found = (getattr(details, name, None) for name in ("credentials", "wait_for_ready", "compression"))
        return continuation(_CallDetails(details.method, details.timeout, metadata, *found), request)

    intercept_unary_unary = _add  # type: ignore[assignment]  # the four differ in the types of requests and calls
    intercept_unary_stream = _add  # type: ignore[assignment]
    intercept_stream_unary = _add  # type: ignore[assignment]
    intercept_stream_stream = _add  # type: ignore[assignment]


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
    options = [
        ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
        ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
        ("grpc.ssl_target_name_override", server_name),  # TLS itself checks it, in place of the address
        ("grpc.keepalive_time_ms", 2_000),
        *PING_TIMEOUT_OPTIONS,
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),  # the time limit of an attempt, whatever its name says
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Channels with the same arguments would share a connection; each role of a process keeps its own.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    channel = grpc.secure_channel(endpoint, credentials, options=options)
    return channel if bearer is None else grpc.intercept_channel(channel, _BearerInterceptor(server_name, bearer))


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Status code and details of a failed call; UNKNOWN of another failure."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if not callable(code) or not callable(details):  # raised outside a call
        return grpc.StatusCode.UNKNOWN, str(error)
    return code() or grpc.StatusCode.UNKNOWN, details() or ""
