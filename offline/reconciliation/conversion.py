"""Converts the source journal again, in the order that was decided, and compares it with what adapters journaled.

The decisions of all journals together give the order: an adapter that was away for a while has only a part of them.
The conversion state of a channel depends on every decision before, so the comparison ends where no journal has the next
one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE, decode_output_packet, message_frames
from tandemfeed.offline.reconciliation.output_copy import Packet, Survey, packets
from tandemfeed.offline.reconciliation.source_cursor import SourceCursor

DIFFERENCES_SHOWN = 100
OUT_SIZE = 1 << 20  # more than the messages of a source packet

Bodies = tuple[bytes, ...]  # the messages made of one source message, without their frame headers


class Difference(NamedTuple):
    """A source message of which an adapter's journal has something else than the conversion gives."""

    journal: Path
    channel_id: int
    source_stream_id: int
    source_seq: int
    text: str

    def __str__(self) -> str:
        return (
            f"{self.journal}: channel {self.channel_id}, source stream {self.source_stream_id}, source_seq "
            f"{self.source_seq:,}: {self.text}"
        )


@dataclass(slots=True)
class ConversionResult:
    """What was compared.

    Attributes:
        compared_count: by journal, source messages whose output was compared.
        different_count: how many of them differ; `differences` has the first of these.
        ends: where the comparison of a channel had to end, as sentences.
    """

    compared_count: dict[Path, int] = field(default_factory=dict)
    different_count: dict[Path, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def problems(self) -> Iterator[str]:
        """What is wrong, as sentences."""
        yield from map(str, self.differences)
        if more := sum(self.different_count.values()) - len(self.differences):
            yield f"{more:,} more source messages have other messages than the conversion gives"
        yield from self.ends


class Piece(NamedTuple):
    """A decided run as one journal has it; `outputs` has an element for each source message."""

    first_input: int
    source_stream_id: int
    first_source_seq: int
    outputs: tuple[Bodies, ...]
    is_gap: bool
    sent_at_ns: int

    @property
    def end_input(self) -> int:
        """One past its last `input_seq`."""
        return self.first_input + len(self.outputs)

    def part(self, first: int, end: int) -> Piece:
        """What it has of a range of `input_seq`."""
        skipped = first - self.first_input
        return self._replace(
            first_input=first,
            first_source_seq=self.first_source_seq + skipped,
            outputs=self.outputs[skipped : end - self.first_input],
        )


class Conversion:
    """Compares one session.

    Args:
        model_xml: the message model.
        epoch_starts: of all journals.
    """

    def __init__(
        self,
        table: ConverterTable,
        model_xml: bytes,
        source_journal: Path,
        surveys: Sequence[Survey],
        epoch_starts: Mapping[tuple[int, int], int],
    ) -> None:
        self._table, self._decoder, self._source_journal = table, Decoder(model_xml), source_journal
        self._surveys, self._epoch_starts = surveys, epoch_starts
        self.result = ConversionResult()

    def compare(self, channel_ids: Collection[int] | None = None) -> ConversionResult:
        """Convert and compare these channels (None: all).

        Raises:
            SourceJournalError: the source journal lacks what adapters took from it.
        """
        for channel_id in sorted({channel_id for channel_id, _ in self._epoch_starts}):
            if channel_ids is None or channel_id in channel_ids:
                self._compare_channel(channel_id)
        return self.result

    def _compare_channel(self, channel_id: int) -> None:
        converter, cursor = CompiledConverter(self._table), SourceCursor(self._source_journal)
        tails = [_Tail(each.journal, pieces(packets(each, self._epoch_starts, channel_id))) for each in self._surveys]
        next_input = 1
        while tails := [each for each in tails if each.advance(next_input)]:
            having = [each for each in tails if each.piece.first_input <= next_input]
            later = [each.piece.first_input for each in tails if each.piece.first_input > next_input]
            if not having:
                inputs = f"inputs {next_input:,}–{min(later) - 1:,}"
                self.result.ends.append(
                    f"channel {channel_id}: no journal has the decisions on {inputs}, so the conversion is compared "
                    "only up to there; give the journals of all adapters"
                )
                return
            end = min([each.piece.end_input for each in having] + later)
            first = having[0].piece.part(next_input, end)
            expected = None if first.is_gap else self._converted(converter, cursor, first)
            for each in having:
                self._compare_piece(channel_id, each.journal, each.piece.part(next_input, end), first, expected)
            next_input = end

    def _converted(self, converter: CompiledConverter, cursor: SourceCursor, piece: Piece) -> tuple[Bodies, ...]:
        outputs: list[Bodies] = []
        out = np.zeros(OUT_SIZE, np.uint8)
        for datagram, skip, count in cursor.take(piece.source_stream_id, piece.first_source_seq, len(piece.outputs)):
            done = 0
            while done < count:
                packet = cursor.sent_at(datagram, piece.sent_at_ns)
                result = converter.convert(packet, skip + done, count - done, out, 0, OUT_SIZE)
                frames = out[: result.end].tobytes()
                outputs += by_source(frames, _places(frames), result.source_count)
                done += result.source_count
        return tuple(outputs)

    def _compare_piece(
        self, channel_id: int, journal: Path, found: Piece, first: Piece, expected: tuple[Bodies, ...] | None
    ) -> None:
        result, count = self.result, len(found.outputs)
        is_same = found.source_stream_id == first.source_stream_id and found.is_gap == first.is_gap
        if not is_same or found.first_source_seq != first.first_source_seq:
            text = f"input {found.first_input:,} was decided as another source message than in other journals"
            self._add(journal, channel_id, found, 0, text)
            return
        if expected is None:  # declared lost, so nothing was converted
            return
        result.compared_count[journal] = result.compared_count.get(journal, 0) + count
        if found.outputs == expected:
            return
        for place, (has, wanted) in enumerate(zip(found.outputs, expected, strict=True)):
            if has != wanted:
                self._add(journal, channel_id, found, place, self._described(has, wanted))

    def _add(self, journal: Path, channel_id: int, piece: Piece, place: int, text: str) -> None:
        self.result.different_count[journal] = self.result.different_count.get(journal, 0) + 1
        if len(self.result.differences) < DIFFERENCES_SHOWN:
            source_seq = piece.first_source_seq + place
            self.result.differences.append(Difference(journal, channel_id, piece.source_stream_id, source_seq, text))

    def _described(self, has: Bodies, wanted: Bodies) -> str:
        if len(has) != len(wanted):
            return f"the journal has {len(has)} messages, the conversion gives {len(wanted)}"
        texts = []
        for one, other in zip(has, wanted, strict=True):
            (name, found), (expected_name, expected) = self._fields(one), self._fields(other)
            if name != expected_name:
                texts.append(f"the journal has {name}, the conversion gives {expected_name}")
                continue
            texts += [
                f"{name}.{each}: the journal has {found[each]!r}, the conversion gives {expected[each]!r}"
                for each in expected
                if found[each] != expected[each]
            ]
        return "; ".join(texts) or "only bytes that belong to no field differ"

    def _fields(self, body: bytes) -> tuple[str, dict[str, object]]:
        frame = OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(body), 0) + body
        for name, values in self._decoder.messages(frame):
            return name, values
        return "a message that the message model does not have", {}


class _Tail:
    """The pieces of one journal that are still to come."""

    def __init__(self, journal: Path, found: Iterator[Piece]) -> None:
        self.journal, self._found = journal, found
        self.piece = Piece(0, 0, 0, (), is_gap=False, sent_at_ns=0)

    def advance(self, next_input: int) -> bool:
        """Pass over what ends before; False if nothing is left."""
        while self.piece.end_input <= next_input:
            following = next(self._found, None)
            if following is None:
                return False
            self.piece = following
        return True


def pieces(found: Iterator[Packet]) -> Iterator[Piece]:
    """The runs of packets, without what newer epochs replaced."""
    for data, limit_input in found:
        packet = decode_output_packet(data)
        places, done = message_frames(packet), 0
        for run in packet.runs:
            frames = places[done : done + run.message_count]
            done += run.message_count
            if run.is_source_gap:
                outputs: tuple[Bodies, ...] = ((),) * run.source_count
            else:
                outputs = tuple(by_source(packet.payload, frames, run.source_count))
            kept = outputs[: max(0, limit_input - run.first_input_seq)]
            if kept:
                where = run.first_input_seq, run.source_stream_id, run.first_source_seq
                yield Piece(*where, kept, run.is_source_gap, packet.source_sent_at_ns)


def by_source(data: bytes, places: Sequence[tuple[int, int]], source_count: int) -> list[Bodies]:
    """The messages in frames, by the source message that they were made of."""
    outputs: list[Bodies] = [()] * source_count
    for offset, size in places:
        _, source_offset = OUTPUT_FRAME.unpack_from(data, offset)
        outputs[source_offset] += (data[offset + OUTPUT_FRAME_SIZE : offset + size],)
    return outputs


def _places(frames: bytes) -> list[tuple[int, int]]:
    places, at = [], 0
    while at < len(frames):
        size, _ = OUTPUT_FRAME.unpack_from(frames, at)
        places.append((at, size))
        at += size
    return places
