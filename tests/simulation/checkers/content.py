"""The invariants of DESIGN section 11 (docs/protocol.md clause 9), each watched by an object of its own.

A checker knows nothing of the cores: it sees what goes over the wire and what applications are handed, and compares it
with what the source sent. What it cannot see step by step it sees at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from feedcore.merge.effects import (
    Deliver,
    Diverged,
    Ended,
    Filled,
    Gap,
    MergeEffect,
    ProvisionalGap,
    SourceGap,
    Takeover,
)
from feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    PROVISIONAL_BIT,
    OutputPacket,
    message_frames,
)
from tests.simulation.output_journal import OutputJournal
from tests.simulation.toy_feed import BODY_IDENTITY_SIZE, OUT_BODY

Place = tuple[int, int, int]  # channel, epoch, input_seq


class Violation(AssertionError):
    """An invariant does not hold; the text says which and where.

    Attributes:
        invariant: its number in DESIGN section 11, or the name of what else went wrong.
    """

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"invariant {invariant}: {text}")
        self.invariant = invariant


class Input(NamedTuple):
    """A source message of a packet, and what it became."""

    source_stream_id: int
    source_seq: int
    bodies: tuple[bytes, ...]


class PacketReader:
    """Source messages of packets; adapters make equal payloads, so each is taken apart once."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[Input]] = {}

    def inputs(self, packet: OutputPacket) -> list[Input]:
        """Every source message of a packet, in order of `input_seq`."""
        known = self._known.get(packet.payload)
        if known is None:
            known = self._known[packet.payload] = list(_inputs(packet))
        return known


def _inputs(packet: OutputPacket) -> Iterator[Input]:
    frames = message_frames(packet)
    for run in packet.runs:
        base = run.first_message_seq - packet.first_message_seq
        bodies: dict[int, list[bytes]] = {}
        for offset, length in frames[base : base + run.message_count]:
            source_offset = OUTPUT_FRAME.unpack_from(packet.payload, offset)[1]
            bodies.setdefault(source_offset, []).append(packet.payload[offset + OUTPUT_FRAME_SIZE : offset + length])
        for place in range(run.source_count):
            yield Input(run.source_stream_id, run.first_source_seq + place, tuple(bodies.get(place, ())))


def is_application(body: bytes) -> bool:
    """True for the toy feed's own messages, False for tandemfeed's (a declared source gap)."""
    return body[4:6] == b"\x01\x00"


class Truth:
    """What the source sent, and so what must come out.

    Attributes:
        has_holes: messages may be declared lost, which changes every later running sum of their symbol.
        corrupted: symbols whose running sum some adapter's memory spoilt, and per channel how far it was then.
        garbled: source messages of which some adapter sent a copy with another running sum than it made.
    """

    def __init__(self, expected: dict[int, list[list[bytes]]], *, has_holes: bool) -> None:
        self.expected = expected
        self.has_holes = has_holes
        self.corrupted: dict[int, dict[int, int]] = {}
        self.garbled: set[tuple[int, int]] = set()

    def is_right(self, body: bytes, wanted: bytes, *, may_be_garbled: bool = False) -> bool:
        """True if a message is what its source message must become; the sum counts only where it can be known."""
        if body == wanted:
            return True
        if not (self.has_holes or may_be_garbled) and OUT_BODY.unpack(wanted)[4] not in self.corrupted:
            return False
        return body[:BODY_IDENTITY_SIZE] == wanted[:BODY_IDENTITY_SIZE] and body[-1] == wanted[-1]


class ContentChecker:
    """Invariants 4 and 6, over everything any adapter puts on the wire, and the journal's part of 8.

    Args:
        undecided_channels: channels of one source stream, whose numbering needs no decision.
    """

    def __init__(self, reader: PacketReader, truth: Truth, undecided_channels: frozenset[int] = frozenset()) -> None:
        self.where: dict[Place, tuple[int, int]] = {}  # source identities
        self._reader, self._truth, self._undecided = reader, truth, undecided_channels
        self._inputs: dict[Place, tuple[Input, int]] = {}  # with the message_seq before it
        self._decided: set[Place] = set()
        self._seen: dict[Place, tuple[int, bytes]] = {}

    def on_transmit(self, packet: OutputPacket, *, is_active: bool, journal: OutputJournal) -> None:
        """A packet goes out. `journal`: its sender's."""
        if packet.flags & ANNOUNCEMENT_BIT:
            self._announce(packet)
            return
        if not packet.runs or packet.flags & PROVISIONAL_BIT:
            return
        if not journal.holds(packet):
            raise Violation("8", f"adapter {packet.adapter_id} transmits {packet.first_input_seq}, not journalled yet")
        place = (packet.channel_id, packet.epoch, packet.first_input_seq)
        if self._seen.get(place) == (packet.first_message_seq, packet.payload):
            return
        self._seen[place] = packet.first_message_seq, packet.payload
        self.note(packet, is_active=is_active)

    def note(self, packet: OutputPacket, *, is_active: bool) -> None:
        """The packet's source messages are the content of their places. `is_active`: they are decisions."""
        message_seq = packet.first_message_seq
        for input_seq, found in enumerate(self._reader.inputs(packet), packet.first_input_seq):
            self._note((packet.channel_id, packet.epoch, input_seq), (found, message_seq), packet.adapter_id, is_active)
            message_seq += len(found.bodies)

    def on_journalled(self, packet: OutputPacket) -> None:
        """A packet is in a journal, whether or not it will go out: a gap may name it."""
        if packet.runs and not packet.flags & PROVISIONAL_BIT:
            for input_seq, found in enumerate(self._reader.inputs(packet), packet.first_input_seq):
                self.where.setdefault((packet.channel_id, packet.epoch, input_seq), found[:2])

    def _announce(self, packet: OutputPacket) -> None:
        """Decisions without their messages: every adapter that hears of them may transmit them."""
        for input_seq in range(packet.first_input_seq, packet.end_input_seq):
            self._decided.add((packet.channel_id, packet.epoch, input_seq))

    def _note(self, place: Place, found: tuple[Input, int], adapter_id: int, is_active: bool) -> None:
        known = self._inputs.setdefault(place, found)
        self.where[place] = known[0][:2]
        if known != found and not self._is_excused(known, found):
            raise Violation("4", f"(channel, epoch, input_seq) {place} is {known} and {found}")
        if is_active:
            self._decided.add(place)
        elif place not in self._decided and place[0] not in self._undecided:
            raise Violation("6", f"adapter {adapter_id} transmitted {place}, which was not decided")

    def _is_excused(self, known: tuple[Input, int], found: tuple[Input, int]) -> bool:
        if known[1] != found[1] or known[0][:2] != found[0][:2] or len(known[0].bodies) != len(found[0].bodies):
            return False
        pairs = zip(known[0].bodies, found[0].bodies, strict=True)
        return all(one == other or self._are_excused(one, other) for one, other in pairs)

    def _are_excused(self, one: bytes, other: bytes) -> bool:
        if not is_application(one) or not is_application(other):
            return False
        return OUT_BODY.unpack(one)[4] in self._truth.corrupted and one[-1] == other[-1]


class DeliveryChecker:
    """Invariants 1, 2 and 3 at one channel of one client.

    Args:
        is_live: entitled only to what follows the first message of each stream it is given.
        may_gap: False: nothing may be declared missing, because nothing can be.
        is_confirming: it delivers only what two adapters sent, so never what one of them garbled.
    """

    def __init__(
        self,
        name: str,
        streams: Iterable[int],
        reader: PacketReader,
        truth: Truth,
        *,
        is_live: bool,
        may_gap: bool,
        is_confirming: bool = False,
    ) -> None:
        self.name = name
        self.order: list[tuple[int, int]] = []  # source identities, as they were delivered
        self.is_live = is_live
        self._reader, self._truth, self._may_gap = reader, truth, may_gap
        self._is_confirming = is_confirming
        self._counts = {stream: [0] * len(truth.expected[stream]) for stream in streams}
        self._last_source_seq = dict.fromkeys(self._counts, 0)
        self._end_input_seq: dict[int, int] = {}  # by epoch
        self._gaps: list[Gap] = []
        self._lost: set[tuple[int, int]] = set()
        self._has_ended = False

    def on_effect(self, effect: MergeEffect) -> None:
        """The client's merger hands something to the application."""
        if isinstance(effect, Deliver):
            self._deliver(effect)
        elif isinstance(effect, Filled):
            for found in self._reader.inputs(effect.packet):
                self._take(found)
        elif isinstance(effect, Gap):
            self._on_gap(effect)
        elif isinstance(effect, ProvisionalGap):
            self._on_provisional_gap(effect)
        elif isinstance(effect, SourceGap):
            self._on_source_gap(effect)
        elif isinstance(effect, Diverged) and not (self._truth.corrupted or self._truth.garbled):
            raise Violation("4", f"{self.name}: {effect}")
        elif isinstance(effect, Ended):
            self._has_ended = True
        elif isinstance(effect, Takeover):
            self._has_ended = False  # what the old active alone had is decided anew: the end comes again

    def at_end(self, where: dict[Place, tuple[int, int]], channel: int, *, was_cut_short: bool) -> None:
        """Everything was delivered, or named by a gap.

        Args:
            where: the source identity of each (channel, epoch, input_seq) that was ever transmitted.
            was_cut_short: the client said that the last messages may be missing.
        """
        gaps = self._gaps
        excused = {
            identity
            for (known, _, seq), identity in where.items()
            if gaps and known == channel and any(gap.first_input_seq <= seq < gap.end_input_seq for gap in gaps)
        }
        for stream, counts in self._counts.items():
            is_owed = not self.is_live
            had_end = max((source_seq for source_seq, count in enumerate(counts, 1) if count), default=0)
            for source_seq, count in enumerate(counts[:had_end] if was_cut_short else counts, 1):
                wanted = len(self._truth.expected[stream][source_seq - 1])
                is_owed = is_owed or count > 0
                if count == wanted or not is_owed or (stream, source_seq) in self._lost | excused:
                    continue
                raise Violation("1", f"{self.name} got {count} of {wanted} messages of source {stream} {source_seq}")

    def must_have_passed_over_nothing(self, source_count: int) -> None:
        """What the merger counted as missing without a message: it is missing all the same."""
        if source_count and not self._may_gap:
            raise Violation("1", f"{self.name} passed over {source_count} source messages, and no journal lost any")

    # ---- inside ----

    def _deliver(self, effect: Deliver) -> None:
        packet = effect.packet
        if self._has_ended:
            raise Violation("1", f"{self.name} was told the end and then got {packet.first_input_seq}")
        if not packet.flags & PROVISIONAL_BIT:  # a provisional packet's numbers mean nothing to others
            end = self._end_input_seq.get(packet.epoch, 0)
            if packet.first_input_seq < end:
                text = f"{self.name} got {packet.first_input_seq} of epoch {packet.epoch} after {end - 1}"
                raise Violation("3", text)
            self._end_input_seq[packet.epoch] = packet.end_input_seq
        for found in self._reader.inputs(packet):
            stream, source_seq = found.source_stream_id, found.source_seq
            if source_seq <= self._last_source_seq[stream]:
                last = self._last_source_seq[stream]
                raise Violation("2", f"{self.name} got source {stream} {source_seq} after {last}")
            self._last_source_seq[stream] = source_seq
            self._take(found)
            if found.bodies:
                self.order.append((stream, source_seq))

    def _take(self, found: Input) -> None:
        stream, source_seq, bodies = found
        wanted = self._truth.expected[stream][source_seq - 1]
        if self._counts[stream][source_seq - 1] and bodies:
            raise Violation("1", f"{self.name} got source {stream} {source_seq} again")
        may_be_garbled = not self._is_confirming and (stream, source_seq) in self._truth.garbled
        is_right = len(bodies) == len(wanted) and all(
            self._truth.is_right(*pair, may_be_garbled=may_be_garbled) for pair in zip(bodies, wanted, strict=True)
        )
        if not is_right:
            raise Violation("1", f"{self.name} got other content for source {stream} {source_seq}")
        self._counts[stream][source_seq - 1] += len(bodies)

    def _on_gap(self, gap: Gap) -> None:
        if not self._may_gap:
            raise Violation("1", f"{self.name} was told of {gap}, and no journal lost anything")
        self._gaps.append(gap)

    def _on_provisional_gap(self, gap: ProvisionalGap) -> None:
        if not self._may_gap:
            raise Violation("1", f"{self.name} was told of {gap}, and no journal lost anything")
        stream = gap.source_stream_id
        self._lost |= {(stream, source_seq) for source_seq in range(gap.first_source_seq, gap.last_source_seq + 1)}

    def _on_source_gap(self, gap: SourceGap) -> None:
        if not self._truth.has_holes:
            raise Violation("1", f"{self.name} was told of {gap}, and the source lost nothing")
        for source_seq in range(gap.first_source_seq, gap.last_source_seq + 1):
            if self._counts[gap.source_stream_id][source_seq - 1]:
                raise Violation("1", f"{self.name} was told of {gap}, but had got {source_seq}")
            self._lost.add((gap.source_stream_id, source_seq))
        last = self._last_source_seq[gap.source_stream_id]
        self._last_source_seq[gap.source_stream_id] = max(last, gap.last_source_seq)


class TotalOrderChecker:
    """Invariant 3 between clients, where publishing is acknowledged: all deliver in one order, whatever the epochs."""

    @staticmethod
    def at_end(checkers: Iterable[DeliveryChecker]) -> None:
        """Compare what every two clients of a channel were both given."""
        first: DeliveryChecker | None = None
        for other in checkers:
            if first is not None:
                common = set(first.order) & set(other.order)
                ours = [identity for identity in first.order if identity in common]
                theirs = [identity for identity in other.order if identity in common]
                if ours != theirs:
                    place = next(
                        place for place, pair in enumerate(zip(ours, theirs, strict=True)) if len({*pair}) == 2
                    )
                    text = f"{first.name} and {other.name} part at {ours[place]} and {theirs[place]}"
                    raise Violation("3", text)
            first = other
