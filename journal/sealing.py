"""Encryption at rest: AES-256-GCM encrypts each segment's body; its header is in clear but authenticated.

Each block has its own key, derived from the journal's key (HKDF, RFC 5869) and the block's salt, cycle and part. Each
segment has a random nonce (NIST SP 800-38D, 8.2.2: well under 2^32 segments per key). The control file stores a check
value, also derived from the key, which reveals nothing about it.
"""

from __future__ import annotations

import os
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tandemfeed.journal.errors import WrongKey
from tandemfeed.journal.layout import Header

KEY_SIZE = 32
NONCE_SIZE = 12
BOUND = struct.Struct("<QII")  # first sequence, count and flags, record size


def key_check(key: bytes | None) -> str:
    """The check value of a key, for the settings.

    Raises:
        ValueError: the key does not have 32 bytes.
    """
    if key is None:
        return ""
    if len(key) != KEY_SIZE:
        raise ValueError(f"an encryption key has {KEY_SIZE} bytes, not {len(key)}")
    return _derive(key, b"tandemfeed journal key check").hex()


def require_key(key: bytes | None, check: str, where: object) -> None:
    """Refuse a wrong or missing key.

    Raises:
        WrongKey
    """
    if key_check(key) == check:
        return
    if not check:
        raise WrongKey(f"{where} is not encrypted: open it without a key")
    raise WrongKey(
        f"{where} is encrypted: {'give its key' if key is None else 'this is not its key; give the right one'}"
    )


class BlockCipher:
    """Encrypts and decrypts the segments of one block."""

    def __init__(self, key: bytes, header: Header) -> None:
        identity = struct.pack("<16sQII", header.journal_id, header.cycle, header.part, header.salt)
        self._cipher = AESGCM(_derive(key, b"tandemfeed journal block" + identity))

    def seal(self, body: bytes, first_sequence: int, count_and_flags: int, record_size: int) -> bytes:
        """The encrypted body."""
        nonce = os.urandom(NONCE_SIZE)
        return nonce + self._cipher.encrypt(nonce, body, BOUND.pack(first_sequence, count_and_flags, record_size))

    def open(self, sealed: bytes, first_sequence: int, count_and_flags: int, record_size: int) -> bytes | None:
        """The decrypted body; None if it was altered."""
        bound = BOUND.pack(first_sequence, count_and_flags, record_size)
        try:
            return self._cipher.decrypt(sealed[:NONCE_SIZE], sealed[NONCE_SIZE:], bound)
        except (InvalidTag, ValueError):
            return None


def _derive(key: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_SIZE, salt=None, info=info).derive(key)
