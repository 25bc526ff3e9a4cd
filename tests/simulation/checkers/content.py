"""Checkers of the invariants in docs/protocol.md clause 9.

A checker knows nothing about the cores. It sees what goes over the wire and what applications receive, and compares
both with what the source sent. What it cannot check step by step it checks at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tandemfeed.feedcore.merge.effects import (
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
from tandemfeed.feedcore.wire.output_packet import (
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
    """An invariant was violated; the text says which one and where.

    Attributes:
        invariant: its number in docs/protocol.md clause 9, or the name of another check.
    """

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"invariant {invariant}: {text}")
        self.invariant = invariant


class Input(NamedTuple):
    """A source message in a packet, and the bodies it was converted to."""

    source_stream_id: int
    source_seq: int
    bodies: tuple[bytes, ...]


class PacketReader:
    """Reads the source messages of packets. Adapters make equal payloads, so each is parsed only once."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[Input]] = {}

    def inputs(self, packet: OutputPacket) -> list[Input]:
        """The source messages of a packet, in order of `input_seq`."""
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
    """True for messages of the toy feed, False for those of tandemfeed (a declared source gap)."""
    return body[4:6] == b"\x01\x00"


class Truth:
    """The expected output, derived from what the source sent.

    Attributes:
        expected: by converter table and source stream, the bodies made of each source message.
        has_losses: messages may be declared lost, which changes all later running sums of their symbols.
        corrupted: symbols whose running sum was corrupted in an adapter, with the adapter's position per channel.
        garbled: source messages of which an adapter sent a copy with a wrong running sum.
    """

    def __init__(self, expected: dict[tuple[int, int], list[list[bytes]]], *, has_losses: bool) -> None:
        self.expected = expected
        self.has_losses = has_losses
        self.corrupted: dict[int, dict[int, int]] = {}
        self.garbled: set[tuple[int, int]] = set()

    def is_right(self, body: bytes, wanted: bytes, *, may_be_garbled: bool = False) -> bool:
        """True if a body is the expected one; its sum is compared only if it can be known."""
        if body == wanted:
            return True
        if not (self.has_losses or may_be_garbled) and OUT_BODY.unpack(wanted)[4] not in self.corrupted:
            return False
        return body[:BODY_IDENTITY_SIZE] == wanted[:BODY_IDENTITY_SIZE] and body[-1] == wanted[-1]


class ContentChecker:
    """Checks invariants 4 and 6 for everything that adapters transmit, and the journal's part of invariant 8.

    Args:
        undecided_channels: channels with one source stream, whose numbering needs no decisions.
    """

    def __init__(self, reader: PacketReader, truth: Truth, undecided_channels: frozenset[int] = frozenset()) -> None:
        self.where: dict[Place, tuple[int, int]] = {}  # source identities
        self._reader, self._truth, self._undecided = reader, truth, undecided_channels
        self._inputs: dict[Place, tuple[Input, int]] = {}  # with the message_seq of its first body
        self._decided: set[Place] = set()
        self._seen: dict[Place, tuple[int, bytes]] = {}

    def on_transmit(self, packet: OutputPacket, *, is_active: bool, journal: OutputJournal) -> None:
        """An adapter transmits a packet; `journal` is its journal."""
        if packet.flags & ANNOUNCEMENT_BIT:
            self._announce(packet)
            return
        if not packet.runs or packet.flags & PROVISIONAL_BIT:
            return
        if not journal.holds(packet):
            raise Violation("8", f"adapter {packet.adapter_id} transmits {packet.first_input_seq} before journaling it")
        place = (packet.channel_id, packet.epoch, packet.first_input_seq)
        if self._seen.get(place) == (packet.first_message_seq, packet.payload):
            return
        self._seen[place] = packet.first_message_seq, packet.payload
        self.note(packet, is_active=is_active)

    def note(self, packet: OutputPacket, *, is_active: bool) -> None:
        """Note the content of each place in a packet; with `is_active` they are decisions."""
        message_seq = packet.first_message_seq
        for input_seq, found in enumerate(self._reader.inputs(packet), packet.first_input_seq):
            self._note((packet.channel_id, packet.epoch, input_seq), (found, message_seq), packet.adapter_id, is_active)
            message_seq += len(found.bodies)

    def on_journalled(self, packet: OutputPacket) -> None:
        """An adapter journals a packet; a gap may name it even if it is never transmitted."""
        if packet.runs and not packet.flags & PROVISIONAL_BIT:
            for input_seq, found in enumerate(self._reader.inputs(packet), packet.first_input_seq):
                self.where.setdefault((packet.channel_id, packet.epoch, input_seq), found[:2])

    def _announce(self, packet: OutputPacket) -> None:
        """Note decisions without their messages; every adapter may now transmit them."""
        for input_seq in range(packet.first_input_seq, packet.end_input_seq):
            self._decided.add((packet.channel_id, packet.epoch, input_seq))

    def _note(self, place: Place, found: tuple[Input, int], adapter_id: int, is_active: bool) -> None:
        known = self._inputs.setdefault(place, found)
        self.where[place] = known[0][:2]
        if known != found and not self._is_excused(known, found):
            raise Violation("4", f"(channel, epoch, input_seq) {place} has two contents: {known} and {found}")
        if is_active:
            self._decided.add(place)
        elif place not in self._decided and place[0] not in self._undecided:
            raise Violation("6", f"adapter {adapter_id} transmitted {place} before it was decided")

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
    """Checks invariants 1, 2 and 3 for one channel of one client.

    Args:
        table: the channel's converter table.
        is_live: of each stream, the client must get only the messages from the first one that it receives.
        may_have_gaps: gaps are allowed, because messages may really be missing.
        is_confirming: the client delivers only messages that two adapters sent, and therefore no garbled ones.
    """

    def __init__(
        self,
        name: str,
        streams: Iterable[int],
        reader: PacketReader,
        truth: Truth,
        *,
        table: int,
        is_live: bool,
        may_have_gaps: bool,
        is_confirming: bool = False,
    ) -> None:
        self.name = name
        self.order: list[tuple[int, int]] = []  # source identities in order of delivery
        self.is_live = is_live
        self._reader, self._truth, self._may_have_gaps = reader, truth, may_have_gaps
        self._is_confirming = is_confirming
        self._expected = {stream: truth.expected[table, stream] for stream in streams}
        self._counts = {stream: [0] * len(expected) for stream, expected in self._expected.items()}
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
            self._has_ended = False  # messages that only the old active had, and the end, may follow again

    def at_end(self, where: dict[Place, tuple[int, int]], channel: int, *, was_cut_short: bool) -> None:
        """Check that every message was delivered or named by a gap.

        Args:
            where: the source identity of each (channel, epoch, input_seq) that was transmitted or journaled.
            was_cut_short: the client reported that the last messages may be missing.
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
                wanted = len(self._expected[stream][source_seq - 1])
                is_owed = is_owed or count > 0
                if count == wanted or not is_owed or (stream, source_seq) in self._lost | excused:
                    continue
                raise Violation("1", f"{self.name} got {count} of {wanted} messages of source {stream} {source_seq}")

    def check_silent_gaps(self, source_count: int) -> None:
        """Check the number of source messages that the merger skipped because they have no application message."""
        if source_count and not self._may_have_gaps:
            raise Violation("1", f"{self.name} skipped {source_count} source messages, although no journal lost any")

    # ---- inside ----

    def _deliver(self, effect: Deliver) -> None:
        packet = effect.packet
        if self._has_ended:
            raise Violation("1", f"{self.name} got {packet.first_input_seq} after the end")
        if not packet.flags & PROVISIONAL_BIT:  # numbers of provisional packets have no common order
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
        wanted = self._expected[stream][source_seq - 1]
        if self._counts[stream][source_seq - 1] and bodies:
            raise Violation("1", f"{self.name} got source {stream} {source_seq} twice")
        may_be_garbled = not self._is_confirming and (stream, source_seq) in self._truth.garbled
        is_right = len(bodies) == len(wanted) and all(
            self._truth.is_right(*pair, may_be_garbled=may_be_garbled) for pair in zip(bodies, wanted, strict=True)
        )
        if not is_right:
            raise Violation("1", f"{self.name} got wrong content for source {stream} {source_seq}")
        self._counts[stream][source_seq - 1] += len(bodies)

    def _on_gap(self, gap: Gap) -> None:
        if not self._may_have_gaps:
            raise Violation("1", f"{self.name} got {gap}, although no journal lost anything")
        self._gaps.append(gap)

    def _on_provisional_gap(self, gap: ProvisionalGap) -> None:
        if not self._may_have_gaps:
            raise Violation("1", f"{self.name} got {gap}, although no journal lost anything")
        stream = gap.source_stream_id
        self._lost |= {(stream, source_seq) for source_seq in range(gap.first_source_seq, gap.last_source_seq + 1)}

    def _on_source_gap(self, gap: SourceGap) -> None:
        if not self._truth.has_losses:
            raise Violation("1", f"{self.name} got {gap}, although the source lost nothing")
        for source_seq in range(gap.first_source_seq, gap.last_source_seq + 1):
            if self._counts[gap.source_stream_id][source_seq - 1]:
                raise Violation("1", f"{self.name} got {gap}, although it had received {source_seq}")
            self._lost.add((gap.source_stream_id, source_seq))
        last = self._last_source_seq[gap.source_stream_id]
        self._last_source_seq[gap.source_stream_id] = max(last, gap.last_source_seq)


class TotalOrderChecker:
    """Checks invariant 3 between clients with acked publishing: all deliver in one order, across epochs."""

    @staticmethod
    def at_end(checkers: Iterable[DeliveryChecker]) -> None:
        """Compare the order of the messages that two clients of a channel both received, for successive clients."""
        first: DeliveryChecker | None = None
        for other in checkers:
            if first is not None:
                common = set(first.order) & set(other.order)
                one = [identity for identity in first.order if identity in common]
                two = [identity for identity in other.order if identity in common]
                if one != two:
                    place = next(place for place, pair in enumerate(zip(one, two, strict=True)) if len({*pair}) == 2)
                    text = f"{first.name} and {other.name} deliver in different order: {one[place]}, {two[place]}"
                    raise Violation("3", text)
            first = other
