"""Encryption at rest: a segment's body under AES-256-GCM, its header in clear but bound to it.

Every block has a key of its own, derived from the journal's (HKDF, RFC 5869) with the block's salt, cycle and part;
every segment a random nonce (NIST SP 800-38D, 8.2.2: well under 2^32 segments a key). The check of a key, which the
control file keeps, is derived too, and tells nothing of the key.
"""

from __future__ import annotations

import os
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from journal.errors import WrongKey
from journal.layout import Header

KEY_SIZE = 32
NONCE_SIZE = 12
BOUND = struct.Struct("<QII")  # first sequence, count and flags, record size


def key_check(key: bytes | None) -> str:
    """What the settings keep of a key.

    Raises:
        ValueError: not 32 bytes.
    """
    if key is None:
        return ""
    if len(key) != KEY_SIZE:
        raise ValueError(f"an encryption key has {KEY_SIZE} bytes, not {len(key)}")
    return _derive(key, b"tandemfeed journal key check").hex()


def require_key(key: bytes | None, check: str, where: object) -> None:
    """Refuse a key that is not the journal's.

    Raises:
        WrongKey
    """
    if key_check(key) == check:
        return
    if not check:
        raise WrongKey(f"{where} is not encrypted: open it without a key")
    raise WrongKey(f"{where} is encrypted: {'give its key' if key is None else 'this is not its key'}")


class BlockCipher:
    """Seals and opens the segments of one block."""

    def __init__(self, key: bytes, header: Header) -> None:
        identity = struct.pack("<16sQII", header.journal_id, header.cycle, header.part, header.salt)
        self._cipher = AESGCM(_derive(key, b"tandemfeed journal block" + identity))

    def seal(self, body: bytes, first_sequence: int, count_and_flags: int, record_size: int) -> bytes:
        """The body as it is stored."""
        nonce = os.urandom(NONCE_SIZE)
        return nonce + self._cipher.encrypt(nonce, body, BOUND.pack(first_sequence, count_and_flags, record_size))

    def open(self, sealed: bytes, first_sequence: int, count_and_flags: int, record_size: int) -> bytes | None:
        """The body; None if it was changed."""
        bound = BOUND.pack(first_sequence, count_and_flags, record_size)
        try:
            return self._cipher.decrypt(sealed[:NONCE_SIZE], sealed[NONCE_SIZE:], bound)
        except (InvalidTag, ValueError):
            return None


def _derive(key: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_SIZE, salt=None, info=info).derive(key)
