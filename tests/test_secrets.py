"""Keys and secrets do not appear in the `repr` of an object, because a repr ends up in logs and tracebacks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.transport.calls.login import Login
from tandemfeed.transport.process_shell import Connection
from tests.test_frame import PACKAGES, ROOT

SECRET = re.compile(r"(^|_)(keys?|secrets?|passwords?|tokens?|salt|nonces?|seed|credentials?)$")
PUBLIC = {
    "LeaderKeys.follower_keys": "public keys",
    "FollowerKeys.leader_key": "a public key",
    "FollowerKeys.public_key": "a public key",
    "_Question.client_key": "a public key",
    "ClientSubscription.unicast_key": "a public key",
    "StandingRequest.unicast_key": "a public key",
    "Subscriber.unicast_key": "a public key",
    "Admission.client_key": "a public key",
    "UnicastPlace.server_key": "a public key",
    "Leader.key": "a public key",
    "Neighbours.follower_keys": "public keys",
    "Rule.keys": "a place in the policy file",
}


def secrets_shown(source: str) -> Iterator[str]:
    """CLASS.FIELD of the text or bytes fields of dataclasses and named tuples that are named like a secret."""
    for definition in ast.walk(ast.parse(source)):
        if not isinstance(definition, ast.ClassDef):
            continue
        marks = [ast.unparse(each) for each in (*definition.decorator_list, *definition.bases)]
        if not any(mark.startswith(("dataclass", "NamedTuple")) for mark in marks):
            continue
        for field in definition.body:
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and SECRET.search(field.target.id)
                and re.search(r"\b(bytes|str)\b", ast.unparse(field.annotation))
                and "repr=False" not in ast.unparse(field)
            ):
                yield f"{definition.name}.{field.target.id}"


def test_no_dataclass_shows_a_key_or_secret() -> None:
    shown = {
        name: str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in secrets_shown(path.read_text())
    }
    assert set(shown) == set(PUBLIC), {name: place for name, place in shown.items() if name not in PUBLIC}


@pytest.mark.parametrize(
    ("field", "is_shown"),
    [
        ("secret: str", True),
        ("channel_key: bytes | None = None", True),
        ("key: bytes = field(repr=False)", False),
        ("key_id: int", False),
        ("seed: int = 1", False),
    ],
)
def test_the_check_finds_secrets(field: str, is_shown: bool) -> None:
    source = f"@dataclass(frozen=True)\nclass Holder:\n    {field}\n"
    assert list(secrets_shown(source)) == ([f"Holder.{field.partition(':')[0]}"] if is_shown else [])


def test_a_connection_does_not_show_its_secret() -> None:
    assert "hunter2" not in repr(Connection("127.0.0.1:7400", b"", "reader", "hunter2"))
    assert "hunter2" not in repr(Login("hunter2", 0, Ed25519PrivateKey.generate()))
