"""The callers of docs/access.md: what each sends to prove who it is."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.admin_server.identity.token_keys import TokenKeySet
from tandemfeed.transport.calls.channels import BearerFor
from tandemfeed.transport.calls.login import Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, adapter_server, source_gateway
from tandemfeed.transport.calls.tokens import SEPARATOR, binding, sign_token

ROLES = ("admin", "adapter", "client", "source")
# Identities that the cluster's policy has beyond the usual ones.
POLICY = """
[identity.ghost]
roles = ["admin", "adapter", "client", "source"]
subscribe = ["demo.#"]
contribute = ["demo.#"]
"""
STAYING_POLICY = """
[identity.stranger]
roles = ["client"]
subscribe = ["futures.#"]
[identity.observer]
[identity.other-admin]
[[rule]]
to = ["observer"]
actions = ["observe"]
feeds = ["ticks"]
[[rule]]
to = ["other-admin"]
actions = ["administer", "observe"]
feeds = ["ticks-2"]
"""
IDENTITIES = {
    "revoked": "ghost",
    "stranger": "stranger",
    "reader": "demo-client",
    "contributor": "contributor",
    "other adapter": "adapter-a-2",
    "adapter": "adapter-c",
    "sibling": "adapter-b",
    "source": "source",
    "observer": "observer",
    "other admin": "other-admin",
    "admin": "operator",
}


def bearers(endpoint: str, state: Path) -> Mapping[str, list[BearerFor | None]]:
    """What each caller sends to a server; a bad token has several forms.

    Args:
        state: the folder of the admin server, for secrets and for a token that has expired.
    """
    ca = (state / "ca.pem").read_bytes()

    def session(identity: str) -> Login:
        return login(endpoint, ca, identity, (state / "secrets" / f"{identity}.secret").read_text().strip())

    sessions: dict[str, Login] = {caller: session(identity) for caller, identity in IDENTITIES.items()}
    found: dict[str, list[BearerFor | None]] = {caller: [each.bearer] for caller, each in sessions.items()}
    with sqlite3.connect(f"file:{state / 'leases.sqlite'}?mode=ro", uri=True) as records:
        ((document,),) = records.execute("SELECT document FROM documents WHERE kind = 'token_keys'")
    keys = msgspec.json.decode(document, type=TokenKeySet).keys
    token_key = Ed25519PrivateKey.from_private_bytes(keys[-1].private_key)
    return found | {"nobody": [None], "bad token": _bad_tokens(sessions["adapter"], sessions["admin"], token_key)}


def _bad_tokens(valid: Login, other: Login, token_key: Ed25519PrivateKey) -> list[BearerFor | None]:
    def elsewhere(server: str) -> str:
        return valid.bearer(next(each for each in (ADMIN_SERVER, source_gateway("x")) if each != server))

    return [
        lambda _server: "no token at all",
        _with_every_role(Ed25519PrivateKey.generate(), 600),
        _with_every_role(token_key, -600),
        lambda _server: valid.token,
        elsewhere,
        lambda server: valid.token + SEPARATOR + other.bearer(server).partition(SEPARATOR)[2],
    ]


def _with_every_role(signed_by: Ed25519PrivateKey, valid_s: int) -> BearerFor:
    key = Ed25519PrivateKey.generate()
    claims: dict[str, Any] = {"sub": "operator", "roles": list(ROLES), "topics": ["#"]}
    claims |= {"feeds": ["ticks"], "exp": int(time.time()) + valid_s}
    claims |= binding(key.public_key().public_bytes_raw())
    return Login(sign_token(claims, signed_by), 0, key).bearer


SERVER_NAMES = {
    "admin server": ADMIN_SERVER,
    "adapter": adapter_server("ticks", "a"),
    "gateway": source_gateway("ticks"),
    "contribution gateway": source_gateway("ticks-2"),
}
