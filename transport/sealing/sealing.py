"""Seals output packets: AES-256-GCM over runs and messages, with the clear header as associated data, and a decision
tag over everything.

Each adapter start seals with its own keys (`transport.sealing.start_keys`). The nonce is (incarnation u32, packet
counter u64), little-endian. Counters only grow, with one counter per channel, so no nonce is used twice under a key.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tandemfeed.feedcore.wire.output_packet import (
    DATAGRAM_SIZE_DEFAULT,
    HEARTBEAT_BIT,
    OutputPacket,
    encode_output_header,
)
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.decision_tags import tag_of
from tandemfeed.transport.sealing.start_keys import NONCE, Purpose, SealingKey, derive_cipher
from tandemfeed.transport.sealing.stream_signatures import UnsignedPackets, digests_max, sign

COUNTER_MAX = (1 << 64) - 1


class NoKey(Exception):
    """The channel has no sealing key, because the admin server has not granted one."""


class NonceExhausted(Exception):
    """The packet counter ran out; restart the adapter."""


class _Channel:
    """A sealer's state of one channel."""

    __slots__ = ("decisions", "key", "last_signature", "next_counter", "sealing", "signatures", "unsigned")

    def __init__(self, key: SealingKey, next_counter: int, digest_count_max: int) -> None:
        self.key = key
        self.next_counter = next_counter
        self.unsigned = UnsignedPackets(digest_count_max)
        self.last_signature = b""
        self.sealing: AESGCM
        self.decisions: AESGCM
        self.signatures: AESGCM

    def derive(self, start: AnnouncedStart, feed_id: int) -> None:
        key = self.key
        self.sealing = derive_cipher(key, start, feed_id, Purpose.SEALING)
        self.decisions = derive_cipher(key, start, feed_id, Purpose.DECISIONS)
        self.signatures = derive_cipher(key, start, feed_id, Purpose.SIGNATURES)


class Sealer:
    """Seals, tags and signs one adapter's packets.

    Args:
        start: this adapter start, as the admin server announces it.
        private_key: the key whose public half is announced.
        first_counter: the counter of each channel's first packet.
        datagram_size_max: the longest datagram in bytes.
    """

    def __init__(
        self,
        feed_id: int,
        start: AnnouncedStart,
        private_key: Ed25519PrivateKey,
        *,
        first_counter: int = 1,
        datagram_size_max: int = DATAGRAM_SIZE_DEFAULT,
    ) -> None:
        self._feed_id, self._start, self._private_key = feed_id, start, private_key
        self._first_counter = first_counter
        self._digest_count_max = digests_max(datagram_size_max)
        self._channels: dict[int, _Channel] = {}

    @property
    def incarnation(self) -> int:
        """The number of this adapter start."""
        return self._start.incarnation

    def next_counters(self) -> dict[int, int]:
        """By channel_id, the first unused packet counter. May be called from any thread."""
        return {channel_id: channel.next_counter for channel_id, channel in list(self._channels.items())}

    def use_key(self, key: SealingKey) -> None:
        """Seal the key's channel with it from now on; counters continue."""
        channel = self._channels.get(key.channel_id)
        if channel is not None and channel.key == key:
            return
        if not key.decision_key:
            raise ValueError(f"key {key.key_id} lacks the decision key that an adapter needs")
        if channel is None:
            channel = self._channels[key.channel_id] = _Channel(key, self._first_counter, self._digest_count_max)
        channel.key = key
        channel.derive(self._start, self._feed_id)

    def adopt_start(self, start: AnnouncedStart) -> None:
        """Take the start of a new registration. A different start has its own keys and counts from 1."""
        if start == self._start:
            return
        self._start = start
        for channel_id, former in self._channels.items():
            self._channels[channel_id] = channel = _Channel(former.key, 1, self._digest_count_max)
            channel.derive(start, self._feed_id)

    def seal(self, packet: OutputPacket, sent_at_ns: int) -> bytes:
        """The datagram: header with key, nonce and time filled in, sealed payload, seal tag, decision tag.

        Raises:
            NoKey, NonceExhausted: the packet must not be sent.
        """
        try:
            channel = self._channels[packet.channel_id]
        except KeyError:
            raise NoKey(f"channel {packet.channel_id} has no key") from None
        counter, incarnation = channel.next_counter, self._start.incarnation
        if counter >= COUNTER_MAX:
            raise NonceExhausted(f"incarnation {incarnation} has sent {counter} packets on channel {packet.channel_id}")
        channel.next_counter = counter + 1
        header = encode_output_header(
            packet,
            key_id=channel.key.key_id,
            incarnation=incarnation,
            packet_counter=counter,
            sent_at_ns=sent_at_ns,
        )
        nonce = NONCE.pack(incarnation, counter)
        sealed = header + channel.sealing.encrypt(nonce, packet.payload, header)
        datagram = sealed + tag_of(channel.decisions, nonce, sealed)
        channel.unsigned.add(datagram, counter, packet if packet.flags & HEARTBEAT_BIT else None)
        return datagram

    @property
    def has_news(self) -> bool:
        """Whether a packet since the last signatures is more than a heartbeat that repeats the previous one."""
        return any(channel.unsigned.has_news for channel in self._channels.values())

    def channels_to_sign(self) -> list[int]:
        """The channels whose signature is due, to be sent after the sealed packets."""
        return [channel_id for channel_id, channel in self._channels.items() if channel.unsigned.is_due]

    def sign(self, channel_id: int, sent_at_ns: int) -> bytes:
        """The next signature datagram to send: the last one again, or one over the packets sealed since. There must be
        such packets."""
        channel = self._channels[channel_id]
        if channel.unsigned.take_repetition():
            return channel.last_signature
        first_counter, digests = channel.unsigned.take()
        channel.last_signature = sign(
            self._private_key,
            channel.signatures,
            self._start,
            feed_id=self._feed_id,
            channel_id=channel_id,
            key_id=channel.key.key_id,
            first_counter=first_counter,
            digests=digests,
            sent_at_ns=sent_at_ns,
        )
        return channel.last_signature
