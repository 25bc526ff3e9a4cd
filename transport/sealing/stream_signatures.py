"""Signatures over an adapter's packets: they prove to a reader which adapter made a packet, which the seal does not.

A signature datagram follows a heartbeat on its channel, or comes sooner when many packets were sent. It lists a digest
of each packet since the signature before the last one, by consecutive packet counters, and the adapter signs the list
with the Ed25519 key of its start. If one list is too short for them, it lists the packets since the last signature, and
that signature is sent again before it. So every packet can be checked alone, whichever others were lost, and is covered
twice: a lost signature costs nothing. The list includes a heartbeat, which signs its epoch and lineage.

Heartbeats that only repeat the previous one share a signature, two to one. News is signed with its heartbeat and again
with the next (`UnsignedPackets`).

The datagram (docs/transport.md): the header (`SIGNATURE_LAYOUT`); the digests, 16 bytes each, the first half of SHA-256
of the whole datagram; the signature, 64 bytes, Ed25519 over SIGNED_PREFIX, the start's salt and everything before; a
tag, 16 bytes, GMAC over everything before, so that only a holder of the channel's key can cost a reader a verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tandemfeed.feedcore.wire.layout import Layout
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT, OutputPacket
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.decision_tags import is_tag_valid, tag_of
from tandemfeed.transport.sealing.start_keys import NONCE

SIGNATURE_MAGIC = b"TFD1"
SIGNATURE_VERSION = 1
SIGNATURE_LAYOUT = Layout(
    ("magic", "4s"),
    ("version", "B"),
    ("reserved", "B"),  # 0
    ("feed_id", "H"),
    ("channel_id", "H"),
    ("adapter_id", "H"),
    ("incarnation", "I"),
    ("key_id", "I"),  # the id of the channel's key
    ("digest_count", "H"),
    ("reserved_2", "H"),  # 0
    ("first_counter", "Q"),  # the packet counter of the first digest
    ("sent_at_ns", "Q"),  # the adapter's wall clock
)
HEADER = SIGNATURE_LAYOUT.struct
HEADER_SIZE = SIGNATURE_LAYOUT.size
DIGEST_SIZE = 16  # a forger needs a second preimage: 2^128 attempts
SIGNATURE_SIZE = 64
TAG_SIZE = 16
OVERHEAD = HEADER_SIZE + SIGNATURE_SIZE + TAG_SIZE
DIGESTS_MAX = 80  # a longer list would save little: signing is cheap compared with sending that many
# For heartbeats that repeat the previous one. A signature costs its adapter up to 120 µs and every reader up to 160 µs,
# the main cost of an idle stream. With two, and a heartbeat every 25 ms, a reader that loses two signatures in a row
# still believes a heartbeat after 150 ms, before it calls the stream stale (the client's `stream_trust` asserts).
HEARTBEATS_PER_SIGNATURE = 2
SESSIONS_REMEMBERED = (
    4  # sessions whose heartbeats may alternate: the present one, and the last heartbeats of two earlier ones
)
SIGNED_PREFIX = b"tandemfeed 2 sent packets\0"
_COUNTER_END = 1 << 64


@dataclass(frozen=True, slots=True)
class SignedDigests:
    """The packets that an adapter says it sent; the signature is verified.

    Attributes:
        digests: of the channel's packets `first_counter` … `end_counter - 1`.
    """

    channel_id: int
    adapter_id: int
    incarnation: int
    first_counter: int
    digests: tuple[bytes, ...]
    sent_at_ns: int

    @property
    def end_counter(self) -> int:
        """The counter of the last covered packet plus one."""
        return self.first_counter + len(self.digests)


def digest_of(datagram: bytes) -> bytes:
    """The digest of a datagram in a signature's list."""
    return sha256(datagram).digest()[:DIGEST_SIZE]


def digests_max(datagram_size_max: int = DATAGRAM_SIZE_DEFAULT) -> int:
    """The maximum number of digests in a signature datagram."""
    return min(DIGESTS_MAX, (datagram_size_max - OVERHEAD) // DIGEST_SIZE)


class UnsignedPackets:
    """The sender's list for one channel: what the next signature covers, and when it is due:

    - as soon as the list is full;
    - with a heartbeat, if the list has something new: another packet, or a heartbeat that says something new (the first
      of a start, an epoch, an end, a number). The next heartbeat is signed too, so a reader that loses one of the two
      signatures gets the news one heartbeat later;
    - otherwise with every HEARTBEATS_PER_SIGNATURE-th heartbeat.

    A digest is computed when its packet is sealed, which takes a microsecond. Keeping the packets until the signature
    costs more: they leave the processor's cache, and the next packets need other memory.

    Args:
        count_max: the maximum number of digests in a signature datagram.
    """

    __slots__ = (
        "_beat_count",
        "_count_max",
        "_fresh",
        "_has_repeated",
        "_listed_before",
        "_next_counter",
        "_said",
        "_was_news",
        "has_news",
        "is_due",
    )

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._fresh: list[bytes] = []  # digests
        self._listed_before: list[bytes] = []
        self._next_counter = 0  # the first new packet's
        self._beat_count = 0  # heartbeats since the last signature
        self.has_news = False  # among the new packets
        self._was_news = False  # in the last signature
        self._has_repeated = False  # the last signature was sent again
        self._said: dict[int, tuple[object, ...]] = {}  # session -> the content of its last heartbeat
        self.is_due = False

    def add(self, datagram: bytes, counter: int, heartbeat: OutputPacket | None = None) -> None:
        """Add a sealed packet. Counters are consecutive.

        Args:
            heartbeat: the packet, if it is one.
        """
        fresh = self._fresh
        if not fresh:
            self._next_counter = counter
        fresh.append(sha256(datagram).digest()[:DIGEST_SIZE])
        if heartbeat is None or self._says_something_new(heartbeat):
            self.has_news = True
        if len(fresh) >= self._count_max or (heartbeat is not None and self._is_due_with_heartbeat()):
            self.is_due = True

    def take_repetition(self) -> bool:
        """True, once, if the last signature must be sent again because its packets do not fit the next one's list."""
        is_due = not self._fits_with_last and not self._has_repeated
        self._has_repeated = self._has_repeated or is_due
        return is_due

    def take(self) -> tuple[int, list[bytes]]:
        """(first counter, digests) for a signature that is sent now. If they do not fit, another one is due."""
        assert self._fresh, "a signature's end is its nonce, so there must be a new packet"
        again = self._listed_before if self._fits_with_last else []
        fresh = self._fresh[: self._count_max]
        first_counter, digests = self._next_counter - len(again), again + fresh
        del self._fresh[: self._count_max]
        self._listed_before, self._next_counter = fresh, self._next_counter + len(fresh)
        self._has_repeated = False
        self.is_due = len(self._fresh) > 0
        if not self.is_due:
            self._beat_count = 0
            self._was_news, self.has_news = self.has_news, False
        return first_counter, digests

    @property
    def _fits_with_last(self) -> bool:
        before = len(self._listed_before)
        return before == 0 or before + len(self._fresh) <= self._count_max

    def _is_due_with_heartbeat(self) -> bool:
        self._beat_count += 1
        return self.has_news or self._was_news or self._beat_count >= HEARTBEATS_PER_SIGNATURE

    def _says_something_new(self, heartbeat: OutputPacket) -> bool:
        """True if the heartbeat differs from the previous one of its session."""
        says = (
            heartbeat.flags,
            heartbeat.epoch,
            heartbeat.first_input_seq,
            heartbeat.first_message_seq,
            heartbeat.payload,
        )
        if self._said.get(heartbeat.session) == says:
            return False
        self._said[heartbeat.session] = says
        if len(self._said) > SESSIONS_REMEMBERED:
            del self._said[min(self._said)]
        return True


def sign(
    private_key: Ed25519PrivateKey,
    cipher: AESGCM,
    start: AnnouncedStart,
    *,
    feed_id: int,
    channel_id: int,
    key_id: int,
    first_counter: int,
    digests: list[bytes],
    sent_at_ns: int,
) -> bytes:
    """The signature datagram.

    Args:
        cipher: the start's cipher for signatures. No two signature datagrams of a start end with the same counter.
    """
    body = HEADER.pack(
        SIGNATURE_MAGIC,
        SIGNATURE_VERSION,
        0,
        feed_id,
        channel_id,
        start.adapter_id,
        start.incarnation,
        key_id,
        len(digests),
        0,
        first_counter,
        sent_at_ns,
    ) + b"".join(digests)
    signed = body + private_key.sign(SIGNED_PREFIX + start.salt + body)
    return signed + tag_of(cipher, NONCE.pack(start.incarnation, first_counter + len(digests)), signed)


@dataclass(frozen=True, slots=True)
class SignatureDatagram:
    """A received, unverified signature datagram."""

    datagram: bytes
    feed_id: int
    channel_id: int
    adapter_id: int
    incarnation: int
    key_id: int
    first_counter: int
    digest_count: int
    sent_at_ns: int

    @property
    def end_counter(self) -> int:
        """The counter of the last packet that it claims to cover, plus one."""
        return self.first_counter + self.digest_count

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The digests of the packets that it claims were sent, by consecutive counters."""
        places = range(HEADER_SIZE, HEADER_SIZE + self.digest_count * DIGEST_SIZE, DIGEST_SIZE)
        return tuple(self.datagram[place : place + DIGEST_SIZE] for place in places)

    def check_tag(self, cipher: AESGCM) -> None:
        """Check that a holder of the channel's key made it; takes about a microsecond.

        Raises:
            PacketRefused: FORGED.
        """
        signed, tag = self.datagram[:-TAG_SIZE], self.datagram[-TAG_SIZE:]
        if not is_tag_valid(cipher, NONCE.pack(self.incarnation, self.end_counter), signed, tag):
            raise PacketRefused(Refusal.FORGED, f"the tag of the signature datagram does not match key {self.key_id}")

    def verified(self, start: AnnouncedStart, public_key: Ed25519PublicKey) -> SignedDigests:
        """Check the signature; takes as long as opening twenty packets.

        Raises:
            PacketRefused: BAD_SIGNATURE.
        """
        signed = self.datagram[:-TAG_SIZE]
        body, signature = signed[:-SIGNATURE_SIZE], signed[-SIGNATURE_SIZE:]
        try:
            public_key.verify(signature, SIGNED_PREFIX + start.salt + body)
        except InvalidSignature:
            detail = f"not signed by adapter {self.adapter_id} in incarnation {self.incarnation}"
            raise PacketRefused(Refusal.BAD_SIGNATURE, detail) from None
        return SignedDigests(
            self.channel_id, self.adapter_id, self.incarnation, self.first_counter, self.digests, self.sent_at_ns
        )


def read_signature(datagram: bytes) -> SignatureDatagram:
    """Read a datagram that begins with SIGNATURE_MAGIC.

    Raises:
        PacketRefused: TRUNCATED, VERSION, MALFORMED.
    """
    if len(datagram) < OVERHEAD:
        raise PacketRefused(Refusal.TRUNCATED, f"{len(datagram)} bytes; a signature datagram has at least {OVERHEAD}")
    _, version, _, feed_id, channel_id, adapter_id, incarnation, key_id, count, _, first, sent_at_ns = (
        HEADER.unpack_from(datagram)
    )
    if version != SIGNATURE_VERSION:
        raise PacketRefused(Refusal.VERSION, f"signature version {version}; expected {SIGNATURE_VERSION}")
    if count == 0 or len(datagram) != OVERHEAD + count * DIGEST_SIZE or first == 0 or first + count > _COUNTER_END:
        detail = f"a signature of {count} packets from {first} in {len(datagram)} bytes"
        raise PacketRefused(Refusal.MALFORMED, detail)
    return SignatureDatagram(datagram, feed_id, channel_id, adapter_id, incarnation, key_id, first, count, sent_at_ns)
