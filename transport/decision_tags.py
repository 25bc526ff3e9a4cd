"""The decision tag: what makes an adapter believe another one. 16 bytes at the end of every output datagram.

GMAC (AES-256-GCM without a plaintext) over all of the datagram before it: header, sealed payload and seal tag. Its key
is derived from the decision key, which the admin server gives to the adapters of a feed and to no reader. It covers the
whole datagram and not just the seal tag, because GCM's tag does not commit a holder of the key to one plaintext: a
reader could make other bytes with the same seal tag.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def tag_of(cipher: AESGCM, nonce: bytes, covered: bytes) -> bytes:
    """The tag of these bytes. A nonce serves once per cipher."""
    return cipher.encrypt(nonce, b"", covered)


def is_tag_valid(cipher: AESGCM, nonce: bytes, covered: bytes, tag: bytes) -> bool:
    """True if a holder of the key tagged exactly these bytes under this nonce."""
    try:
        cipher.decrypt(nonce, tag, covered)
    except InvalidTag:
        return False
    return True
