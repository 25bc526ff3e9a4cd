"""The merge of provisional packets: no number holds among them, so each source stream is merged by itself.

Of every source stream the next `source_seq` is delivered, from any sender; what comes after a gap is held, and the gap
asked for by source range. The same messages come again with their final numbers: the numbered merge drops them by
identity, because both share one `SourceOrder`.

Invariant: delivers only what continues a source stream without a seam, or after a `ProvisionalGap` that names it.
"""

from __future__ import annotations

from bisect import insort

from feedcore.counters import Counter, CounterSet
from feedcore.merge.config import MergerConfig
from feedcore.merge.effects import MergeEffect, Numbered, Provisional, ProvisionalGap, SourceRange
from feedcore.merge.forwarders import Forwarders
from feedcore.merge.gap_repair import GapRepair
from feedcore.merge.source_order import SourceOrder
from feedcore.range_set import RangeSet
from feedcore.wire.lineage import Lineage
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.packet_parts import part_of
from feedcore.wire.position import FIRST_SEQ
from feedcore.wire.refusal import PacketRefused


class ProvisionalMerge:
    """Provisional delivery of one channel.

    Args:
        order: shared with the numbered merge.
        start_message_seq: where the subscription begins; None: live. If it is the first, a source stream that nothing
            came of yet begins with its first message, else with what is forwarded of it, if that is surely new.

    Attributes:
        forwarders: who forwards, and where they stand.
        is_waiting_for_numbers: something was delivered that has no final number yet.
        held_count: packets of one run each that wait after gaps.
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
        self.is_waiting_for_numbers = False
        self.held_count = 0
        self._channel_id = channel_id
        self._order = order
        self._counters = counters
        self._config = config
        self._unnumbered: dict[int, int] = {}  # by source stream, one past the newest delivered without a number
        self._held: dict[int, list[OutputPacket]] = {}  # by source stream, ascending; one run each
        self._patience: dict[int, GapRepair] = {}  # by source stream with a gap
        self._gap_seqs: dict[int, int] = {}  # by source stream, where its gap was when last looked at

    def on_packet(
        self,
        packet: OutputPacket,
        followed: Lineage,
        next_input_seq: int | None,
        now_ns: int,
        effects: list[MergeEffect],
    ) -> None:
        """A provisional packet.

        Args:
            followed: the history that counts now.
            next_input_seq: the next one of the numbered merge.
        """
        try:
            parts = _one_run_each(packet)
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)
            return
        next_source_seqs = self._order.next_source_seqs
        for part in parts:
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
        """A numbered packet was taken: what was delivered without a number may have one now."""
        for run in packet.runs:
            end_source = self._unnumbered.get(run.source_stream_id)
            if end_source is not None and run.end_source_seq >= end_source:
                del self._unnumbered[run.source_stream_id]
        if not self._unnumbered:
            self.is_waiting_for_numbers = False
            effects.append(Numbered(self._channel_id, packet.epoch, packet.end_message_seq))

    def go_on(self, now_ns: int, effects: list[MergeEffect]) -> None:
        """Source streams may have come further by numbered packets: deliver what is held and has become next."""
        for stream in list(self._held):
            self._release(stream, effects)
        self._watch(now_ns)

    def on_timer(self, now_ns: int, jitter: float, effects: list[MergeEffect]) -> tuple[SourceRange, ...]:
        """Declare what is hopeless; the source ranges to ask for, all of them if any is due."""
        is_due = False
        for stream, patience in list(self._patience.items()):
            if patience.is_hopeless(now_ns):
                self._declare(stream, effects)
            elif patience.is_request_due(now_ns, jitter):
                is_due = True
        self._watch(now_ns)
        return self.missing() if is_due else ()

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` is wanted next."""
        if not self._patience:
            return None
        deadlines = (patience.next_deadline_ns() for patience in self._patience.values())
        return min((at for at in deadlines if at is not None), default=None)

    def missing(self) -> tuple[SourceRange, ...]:
        """The gaps, at most as many as one request may name."""
        gaps: list[SourceRange] = []
        for stream, held in sorted(self._held.items()):
            here = RangeSet((part.runs[0].first_source_seq, part.runs[0].end_source_seq) for part in held)
            next_source = self._order.next_source_seqs[stream]
            gaps += [(stream, first, end) for first, end in here.missing(next_source, max(next_source, here.end))]
        return tuple(gaps[: self._config.request_range_count_max])

    # ---- inside ----

    def _deliver(self, part: OutputPacket, effects: list[MergeEffect]) -> None:
        begin, count_before = len(effects), self._counters.counts[Counter.MERGE_DELIVERED]
        if not self._take(part, effects):
            return
        self._counters.add(Counter.MERGE_PROVISIONAL, self._counters.counts[Counter.MERGE_DELIVERED] - count_before)
        if not self.is_waiting_for_numbers:
            self.is_waiting_for_numbers = True
            effects.insert(begin, Provisional(self._channel_id, part.adapter_id))
        self._unnumbered[part.runs[0].source_stream_id] = part.runs[0].end_source_seq

    def _take(self, part: OutputPacket, effects: list[MergeEffect]) -> bool:
        try:
            self._order.take(part, effects)
        except PacketRefused as refused:  # as if it had been lost
            self._counters.refuse(refused.reason)
            return False
        return True

    def _hold(self, part: OutputPacket) -> None:
        if self.held_count >= self._config.held_count_max:
            return  # it can be asked for again
        run = part.runs[0]
        held = self._held.setdefault(run.source_stream_id, [])
        known = (each.runs[0] for each in held)
        if any(
            each.first_source_seq == run.first_source_seq and each.source_count >= run.source_count for each in known
        ):
            self._counters.add(Counter.MERGE_DUPLICATES)
            return
        self._counters.add(Counter.MERGE_HELD)
        insort(held, part, key=lambda each: each.runs[0].first_source_seq)
        self.held_count += 1

    def _release(self, stream: int, effects: list[MergeEffect]) -> None:
        held = self._held.get(stream, [])
        next_source_seqs = self._order.next_source_seqs
        while held and held[0].runs[0].first_source_seq <= next_source_seqs[stream]:
            part = held.pop(0)
            self.held_count -= 1
            if part.runs[0].end_source_seq > next_source_seqs[stream]:
                self._deliver(part, effects)
        if not held:
            self._held.pop(stream, None)

    def _watch(self, now_ns: int) -> None:
        for stream in [stream for stream in self._patience if stream not in self._held]:
            del self._patience[stream], self._gap_seqs[stream]
        for stream in self._held:
            source_seq = self._order.next_source_seqs[stream]
            patience = self._patience.setdefault(stream, GapRepair(self._config.repair))
            if not patience.opened(now_ns) and self._gap_seqs[stream] != source_seq:
                patience.progressed(now_ns)
            self._gap_seqs[stream] = source_seq

    def _declare(self, stream: int, effects: list[MergeEffect]) -> None:
        """No adapter has the stream's first gap: say so and go on after it."""
        self._release(stream, effects)  # numbered packets may have closed it
        if stream not in self._held:
            return
        first, end = self._order.next_source_seqs[stream], self._held[stream][0].runs[0].first_source_seq
        effects.append(ProvisionalGap(self._channel_id, stream, first, end - 1))
        self._counters.add(Counter.MERGE_GAPS, end - first)
        self._order.pass_over(stream, end)
        self._release(stream, effects)


def _one_run_each(packet: OutputPacket) -> list[OutputPacket]:
    """A packet for each of its runs.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    if len(packet.runs) == 1:
        return [packet]
    return [part_of(packet, run.first_input_seq, run.end_input_seq) for run in packet.runs]
