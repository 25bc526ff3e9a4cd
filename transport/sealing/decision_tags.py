"""The decision tag proves to an adapter that another adapter made a packet. It ends every output datagram (16 bytes).

It is a GMAC (AES-256-GCM without a plaintext) over the datagram before it: header, sealed payload and seal tag. Its key
is derived from the decision key, which the admin server gives to the adapters of a feed and to no reader. It covers the
whole datagram, not just the seal tag, because GCM's tag does not commit a holder of the key to one plaintext: a reader
could make other bytes with the same seal tag.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def tag_of(cipher: AESGCM, nonce: bytes, covered: bytes) -> bytes:
    """The tag of these bytes. Use a nonce only once per cipher."""
    return cipher.encrypt(nonce, b"", covered)


def is_tag_valid(cipher: AESGCM, nonce: bytes, covered: bytes, tag: bytes) -> bool:
    """True if a holder of the key tagged exactly these bytes under this nonce."""
    try:
        cipher.decrypt(nonce, tag, covered)
    except InvalidTag:
        return False
    return True
