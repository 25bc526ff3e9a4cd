"""Serves adapters' services in the test process, and makes tokens for callers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.adapter.peers.services import ROLES_BY_SERVICE
from tandemfeed.spark_feed.sending import fill_service
from tandemfeed.transport.calls.channels import BearerFor, open_channel
from tandemfeed.transport.calls.login import Login
from tandemfeed.transport.calls.server_names import adapter_server
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.tokens import TokenVerifier, binding, sign_token
from tests.client_lib.toy_cluster import make_certificates
from tests.transport.calls.announced_keys import announced

TOKEN_KEY = Ed25519PrivateKey.generate()
SERVER_NAME = adapter_server("equities", "by-hand")
CA, CERTIFICATE, KEY = make_certificates(SERVER_NAME)


def token(*roles: str, feeds: tuple[str, ...] = (), topics: tuple[str, ...] = (), identity: str = "ann") -> BearerFor:
    """What a caller sends that has a token as the admin server would issue it."""
    key = Ed25519PrivateKey.generate()
    claims: dict[str, Any] = {
        "sub": identity,
        "roles": list(roles),
        "topics": list(topics),
        "feeds": list(feeds),
    }
    claims |= {"exp": int(time.time()) + 600} | binding(key.public_key().public_bytes_raw())
    return Login(sign_token(claims, TOKEN_KEY), 0, key).bearer


def serve_by_hand(*registrations: Callable[[grpc.Server], None]) -> RpcServer:
    """A server that authorises calls as an adapter and a source gateway do."""
    verifier = TokenVerifier(SERVER_NAME, announced(TOKEN_KEY))
    roles = ROLES_BY_SERVICE | {fill_service.SERVICE_NAME: fill_service.CALLER_ROLES}
    return serve(registrations, list(roles), "127.0.0.1:0", CERTIFICATE, KEY, [Authorization(verifier, roles)])


def channel_to(server: RpcServer, bearer: BearerFor) -> grpc.Channel:
    """A connection whose calls carry this token."""
    return open_channel(server.endpoint, CA, SERVER_NAME, bearer)
