"""Stream keys in ZooKeeper are sealed with a key that ZooKeeper never sees.

The sealing key is derived from the cluster key, which every admin server has in its state folder. So stream keys cannot
be read from ZooKeeper's disk or traffic, and a process that can write to ZooKeeper cannot insert one.
"""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE_SIZE = 12  # random: with a few keys a month, no two nonces will ever be equal


class SealBroken(OSError):
    """A sealed value in ZooKeeper was changed, or was sealed with another cluster key."""


class KeySealer:
    """Seals and opens stream keys; each is bound to its place (feed, channel, key id)."""

    def __init__(self, cluster_key: bytes) -> None:
        derivation = HKDF(hashes.SHA256(), 32, None, b"tandemfeed stream keys in ZooKeeper")
        self._cipher = AESGCM(derivation.derive(cluster_key))

    def seal(self, key: bytes, place: str) -> str:
        """The sealed key, as hexadecimal digits."""
        nonce = secrets.token_bytes(NONCE_SIZE)
        return (nonce + self._cipher.encrypt(nonce, key, place.encode())).hex()

    def open(self, sealed: str, place: str) -> bytes:
        """The key.

        Raises:
            SealBroken: the key was not sealed by this cluster, or not for this place.
        """
        raw = bytes.fromhex(sealed)
        try:
            return self._cipher.decrypt(raw[:NONCE_SIZE], raw[NONCE_SIZE:], place.encode())
        except InvalidTag:
            raise SealBroken(f"{place}: the key in ZooKeeper was not sealed with this server's cluster.key") from None
