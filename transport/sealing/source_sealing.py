"""Seals source packets between a feed's own source and its adapters: AES-256-GCM over the whole packet.

Layout of a sealed source datagram (little-endian)::

    0  magic    4    b"TFE1"
    4  key_id   u32  the feed's source key
    8  counter  u64  grows by one per datagram of a start of the gateway
    16 salt     16   random, of this start of the gateway
    32 the source packet, sealed; header and salt are associated data
    .. tag      16

The key of a start is derived (HKDF-SHA256) from the source key and the salt, so a restarted gateway never repeats a
pair of key and nonce, whatever it remembers. The source key goes to the feed's source and adapters, never to readers.

A replayed datagram opens again. The protocol makes that harmless: the same (source stream, `source_seq`) always has the
same content, and a packet of another trading day is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tandemfeed.feedcore.wire.layout import Layout
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_MAX
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.start_keys import KEY_SIZE

SEALED_SOURCE_MAGIC = b"TFE1"
SEALED_SOURCE_LAYOUT = Layout(("magic", "4s"), ("key_id", "I"), ("packet_counter", "Q"), ("salt", "16s"))
HEADER = SEALED_SOURCE_LAYOUT.struct
HEADER_SIZE = SEALED_SOURCE_LAYOUT.size
SALT_SIZE = 16
TAG_SIZE = 16
SOURCE_SEAL_SIZE = HEADER_SIZE + TAG_SIZE  # what sealing adds to a packet's size
STARTS_MAX = 16  # gateway starts whose keys are kept: one sends, and an earlier one's last packets may still arrive
_PLACE = Layout(("feed_id", "H"), ("key_id", "I")).struct
_NONCE = Layout(("zero", "I"), ("packet_counter", "Q")).struct


def _cipher(key: bytes, feed_id: int, key_id: int, salt: bytes) -> AESGCM:
    info = b"tandemfeed 2 source\0" + _PLACE.pack(feed_id, key_id)
    return AESGCM(HKDF(hashes.SHA256(), KEY_SIZE, salt, info).derive(key))


class SourceSealer:
    """Seals the packets of one gateway start. `use_key` and `seal` may be called from different threads."""

    def __init__(self, feed_id: int) -> None:
        self._feed_id, self._salt = feed_id, os.urandom(SALT_SIZE)
        self._counter = 0
        self._current: tuple[int, bytes, AESGCM] | None = None

    @property
    def salt(self) -> bytes:
        """Names this start of the gateway."""
        return self._salt

    def use_key(self, key_id: int, key: bytes) -> None:
        """Seal with this source key from now on."""
        if self._current is None or self._current[:2] != (key_id, key):
            self._current = key_id, key, _cipher(key, self._feed_id, key_id, self._salt)

    def seal(self, packet: bytes) -> bytes:
        """The sealed datagram; SOURCE_SEAL_SIZE bytes longer than the packet."""
        assert self._current is not None, "a gateway has a key before it seals"
        key_id, _, cipher = self._current
        self._counter += 1
        header = HEADER.pack(SEALED_SOURCE_MAGIC, key_id, self._counter, self._salt)
        return header + cipher.encrypt(_NONCE.pack(0, self._counter), packet, header)


class SourceOpener:
    """Opens source packets of one feed."""

    def __init__(self, feed_id: int) -> None:
        self._feed_id = feed_id
        self._keys: dict[int, bytes] = {}
        self._ciphers: dict[tuple[int, bytes], AESGCM] = {}
        self._ended: frozenset[bytes] = frozenset()

    def use_keys(self, keys: Mapping[int, bytes]) -> None:
        """From now on, open packets sealed with these source keys (by key_id), and no others."""
        if keys != self._keys:
            self._keys = dict(keys)
            self._ciphers.clear()

    def refuse_starts(self, salts: Iterable[bytes]) -> None:
        """From now on, refuse what these starts seal: they no longer are the source."""
        self._ended = frozenset(salts)

    def open(self, datagram: bytes) -> bytes:
        """The source packet.

        Raises:
            PacketRefused: FOREIGN (also a packet that is not sealed), TRUNCATED, MALFORMED, UNKNOWN_KEY, FORGED.
        """
        if not datagram.startswith(SEALED_SOURCE_MAGIC):
            raise PacketRefused(Refusal.FOREIGN, "not a sealed source packet")
        if len(datagram) < SOURCE_SEAL_SIZE:
            raise PacketRefused(Refusal.TRUNCATED, f"{len(datagram)} bytes; the seal alone has {SOURCE_SEAL_SIZE}")
        if len(datagram) > DATAGRAM_SIZE_MAX:
            raise PacketRefused(Refusal.MALFORMED, f"{len(datagram)} bytes; a datagram has at most {DATAGRAM_SIZE_MAX}")
        _, key_id, counter, salt = HEADER.unpack_from(datagram)
        if salt in self._ended:
            raise PacketRefused(Refusal.FOREIGN, "the start of the gateway that sealed it has ended")
        cipher = self._ciphers.get((key_id, salt))
        is_fresh = cipher is None
        if cipher is None:
            key = self._keys.get(key_id)
            if key is None:
                raise PacketRefused(Refusal.UNKNOWN_KEY, f"source key {key_id} is unknown")
            cipher = _cipher(key, self._feed_id, key_id, salt)
        try:
            packet = cipher.decrypt(_NONCE.pack(0, counter), datagram[HEADER_SIZE:], datagram[:HEADER_SIZE])
        except InvalidTag:
            raise PacketRefused(Refusal.FORGED, f"the packet cannot be decrypted with source key {key_id}") from None
        if is_fresh:  # only now, so that forged salts displace no cipher
            if len(self._ciphers) >= STARTS_MAX:
                del self._ciphers[next(iter(self._ciphers))]
            self._ciphers[key_id, salt] = cipher
        return packet
