"""What a client has received of each source stream, and so which part of a packet is new: the merge by identity.

Invariants: per source stream, delivered `source_seq` only grow; no source message is delivered twice, whatever numbers
it had. Skipped messages are remembered by identity too, so they are `Filled` even under other numbers.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TypeAlias

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.effects import Deliver, Filled, MergeEffect, SourceGap
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_parts import part_of, placed_frames
from tandemfeed.feedcore.wire.position import FIRST_SEQ, Run

Piece: TypeAlias = tuple[int, int, type[Deliver] | type[Filled] | SourceGap]  # first input_seq, end, what it becomes


class RememberedGaps(RangeSet):
    """Numbers that were skipped and may still arrive.

    Args:
        range_count_max: beyond it the lowest range is forgotten, and late copies of it are dropped as duplicates.
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
        missed_count_max: skipped ranges remembered per source stream.
        is_from_start: the subscription includes every source stream from its first message on.

    Attributes:
        next_source_seqs: by source stream, one past the newest `source_seq` that was delivered or skipped.
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
        self._before: dict[int, RememberedGaps] = {}  # by source stream, what precedes the first message taken

    def has_missed(self, stream: int) -> bool:
        """True if source messages of this stream were skipped and have not arrived."""
        return bool(self._missed.get(stream))

    def pass_over(self, stream: int, end_source: int) -> None:
        """Skip source messages that no adapter had; the stream continues after them."""
        missed = self._missed.setdefault(stream, RememberedGaps(self._missed_count_max))
        missed.add(self.next_source_seqs[stream], end_source)
        self.next_source_seqs[stream] = end_source

    def take(self, packet: OutputPacket, effects: list[MergeEffect], *, is_late: bool = False) -> None:
        """Deliver, in order, the parts of a packet that are new by identity or had been skipped.

        Args:
            is_late: the packet lies in a declared gap, so new messages in it are `Filled` as well.

        Raises:
            PacketRefused: MALFORMED frames; nothing has changed.
        """
        ends: dict[int, int] = {}
        for run in packet.runs:
            stream = run.source_stream_id
            expected = ends.get(stream) or self.next_source_seqs.get(stream, run.first_source_seq)
            if run.first_source_seq != expected or run.is_source_gap:
                self._take_pieces(packet, effects, is_late=is_late)
                return
            ends[stream] = run.first_source_seq + run.source_count
        for run in packet.runs:
            self._begin(run)
        self.next_source_seqs.update(ends)
        self._counters.counts[Counter.MERGE_DELIVERED] += 0 if is_late else packet.message_count
        effects.append(Filled(packet) if is_late else Deliver(packet))

    # ---- inside ----

    def _begin(self, run: Run) -> None:
        """Begin a source stream that is new to the client; earlier messages of it may lie in a declared gap."""
        stream = run.source_stream_id
        if stream in self.next_source_seqs:
            return
        self.next_source_seqs[stream] = run.first_source_seq
        before = RememberedGaps(self._missed_count_max)
        before.add(FIRST_SEQ, run.first_source_seq)
        (self._missed if self._is_from_start else self._before)[stream] = before

    def _take_pieces(self, packet: OutputPacket, effects: list[MergeEffect], *, is_late: bool) -> None:
        """Take a packet that is known in part, has a source gap, or follows a gap in one of its source streams."""
        placed_frames(packet)  # refuses a packet that cannot be cut, before anything changes
        new, filling = RangeSet(), RangeSet()  # of input_seq; adjoining parts are delivered together
        lost: list[Piece] = []
        for run in packet.runs:
            stream, to_input = run.source_stream_id, run.first_input_seq - run.first_source_seq
            self._begin(run)
            next_source = self.next_source_seqs[stream]
            new_from = min(max(next_source, run.first_source_seq), run.end_source_seq)
            ranges: list[tuple[int, int, bool]] = []
            for known in (self._missed, self._before) if is_late else (self._missed,):
                if stream in known:
                    ranges += ((*each, True) for each in known[stream].take(run.first_source_seq, new_from))
            if run.end_source_seq > next_source:
                if run.first_source_seq > next_source:
                    self.pass_over(stream, run.first_source_seq)
                ranges.append((new_from, run.end_source_seq, is_late))
                self.next_source_seqs[stream] = run.end_source_seq
            for first, end, is_fill in ranges:
                if run.is_source_gap:
                    lost.append((first + to_input, end + to_input, SourceGap(self._channel_id, stream, first, end - 1)))
                else:
                    (filling if is_fill else new).add(first + to_input, end + to_input)
        dropped_count = sum(run.message_count for run in packet.runs if not run.is_source_gap)
        pieces: list[Piece] = [*((*each, Deliver) for each in new), *((*each, Filled) for each in filling), *lost]
        for first, end, event in sorted(pieces, key=itemgetter(0)):
            if isinstance(event, SourceGap):
                effects.append(event)
                continue
            part = part_of(packet, first, end)
            effects.append(event(part))
            self._counters.counts[Counter.MERGE_DELIVERED] += part.message_count if event is Deliver else 0
            dropped_count -= part.message_count
        self._counters.counts[Counter.MERGE_RENUMBERED] += dropped_count
