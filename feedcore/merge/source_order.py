"""What a client has had of each source stream, and so what of a packet is new: the identity side of the merge.

Invariants: per source stream, delivered `source_seq` only grow; no source message is delivered twice, whatever numbers
it came under. What was passed over is remembered by identity too, so it is `Filled` even under other numbers.
"""

from __future__ import annotations

from feedcore.counters import Counter, CounterSet
from feedcore.merge.effects import Deliver, Filled, MergeEffect, SourceGap
from feedcore.merge.remembered_gaps import RememberedGaps
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.packet_parts import message_input_seqs, part_of
from feedcore.wire.position import FIRST_SEQ, Run


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
        """If these are the first messages of a source stream: those before them may lie in a declared gap."""
        stream = run.source_stream_id
        if stream in self.next_source_seqs:
            return
        self.next_source_seqs[stream] = run.first_source_seq
        if run.first_source_seq > FIRST_SEQ:
            before = RememberedGaps(self._missed_count_max)
            before.add(FIRST_SEQ, run.first_source_seq)
            (self._missed if self._is_from_start else self._before)[stream] = before

    def _take_pieces(self, packet: OutputPacket, effects: list[MergeEffect], *, is_late: bool) -> None:
        """Some of the packet is known, or a source gap, or what precedes it in its source stream was passed over."""
        message_input_seqs(packet)  # refuses what cannot be cut before anything changes
        pieces = _Pieces(packet, effects)
        for run in packet.runs:
            stream, to_input = run.source_stream_id, run.first_input_seq - run.first_source_seq
            self._begin(run)
            next_source = self.next_source_seqs[stream]
            new_from = min(max(next_source, run.first_source_seq), run.end_source_seq)
            for known in (self._missed, self._before) if is_late else (self._missed,):
                if new_from > run.first_source_seq and stream in known:
                    for first, end in known[stream].take(run.first_source_seq, new_from):
                        self._hand_over(pieces, run, first + to_input, end + to_input, is_fill=True)
            if run.end_source_seq > next_source:
                if run.first_source_seq > next_source:
                    self.pass_over(stream, run.first_source_seq)
                self._hand_over(pieces, run, new_from + to_input, run.end_input_seq, is_fill=is_late)
                self.next_source_seqs[stream] = run.end_source_seq
        pieces.flush()
        self._counters.counts[Counter.MERGE_DELIVERED] += pieces.delivered_count
        in_gaps = sum(run.message_count for run in packet.runs if run.is_source_gap)
        handed_over = pieces.delivered_count + pieces.filled_count + in_gaps
        self._counters.counts[Counter.MERGE_RENUMBERED] += packet.message_count - handed_over

    def _hand_over(self, pieces: _Pieces, run: Run, first_input: int, end_input: int, *, is_fill: bool) -> None:
        if run.is_source_gap:
            first_source = run.first_source_seq + first_input - run.first_input_seq
            last_source = first_source + end_input - first_input - 1
            pieces.interrupt(SourceGap(self._channel_id, run.source_stream_id, first_source, last_source))
        else:
            pieces.add(first_input, end_input, is_fill=is_fill)


class _Pieces:
    """Parts of a packet on their way to the application: consecutive ones go together."""

    def __init__(self, packet: OutputPacket, effects: list[MergeEffect]) -> None:
        self.delivered_count = 0
        self.filled_count = 0
        self._packet = packet
        self._effects = effects
        self._first = self._end = 0
        self._is_fill = False

    def add(self, first_input_seq: int, end_input_seq: int, *, is_fill: bool) -> None:
        if (first_input_seq, is_fill) != (self._end, self._is_fill):
            self.flush()
            self._first, self._is_fill = first_input_seq, is_fill
        self._end = end_input_seq

    def interrupt(self, event: SourceGap) -> None:
        self.flush()
        self._effects.append(event)

    def flush(self) -> None:
        if self._first == self._end:
            return
        part = part_of(self._packet, self._first, self._end)
        self._first = self._end = 0
        if self._is_fill:
            self.filled_count += part.message_count
            self._effects.append(Filled(part))
        else:
            self.delivered_count += part.message_count
            self._effects.append(Deliver(part))
