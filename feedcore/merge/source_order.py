"""What a client has had of each source stream, and so what of a packet is new: the identity side of the merge.

Invariants: per source stream, delivered `source_seq` only grow; no source message is delivered twice, whatever numbers
it came under. What was declared missing is remembered by identity too, so it is `Filled` even under other numbers.
"""

from __future__ import annotations

from feedcore.counters import Counter, CounterSet
from feedcore.merge.effects import Deliver, Filled, MergeEffect, SourceGap
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.packet_parts import source_seqs
from feedcore.wire.position import Run


class SourceOrder:
    """The source streams of one channel.

    Args:
        missed_count_max: missed ranges remembered per source stream.

    Attributes:
        next_source_seqs: by source stream, one past the newest `source_seq` that was delivered or passed over.
        suspects: source streams whose next jump is loss, because a gap has been declared; their packets go by `take`.
    """

    def __init__(self, channel_id: int, counters: CounterSet, missed_count_max: int) -> None:
        self.next_source_seqs: dict[int, int] = {}
        self.suspects: set[int] = set()
        self._channel_id = channel_id
        self._counters = counters
        self._missed_count_max = missed_count_max
        self._missed: dict[int, list[tuple[int, int]]] = {}  # by source stream: (first, end)

    def gap_declared(self) -> None:
        """Messages were passed over: where each stream goes on tells which of its source messages these were."""
        self.suspects.update(self.next_source_seqs)

    def has_missed(self, stream: int) -> bool:
        """True if source messages of this stream were passed over and have not turned up."""
        return stream in self._missed

    def pass_over(self, stream: int, end_source: int) -> None:
        """Source messages that nobody had: the stream goes on behind them."""
        self._remember_missed(stream, self.next_source_seqs[stream], end_source)
        self.next_source_seqs[stream] = end_source

    def take(self, packet: OutputPacket, first_seq: int, end_seq: int, effects: list[MergeEffect]) -> None:
        """Deliver of `message_seq` first … end - 1 what is new by its identity, in order.

        Raises:
            PacketRefused: MALFORMED frames; nothing has changed.
        """
        sources: list[int] = []
        if any(self._needs_sources(run, first_seq, end_seq) for run in packet.runs):
            sources = source_seqs(packet)
        for run in packet.runs:
            start, stop = max(first_seq, run.first_message_seq), min(end_seq, run.end_message_seq)
            if start < stop:
                self._take_run(packet, run, start, stop, sources, effects)
            elif run.message_count == 0 and run.first_message_seq <= end_seq:
                self._advance(run.source_stream_id, run.first_source_seq, run.end_source_seq)

    def take_run(self, packet: OutputPacket, run: Run, effects: list[MergeEffect]) -> None:
        """Deliver what is new in one whole run.

        Raises:
            PacketRefused: MALFORMED frames; nothing has changed.
        """
        is_known = run.message_count and run.first_source_seq < self.next_source_seqs.get(run.source_stream_id, 0)
        sources = source_seqs(packet) if is_known else []
        self._take_run(packet, run, run.first_message_seq, run.end_message_seq, sources, effects)

    def consume(self, packet: OutputPacket, effects: list[MergeEffect]) -> None:
        """Source messages that became no message: told once, for those who keep count. Losing such a packet is no
        loss, so nobody asks for it again."""
        news = False
        for run in packet.runs:
            if run.end_source_seq > self.next_source_seqs.get(run.source_stream_id, 0):
                self._advance(run.source_stream_id, run.first_source_seq, run.end_source_seq)
                news = True
        if news:
            effects.append(Deliver(packet, 0, 0, packet.first_message_seq))

    def fill(self, packet: OutputPacket, first_seq: int, end_seq: int, effects: list[MergeEffect]) -> None:
        """`message_seq` first … end - 1 had been declared missing: hand over what of it was never delivered.

        Raises:
            PacketRefused: MALFORMED frames; nothing has changed.
        """
        sources = source_seqs(packet)
        for run in packet.runs:
            start, stop = max(first_seq, run.first_message_seq), min(end_seq, run.end_message_seq)
            if start >= stop:
                continue
            stream = run.source_stream_id
            next_source = self.next_source_seqs.get(stream, 0)
            base = packet.first_message_seq
            first_source = run.first_source_seq if start == run.first_message_seq else sources[start - base]
            end_source = run.end_source_seq if stop == run.end_message_seq else sources[stop - base - 1] + 1
            if first_source >= next_source:  # nothing behind the gap has come yet
                self._advance(stream, first_source, end_source)
                if stream in self.next_source_seqs:
                    self.suspects.add(stream)  # the gap may go on behind these
                self._fill_part(packet, run, start - base, stop - base, first_source, end_source, effects)
            else:
                self._fill_missed(packet, run, start - base, stop - base, sources, effects)

    # ---- inside ----

    def _needs_sources(self, run: Run, first_seq: int, end_seq: int) -> bool:
        if not run.message_count or run.end_message_seq <= first_seq or run.first_message_seq >= end_seq:
            return False
        is_cut = run.first_message_seq < first_seq or run.end_message_seq > end_seq
        return is_cut or run.first_source_seq < self.next_source_seqs.get(run.source_stream_id, 0)

    def _take_run(
        self, packet: OutputPacket, run: Run, start: int, stop: int, sources: list[int], effects: list[MergeEffect]
    ) -> None:
        """`sources` is needed only where the run is cut or begins with what is known."""
        base, stream = packet.first_message_seq, run.source_stream_id
        next_source = self.next_source_seqs.get(stream, 0)
        first_source = run.first_source_seq if start <= run.first_message_seq else sources[start - base]
        end_source = run.end_source_seq if stop >= run.end_message_seq else sources[stop - base - 1] + 1
        if run.is_source_gap:
            if end_source > next_source:
                first_lost = max(first_source, next_source)
                effects.append(SourceGap(self._channel_id, stream, first_lost, end_source - 1))
        elif run.message_count:
            first_index, end_index = start - base, stop - base
            if first_source < next_source:
                known = sum(source < next_source for source in sources[first_index:end_index])
                self._counters.add(Counter.MERGE_RENUMBERED, known)
                if known and stream in self._missed:
                    self._fill_missed(packet, run, first_index, first_index + known, sources, effects)
                first_index += known
            if first_index < end_index:
                self._counters.add(Counter.MERGE_DELIVERED, end_index - first_index)
                effects.append(Deliver(packet, first_index, end_index, base + first_index))
        self._advance(stream, first_source, end_source)

    def _advance(self, stream: int, first_source: int, end_source: int) -> None:
        next_source = self.next_source_seqs.get(stream)
        if stream in self.suspects:
            self.suspects.discard(stream)
            if next_source is not None and first_source > next_source:
                self._remember_missed(stream, next_source, first_source)
        if next_source is None or end_source > next_source:
            self.next_source_seqs[stream] = end_source

    def _remember_missed(self, stream: int, first: int, end: int) -> None:
        missed = self._missed.setdefault(stream, [])
        missed.append((first, end))
        del missed[: -self._missed_count_max]

    def _fill_missed(
        self,
        packet: OutputPacket,
        run: Run,
        first_index: int,
        end_index: int,
        sources: list[int],
        effects: list[MergeEffect],
    ) -> None:
        """Hand over what of these messages lies in a missed range of their stream; consecutive ones together."""
        stream = run.source_stream_id
        missed = self._missed.get(stream, [])
        index = first_index
        while index < end_index:
            found = next(((first, end) for first, end in missed if first <= sources[index] < end), None)
            begin = index
            index += 1
            if found is None:
                continue
            while index < end_index and sources[index] < found[1]:
                index += 1
            is_tail = packet.first_message_seq + index == run.end_message_seq
            end_source = run.end_source_seq if run.is_source_gap and is_tail else sources[index - 1] + 1
            end_source = min(end_source, found[1])
            self._fill_part(packet, run, begin, index, sources[begin], end_source, effects)
            missed.remove(found)
            left = ((found[0], sources[begin]), (end_source, found[1]))
            missed.extend((first, end) for first, end in left if first < end)
        if not missed:
            self._missed.pop(stream, None)

    def _fill_part(
        self,
        packet: OutputPacket,
        run: Run,
        first_index: int,
        end_index: int,
        first_source: int,
        end_source: int,
        effects: list[MergeEffect],
    ) -> None:
        if run.is_source_gap:
            effects.append(SourceGap(self._channel_id, run.source_stream_id, first_source, end_source - 1))
            return
        first_seq = packet.first_message_seq + first_index
        effects.append(Filled(self._channel_id, packet, first_index, end_index, first_seq))
