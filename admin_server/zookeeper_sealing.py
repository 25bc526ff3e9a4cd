"""Stream keys as they lie in ZooKeeper: sealed, with a key that ZooKeeper never sees.

The sealing key is derived from the token key, which every admin server has in its state folder. Whoever reads
ZooKeeper's disk or its traffic learns no stream key, and whoever can write there cannot slip one in.
"""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE_SIZE = 12  # random: a few keys a month are far from where two could meet


class SealBroken(OSError):
    """What lies in ZooKeeper was sealed by servers with another token key, or changed."""


class KeySealer:
    """Seals and opens stream keys; each is bound to its place (feed, channel, key id)."""

    def __init__(self, token_key: Ed25519PrivateKey) -> None:
        derivation = HKDF(hashes.SHA256(), 32, None, b"tandemfeed stream keys in ZooKeeper")
        self._cipher = AESGCM(derivation.derive(token_key.private_bytes_raw()))

    def seal(self, key: bytes, place: str) -> str:
        """The key, sealed, as hexadecimal digits."""
        nonce = secrets.token_bytes(NONCE_SIZE)
        return (nonce + self._cipher.encrypt(nonce, key, place.encode())).hex()

    def open(self, sealed: str, place: str) -> bytes:
        """The key.

        Raises:
            SealBroken: it is not ours, or not of this place.
        """
        raw = bytes.fromhex(sealed)
        try:
            return self._cipher.decrypt(raw[:NONCE_SIZE], raw[NONCE_SIZE:], place.encode())
        except InvalidTag:
            raise SealBroken(f"{place}: the key in ZooKeeper was not sealed with this cluster's token.key") from None
