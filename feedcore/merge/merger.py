"""The client's merge (A/B arbitration) of one channel: every adapter's stream in, one ordered stream out.

Takes whichever copy of the next message comes first, holds what is early, drops what was delivered, asks for what
nobody sent again, and says what is missing rather than passing over it. Sans-I/O: packets and time in, effects out
(`feedcore.merge.effects`), in the order of the stream.

What counts is the newest epoch's history (`feedcore.merge.history_gate`); what is new is told by source identity
(`feedcore.merge.source_order`), which provisional packets (`feedcore.merge.provisional_merge`) share. With confirm=2
packets pass `feedcore.merge.confirmation` first.

Invariants (docs/protocol.md clause 7): per source stream, delivered `source_seq` only grow; a source message is
delivered once, whatever number an epoch gave it; what is skipped is named by a `Gap`, `ProvisionalGap` or `SourceGap`.
"""

from __future__ import annotations

from feedcore.counters import Counter, CounterSet
from feedcore.merge.comparison import CopyComparison, are_equal, divergence
from feedcore.merge.config import MergerConfig
from feedcore.merge.confirmation import Confirmation
from feedcore.merge.declared_gaps import DeclaredGaps
from feedcore.merge.effects import Deliver, Ended, Gap, GapReason, MergeEffect, RequestReplay, Takeover
from feedcore.merge.gap_repair import GapRepair
from feedcore.merge.heard_streams import HeardStreams
from feedcore.merge.history_gate import HistoryGate
from feedcore.merge.hold_queue import HoldQueue
from feedcore.merge.provisional_merge import ProvisionalMerge
from feedcore.merge.source_order import SourceOrder
from feedcore.wire.lineage import UNLIMITED, Lineage
from feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    END_OF_STREAM_BIT,
    FROM_ACTIVE_BIT,
    HEARTBEAT_BIT,
    PROVISIONAL_BIT,
    RETRANSMISSION_BIT,
    OutputPacket,
)
from feedcore.wire.packet_parts import part_of, source_seqs
from feedcore.wire.position import FIRST_SEQ
from feedcore.wire.refusal import PacketRefused

ASIDE_BITS = HEARTBEAT_BIT | PROVISIONAL_BIT | ANNOUNCEMENT_BIT  # no numbered messages inside


class StreamMerger:
    """One channel's merge.

    Args:
        channel_id: packets of other channels are the shell's to sort out.
        counters: what is counted goes here.
        config: timers and limits.
        start_message_seq: the first message to deliver; None: live, from the first packet heard.
    """

    def __init__(
        self,
        channel_id: int,
        counters: CounterSet,
        config: MergerConfig | None = None,
        start_message_seq: int | None = None,
    ) -> None:
        self.channel_id = channel_id
        self.next_message_seq = start_message_seq
        self._config = config = config or MergerConfig()
        self._counters = counters
        self._gate = HistoryGate(config.lineage_wait_ns, config.held_count_max)
        self._streams = HeardStreams(channel_id, config.stale_after_ns, config.confirm)
        self._order = SourceOrder(channel_id, counters, config.declared_count_max)
        self._provisional = ProvisionalMerge(channel_id, self._order, counters, config, start_message_seq)
        self._is_confirming = config.confirm > 1
        self._confirmation = Confirmation(channel_id, counters, config.held_count_max)
        self._late_confirmation = Confirmation(channel_id, counters, config.declared_count_max)
        self._held = HoldQueue(config.held_count_max)
        self._comparison = CopyComparison(
            channel_id, counters, config.compare, config.sampled_every, config.compared_count
        )
        self._repair = GapRepair(config.repair)
        self._hole_seq = 0  # where the first hole was when last looked at
        self._patience_end = FIRST_SEQ  # what was known to exist when patience with this hole began
        self._known_end = FIRST_SEQ  # one past the newest message_seq anybody mentioned
        self._declared = DeclaredGaps(config.declared_count_max)
        self._ended = False

    @property
    def epoch(self) -> int:
        """The newest epoch whose history is known; 0 before any packet."""
        return self._gate.followed.epoch

    @property
    def lineage(self) -> Lineage:
        """The history that is followed."""
        return self._gate.followed.lineage

    @property
    def next_source_seqs(self) -> dict[int, int]:
        """By source stream, one past the newest `source_seq` that was delivered."""
        return self._order.next_source_seqs

    # ---- events ----

    def on_packet(self, packet: OutputPacket, now_ns: int) -> list[MergeEffect]:
        """A packet of any adapter's stream, opened, or a replayed one."""
        effects: list[MergeEffect] = []
        flags = packet.flags
        if not flags & RETRANSMISSION_BIT:
            self._streams.hear(packet, now_ns, effects)
        if flags & ASIDE_BITS:
            self._on_aside(packet, now_ns, effects)
        elif packet.epoch == self._gate.passing_epoch:
            self._take(packet, packet.first_message_seq + packet.message_count, now_ns, effects)
        else:
            self._on_other_epoch(packet, now_ns, effects)
        return effects

    def on_timer(self, now_ns: int, jitter: float = 0.0) -> list[MergeEffect]:
        """Requests, declared gaps and stale streams that are due; `jitter` in [0, 1) spreads requests."""
        effects: list[MergeEffect] = []
        self._streams.on_timer(now_ns, effects)
        if self._gate.on_timer(now_ns):
            for packet in self._gate.take_waiting():
                self._on_other_epoch(packet, now_ns, effects)
        source_ranges = self._provisional.on_timer(now_ns, jitter, effects)
        ranges: list[tuple[int, int]] = []
        if self._repair.is_hopeless(now_ns):
            self._declare(now_ns, effects)
        elif self._repair.is_request_due(now_ns, jitter):
            ranges = self.missing()
        if ranges or source_ranges:
            self._counters.add(Counter.MERGE_REPLAY_REQUESTS)
            effects.append(self._request(tuple(ranges), source_ranges))
        return effects

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` wants to be called next."""
        deadline_ns = self._streams.next_deadline_ns
        for core in (self._repair, self._provisional, self._gate):
            at_ns = core.next_deadline_ns()
            if at_ns is not None and (deadline_ns is None or at_ns < deadline_ns):
                deadline_ns = at_ns
        return deadline_ns

    def missing(self) -> list[tuple[int, int]]:
        """The holes, each (first, last) inclusive, in order, at most as many as one request may name."""
        if self.next_message_seq is None:
            return []
        return self._held.holes(self.next_message_seq, self._known_end)[: self._config.request_range_count_max]

    # ---- inside: which history counts ----

    def _on_aside(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        """Heartbeats, provisional packets, announcements."""
        if packet.flags & HEARTBEAT_BIT:
            self._on_heartbeat(packet, now_ns, effects)
        elif not (packet.flags & ANNOUNCEMENT_BIT or self._is_confirming or self._ended):  # behind the end all is old
            self._provisional.on_packet(packet, self.lineage, self.next_message_seq, now_ns, effects)

    def _on_heartbeat(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        try:
            self._learn(packet, now_ns, effects)
            self._provisional.forwarders.on_heartbeat(packet)
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)
            return
        if packet.flags & PROVISIONAL_BIT or self._gate.is_closed:
            return  # its message_seq means nothing to others, or nothing yet
        if packet.first_message_seq > self._gate.followed.end_of(packet.epoch):
            self._counters.add(Counter.STALE_EPOCH_PACKETS)
            return
        if self.next_message_seq is None:
            self.next_message_seq = self._provisional.forwarders.numbers_begin(packet, self.lineage)
        self._known_end = max(self._known_end, packet.first_message_seq)
        self._watch(now_ns)
        is_end = packet.flags & END_OF_STREAM_BIT and packet.epoch == self.epoch
        if is_end and not self._ended and packet.first_message_seq == self.next_message_seq:
            self._ended = True
            effects.append(Ended(self.channel_id, packet.first_message_seq))

    def _on_other_epoch(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        """A packet of another epoch than the one followed, or any while a newer one's history is waited for."""
        self._learn(packet, now_ns, effects)
        end = self._gate.end_of(packet, now_ns)
        if end is None:
            return
        if packet.first_message_seq + bool(packet.message_count) > end:
            self._counters.add(Counter.STALE_EPOCH_PACKETS)
        else:
            self._take(packet, end, now_ns, effects)

    def _learn(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        """Follow the history that a packet speaks for, if it is newer: what it numbers otherwise is forgotten."""
        news = self._gate.news(packet)
        if news is None:
            return
        lineage, is_told = news
        epoch_before = self.epoch
        parting = self._gate.follow(lineage, is_told=is_told)
        if parting < UNLIMITED:
            self._go_back(parting, lineage.first_message_seq)
        if epoch_before and lineage.epoch > epoch_before:
            sender = packet.adapter_id if packet.flags & FROM_ACTIVE_BIT else 0
            effects.append(Takeover(self.channel_id, lineage.epoch, sender, lineage.first_message_seq, now_ns))
        for waiting in self._gate.take_waiting():
            self._on_other_epoch(waiting, now_ns, effects)
        self._watch(now_ns)

    def _go_back(self, parting: int, known_end: int) -> None:
        """From here on numbers are given afresh: what was delivered comes again, and its source tells."""
        end_of = self._gate.followed.end_of
        self._held.drop_superseded(end_of)
        self._confirmation.drop_superseded(end_of)
        self._comparison.renumbered_from(parting)
        self._declared.renumbered_from(parting)
        self._streams.renumbered_from(parting)
        self._known_end = max(min(self._known_end, parting), known_end)
        if self.next_message_seq is not None and self.next_message_seq > parting:
            self.next_message_seq = parting

    # ---- inside: order ----

    def _take(self, packet: OutputPacket, end: int, now_ns: int, effects: list[MergeEffect]) -> None:
        """A numbered packet that counts up to `end`."""
        if self.next_message_seq is None:
            self.next_message_seq = self._provisional.forwarders.numbers_begin(packet, self.lineage)
        if end > self._known_end:
            self._known_end = end
        if self._is_confirming:
            self._confirm(packet, end, effects)
        else:
            self._place(packet, end, effects)
        if self._provisional.is_holding:
            self._provisional.go_on(now_ns, effects)
        if self._known_end <= self.next_message_seq:
            self._repair.closed()
        else:
            self._watch(now_ns)

    def _place(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        next_message_seq = self.next_message_seq
        assert next_message_seq is not None
        first = packet.first_message_seq
        if packet.message_count == 0:
            if first == next_message_seq:
                self._order.consume(packet, effects)
        elif end <= next_message_seq:
            self._on_old(packet, end, effects)
        elif first <= next_message_seq:
            self._deliver(packet, end, effects)
            if self._held:
                self._release(effects)
        else:
            self._counters.add(Counter.MERGE_HELD)
            other = self._held.add(packet)
            if other is not None:
                self._compare_held(other, packet, end, effects)

    def _deliver(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        """Deliver what is new in a packet that reaches the next message."""
        first_seq = self.next_message_seq
        assert first_seq is not None
        runs = packet.runs
        if len(runs) == 1 and first_seq == packet.first_message_seq and end == first_seq + packet.message_count:
            run, order = runs[0], self._order
            stream, first_source = run.source_stream_id, run.first_source_seq
            next_source = order.next_source_seqs.get(stream, first_source)
            if first_source >= next_source and not run.is_source_gap and stream not in order.suspects:  # the hot path
                order.next_source_seqs[stream] = first_source + run.source_count
                self.next_message_seq = end
                self._comparison.remember(packet)
                self._counters.counts[Counter.MERGE_DELIVERED] += packet.message_count
                effects.append(Deliver(packet, 0, packet.message_count, first_seq))
                if self._provisional.is_waiting_for_numbers:
                    self._provisional.on_numbered(packet, end, effects)
                return
        if packet.first_message_seq < first_seq:
            self._on_overlap(packet, first_seq, effects)
        try:
            self._order.take(packet, first_seq, end, effects)
        except PacketRefused as refused:  # as if it had been lost
            self._counters.refuse(refused.reason)
            return
        self.next_message_seq = end
        self._comparison.remember(packet)
        if self._provisional.is_waiting_for_numbers:
            self._provisional.on_numbered(packet, end, effects)

    def _release(self, effects: list[MergeEffect]) -> None:
        """Deliver what was held and has become next."""
        assert self.next_message_seq is not None
        while (packet := self._held.pop_reaching(self.next_message_seq)) is not None:
            end = min(packet.end_message_seq, self._gate.followed.end_of(packet.epoch))
            if end > self.next_message_seq:
                self._deliver(packet, end, effects)
            else:
                self._comparison.compare(packet, end, effects)

    def _confirm(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        """Let through what another adapter's copy confirms. Copies of declared gaps are confirmed apart."""
        next_message_seq = self.next_message_seq
        assert next_message_seq is not None
        confirmation = self._confirmation
        if end <= next_message_seq and packet.message_count:
            if not self._declared or not self._declared.overlaps(packet.first_message_seq, end):
                self._on_old(packet, end, effects)
                return
            confirmation = self._late_confirmation
        try:
            whole = packet if end == packet.end_message_seq else part_of(packet, packet.first_message_seq, end)
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)
            return
        for part in confirmation.on_packet(whole, effects):
            self._place(part, part.end_message_seq, effects)
        self._confirmation.passed(self.next_message_seq or 0)

    # ---- inside: second copies ----

    def _on_old(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        """All of it has been passed: a second copy, or a late one of a declared gap."""
        self._counters.counts[Counter.MERGE_DUPLICATES] += 1
        if self._declared:
            self._fill(packet, end, effects)
        self._comparison.compare(packet, end, effects)

    def _on_overlap(self, packet: OutputPacket, first_new_seq: int, effects: list[MergeEffect]) -> None:
        """The packet's beginning has been passed."""
        if self._declared:
            self._fill(packet, first_new_seq, effects)
        self._comparison.compare(packet, first_new_seq, effects)

    def _compare_held(self, one: OutputPacket, other: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        common_end = min(end, one.end_message_seq)
        if self._config.compare != "off" and not are_equal(one, other, one.first_message_seq, common_end):
            self._counters.add(Counter.MERGE_DIVERGED)
            effects.append(divergence(self.channel_id, one, other, one.first_message_seq, common_end))

    # ---- inside: gaps ----

    def _watch(self, now_ns: int) -> None:
        """Look after the first hole."""
        next_message_seq = self.next_message_seq
        if next_message_seq is None or self._known_end <= next_message_seq:
            self._repair.closed()
            return
        if self._repair.opened(now_ns):
            self._patience_end = self._known_end
            self._hole_seq = next_message_seq
        elif next_message_seq != self._hole_seq:
            self._hole_seq = next_message_seq
            self._patience_end = self._known_end
            self._repair.progressed(now_ns)
        if self._streams.are_all_past(next_message_seq):
            self._repair.hurry(now_ns)

    def _request(
        self, ranges: tuple[tuple[int, int], ...], source_ranges: tuple[tuple[int, int, int], ...]
    ) -> RequestReplay:
        silent = self._streams.silent
        if not self._is_confirming or not ranges:
            return RequestReplay(self.channel_id, ranges, source_ranges, silent_adapter_ids=silent)
        first, last = ranges[0]
        holders = self._confirmation.adapters_with(first, last + 1)
        copy_count = max(1, self._config.confirm - len(holders))
        return RequestReplay(self.channel_id, ranges, source_ranges, copy_count, holders, silent)

    def _declare(self, now_ns: int, effects: list[MergeEffect]) -> None:
        """The first hole's messages are not to be had: say so and go on behind it.

        Only what was known when patience began: what came into being since has not been waited for long enough.
        """
        holes = self.missing()
        self._repair.closed()
        if holes:
            first, last = holes[0]
            end = min(last + 1, self._patience_end)
            for start, stop, is_waiting in self._confirmation.split(first, end):
                reason = GapReason.UNCONFIRMED if is_waiting else GapReason.NOBODY_HAD_THEM
                self._counters.add(Counter.MERGE_UNCONFIRMED if is_waiting else Counter.MERGE_GAPS, stop - start)
                self._declared.add(start, stop)
                effects.append(Gap(self.channel_id, start, stop - 1, reason))
            self._order.gap_declared()
            self.next_message_seq = end
            for packet in self._confirmation.passed(end):
                self._late_confirmation.keep(packet)
            self._release(effects)
        self._watch(now_ns)

    def _fill(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        """A late copy: hand over what of it a gap had named."""
        if not self._declared.overlaps(packet.first_message_seq, end):
            return
        try:
            source_seqs(packet)
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)
            return
        for start, stop in self._declared.take(packet.first_message_seq, end):
            self._order.fill(packet, start, stop, effects)
        self._comparison.remember(packet)
