"""Serves adapters' services in the test process, and makes tokens for callers."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.adapter.peers.services import ROLES_BY_SERVICE
from tandemfeed.transport.calls.rpc import (
    TOKEN_ALGORITHM,
    TOKEN_ISSUER,
    AuthorizationInterceptor,
    RpcServer,
    TokenVerifier,
    open_channel,
    serve,
)
from tests.client_lib.toy_cluster import make_certificates

TOKEN_KEY = Ed25519PrivateKey.generate()
CA, CERTIFICATE, KEY = make_certificates()


def token(*roles: str, feeds: tuple[str, ...] = (), topics: tuple[str, ...] = ()) -> str:
    """A token as the admin server would issue it."""
    claims = {"iss": TOKEN_ISSUER, "sub": "ann", "roles": list(roles), "topics": list(topics), "feeds": list(feeds)}
    return jwt.encode(claims | {"exp": int(time.time()) + 600}, TOKEN_KEY, algorithm=TOKEN_ALGORITHM)


def serve_by_hand(*registrations: Callable[[grpc.Server], None], thread_count: int = 8) -> RpcServer:
    """A server that authorises calls as an adapter does."""
    interceptor = AuthorizationInterceptor(TokenVerifier(TOKEN_KEY.public_key().public_bytes_raw()), ROLES_BY_SERVICE)
    names = list(ROLES_BY_SERVICE)
    return serve(registrations, names, "127.0.0.1:0", CERTIFICATE, KEY, [interceptor], thread_count=thread_count)


def channel_to(server: RpcServer, bearer: str) -> grpc.Channel:
    """A connection whose calls carry this token."""
    return open_channel(server.endpoint, CA, bearer)
