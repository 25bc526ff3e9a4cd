"""What a client has had of each source stream, and so what of a packet is new: the identity side of the merge.

Invariants: per source stream, delivered `source_seq` only grow; no source message is delivered twice, whatever numbers
it came under. What was passed over is remembered by identity too, so it is `Filled` even under other numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from feedcore.counters import Counter, CounterSet
from feedcore.merge.effects import Deliver, Filled, MergeEffect, SourceGap, SourceRange
from feedcore.range_set import RangeSet
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.packet_parts import part_of, placed_frames
from feedcore.wire.position import FIRST_SEQ, Run


class RememberedGaps(RangeSet):
    """Numbers that were passed over and may still turn up.

    Args:
        range_count_max: beyond it the lowest range is forgotten: a late copy of it is then a mere duplicate.
    """

    __slots__ = ("_range_count_max",)

    def __init__(self, range_count_max: int) -> None:
        super().__init__()
        self._range_count_max = range_count_max

    def add(self, first: int, end: int) -> None:
        """Remember `[first, end)`."""
        super().add(first, end)
        while self.range_count > self._range_count_max:
            self.remove(*next(iter(self)))


class SourceOrder:
    """The source streams of one channel.

    Args:
        missed_count_max: passed-over ranges remembered per source stream.
        is_from_start: the subscription has every source stream from its first message on.

    Attributes:
        next_source_seqs: by source stream, one past the newest `source_seq` that was delivered or passed over.
    """

    def __init__(
        self, channel_id: int, counters: CounterSet, missed_count_max: int, *, is_from_start: bool = False
    ) -> None:
        self.next_source_seqs: dict[int, int] = {}
        self._channel_id = channel_id
        self._counters = counters
        self._missed_count_max = missed_count_max
        self._is_from_start = is_from_start
        self._missed: dict[int, RememberedGaps] = {}  # by source stream
        self._before: dict[int, RememberedGaps] = {}  # by source stream, what precedes its first message taken

    def has_missed(self, stream: int) -> bool:
        """True if source messages of this stream were passed over and have not turned up."""
        return bool(self._missed.get(stream))

    def pass_over(self, stream: int, end_source: int) -> None:
        """Source messages that no adapter had: the stream goes on after them."""
        missed = self._missed.setdefault(stream, RememberedGaps(self._missed_count_max))
        missed.add(self.next_source_seqs[stream], end_source)
        self.next_source_seqs[stream] = end_source

    def take(self, packet: OutputPacket, effects: list[MergeEffect], *, is_late: bool = False) -> None:
        """Hand over, in order, what of a packet is new by its identity or had been passed over.

        Args:
            is_late: the packet lies in a declared gap, so that what is new comes as `Filled` as well.

        Raises:
            PacketRefused: MALFORMED frames; nothing has changed.
        """
        ends: dict[int, int] = {}
        for run in packet.runs:
            stream = run.source_stream_id
            expected = ends.get(stream) or self.next_source_seqs.get(stream, run.first_source_seq)
            if run.first_source_seq != expected or run.is_source_gap:
                self._hand_over(packet, self._pieces_of(packet, is_late=is_late), effects)
                return
            ends[stream] = run.first_source_seq + run.source_count
        for run in packet.runs:
            self._begin(run)
        self.next_source_seqs.update(ends)
        self._counters.counts[Counter.MERGE_DELIVERED] += 0 if is_late else packet.message_count
        effects.append(Filled(packet) if is_late else Deliver(packet))

    # ---- inside ----

    def _begin(self, run: Run) -> None:
        """If these are the first messages of a source stream: those before them may lie in a declared gap."""
        stream = run.source_stream_id
        if stream in self.next_source_seqs:
            return
        self.next_source_seqs[stream] = run.first_source_seq
        if run.first_source_seq > FIRST_SEQ:
            before = RememberedGaps(self._missed_count_max)
            before.add(FIRST_SEQ, run.first_source_seq)
            (self._missed if self._is_from_start else self._before)[stream] = before

    def _pieces_of(self, packet: OutputPacket, *, is_late: bool) -> list[_Piece]:
        """What to hand over of a packet that is known in part, or a source gap, or follows what was passed over."""
        placed_frames(packet)  # refuses what cannot be cut before anything changes
        pieces: list[_Piece] = []
        for run in packet.runs:
            stream = run.source_stream_id
            self._begin(run)
            next_source = self.next_source_seqs[stream]
            new_from = min(max(next_source, run.first_source_seq), run.end_source_seq)
            for known in (self._missed, self._before) if is_late else (self._missed,):
                if new_from > run.first_source_seq and stream in known:
                    taken = known[stream].take(run.first_source_seq, new_from)
                    pieces += (_piece(run, first, end, is_fill=True) for first, end in taken)
            if run.end_source_seq > next_source:
                if run.first_source_seq > next_source:
                    self.pass_over(stream, run.first_source_seq)
                pieces.append(_piece(run, new_from, run.end_source_seq, is_fill=is_late))
                self.next_source_seqs[stream] = run.end_source_seq
        return pieces

    def _hand_over(self, packet: OutputPacket, pieces: list[_Piece], effects: list[MergeEffect]) -> None:
        counts = self._counters.counts
        counts[Counter.MERGE_RENUMBERED] += sum(run.message_count for run in packet.runs if not run.is_source_gap)
        for piece in _joined(pieces):
            if piece.lost is not None:
                stream, first, end = piece.lost
                effects.append(SourceGap(self._channel_id, stream, first, end - 1))
                continue
            part = part_of(packet, piece.first_input_seq, piece.end_input_seq)
            counts[Counter.MERGE_RENUMBERED] -= part.message_count
            counts[Counter.MERGE_DELIVERED] += 0 if piece.is_fill else part.message_count
            effects.append(Filled(part) if piece.is_fill else Deliver(part))


class _Piece(NamedTuple):
    """Consecutive source messages of a packet on their way to the application.

    Attributes:
        is_fill: they had been passed over.
        lost: if the source declares them lost, which they are.
    """

    first_input_seq: int
    end_input_seq: int
    is_fill: bool
    lost: SourceRange | None


def _piece(run: Run, first_source: int, end_source: int, *, is_fill: bool) -> _Piece:
    to_input = run.first_input_seq - run.first_source_seq
    lost = (run.source_stream_id, first_source, end_source) if run.is_source_gap else None
    return _Piece(first_source + to_input, end_source + to_input, is_fill, lost)


def _joined(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Pieces that continue each other go together: cutting one is work per message of the packet."""
    joined: list[_Piece] = []
    for piece in pieces:
        if joined and piece.lost is None and joined[-1][1:] == (piece.first_input_seq, piece.is_fill, None):
            joined[-1] = joined[-1]._replace(end_input_seq=piece.end_input_seq)
        else:
            joined.append(piece)
    return joined
