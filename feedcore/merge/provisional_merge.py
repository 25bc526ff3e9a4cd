"""The merge of provisional packets: no `message_seq` holds among them, so each source stream is merged by itself.

Of every source stream the next `source_seq` is delivered, whoever sends it; what is behind a hole is held, and the hole
asked for by source range. The same messages come again with their numbers for good: the numbered merge drops them by
identity, because both share one `SourceOrder`.

Invariant: delivers only what continues a source stream without a seam, or behind a `ProvisionalGap` that names it.
"""

from __future__ import annotations

from bisect import insort

from feedcore.counters import Counter, CounterSet
from feedcore.merge.config import MergerConfig
from feedcore.merge.effects import Deliver, MergeEffect, Numbered, Provisional, ProvisionalGap
from feedcore.merge.forwarders import Forwarders
from feedcore.merge.gap_repair import GapRepair
from feedcore.merge.source_order import SourceOrder
from feedcore.wire.lineage import Lineage
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.position import FIRST_SEQ, Run
from feedcore.wire.refusal import PacketRefused

HeldRun = tuple[int, OutputPacket, Run]  # first source_seq, then what it belongs to


class ProvisionalMerge:
    """Provisional delivery of one channel.

    Args:
        order: shared with the numbered merge.
        start_message_seq: where the subscription begins; None: live. If it is the first, a source stream that nothing
            came of yet begins with its first message, else with what is forwarded of it, if that is surely new.

    Attributes:
        forwarders: who forwards, and where they stand.
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
        self._channel_id = channel_id
        self._order = order
        self._counters = counters
        self._config = config
        self._unnumbered: dict[int, int] = {}  # by source stream, one past the newest delivered without a number
        self._held: dict[int, list[HeldRun]] = {}  # by source stream, ascending
        self._held_count = 0
        self._patience: dict[int, GapRepair] = {}  # by source stream with a hole
        self._hole_seqs: dict[int, int] = {}  # by source stream, where its hole was when last looked at

    @property
    def is_holding(self) -> bool:
        """True if something waits behind a hole."""
        return self._held_count > 0

    def on_packet(
        self,
        packet: OutputPacket,
        followed: Lineage,
        next_message_seq: int | None,
        now_ns: int,
        effects: list[MergeEffect],
    ) -> None:
        """A provisional packet.

        Args:
            followed: the history that counts now.
            next_message_seq: the next one of the numbered merge.
        """
        next_source_seqs = self._order.next_source_seqs
        for run in packet.runs:
            stream = run.source_stream_id
            if stream not in next_source_seqs:
                if not self.forwarders.may_begin(packet, followed, next_message_seq):
                    self._counters.add(Counter.MERGE_NOT_BEGUN)
                    continue
                next_source_seqs[stream] = FIRST_SEQ if self.forwarders.is_from_start else run.first_source_seq
            if run.first_source_seq > next_source_seqs[stream]:
                self._hold(packet, run)
            elif run.end_source_seq > next_source_seqs[stream]:
                self._deliver(packet, run, effects)
                self._release(stream, effects)
            elif self._order.has_missed(stream):
                self._fill(packet, run, effects)
            else:
                self._counters.add(Counter.MERGE_DUPLICATES)
        self._watch(now_ns)

    def on_numbered(self, packet: OutputPacket, end_seq: int, effects: list[MergeEffect]) -> None:
        """A numbered packet was taken up to `end_seq`: what was delivered without a number may have one now."""
        for run in packet.runs:
            end_source = self._unnumbered.get(run.source_stream_id)
            if end_source is not None and run.end_source_seq >= end_source and run.end_message_seq <= end_seq:
                del self._unnumbered[run.source_stream_id]
        if not self._unnumbered:
            self.is_waiting_for_numbers = False
            effects.append(Numbered(self._channel_id, packet.epoch, end_seq))

    def go_on(self, now_ns: int, effects: list[MergeEffect]) -> None:
        """Source streams may have come further by numbered packets: deliver what is held and has become next."""
        for stream in list(self._held):
            self._release(stream, effects)
        self._watch(now_ns)

    def on_timer(self, now_ns: int, jitter: float, effects: list[MergeEffect]) -> tuple[tuple[int, int, int], ...]:
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

    def missing(self) -> tuple[tuple[int, int, int], ...]:
        """The holes: (source stream, first, last `source_seq`), at most as many as one request may name."""
        holes = []
        for stream, held in sorted(self._held.items()):
            source_seq = self._order.next_source_seqs[stream]
            for first, _, run in held:
                if first > source_seq:
                    holes.append((stream, source_seq, first - 1))
                source_seq = max(source_seq, run.end_source_seq)
        return tuple(holes[: self._config.request_range_count_max])

    # ---- inside ----

    def _deliver(self, packet: OutputPacket, run: Run, effects: list[MergeEffect]) -> None:
        begin, count_before = len(effects), self._counters.counts[Counter.MERGE_DELIVERED]
        self._take(packet, run, effects)
        self._counters.add(Counter.MERGE_PROVISIONAL, self._counters.counts[Counter.MERGE_DELIVERED] - count_before)
        if packet.message_count == 0:
            effects.append(Deliver(packet, 0, 0, packet.first_message_seq))
        if len(effects) == begin:
            return
        if not self.is_waiting_for_numbers:
            self.is_waiting_for_numbers = True
            effects.insert(begin, Provisional(self._channel_id, packet.adapter_id))
        self._unnumbered[run.source_stream_id] = run.end_source_seq

    def _fill(self, packet: OutputPacket, run: Run, effects: list[MergeEffect]) -> None:
        self._counters.add(Counter.MERGE_DUPLICATES)
        self._take(packet, run, effects)

    def _take(self, packet: OutputPacket, run: Run, effects: list[MergeEffect]) -> None:
        try:
            self._order.take_run(packet, run, effects)
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)

    def _hold(self, packet: OutputPacket, run: Run) -> None:
        if self._held_count >= self._config.held_count_max:
            return  # it can be asked for again
        held = self._held.setdefault(run.source_stream_id, [])
        if any(first == run.first_source_seq and known.source_count >= run.source_count for first, _, known in held):
            self._counters.add(Counter.MERGE_DUPLICATES)
            return
        self._counters.add(Counter.MERGE_HELD)
        insort(held, (run.first_source_seq, packet, run), key=lambda each: each[0])
        self._held_count += 1

    def _release(self, stream: int, effects: list[MergeEffect]) -> None:
        held = self._held.get(stream, [])
        next_source_seqs = self._order.next_source_seqs
        while held and held[0][0] <= next_source_seqs[stream]:
            _, packet, run = held.pop(0)
            self._held_count -= 1
            if run.end_source_seq > next_source_seqs[stream]:
                self._deliver(packet, run, effects)
        if not held:
            self._held.pop(stream, None)

    def _watch(self, now_ns: int) -> None:
        for stream in [stream for stream in self._patience if stream not in self._held]:
            del self._patience[stream], self._hole_seqs[stream]
        for stream in self._held:
            source_seq = self._order.next_source_seqs[stream]
            patience = self._patience.setdefault(stream, GapRepair(self._config.repair))
            if not patience.opened(now_ns) and self._hole_seqs[stream] != source_seq:
                patience.progressed(now_ns)
            self._hole_seqs[stream] = source_seq

    def _declare(self, stream: int, effects: list[MergeEffect]) -> None:
        """Nobody has the stream's first hole: say so and go on behind it."""
        first, end = self._order.next_source_seqs[stream], self._held[stream][0][0]
        effects.append(ProvisionalGap(self._channel_id, stream, first, end - 1))
        self._counters.add(Counter.MERGE_GAPS, end - first)
        self._order.pass_over(stream, end)
        self._release(stream, effects)
