"""The merge of provisional packets: their numbers are only their senders', so each source stream is merged separately.

Of every source stream the merge delivers the next `source_seq`, from any sender. It holds what follows a gap and
requests the gap by source range. The same messages arrive again with their final numbers. The numbered merge then drops
them by identity, because both merges share one `SourceOrder`.

Invariant: what it delivers continues its source stream without a gap, or follows a `ProvisionalGap` that names the gap.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.hold_queue import HoldQueue
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import MergeEffect, Numbered, Provisional, ProvisionalGap, SourceRange
from tandemfeed.feedcore.merge.gaps.gap_repair import GapRepair
from tandemfeed.feedcore.merge.provisional.forwarders import Forwarders
from tandemfeed.feedcore.merge.source_order import SourceOrder
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_parts import part_of
from tandemfeed.feedcore.wire.position import FIRST_SEQ
from tandemfeed.feedcore.wire.refusal import PacketRefused


class SourceStreamGap(NamedTuple):
    """The first gap of a source stream.

    Attributes:
        held: the packets that wait after it, by `source_seq`, of one run each.
        repair: the patience with it.
    """

    held: HoldQueue[OutputPacket]
    repair: GapRepair


class ProvisionalMerge:
    """Provisional delivery of one channel.

    Args:
        order: shared with the numbered merge.
        start_message_seq: where the subscription begins; None: live. If it begins with the first message, each source
            stream begins with its first message; otherwise with a forwarded one, if that is certain to be new.

    Attributes:
        forwarders: the provisional forwarders and their positions.
        unnumbered: by source stream, one past the newest message that was delivered and has no final number yet.
        gaps: the first gap, by source stream.
    """

    def __init__(
        self,
        channel_id: int,
        order: SourceOrder,
        counters: CounterSet,
        config: MergerConfig,
        start_message_seq: int | None,
    ) -> None:
        self.forwarders = Forwarders(start_message_seq)
        self.unnumbered: dict[int, int] = {}
        self.gaps: dict[int, SourceStreamGap] = {}
        self._channel_id = channel_id
        self._order = order
        self._counters = counters
        self._config = config

    def on_packet(
        self,
        packet: OutputPacket,
        followed: Lineage,
        next_input_seq: int | None,
        now_ns: int,
        effects: list[MergeEffect],
    ) -> None:
        """Take a provisional packet.

        Args:
            followed: the history that counts now.
            next_input_seq: the numbered merge's next one.

        Raises:
            PacketRefused: MALFORMED frames; nothing has changed.
        """
        next_source_seqs = self._order.next_source_seqs
        for part in [part_of(packet, run.first_input_seq, run.end_input_seq) for run in packet.runs]:
            run = part.runs[0]
            stream = run.source_stream_id
            if stream not in next_source_seqs:
                if not self.forwarders.may_begin(packet, followed, next_input_seq):
                    self._counters.add(Counter.MERGE_NOT_BEGUN)
                    continue
                next_source_seqs[stream] = FIRST_SEQ if self.forwarders.is_from_start else run.first_source_seq
            if run.first_source_seq > next_source_seqs[stream]:
                self._hold(part)
            elif run.end_source_seq > next_source_seqs[stream]:
                self._deliver(part, effects)
                self._release(stream, effects)
            else:
                self._counters.add(Counter.MERGE_DUPLICATES)
                if self._order.has_missed(stream):
                    self._take(part, effects)
        self._watch(now_ns)

    def on_numbered(self, packet: OutputPacket, effects: list[MergeEffect]) -> None:
        """Note that a numbered packet was taken, which may contain the numbers of provisionally delivered messages."""
        for run in packet.runs:
            end_source = self.unnumbered.get(run.source_stream_id)
            if end_source is not None and run.end_source_seq >= end_source:
                del self.unnumbered[run.source_stream_id]
        if not self.unnumbered:
            effects.append(Numbered(self._channel_id, packet.epoch, packet.end_message_seq))

    def release_unblocked(self, now_ns: int, effects: list[MergeEffect]) -> None:
        """Deliver held packets that have become next, because numbered packets may have advanced their streams."""
        for stream in list(self.gaps):
            self._release(stream, effects)
        self._watch(now_ns)

    def on_timer(self, now_ns: int, jitter: float, effects: list[MergeEffect]) -> tuple[SourceRange, ...]:
        """Declare gaps whose limit has passed; returns all source ranges to request if any of them is due."""
        is_due = False
        for stream, gap in list(self.gaps.items()):
            if gap.repair.has_timed_out(now_ns):
                self._declare(stream, effects)
            elif gap.repair.is_request_due(now_ns, jitter):
                is_due = True
        self._watch(now_ns)
        return self._missing() if is_due else ()

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer` next."""
        return earliest(*(gap.repair.next_deadline_ns() for gap in self.gaps.values()))

    # ---- inside ----

    def _deliver(self, part: OutputPacket, effects: list[MergeEffect]) -> None:
        begin, count_before = len(effects), self._counters.counts[Counter.MERGE_DELIVERED]
        if not self._take(part, effects):
            return
        self._counters.add(Counter.MERGE_PROVISIONAL, self._counters.counts[Counter.MERGE_DELIVERED] - count_before)
        if not self.unnumbered:
            effects.insert(begin, Provisional(self._channel_id, part.adapter_id))
        self.unnumbered[part.runs[0].source_stream_id] = part.runs[0].end_source_seq

    def _take(self, part: OutputPacket, effects: list[MergeEffect]) -> bool:
        try:
            self._order.take(part, effects)
        except PacketRefused as refused:  # treated as if it had been lost
            self._counters.refuse(refused.reason)
            return False
        return True

    def _hold(self, part: OutputPacket) -> None:
        count_max, run = self._config.held_count_max, part.runs[0]
        if sum(len(gap.held) for gap in self.gaps.values()) >= count_max:
            return  # it can be requested again
        if run.source_stream_id not in self.gaps:
            self.gaps[run.source_stream_id] = SourceStreamGap(HoldQueue(count_max), GapRepair(self._config))
        known = self.gaps[run.source_stream_id].held.add(run.first_source_seq, run.end_source_seq, part)
        self._counters.add(Counter.MERGE_HELD if known is None else Counter.MERGE_DUPLICATES)

    def _release(self, stream: int, effects: list[MergeEffect]) -> None:
        if stream not in self.gaps:
            return
        held, next_source_seqs = self.gaps[stream].held, self._order.next_source_seqs
        while (part := held.pop_reaching(next_source_seqs[stream])) is not None:
            if part.runs[0].end_source_seq > next_source_seqs[stream]:
                self._deliver(part, effects)
        if not held:
            del self.gaps[stream]

    def _watch(self, now_ns: int) -> None:
        for stream, gap in self.gaps.items():
            gap.repair.watch(self._order.next_source_seqs[stream], now_ns)

    def _missing(self) -> tuple[SourceRange, ...]:
        """The ranges that are missing, at most as many ranges and source messages as one request may name."""
        ranges: list[SourceRange] = []
        range_count_max, count_max = self._config.request_range_count_max, self._config.request_count_max
        for stream, gap in sorted(self.gaps.items()):
            next_source = self._order.next_source_seqs[stream]
            missing = gap.held.missing(next_source, gap.held.end, range_count_max - len(ranges), count_max)
            ranges += [(stream, first, end) for first, end in missing]
            count_max -= sum(end - first for first, end in missing)
        return tuple(ranges)

    def _declare(self, stream: int, effects: list[MergeEffect]) -> None:
        """Declare the stream's first gap and continue after it."""
        self._release(stream, effects)  # numbered packets may have closed it
        if stream not in self.gaps:
            return
        first_held = self.gaps[stream].held.first_item
        assert first_held is not None  # a gap exists only while a packet waits after it
        first, end = self._order.next_source_seqs[stream], first_held.runs[0].first_source_seq
        effects.append(ProvisionalGap(self._channel_id, stream, first, end - 1))
        self._counters.add(Counter.MERGE_GAPS, end - first)
        self._order.pass_over(stream, end)
        self._release(stream, effects)
