"""Finds accepted packets that their adapter has not sent, because its counter has not reached theirs. Pure.

Signatures find them out that arrive after the packet, by the same path, and end before it. The last of these must be
whole: it lists every packet that was sealed before it was signed. The adapter's clock judges, because a reader that was
busy finds old signatures in its queues:

- these signatures span OVERTAKEN_NS, which is longer than a network reorders. Between two of them at most
  SIGNATURE_GAP_MAX_NS count, because the adapter's clock may have stepped;
- or the packet itself claims to have been sent OVERTAKEN_NS before the first of them, and neither its own time nor the
  signatures before and after it suggest that a clock stepped. A forger may claim any time, so this only finds those
  sooner who claim the true one.

Invariant: a packet that its adapter sent is found only if the network let it overtake signatures that were made long
before it, or let it overtake some while the adapter's clock stepped to and fro.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tandemfeed.feedcore.merge.config import HEARTBEAT_NS, IDLE_HEARTBEAT_NS
from tandemfeed.transport.sealing.opening import ReceivedPacket
from tandemfeed.transport.sealing.stream_signatures import (
    HEARTBEATS_PER_SIGNATURE,
    SignatureDatagram,
    SignedDigests,
    digests_max,
)

MS = 1_000_000
# Longer than a network reorders, and shorter than two intervals of an idle stream's signatures: the third signature
# after a forged packet finds it out.
OVERTAKEN_NS = 90 * MS
SIGNATURE_GAP_MAX_NS = HEARTBEATS_PER_SIGNATURE * IDLE_HEARTBEAT_NS
CLAIM_SPAN_MAX_NS = 1_000 * MS  # between two signatures with a packet's claim between them; longer may be a step
DIGESTS_MAX_LEAST = digests_max(576)  # of a signature, with the shortest datagrams that a feed may have
assert OVERTAKEN_NS - SIGNATURE_GAP_MAX_NS >= 4 * HEARTBEAT_NS  # longer than reordering, even while a clock steps
assert SIGNATURE_GAP_MAX_NS < OVERTAKEN_NS < 2 * SIGNATURE_GAP_MAX_NS


class UnsignedPacket:
    """A packet that was accepted before its signature arrived.

    Attributes:
        path: by which it arrived.
        signed_at_ns: what the newest signature said then; 0: there was none.
        passed_at_ns: `SignerTime.elapsed_ns` at the first signature that arrived after it and does not reach it.
    """

    __slots__ = ("heard", "heard_at_ns", "passed_at_ns", "path", "signed_at_ns")

    def __init__(self, heard: ReceivedPacket, heard_at_ns: int, path: str, signed_at_ns: int) -> None:
        self.heard, self.heard_at_ns, self.path, self.signed_at_ns = heard, heard_at_ns, path, signed_at_ns
        self.passed_at_ns: int | None = None


class SignerTime:
    """The time of one start of an adapter, as its verified signatures show it.

    Attributes:
        signed_at_ns: what the newest signature says; 0: there is none.
        elapsed_ns: the sum of the gaps between signatures, each limited.
    """

    __slots__ = ("_digest_count_max", "_follows", "_is_whole", "_newest", "elapsed_ns", "signed_at_ns")

    def __init__(self) -> None:
        self.signed_at_ns = self.elapsed_ns = 0
        self._newest: SignatureDatagram | None = None
        self._is_whole = False  # the newest one lists every packet that was sealed before it was signed
        self._follows = False  # at most one signature was lost before it
        self._digest_count_max = 0  # of one signature

    def on_signed(self, signed: SignedDigests, claimed: SignatureDatagram) -> None:
        """A verified signature that reaches further than any before."""
        former_end = 0 if self._newest is None else self._newest.end_counter
        count, first = len(signed.digests), signed.first_counter
        # A list that was cut is full, and does not repeat packets of the one before (`UnsignedPackets.take`).
        self._is_whole = first < former_end or count < max(self._digest_count_max, DIGESTS_MAX_LEAST)
        self._follows = first <= former_end
        self._digest_count_max = max(count, self._digest_count_max)
        if self.signed_at_ns:
            self.elapsed_ns += min(max(signed.sent_at_ns - self.signed_at_ns, 0), SIGNATURE_GAP_MAX_NS)
        self.signed_at_ns, self._newest = signed.sent_at_ns, claimed

    def is_newest(self, claimed: SignatureDatagram) -> bool:
        """True if this is the newest verified signature again, as a second path brings it."""
        return self._newest is not None and claimed.datagram == self._newest.datagram

    def overtaken(self, packets: Iterable[UnsignedPacket], path: str, now_ns: int) -> Iterator[UnsignedPacket]:
        """The newest signature arrived now, by this path. Yields the packets that their adapter had not sent, of those
        that it does not reach."""
        for each in packets:
            if each.path != path:
                continue
            if each.passed_at_ns is not None:
                is_overtaken = self.elapsed_ns - each.passed_at_ns >= OVERTAKEN_NS
            else:
                each.passed_at_ns = self.elapsed_ns
                is_overtaken = self._contradicts(each, now_ns)
            if is_overtaken and self._is_whole:
                yield each

    def _contradicts(self, packet: UnsignedPacket, now_ns: int) -> bool:
        """True if the packet claims to have been sent long before the signature, and did arrive long before it.

        The claim lies between two signatures that are not far apart, so it does not come from a step of the clock.
        """
        claim_ns, former_ns, signed_ns = packet.heard.packet.sent_at_ns, packet.signed_at_ns, self.signed_at_ns
        return (
            self._follows
            and 0 < former_ns <= claim_ns <= signed_ns - OVERTAKEN_NS
            and signed_ns - former_ns <= CLAIM_SPAN_MAX_NS
            and now_ns - packet.heard_at_ns >= OVERTAKEN_NS
        )
