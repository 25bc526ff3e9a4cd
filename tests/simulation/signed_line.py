"""What one start of an adapter sends on one channel, as a reader opens it: packets with counters, and signatures.

The adapter's own `UnsignedPackets` decides what a signature lists, and when. There is no cryptography: a signature is
good if its line made it. A forger makes packets as well, but no signatures.
"""

from __future__ import annotations

from typing import TypeAlias

from tandemfeed.feedcore.wire.output_packet import HEARTBEAT_BIT, OutputPacket
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.opening import ReceivedPacket
from tandemfeed.transport.sealing.stream_signatures import (
    DIGESTS_MAX,
    HEADER,
    SIGNATURE_MAGIC,
    SIGNATURE_VERSION,
    SignatureDatagram,
    SignedDigests,
    UnsignedPackets,
)

KEY_ID = 5
Sealed: TypeAlias = "ReceivedPacket | GenuineSignature"


class GenuineSignature:
    """Takes the place of a `ReceivedSignature`."""

    __slots__ = ("_is_good", "claimed")

    def __init__(self, claimed: SignatureDatagram, *, is_good: bool = True) -> None:
        self.claimed, self._is_good = claimed, is_good

    def verified(self) -> SignedDigests:
        """The content."""
        claimed = self.claimed
        if not self._is_good:
            raise PacketRefused(Refusal.BAD_SIGNATURE, "made by a forger")
        place = claimed.channel_id, claimed.adapter_id, claimed.incarnation, claimed.first_counter
        return SignedDigests(*place, claimed.digests, claimed.sent_at_ns)


class SignedLine:
    """The sender's side.

    Args:
        digest_count_max: of one signature.
    """

    def __init__(
        self, feed_id: int, channel_id: int, adapter_id: int, incarnation: int, digest_count_max: int = DIGESTS_MAX
    ) -> None:
        self.start = AnnouncedStart(adapter_id, incarnation, bytes(32), bytes(32), {channel_id: 1})
        self.next_counter = 1
        self._place = feed_id, channel_id
        self._unsigned = UnsignedPackets(digest_count_max)
        self._last: GenuineSignature | None = None

    def seal(self, packet: OutputPacket, sent_at_ns: int) -> ReceivedPacket:
        """Number a packet, as if it was sealed. Args: sent_at_ns: the adapter's wall clock."""
        packet = packet._replace(adapter_id=self.start.adapter_id, sent_at_ns=sent_at_ns)
        counter, self.next_counter = self.next_counter, self.next_counter + 1
        datagram = self._datagram(packet, counter)
        self._unsigned.add(datagram, counter, packet if packet.flags & HEARTBEAT_BIT else None)
        return ReceivedPacket(packet, self.start.incarnation, counter, KEY_ID, datagram)

    def forge(self, packet: OutputPacket, counter: int, sent_at_ns: int) -> ReceivedPacket:
        """A packet that another reader of the channel sends in the line's name."""
        packet = packet._replace(adapter_id=self.start.adapter_id, sent_at_ns=sent_at_ns)
        return ReceivedPacket(packet, self.start.incarnation, counter, KEY_ID, self._datagram(packet, counter) + b"!")

    @property
    def is_signature_due(self) -> bool:
        """Whether to call `sign`."""
        return self._unsigned.is_due

    def sign(self, sent_at_ns: int) -> GenuineSignature:
        """The next signature, which may be the last one again."""
        if self._unsigned.take_repetition():
            assert self._last is not None
            return self._last
        first_counter, digests = self._unsigned.take()
        feed_id, channel_id = self._place
        start, count = self.start, len(digests)
        body = HEADER.pack(
            SIGNATURE_MAGIC, SIGNATURE_VERSION, 0, feed_id, channel_id, start.adapter_id, start.incarnation, KEY_ID,
            count, 0, first_counter, sent_at_ns,
        )  # fmt: skip
        place = feed_id, channel_id, start.adapter_id, start.incarnation, KEY_ID, first_counter, count, sent_at_ns
        self._last = GenuineSignature(SignatureDatagram(body + b"".join(digests), *place))
        return self._last

    @staticmethod
    def _datagram(packet: OutputPacket, counter: int) -> bytes:
        return repr((counter, packet)).encode()
