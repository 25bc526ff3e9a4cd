"""Sealing of output packets: AES-256-GCM over runs and messages, the header in clear as associated data.

The nonce is (incarnation u32, packet counter u64), little-endian. The admin server gives every start of an adapter an
incarnation of its own, and the counter only grows, so no nonce is used twice under a key. A receiver refuses replays.
What it must never do: return plaintext that was not sealed by a holder of the key, or the same packet twice.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from feedcore.wire.output_packet import (
    DATAGRAM_SIZE_MAX,
    OUTPUT_HEADER_SIZE,
    OUTPUT_MAGIC,
    SEAL_TAG_SIZE,
    OutputPacket,
    decode_output_packet,
    encode_output_header,
)
from feedcore.wire.refusal import PacketRefused, Refusal

NONCE = struct.Struct("<IQ")
COUNTER_MAX = (1 << 64) - 1
KEY_AND_INCARNATION = struct.Struct("<II")
KEY_OFFSET = 20
COUNTER = struct.Struct("<Q")
COUNTER_OFFSET = 32
REPLAY_WINDOW = 4_096  # how far behind the newest a late datagram may be; at 50,000 a second about 80 ms
# Starts of adapters remembered per opener, twice over: far more than restart within a key's life, and a bound (about
# 1 MB) on what a holder of the key can make an opener keep.
INCARNATION_COUNT_MAX = 1_024


@dataclass(frozen=True, slots=True)
class SealingKey:
    """A channel's key. Attributes: key: 32 bytes."""

    key_id: int
    channel_id: int
    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError(f"key {self.key_id} has {len(self.key)} bytes, AES-256 takes 32")


class NoKey(Exception):
    """The channel has no key to seal with: the admin server has not granted it."""


class NonceExhausted(Exception):
    """The packet counter ran out: register anew for another incarnation."""


class Sealer:
    """Seals one adapter's packets.

    Args:
        incarnation: this start of the adapter, as the admin server numbered it.
        first_counter: of the first packet.
    """

    def __init__(self, incarnation: int, first_counter: int = 1) -> None:
        self._incarnation = incarnation
        self._counter = first_counter - 1
        self._counter_by_former: dict[int, int] = {}
        self._keys: dict[int, tuple[int, AESGCM]] = {}

    @property
    def incarnation(self) -> int:
        """Which start of the adapter this is."""
        return self._incarnation

    def use_key(self, key: SealingKey) -> None:
        """Seal the key's channel with it from now on."""
        self._keys[key.channel_id] = (key.key_id, AESGCM(key.key))

    def adopt_incarnation(self, incarnation: int) -> None:
        """Registered anew: another incarnation, another nonce space; one had before goes on where it was."""
        self._counter_by_former[self._incarnation] = self._counter
        self._incarnation, self._counter = incarnation, self._counter_by_former.pop(incarnation, 0)

    def seal(self, packet: OutputPacket, sent_at_ns: int) -> bytes:
        """The datagram: header with key, nonce and time filled in, sealed payload, tag.

        Raises:
            NoKey, NonceExhausted: nothing may be sent.
        """
        try:
            key_id, aead = self._keys[packet.channel_id]
        except KeyError:
            raise NoKey(f"channel {packet.channel_id} has no key") from None
        if self._counter >= COUNTER_MAX:
            raise NonceExhausted(f"incarnation {self._incarnation} has sent {COUNTER_MAX} packets")
        self._counter += 1
        header = encode_output_header(
            packet,
            key_id=key_id,
            incarnation=self._incarnation,
            packet_counter=self._counter,
            sent_at_ns=sent_at_ns,
        )
        return header + aead.encrypt(NONCE.pack(self._incarnation, self._counter), packet.payload, header)


class _ReplayWindow:
    """Which packet counters of one (key, incarnation) have been seen: the newest and a bitmap behind it."""

    __slots__ = ("_newest", "_seen")

    def __init__(self) -> None:
        self._newest = 0
        self._seen = 0

    def take(self, counter: int) -> bool:
        """True if the counter is new, and remembered now; False if seen before or too old to tell."""
        ahead = counter - self._newest
        if ahead == 1:  # the hot path: in order
            self._seen = (self._seen << 1 | 1) & _WINDOW_MASK
            self._newest = counter
            return True
        if ahead > 0:
            self._seen = ((self._seen << min(ahead, REPLAY_WINDOW)) | 1) & _WINDOW_MASK
            self._newest = counter
            return True
        bit = 1 << -ahead
        if -ahead >= REPLAY_WINDOW or self._seen & bit:
            return False
        self._seen |= bit
        return True


_WINDOW_MASK = (1 << REPLAY_WINDOW) - 1


class _ReplayWindows:
    """The windows of one key, a bounded number.

    Two generations: an incarnation heard of moves to the younger one; when that is full, the older one is dropped. A
    dropped incarnation, and any unknown one before it, is too old to tell from then on.
    """

    __slots__ = ("_dropped_max", "_older", "_younger")

    def __init__(self) -> None:
        self._younger: dict[int, _ReplayWindow] = {}
        self._older: dict[int, _ReplayWindow] = {}
        self._dropped_max = -1

    def take(self, incarnation: int, counter: int) -> bool:
        """True if the packet is new, and remembered now."""
        window = self._younger.get(incarnation)
        if window is None:
            window = self._older.pop(incarnation, None)
            if window is None:
                if incarnation <= self._dropped_max:
                    return False
                window = _ReplayWindow()
            if len(self._younger) >= INCARNATION_COUNT_MAX:
                self._dropped_max = max(self._dropped_max, *self._older) if self._older else self._dropped_max
                self._older, self._younger = self._younger, {}
            self._younger[incarnation] = window
        return window.take(counter)


class Opener:
    """Opens packets of one feed with the keys at hand.

    Args:
        feed_id: packets of other feeds are refused.
    """

    def __init__(self, feed_id: int) -> None:
        self._feed_id = feed_id
        self._keys: dict[int, tuple[int, AESGCM, _ReplayWindows]] = {}  # key_id -> (channel_id, cipher, windows)

    def add_key(self, key: SealingKey) -> None:
        """Open packets sealed with this key from now on."""
        if key.key_id not in self._keys:
            self._keys[key.key_id] = (key.channel_id, AESGCM(key.key), _ReplayWindows())

    def remove_key(self, key_id: int) -> None:
        """Refuse packets sealed with this key from now on."""
        self._keys.pop(key_id, None)

    @property
    def key_ids(self) -> frozenset[int]:
        """The keys at hand."""
        return frozenset(self._keys)

    def open(self, datagram: bytes) -> OutputPacket:
        """Check, open and decode one datagram.

        Raises:
            PacketRefused: with the reason; nothing else, whatever the bytes are.
        """
        if len(datagram) < OUTPUT_HEADER_SIZE + SEAL_TAG_SIZE:
            raise PacketRefused(Refusal.TRUNCATED, f"{len(datagram)} bytes")
        if len(datagram) > DATAGRAM_SIZE_MAX:
            raise PacketRefused(Refusal.MALFORMED, f"{len(datagram)} bytes, a datagram has at most {DATAGRAM_SIZE_MAX}")
        if datagram[:4] != _MAGIC_BYTES:
            raise PacketRefused(Refusal.FOREIGN, "not an output packet")
        key_id, incarnation = KEY_AND_INCARNATION.unpack_from(datagram, KEY_OFFSET)
        known = self._keys.get(key_id)
        if known is None:
            raise PacketRefused(Refusal.UNKNOWN_KEY, f"key {key_id}")
        channel_id, aead, windows = known
        (counter,) = COUNTER.unpack_from(datagram, COUNTER_OFFSET)
        header = datagram[:OUTPUT_HEADER_SIZE]
        try:
            payload = aead.decrypt(NONCE.pack(incarnation, counter), datagram[OUTPUT_HEADER_SIZE:], header)
        except InvalidTag:
            raise PacketRefused(Refusal.FORGED, f"the seal of key {key_id} does not open") from None
        if not windows.take(incarnation, counter):
            raise PacketRefused(Refusal.REPLAYED, f"packet {counter} of incarnation {incarnation}")
        packet = decode_output_packet(header, payload)
        if packet.feed_id != self._feed_id:
            raise PacketRefused(Refusal.WRONG_FEED, f"feed {packet.feed_id}, expected {self._feed_id}")
        if packet.channel_id != channel_id:
            raise PacketRefused(Refusal.WRONG_CHANNEL, f"channel {packet.channel_id} sealed with key {key_id}")
        return packet


_MAGIC_BYTES = OUTPUT_MAGIC.to_bytes(4, "little")
