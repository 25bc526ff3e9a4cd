"""Derives the keys of one adapter start from a channel's keys. No two starts ever share a key.

HKDF-SHA256 (RFC 5869) over the channel's key. The salt belongs to the start; the admin server draws it at random when
the start registers. So even if a state folder is restored from a backup and numbers a start or its packets as before,
no pair of key and nonce repeats. The derivation includes the start's public key, which the adapter draws at random, so
two machines would have to repeat their random numbers at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tandemfeed.feedcore.wire.layout import Layout
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart

KEY_SIZE = 32
NONCE = Layout(("incarnation", "I"), ("packet_counter", "Q")).struct
_PLACE = Layout(
    ("feed_id", "H"), ("channel_id", "H"), ("adapter_id", "H"), ("incarnation", "I"), ("key_id", "I")
).struct


class Purpose(Enum):
    """The purpose of a derived key; the value is part of the derivation."""

    SEALING = b"sealing"
    DECISIONS = b"decisions"
    SIGNATURES = b"signatures"


@dataclass(frozen=True, slots=True)
class SealingKey:
    """A channel's key.

    Attributes:
        key: 32 bytes.
        decision_key: 32 bytes; empty for a reader, which never has one.
    """

    key_id: int
    channel_id: int
    key: bytes = field(repr=False)
    decision_key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_SIZE:
            raise ValueError(f"key {self.key_id} has {len(self.key)} bytes; AES-256 needs {KEY_SIZE}")
        if len(self.decision_key) not in (0, KEY_SIZE):
            raise ValueError(f"decision key {self.key_id} has {len(self.decision_key)} bytes; AES-256 needs {KEY_SIZE}")


def derive_cipher(key: SealingKey, start: AnnouncedStart, feed_id: int, purpose: Purpose) -> AESGCM:
    """AES-256-GCM under the start's own key for one purpose on the key's channel."""
    secret = key.decision_key if purpose is Purpose.DECISIONS else key.key
    place = _PLACE.pack(feed_id, key.channel_id, start.adapter_id, start.incarnation, key.key_id)
    info = b"tandemfeed 2 " + purpose.value + b"\0" + place + start.public_key
    return AESGCM(HKDF(hashes.SHA256(), KEY_SIZE, start.salt, info).derive(secret))
