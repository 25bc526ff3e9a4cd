"""Opens output packets: checks the seal, the decision tag, announced starts and replays.

An adapter uses `Opener`, which verifies the decision tag before it believes anything else. A reader uses
`StreamOpener`. A reader cannot check that tag and learns from signatures which adapter made a packet, so `StreamOpener`
does not check counters either (`client_lib.stream.trust.stream_trust` does).

Neither may ever return plaintext that was not sealed by a holder of the key for an announced start.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tandemfeed.feedcore.wire.output_packet import (
    DATAGRAM_SIZE_MAX,
    DECISION_TAG_SIZE,
    OUTPUT_HEADER,
    OUTPUT_HEADER_SIZE,
    OUTPUT_LAYOUT,
    OUTPUT_MAGIC,
    SEALING_SIZE,
    OutputPacket,
    checked_output_packet,
)
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.decision_tags import is_tag_valid
from tandemfeed.transport.sealing.epoch_proofs import PROOF_MAGIC, EpochProof, decode_epoch_proof
from tandemfeed.transport.sealing.replay_window import ReplayWindow
from tandemfeed.transport.sealing.start_keys import NONCE, Purpose, SealingKey, derive_cipher
from tandemfeed.transport.sealing.stream_signatures import (
    SIGNATURE_MAGIC,
    SignatureDatagram,
    SignedDigests,
    digest_of,
    read_signature,
)

SEALED_SIZE_MIN = OUTPUT_HEADER_SIZE + SEALING_SIZE
_MAGIC_BYTES = OUTPUT_MAGIC.to_bytes(4, "little")
_sealed_by = itemgetter(*OUTPUT_LAYOUT.places("channel_id", "adapter_id", "key_id", "incarnation", "packet_counter"))


class ImpersonationRefused(PacketRefused):
    """A packet that names an announced adapter start but lacks the decision tag that only adapters can make.

    Attributes:
        adapter_id, incarnation: the start that it names as its sender.
    """

    def __init__(self, adapter_id: int, incarnation: int) -> None:
        super().__init__(
            Refusal.UNTAGGED, f"the packet claims to be from adapter {adapter_id}, but its decision tag is invalid"
        )
        self.adapter_id = adapter_id
        self.incarnation = incarnation


class _Ciphers(NamedTuple):
    """The ciphers for one start's packets on one channel under one key; the replay window survives key changes."""

    sealing: AESGCM
    signatures: AESGCM
    decisions: AESGCM | None
    window: ReplayWindow


class _KnownStarts:
    """The known keys, the announced starts, and the ciphers derived from both."""

    def __init__(self, feed_id: int) -> None:
        self._feed_id = feed_id
        self._keys: dict[tuple[int, int], SealingKey] = {}  # (channel_id, key_id)
        self._starts: dict[tuple[int, int], AnnouncedStart] = {}  # (adapter_id, incarnation)
        self._windows: dict[tuple[AnnouncedStart, int], ReplayWindow] = {}  # (start, channel_id)
        self._ciphers: dict[tuple[int, int, int, int], _Ciphers] = {}

    def add_key(self, key: SealingKey) -> None:
        """Open packets sealed with this key from now on."""
        self._keys.setdefault((key.channel_id, key.key_id), key)

    def remove_key(self, key_id: int) -> None:
        """Refuse packets sealed with this key from now on."""
        self._keys = {place: key for place, key in self._keys.items() if key.key_id != key_id}
        self._ciphers.clear()

    @property
    def key_ids(self) -> frozenset[int]:
        """The ids of the known keys."""
        return frozenset(key.key_id for key in self._keys.values())

    def announce(self, starts: Iterable[AnnouncedStart]) -> None:
        """Believe these starts and no others from now on; what is known of one that stays is kept."""
        former, self._starts = set(self._starts.values()), {start.identity: start for start in starts}
        announced = set(self._starts.values())
        if announced != former:
            self._windows = {place: window for place, window in self._windows.items() if place[0] in announced}
            self._ciphers.clear()

    def _ciphers_for(self, place: tuple[int, int, int, int]) -> _Ciphers:
        """Args: place: (channel_id, adapter_id, key_id, incarnation).

        Raises:
            PacketRefused: UNKNOWN_KEY, UNANNOUNCED.
        """
        channel_id, adapter_id, key_id, incarnation = place
        key = self._keys.get((channel_id, key_id))
        if key is None:
            raise PacketRefused(Refusal.UNKNOWN_KEY, f"key {key_id} of channel {channel_id} is unknown")
        start = self._starts.get((adapter_id, incarnation))
        if start is None:
            detail = f"incarnation {incarnation} of adapter {adapter_id} is not announced"
            raise PacketRefused(Refusal.UNANNOUNCED, detail)
        window = self._windows.get((start, channel_id))
        if window is None:
            first_counter = start.next_counters.get(channel_id)
            if first_counter is None:
                detail = f"incarnation {incarnation} of adapter {adapter_id} has not reported a packet counter"
                raise PacketRefused(Refusal.UNANNOUNCED, detail)
            window = self._windows[start, channel_id] = ReplayWindow(first_counter)
        made = _Ciphers(
            derive_cipher(key, start, self._feed_id, Purpose.SEALING),
            derive_cipher(key, start, self._feed_id, Purpose.SIGNATURES),
            derive_cipher(key, start, self._feed_id, Purpose.DECISIONS) if key.decision_key else None,
            window,
        )
        self._ciphers[place] = made
        return made

    def _checked_packet(self, header: tuple[Any, ...], payload: bytes) -> OutputPacket:
        packet = checked_output_packet(header, payload)
        if packet.feed_id != self._feed_id:
            raise PacketRefused(Refusal.WRONG_FEED, f"feed {packet.feed_id}, expected {self._feed_id}")
        return packet


def _check_frame(datagram: bytes) -> None:
    if len(datagram) < SEALED_SIZE_MIN:
        raise PacketRefused(Refusal.TRUNCATED, f"{len(datagram)} bytes; a sealed packet has at least {SEALED_SIZE_MIN}")
    if len(datagram) > DATAGRAM_SIZE_MAX:
        raise PacketRefused(Refusal.MALFORMED, f"{len(datagram)} bytes; a datagram has at most {DATAGRAM_SIZE_MAX}")
    if not datagram.startswith(_MAGIC_BYTES):
        raise PacketRefused(Refusal.FOREIGN, "not an output packet")


def _unseal(sealing: AESGCM, nonce: bytes, datagram: bytes, key_id: int) -> bytes:
    sealed, header = datagram[OUTPUT_HEADER_SIZE:-DECISION_TAG_SIZE], datagram[:OUTPUT_HEADER_SIZE]
    try:
        return sealing.decrypt(nonce, sealed, header)
    except InvalidTag:
        raise PacketRefused(Refusal.FORGED, f"the packet cannot be decrypted with key {key_id}") from None


class Opener(_KnownStarts):
    """For adapters: opens packets of the feed's other adapters only."""

    def open(self, datagram: bytes) -> OutputPacket | None:
        """Check, open and decode one datagram; None for a signature, which is for readers, and for an epoch's proof.

        Raises:
            PacketRefused: with the reason, and no other exception, whatever the bytes are. ImpersonationRefused, a
                subclass, if the decision tag is invalid.
        """
        if datagram.startswith((SIGNATURE_MAGIC, PROOF_MAGIC)):
            return None
        _check_frame(datagram)
        header = OUTPUT_HEADER.unpack_from(datagram)
        channel_id, adapter_id, key_id, incarnation, counter = _sealed_by(header)
        place = channel_id, adapter_id, key_id, incarnation
        ciphers = self._ciphers.get(place) or self._ciphers_for(place)
        nonce = NONCE.pack(incarnation, counter)
        covered, tag = datagram[:-DECISION_TAG_SIZE], datagram[-DECISION_TAG_SIZE:]
        if ciphers.decisions is None or not is_tag_valid(ciphers.decisions, nonce, covered, tag):
            raise ImpersonationRefused(adapter_id, incarnation)
        payload = _unseal(ciphers.sealing, nonce, datagram, key_id)
        if not ciphers.window.take(counter):
            raise PacketRefused(
                Refusal.REPLAYED, f"packet {counter} of incarnation {incarnation} is a replay or too old"
            )
        return self._checked_packet(header, payload)


class ReceivedPacket:
    """A packet as a reader opened it. A holder of the channel's key sealed it, and every reader is one.

    Several subscriptions of a process may take the same one, each in its thread.

    Args:
        datagram: what was opened.

    Attributes:
        key_id: of the key that sealed it.
    """

    __slots__ = ("_datagram", "_digest", "counter", "incarnation", "key_id", "packet")

    def __init__(self, packet: OutputPacket, incarnation: int, counter: int, key_id: int, datagram: bytes) -> None:
        self.packet, self.incarnation, self.counter, self.key_id = packet, incarnation, counter, key_id
        self._datagram, self._digest = datagram, b""  # one of the two; the digest is computed when it is needed

    @property
    def digest(self) -> bytes:
        """The digest that the adapter's signature must list for `counter`. Computed when it is first needed, which is
        after the packet's delivery, in the mode that does not wait for signatures. The datagram is not kept longer."""
        datagram = self._datagram
        if datagram:
            self._digest = digest_of(datagram)
            self._datagram = b""  # last: another thread that finds it empty finds the digest
        return self._digest


class ReceivedSignature:
    """A signature datagram that a holder of the channel's key made; `verified` checks whether the adapter made it.

    Several subscriptions of a process may take the same one, each in its thread.

    Args:
        start: the announced start that it names.

    Attributes:
        claimed: the unverified content.
    """

    __slots__ = ("_public_key", "_start", "_verified", "claimed")

    def __init__(self, claimed: SignatureDatagram, start: AnnouncedStart, public_key: Ed25519PublicKey) -> None:
        self.claimed, self._start, self._public_key = claimed, start, public_key
        self._verified: SignedDigests | PacketRefused | None = None  # None: not verified yet

    def verified(self) -> SignedDigests:
        """The verified content. Verifies once, however often it is called.

        Raises:
            PacketRefused: BAD_SIGNATURE.
        """
        if self._verified is None:
            try:
                self._verified = self.claimed.verified(self._start, self._public_key)
            except PacketRefused as refused:
                self._verified = refused
        if isinstance(self._verified, PacketRefused):
            raise self._verified.with_traceback(None)
        return self._verified


class StreamOpener(_KnownStarts):
    """For readers: opens packets and signature datagrams of announced starts."""

    def __init__(self, feed_id: int) -> None:
        super().__init__(feed_id)
        self._public_keys: dict[bytes, Ed25519PublicKey] = {}

    def announce(self, starts: Iterable[AnnouncedStart]) -> None:
        """Believe these starts and no others from now on; what is known of one that stays is kept."""
        super().announce(starts)
        announced = {start.public_key for start in self._starts.values()}
        self._public_keys = {raw: key for raw, key in self._public_keys.items() if raw in announced}

    def open(self, datagram: bytes) -> ReceivedPacket | ReceivedSignature | EpochProof:
        """Check, open and decode one datagram. A signature or proof is not verified yet.

        Raises:
            PacketRefused: with the reason, and no other exception, whatever the bytes are.
        """
        if datagram.startswith((SIGNATURE_MAGIC, PROOF_MAGIC)):
            is_signature = datagram.startswith(SIGNATURE_MAGIC)
            return self._open_signature(datagram) if is_signature else decode_epoch_proof(datagram)
        _check_frame(datagram)
        header = OUTPUT_HEADER.unpack_from(datagram)
        channel_id, adapter_id, key_id, incarnation, counter = _sealed_by(header)
        place = channel_id, adapter_id, key_id, incarnation
        ciphers = self._ciphers.get(place) or self._ciphers_for(place)
        payload = _unseal(ciphers.sealing, NONCE.pack(incarnation, counter), datagram, key_id)
        packet = self._checked_packet(header, payload)
        return ReceivedPacket(packet, incarnation, counter, key_id, datagram)

    def _open_signature(self, datagram: bytes) -> ReceivedSignature:
        read = read_signature(datagram)
        if read.feed_id != self._feed_id:
            raise PacketRefused(Refusal.WRONG_FEED, f"feed {read.feed_id}, expected {self._feed_id}")
        place = read.channel_id, read.adapter_id, read.key_id, read.incarnation
        ciphers = self._ciphers.get(place) or self._ciphers_for(place)
        read.check_tag(ciphers.signatures)
        start = self._starts[read.adapter_id, read.incarnation]
        public_key = self._public_keys.get(start.public_key)
        if public_key is None:
            public_key = Ed25519PublicKey.from_public_bytes(start.public_key)
            self._public_keys[start.public_key] = public_key
        return ReceivedSignature(read, start, public_key)
