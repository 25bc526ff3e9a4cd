"""The keys that sign tokens, as the admin server announces them."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.transport.calls.tokens import key_id_of
from tandemfeed.v1 import common_pb2


def announced(*keys: Ed25519PrivateKey, until_unix_ns: int = 0) -> list[common_pb2.TokenKey]:
    """What verifies the tokens that these keys sign."""
    return [
        common_pb2.TokenKey(public_key=key.public_key().public_bytes_raw(), accepted_until_unix_ns=until_unix_ns)
        for key in keys
    ]


def naming(key: Ed25519PrivateKey) -> dict[str, str]:
    """The header of a token that claims to be signed with this key."""
    return {"kid": key_id_of(key.public_key().public_bytes_raw())}
