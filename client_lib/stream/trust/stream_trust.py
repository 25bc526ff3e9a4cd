"""Which received packets a subscription accepts, after opening and before merging them. Pure.

Every reader of a channel has the channel's key, so a packet that opens may come from another reader. The signature that
follows it (`transport.sealing.stream_signatures`) shows which packets an adapter sent: it lists their digests.

`verify="signed"`: a packet is accepted only when a signature lists it.
`verify="alarm"`: a packet is accepted immediately if it continues the accepted stream without a jump: in the same
session, without a newer epoch or a gap in any sequence number, and neither a heartbeat nor provisional. Any other
packet waits for its signature, as in the other mode; and at most UNSIGNED_MESSAGES_MAX messages are accepted beyond the
last signed one. So a forged packet can insert content at the stream's next position, but cannot advance any sequence
number further. If a signature contradicts an accepted packet, or does not arrive, `Distrusted` is delivered, and only
signed packets are accepted from that start of the adapter. The genuine stream continues during an attack.

On an idle stream, to verify signatures is most of a reader's work. A signature that adds only heartbeats, which repeat
what the last signed one says, proves nothing but that the adapter lives. It is kept, and verified when `on_timer` needs
to know that, before any stream can be called stale; or never, if a later signature covers the same. After the first bad
signature in the name of a start, all of that start are verified immediately.

A packet is forged if its counter was used twice, if a signature lists another one, or if its adapter has not counted so
far (`signer_time`). The adapter's clock judges that, never the reader's: a reader that was paused finds old signatures
in its queues. Only the alarm about a start whose signatures do not arrive at all goes by the reader's time, which
stands still while the reader does not look (`feedcore.pause_free_clock`).

Memory is bounded for any input: waiting packets by number and age, packets accepted without a signature by the range of
counters allowed beyond the last signature.

Invariant: no packet is accepted twice, and none with a counter that was used before the subscription began. A start is
accused only of what contradicts its verified signatures, or of packets that keep arriving without any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from tandemfeed.client_lib.stream.trust.horizon import UNSIGNED_MESSAGES_MAX as UNSIGNED_MESSAGES_MAX
from tandemfeed.client_lib.stream.trust.horizon import Horizon
from tandemfeed.client_lib.stream.trust.signer_time import OVERTAKEN_NS as OVERTAKEN_NS
from tandemfeed.client_lib.stream.trust.signer_time import SignerTime, UnsignedPacket
from tandemfeed.client_lib.stream.trust.verification_budget import VerificationBudget
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.merge.config import HEARTBEAT_NS, IDLE_HEARTBEAT_NS, MergerConfig
from tandemfeed.feedcore.wire.output_packet import ANNOUNCEMENT_BIT, HEARTBEAT_BIT, PROVISIONAL_BIT, OutputPacket
from tandemfeed.feedcore.wire.packet_series import PacketSeries
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.opening import ReceivedPacket, ReceivedSignature
from tandemfeed.transport.sealing.stream_signatures import HEARTBEATS_PER_SIGNATURE, SignatureDatagram, SignedDigests

MS = 1_000_000
VerifyMode: TypeAlias = Literal["alarm", "signed"]
AHEAD_MAX = 4_096  # counters beyond the last signature: a few hundred packets arrive between two signatures
MISSED_MAX = 4_096  # signed packets that have not arrived, but may arrive late
WAITING_MAX = 8_192  # packets that wait for a signature, about 12 MB; a flood of 50,000 a second gives each 160 ms
SIGNED_WITHIN_NS = HEARTBEATS_PER_SIGNATURE * IDLE_HEARTBEAT_NS  # for a heartbeat; a packet with messages: HEARTBEAT_NS
WAIT_MAX_NS = 1_000 * MS  # how long a packet waits for its signature
SILENCE_MAX_NS = 1_000 * MS  # without signatures while packets arrive: at least twenty signatures were due
POSTPONED_MAX = 8  # signatures of one start that are not verified yet: more than arrive before an idle stream is stale
PAUSE_MAX_NS = 100 * MS  # a longer time between two packets is a pause of the adapter; the excess is not counted
assert SILENCE_MAX_NS >= 20 * SIGNED_WITHIN_NS  # packet loss is not mistaken for a forger, even on a slow stream
assert WAIT_MAX_NS >= 20 * SIGNED_WITHIN_NS
assert MergerConfig().stale_after_ns > 3 * SIGNED_WITHIN_NS  # an idle stream survives two lost signatures
# A change is signed with two heartbeats. If both are lost, the heartbeats under the next signature repeat the change.
assert MergerConfig().lineage_wait_ns > 2 * HEARTBEAT_NS + SIGNED_WITHIN_NS


class DistrustReason(StrEnum):
    """Why packets from a start of an adapter are no longer accepted without signatures."""

    SIGNATURE_MISMATCH = "a signature lists a different packet than the one that was delivered"
    DUPLICATE_COUNTER = "two packets arrived with the same packet counter, so at least one of them is forged"
    NOT_SENT = "a packet was delivered, but a later signature shows that its adapter had not sent it"
    NO_SIGNATURE = "packets arrive without signatures"


@dataclass(frozen=True, slots=True)
class Distrusted:
    """Another reader sends packets as this start of this adapter, or the adapter's signatures do not arrive.

    From now on, only signed packets from this start are delivered. The delivered messages `first_message_seq` to
    `end_message_seq - 1` may be forged.

    Attributes:
        incarnation: the start of the adapter that may be impersonated.
    """

    channel_id: int
    adapter_id: int
    incarnation: int
    reason: DistrustReason
    first_message_seq: int
    end_message_seq: int


Verdict: TypeAlias = OutputPacket | Distrusted


_SIGNED_ONLY_BITS = HEARTBEAT_BIT | PROVISIONAL_BIT | ANNOUNCEMENT_BIT


class _Waiting(NamedTuple):
    """A packet that is accepted when its signature arrives."""

    heard: ReceivedPacket
    heard_at_ns: int


class _Postponed(NamedTuple):
    """A signature that is verified only when it is needed."""

    heard: ReceivedSignature
    sender: str
    heard_at_ns: int


class _KnownStart:
    """What was received from one start of one adapter."""

    __slots__ = (
        "budget",
        "is_trusted",
        "last_heard_at_ns",
        "may_postpone",
        "missed",
        "postponed",
        "said",
        "signed_end",
        "signer",
        "start",
        "unsigned",
        "unsigned_ns",
        "waiting",
    )

    def __init__(self, start: AnnouncedStart, first_counter: int, *, is_trusted: bool) -> None:
        self.start = start
        self.is_trusted = is_trusted
        self.signed_end = first_counter  # signatures cover every lower counter
        self.missed: dict[int, bytes] = {}  # counter -> digest of signed packets that have not arrived
        self.unsigned: dict[int, UnsignedPacket] = {}  # accepted; by counter, in arrival order
        self.waiting: dict[bytes, _Waiting] = {}  # not accepted; by digest, in arrival order
        self.last_heard_at_ns = 0
        self.unsigned_ns = 0  # how long packets have arrived without a signature
        self.budget = VerificationBudget()
        self.said: tuple[object, ...] | None = None  # by the last signed heartbeat
        self.postponed: list[_Postponed] = []  # in arrival order
        self.may_postpone = True  # no bad signature has arrived
        self.signer = SignerTime()

    def adds_nothing(self, signature: SignatureDatagram) -> bool:
        """True if all that the signature adds, should it be good, has arrived and repeats the last signed heartbeat."""
        if self.said is None or self.unsigned or not self.may_postpone or len(self.postponed) >= POSTPONED_MAX:
            return False
        skipped = max(self.signed_end - signature.first_counter, 0)
        for counter, digest in enumerate(signature.digests[skipped:], signature.first_counter + skipped):
            waiting = self.waiting.get(digest)
            if waiting is None or waiting.heard.counter != counter or _said_by(waiting.heard.packet) != self.said:
                return False
        return True

    def drop_postponed(self) -> None:
        """Forget the postponed signatures that a verified one replaces, and the heartbeats that only they list."""
        replaced = [each for each in self.postponed if each.heard.claimed.end_counter <= self.signed_end]
        self.postponed = [each for each in self.postponed if each.heard.claimed.end_counter > self.signed_end]
        for each in replaced:
            for digest in each.heard.claimed.digests:
                self.waiting.pop(digest, None)

    def awaits(self, signature: SignatureDatagram) -> bool:
        """True if the signature lists a packet that has arrived and is not signed yet."""
        for counter, digest in enumerate(signature.digests, signature.first_counter):
            if digest in self.waiting:
                return True
            unsigned = self.unsigned.get(counter)
            if unsigned is not None and unsigned.heard.digest == digest:
                return True
        return False

    def distrust(self, reason: DistrustReason, forged: OutputPacket) -> Iterator[Distrusted]:
        """Raise the alarm, once for each start. Args: forged: the packet that may be forged."""
        if self.is_trusted:
            self.is_trusted = False
            adapter_id, incarnation = self.start.identity
            place = forged.first_message_seq, forged.end_message_seq
            yield Distrusted(forged.channel_id, adapter_id, incarnation, reason, *place)


def _said_by(packet: OutputPacket) -> tuple[object, ...] | None:
    """What a heartbeat says, apart from the time; None for other packets."""
    if not packet.flags & HEARTBEAT_BIT or packet.flags & PROVISIONAL_BIT:
        return None
    return packet.flags, packet.session, packet.epoch, packet.first_input_seq, packet.first_message_seq, packet.payload


class StreamTrust:
    """Decides which packets of one channel are accepted.

    Args:
        counters: count refused packets.
        verify: the mode, see above.
        may_extend: whether the numbers of a signed packet count, so that what is within them may precede its signature.
    """

    def __init__(
        self,
        channel_id: int,
        counters: CounterSet,
        verify: VerifyMode,
        may_extend: Callable[[OutputPacket], bool] = lambda _: True,
    ) -> None:
        self._channel_id, self._counters = channel_id, counters
        self._is_trusting, self._may_extend = verify == "alarm", may_extend
        self._accepted, self._signed = Horizon(), Horizon()
        self._heard: dict[tuple[int, int], _KnownStart] = {}  # (adapter_id, incarnation)

    def announce(self, starts: Iterable[AnnouncedStart]) -> None:
        """Accept packets only from these starts. The state of starts that were announced before is kept."""
        known, self._heard = self._heard, {}
        for start in starts:
            heard = known.get(start.identity)
            if heard is not None and heard.start == start:
                self._heard[start.identity] = heard
            elif self._channel_id in start.next_counters:
                first_counter = start.next_counters[self._channel_id]
                self._heard[start.identity] = _KnownStart(start, first_counter, is_trusted=self._is_trusting)

    def distrusted(self) -> list[tuple[int, int]]:
        """(adapter_id, incarnation) of the starts for which the alarm was raised."""
        return [place for place, heard in self._heard.items() if self._is_trusting and not heard.is_trusted]

    def on_replayed(self, packet: OutputPacket) -> None:
        """An adapter's replay service sent this packet. It is accepted, because the call is secured."""
        self._extend_both(packet)

    def on_replayed_series(self, series: PacketSeries) -> None:
        """The same of packets that continue each other."""
        self._accepted.extend_by(series)
        self._signed.extend_by(series)

    def on_packet(self, heard: ReceivedPacket, now_ns: int, path: str = "") -> list[Verdict]:
        """A packet was opened. Return the packets accepted now, in order; alarms come before their consequences.

        Args:
            path: by which it arrived: a multicast group, or "" for a unicast connection. Of one start, what arrives by
                one path arrives nearly in the order in which it was sent.

        Raises:
            PacketRefused: the packet will never be accepted.
        """
        packet, incarnation, counter = heard.packet, heard.incarnation, heard.counter
        stream = self._heard.get((packet.adapter_id, incarnation))
        if stream is None:
            detail = f"incarnation {incarnation} of adapter {packet.adapter_id}"
            raise PacketRefused(Refusal.UNANNOUNCED, detail)
        verdicts: list[Verdict] = []
        if counter < stream.signed_end:
            return self._late(stream, heard)
        if counter >= stream.signed_end + AHEAD_MAX:
            detail = f"packet {counter} is too far beyond the signed ones, which end at {stream.signed_end}"
            raise PacketRefused(Refusal.OUT_OF_WINDOW, detail)
        known = stream.unsigned.get(counter)
        if (known and known.heard.digest == heard.digest) or (stream.waiting and heard.digest in stream.waiting):
            raise PacketRefused(Refusal.REPLAYED, f"packet {counter} of incarnation {incarnation} arrived again")
        if known is not None:
            verdicts += stream.distrust(DistrustReason.DUPLICATE_COUNTER, known.heard.packet)
        elif stream.is_trusted and self._may_precede_signature(packet):
            if not self._signatures_fail(stream, now_ns):
                stream.unsigned[counter] = UnsignedPacket(heard, now_ns, path, stream.signer.signed_at_ns)
                self._accepted.extend(packet)
                return [packet]
            first = next(iter(stream.unsigned.values()), None)
            verdicts += stream.distrust(DistrustReason.NO_SIGNATURE, packet if first is None else first.heard.packet)
        self._keep_waiting(stream, heard, now_ns)
        return verdicts

    def on_signature(self, heard: ReceivedSignature, now_ns: int, path: str = "", *, sender: str = "") -> list[Verdict]:
        """A signature arrived: verify it, unless it adds nothing, or the limit of bad ones is reached. Return the
        packets accepted now.

        Args:
            path: as for `on_packet`.
            sender: the source address of the datagram.

        Raises:
            PacketRefused: UNANNOUNCED; UNVERIFIED; BAD_SIGNATURE.
        """
        claimed = heard.claimed
        stream = self._heard.get((claimed.adapter_id, claimed.incarnation))
        if stream is None:
            detail = f"incarnation {claimed.incarnation} of adapter {claimed.adapter_id}"
            raise PacketRefused(Refusal.UNANNOUNCED, detail)
        if claimed.end_counter <= stream.signed_end:  # repeated: it contains nothing new
            return self._find_overtaken(stream, path, now_ns) if stream.signer.is_newest(claimed) else []
        if stream.adds_nothing(claimed):
            stream.postponed.append(_Postponed(heard, sender, now_ns))
            return []
        return self._verify(stream, heard, sender, now_ns, path)

    def on_timer(self, now_ns: int) -> list[tuple[int, Verdict]]:
        """It must be known which adapters live: verify what was postponed. Return when each packet was proved, as if
        it had been verified on arrival, and the packet."""
        verdicts: list[tuple[int, Verdict]] = []
        for stream in self._heard.values():
            while stream.postponed:  # the newest first, which replaces the others if it is good
                heard, sender, heard_at_ns = stream.postponed.pop()
                try:
                    found = self._verify(stream, heard, sender, now_ns, path=None)
                except PacketRefused as refused:
                    self._counters.refuse(refused.reason)
                else:
                    verdicts += [(heard_at_ns, verdict) for verdict in found]
        return verdicts

    # ---- inside ----

    def _verify(
        self, stream: _KnownStart, heard: ReceivedSignature, sender: str, now_ns: int, path: str | None
    ) -> list[Verdict]:
        """Args: path: by which it arrived now; None: it was postponed, so it arrived before every unsigned packet.

        Raises:
            PacketRefused: UNVERIFIED; BAD_SIGNATURE.
        """
        claimed = heard.claimed
        lane = stream.budget.lane_for(sender, lambda: stream.awaits(claimed), now_ns)
        if lane is None:
            detail = f"too many bad signatures in the name of adapter {claimed.adapter_id}"
            raise PacketRefused(Refusal.UNVERIFIED, detail)
        try:
            signed = heard.verified()
        except PacketRefused:
            stream.budget.on_failed(lane, now_ns)
            stream.may_postpone = False
            raise
        stream.budget.on_verified(sender)
        stream.signer.on_signed(signed, claimed)
        return self._on_signed(stream, signed, now_ns, path)

    def _on_signed(self, stream: _KnownStart, signed: SignedDigests, now_ns: int, path: str | None) -> list[Verdict]:
        """Apply a verified signature."""
        verdicts: list[Verdict] = []
        fresh = max(stream.signed_end, signed.first_counter)
        for counter in range(fresh, signed.end_counter):
            verdicts += self._settle(stream, counter, signed.digests[counter - signed.first_counter])
        stream.signed_end, stream.unsigned_ns = signed.end_counter, 0
        for counter in [each for each in stream.unsigned if each < signed.end_counter]:
            del stream.unsigned[counter]  # both copies of its signature were lost
        if path is not None:
            verdicts += self._find_overtaken(stream, path, now_ns)
        while len(stream.missed) > MISSED_MAX:
            del stream.missed[next(iter(stream.missed))]
        if stream.postponed:
            stream.drop_postponed()
        self._drop_old(stream, now_ns)
        return verdicts

    @staticmethod
    def _find_overtaken(stream: _KnownStart, path: str, now_ns: int) -> list[Verdict]:
        """The newest signature arrived by this path."""
        verdicts: list[Verdict] = []
        for unsigned in list(stream.signer.overtaken(stream.unsigned.values(), path, now_ns)):
            del stream.unsigned[unsigned.heard.counter]
            verdicts += stream.distrust(DistrustReason.NOT_SENT, unsigned.heard.packet)
        return verdicts

    def _may_precede_signature(self, packet: OutputPacket) -> bool:
        """True if the packet may be accepted before its signature arrives."""
        if packet.flags & _SIGNED_ONLY_BITS:
            return False
        return self._accepted.is_continued_by(packet) and self._signed.is_near(packet)

    def _extend_by_signed(self, packet: OutputPacket) -> None:
        if self._may_extend(packet):
            self._extend_both(packet)

    def _extend_both(self, packet: OutputPacket) -> None:
        self._accepted.extend(packet)
        self._signed.extend(packet)

    def _late(self, stream: _KnownStart, heard: ReceivedPacket) -> list[Verdict]:
        """A packet that arrived after its signature."""
        packet, counter = heard.packet, heard.counter
        listed = stream.missed.get(counter)
        if listed is None:
            raise PacketRefused(Refusal.REPLAYED, f"packet {counter} arrived before, or is too old to check")
        if listed != heard.digest:
            raise PacketRefused(Refusal.FORGED, f"packet {counter} differs from the one that its adapter signed")
        del stream.missed[counter]
        self._extend_by_signed(packet)
        return [packet]

    def _settle(self, stream: _KnownStart, counter: int, listed: bytes) -> Iterator[Verdict]:
        """Accept the packet that a signature lists for this counter, or note that it has not arrived."""
        unsigned = stream.unsigned.pop(counter, None)
        if unsigned is not None and unsigned.heard.digest == listed:
            self._signed.extend(unsigned.heard.packet)
            return
        if unsigned is not None:
            yield from stream.distrust(DistrustReason.SIGNATURE_MISMATCH, unsigned.heard.packet)
        waiting = stream.waiting.pop(listed, None)
        if waiting is None:
            stream.missed[counter] = listed
            return
        packet = waiting.heard.packet
        self._extend_by_signed(packet)
        if packet.flags & HEARTBEAT_BIT:
            stream.said = _said_by(packet)
        yield packet

    def _keep_waiting(self, stream: _KnownStart, heard: ReceivedPacket, now_ns: int) -> None:
        self._drop_old(stream, now_ns)
        if len(stream.waiting) >= WAITING_MAX:
            del stream.waiting[next(iter(stream.waiting))]
            self._counters.refuse(Refusal.UNSIGNED)
        stream.waiting[heard.digest] = _Waiting(heard, now_ns)

    def _drop_old(self, stream: _KnownStart, now_ns: int) -> None:
        while stream.waiting:
            digest = next(iter(stream.waiting))
            if now_ns - stream.waiting[digest].heard_at_ns < WAIT_MAX_NS:
                return
            del stream.waiting[digest]
            self._counters.refuse(Refusal.UNSIGNED)

    @staticmethod
    def _signatures_fail(stream: _KnownStart, now_ns: int) -> bool:
        """True once packets have arrived without a signature for SILENCE_MAX_NS."""
        if stream.last_heard_at_ns:
            stream.unsigned_ns += min(now_ns - stream.last_heard_at_ns, PAUSE_MAX_NS)
        stream.last_heard_at_ns = now_ns
        return stream.unsigned_ns >= SILENCE_MAX_NS
