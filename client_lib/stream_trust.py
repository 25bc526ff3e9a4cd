"""What a subscription believes of the packets it hears: between opening them and merging them. Pure.

Every reader of a channel holds the channel's key, so a packet that opens may be made by another reader. Who made it is
told by the signature that follows (`transport.stream_signatures`): a list of the digests of what an adapter sent.

`verify="signed"`: a packet is believed when a signature lists it, and never before.
`verify="alarm"`: a packet is believed at once if it goes on exactly where what is believed ends: no other session, no
newer epoch, no number further ahead, neither a heartbeat nor provisional. Anything else waits for its signature, as in
the other mode; and at most UNSIGNED_MESSAGES_MAX messages are believed beyond the last signed one. So a forged packet
can put content at the next place of the stream, but can push no number. When a signature contradicts what was believed,
or does not come, `Distrusted` is raised, and of that start of the adapter only what is signed is believed from then on.
The true stream goes on under the attack.

What is kept is bounded, whatever is heard: packets that wait, by number and by age; packets believed without a
signature, by the counters that the signed ones allow.

Invariant: nothing is believed twice, and nothing whose counter was used before the subscription began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from client_lib.verification_budget import VerificationBudget
from feedcore.counters import CounterSet
from feedcore.merge.config import HEARTBEAT_NS, MergerConfig
from feedcore.wire.output_packet import ANNOUNCEMENT_BIT, HEARTBEAT_BIT, PROVISIONAL_BIT, OutputPacket
from feedcore.wire.refusal import PacketRefused, Refusal
from transport.announced_starts import AnnouncedStart
from transport.opening import HeardPacket, HeardSignature
from transport.stream_signatures import HEARTBEATS_PER_SIGNATURE, SignatureDatagram, SignedDigests

MS = 1_000_000
VerifyMode: TypeAlias = Literal["alarm", "signed"]
AHEAD_MAX = 4_096  # counters beyond the last signature: some hundred packets come between two
MISSED_MAX = 4_096  # signed packets not heard yet, which may be late
WAITING_MAX = 8_192  # packets that wait for a signature, about 12 MB; a flood of 50,000 a second leaves them 160 ms
UNSIGNED_MESSAGES_MAX = 16_384  # believed beyond what is signed: 16 ms of a million messages a second
SIGNED_WITHIN_NS = HEARTBEATS_PER_SIGNATURE * HEARTBEAT_NS  # a heartbeat; packets with messages within HEARTBEAT_NS
WAIT_MAX_NS = 1_000 * MS  # of a packet for its signature
OVERTAKEN_NS = 100 * MS  # a packet that came so long before a signature that does not reach it was not sent then
SILENCE_MAX_NS = 1_000 * MS  # of signatures, while packets come: twenty are due in it, and a hundred with messages
PAUSE_MAX_NS = 100 * MS  # a longer silence between two packets is the adapter's pause, and not counted as theirs
assert OVERTAKEN_NS > 5 * HEARTBEAT_NS  # no reordering on a network is that long
assert SILENCE_MAX_NS >= 20 * SIGNED_WITHIN_NS  # loss does not look like a forger, also where few messages come
assert WAIT_MAX_NS >= 20 * SIGNED_WITHIN_NS
assert MergerConfig().stale_after_ns > 3 * SIGNED_WITHIN_NS  # an idle stream survives two lost signatures
# News is signed with two heartbeats; if both are lost, it is in what the heartbeats say that the next signature covers.
assert MergerConfig().lineage_wait_ns > 2 * HEARTBEAT_NS + SIGNED_WITHIN_NS


class DistrustReason(StrEnum):
    """Why a start of an adapter is believed no longer without signatures."""

    DOES_NOT_FIT = "a signature lists another packet in the place of one that was delivered"
    TWICE = "two packets came with one number: at least one of them is forged"
    NOT_SENT = "a packet was delivered that its adapter had not sent by a later signature"
    NO_SIGNATURE = "packets come, and no signature does"


@dataclass(frozen=True, slots=True)
class Distrusted:
    """A holder of the channel's key sends packets as this start of this adapter, or its signatures do not come through.

    From now on only what it signed is delivered of it. The delivered messages `first_message_seq` …
    `end_message_seq - 1` may be forged.

    Attributes:
        incarnation: the start of the adapter that is impersonated.
    """

    channel_id: int
    adapter_id: int
    incarnation: int
    reason: DistrustReason
    first_message_seq: int
    end_message_seq: int


Verdict: TypeAlias = OutputPacket | Distrusted


_SIGNED_ONLY_BITS = HEARTBEAT_BIT | PROVISIONAL_BIT | ANNOUNCEMENT_BIT


class _Horizon:
    """Where packets of a channel end, over all adapters: those believed, or those signed. In the newest session."""

    __slots__ = ("_end_input_seq", "_end_message_seq", "_end_source_seqs", "_epoch", "_session")

    def __init__(self) -> None:
        self._session = 0
        self._epoch = 0
        self._end_input_seq = 0
        self._end_message_seq = 0
        self._end_source_seqs: dict[int, int] = {}

    def joins(self, packet: OutputPacket) -> bool:
        """True if the packet continues where these end, or lies before: it pushes no number."""
        if packet.session != self._session or packet.epoch > self._epoch:
            return False
        if packet.first_input_seq > self._end_input_seq:
            return False
        if packet.first_message_seq > self._end_message_seq:
            return False
        for run in packet.runs:  # noqa: SIM110  a generator takes twice as long, and this is every packet's path
            if run.first_source_seq > self._end_source_seqs.get(run.source_stream_id, 0):
                return False
        return True

    def is_near(self, packet: OutputPacket) -> bool:
        """True if the packet ends at most UNSIGNED_MESSAGES_MAX messages of either kind beyond these."""
        if packet.end_message_seq > self._end_message_seq + UNSIGNED_MESSAGES_MAX:
            return False
        if packet.end_input_seq > self._end_input_seq + UNSIGNED_MESSAGES_MAX:
            return False
        for run in packet.runs:
            known = self._end_source_seqs.get(run.source_stream_id, 0)
            if run.first_source_seq + run.source_count > known + UNSIGNED_MESSAGES_MAX:
                return False
        return True

    def extend(self, packet: OutputPacket) -> None:
        """Take a packet in; with a new session all numbers begin at 1."""
        if packet.session < self._session:
            return
        if packet.session > self._session:
            self._session = packet.session
            self._end_input_seq, self._end_message_seq, self._end_source_seqs = 0, 0, {}
        self._epoch = max(self._epoch, packet.epoch)
        self._end_input_seq = max(self._end_input_seq, packet.end_input_seq)
        self._end_message_seq = max(self._end_message_seq, packet.end_message_seq)
        ends = self._end_source_seqs
        for run in packet.runs:
            if run.end_source_seq > ends.get(run.source_stream_id, 0):
                ends[run.source_stream_id] = run.end_source_seq


class _Waiting(NamedTuple):
    """A packet that waits for its signature."""

    heard: HeardPacket
    heard_at_ns: int


class _Unsigned(NamedTuple):
    """What is remembered of a packet that was believed before its signature came."""

    digest: bytes
    heard_at_ns: int
    packet: OutputPacket


class _HeardStart:
    """One start of one adapter, as it is heard."""

    __slots__ = (
        "budget",
        "is_trusted",
        "last_heard_at_ns",
        "missed",
        "signed_end",
        "start",
        "unsigned",
        "unsigned_ns",
        "waiting",
    )

    def __init__(self, start: AnnouncedStart, first_counter: int, *, is_trusted: bool) -> None:
        self.start = start
        self.is_trusted = is_trusted
        self.signed_end = first_counter  # every counter below is settled
        self.missed: dict[int, bytes] = {}  # counter -> digest of signed packets that have not come
        self.unsigned: dict[int, _Unsigned] = {}  # by counter, in the order in which they came
        self.waiting: dict[bytes, _Waiting] = {}  # by digest, in the order in which they came
        self.last_heard_at_ns = 0
        self.unsigned_ns = 0  # how long packets have come without a signature
        self.budget = VerificationBudget()

    def has_heard(self, signature: SignatureDatagram) -> bool:
        """True if it lists a packet that was heard and waits to be covered."""
        for counter, digest in enumerate(signature.digests, signature.first_counter):
            if digest in self.waiting:
                return True
            unsigned = self.unsigned.get(counter)
            if unsigned is not None and unsigned.digest == digest:
                return True
        return False

    def distrust(self, reason: DistrustReason, forged: OutputPacket) -> Iterator[Distrusted]:
        """The alarm, once for a start. Args: forged: what may be."""
        if self.is_trusted:
            self.is_trusted = False
            adapter_id, incarnation = self.start.identity
            place = forged.first_message_seq, forged.end_message_seq
            yield Distrusted(forged.channel_id, adapter_id, incarnation, reason, *place)


class StreamTrust:
    """One channel's judge.

    Args:
        counters: refusals are counted there.
        verify: the mode, see above.
    """

    def __init__(self, channel_id: int, counters: CounterSet, verify: VerifyMode) -> None:
        self._channel_id, self._counters = channel_id, counters
        self._is_trusting = verify == "alarm"
        self._believed, self._signed = _Horizon(), _Horizon()
        self._heard: dict[tuple[int, int], _HeardStart] = {}  # (adapter_id, incarnation)

    def announce(self, starts: Iterable[AnnouncedStart]) -> None:
        """These starts may be heard, no others; what is known of one that stays is kept."""
        known, self._heard = self._heard, {}
        for start in starts:
            heard = known.get(start.identity)
            if heard is not None and heard.start == start:
                self._heard[start.identity] = heard
            elif self._channel_id in start.next_counters:
                first_counter = start.next_counters[self._channel_id]
                self._heard[start.identity] = _HeardStart(start, first_counter, is_trusted=self._is_trusting)

    def distrusted(self) -> list[tuple[int, int]]:
        """(adapter_id, incarnation) of the starts that have raised the alarm."""
        return [place for place, heard in self._heard.items() if self._is_trusting and not heard.is_trusted]

    def on_vouched(self, packet: OutputPacket) -> None:
        """An adapter's replay service gave this packet, over a secured call: it is believed."""
        self._extend_both(packet)

    def on_packet(self, heard: HeardPacket, now_ns: int) -> list[Verdict]:
        """A packet opened. Returns what is believed now, in order, alarms before what follows from them.

        Raises:
            PacketRefused: it is not believed, now or later.
        """
        packet, incarnation, counter, digest = heard
        stream = self._heard.get((packet.adapter_id, incarnation))
        if stream is None:
            detail = f"incarnation {incarnation} of adapter {packet.adapter_id}"
            raise PacketRefused(Refusal.UNANNOUNCED, detail)
        verdicts: list[Verdict] = []
        if counter < stream.signed_end:
            return self._late(stream, packet, counter, digest)
        if counter >= stream.signed_end + AHEAD_MAX:
            raise PacketRefused(
                Refusal.OUT_OF_WINDOW, f"packet {counter}, and its adapter has signed up to {stream.signed_end}"
            )
        known = stream.unsigned.get(counter)
        if (known is not None and known.digest == digest) or digest in stream.waiting:
            raise PacketRefused(Refusal.REPLAYED, f"packet {counter} of incarnation {incarnation}")
        if known is not None:
            verdicts += stream.distrust(DistrustReason.TWICE, known.packet)
        elif stream.is_trusted and self._goes_on(packet):
            if not self._signatures_fail(stream, now_ns):
                stream.unsigned[counter] = _Unsigned(digest, now_ns, packet)
                self._believed.extend(packet)
                return [packet]
            first = next(iter(stream.unsigned.values()), None)
            verdicts += stream.distrust(DistrustReason.NO_SIGNATURE, packet if first is None else first.packet)
        self._keep_waiting(stream, heard, now_ns)
        return verdicts

    def on_signature(self, heard: HeardSignature, now_ns: int, *, sender: str = "") -> list[Verdict]:
        """A signature came: it is verified, if that may be worth it. Returns what is believed now, in order.

        Args:
            sender: where it came from, as the network says.

        Raises:
            PacketRefused: UNANNOUNCED; UNVERIFIED; BAD_SIGNATURE.
        """
        claimed = heard.claimed
        stream = self._heard.get((claimed.adapter_id, claimed.incarnation))
        if stream is None:
            detail = f"incarnation {claimed.incarnation} of adapter {claimed.adapter_id}"
            raise PacketRefused(Refusal.UNANNOUNCED, detail)
        if claimed.end_counter <= stream.signed_end:
            return []  # sent again: all it says is known
        lane = stream.budget.lane_for(sender, lambda: stream.has_heard(claimed), now_ns)
        if lane is None:
            raise PacketRefused(Refusal.UNVERIFIED, f"too many bad signatures as of adapter {claimed.adapter_id}")
        try:
            signed = heard.verified()
        except PacketRefused:
            stream.budget.on_failed(lane, now_ns)
            raise
        stream.budget.on_verified(sender)
        return self._on_signed(stream, signed, now_ns)

    # ---- inside ----

    def _on_signed(self, stream: _HeardStart, signed: SignedDigests, now_ns: int) -> list[Verdict]:
        """The adapter says what it sent."""
        verdicts: list[Verdict] = []
        fresh = max(stream.signed_end, signed.first_counter)
        for counter in range(fresh, signed.end_counter):
            verdicts += self._settle(stream, counter, signed.digests[counter - signed.first_counter])
        stream.signed_end, stream.unsigned_ns = signed.end_counter, 0
        for counter in list(stream.unsigned):
            unsigned = stream.unsigned[counter]
            if counter < signed.end_counter:
                del stream.unsigned[counter]  # its signatures were lost, both of them
            elif now_ns - unsigned.heard_at_ns >= OVERTAKEN_NS:
                del stream.unsigned[counter]
                verdicts += stream.distrust(DistrustReason.NOT_SENT, unsigned.packet)
            else:
                break
        while len(stream.missed) > MISSED_MAX:
            del stream.missed[next(iter(stream.missed))]
        self._drop_old(stream, now_ns)
        return verdicts

    def _goes_on(self, packet: OutputPacket) -> bool:
        """True if the packet may be believed at once."""
        return not packet.flags & _SIGNED_ONLY_BITS and self._believed.joins(packet) and self._signed.is_near(packet)

    def _extend_both(self, packet: OutputPacket) -> None:
        self._believed.extend(packet)
        self._signed.extend(packet)

    def _late(self, stream: _HeardStart, packet: OutputPacket, counter: int, digest: bytes) -> list[Verdict]:
        """A packet after the last signature."""
        listed = stream.missed.get(counter)
        if listed is None:
            raise PacketRefused(Refusal.REPLAYED, f"packet {counter} was seen before, or is too old to tell")
        if listed != digest:
            raise PacketRefused(Refusal.FORGED, f"packet {counter} is not the one that its adapter has signed")
        del stream.missed[counter]
        self._extend_both(packet)
        return [packet]

    def _settle(self, stream: _HeardStart, counter: int, listed: bytes) -> Iterator[Verdict]:
        """A signature says which packet had this counter."""
        unsigned = stream.unsigned.pop(counter, None)
        if unsigned is not None and unsigned.digest == listed:
            self._signed.extend(unsigned.packet)
            return
        if unsigned is not None:
            yield from stream.distrust(DistrustReason.DOES_NOT_FIT, unsigned.packet)
        waiting = stream.waiting.pop(listed, None)
        if waiting is None:
            stream.missed[counter] = listed
            return
        self._extend_both(waiting.heard.packet)
        yield waiting.heard.packet

    def _keep_waiting(self, stream: _HeardStart, heard: HeardPacket, now_ns: int) -> None:
        self._drop_old(stream, now_ns)
        if len(stream.waiting) >= WAITING_MAX:
            del stream.waiting[next(iter(stream.waiting))]
            self._counters.refuse(Refusal.UNSIGNED)
        stream.waiting[heard.digest] = _Waiting(heard, now_ns)

    def _drop_old(self, stream: _HeardStart, now_ns: int) -> None:
        while stream.waiting:
            digest = next(iter(stream.waiting))
            if now_ns - stream.waiting[digest].heard_at_ns < WAIT_MAX_NS:
                return
            del stream.waiting[digest]
            self._counters.refuse(Refusal.UNSIGNED)

    @staticmethod
    def _signatures_fail(stream: _HeardStart, now_ns: int) -> bool:
        """True once packets have come for long without a signature."""
        if stream.last_heard_at_ns:
            stream.unsigned_ns += min(now_ns - stream.last_heard_at_ns, PAUSE_MAX_NS)
        stream.last_heard_at_ns = now_ns
        return stream.unsigned_ns >= SILENCE_MAX_NS
