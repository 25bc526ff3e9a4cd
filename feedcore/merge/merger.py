"""The client's merge (A/B arbitration) of one channel: every adapter's stream in, one ordered stream out.

A numbered packet covers the source messages `[first_input_seq, end_input_seq)` of the channel. So the merge orders,
holds and compares packets, and detects gaps, by `input_seq`; `message_seq` is the application's number and follows from
it. The merge delivers the copy of the next source message that arrives first, holds early packets, drops copies of what
it delivered, requests what is missing, and reports what no adapter could supply. Sans-I/O: packets and time in, effects
out (`effects`), in stream order.

The newest epoch's history determines which packets count (`history_gate`). Source identity determines which messages
are new (`source_order`), for numbered and provisional packets (`provisional_merge`) alike. With confirm=2, packets pass
through `confirmation` first.

Invariants (docs/protocol.md clause 7): per source stream, delivered `source_seq` only grow; a source message is
delivered once, whatever number an epoch gave it; a `Gap`, `ProvisionalGap` or `SourceGap` names all that is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.hold_queue import HoldQueue
from tandemfeed.feedcore.merge.adapter_streams import AdapterStreams
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.copies.comparison import CopyComparison
from tandemfeed.feedcore.merge.copies.confirmation import Confirmation, Stretch
from tandemfeed.feedcore.merge.effects import (
    CatchingUp,
    CaughtUp,
    Deliver,
    DeliverSeries,
    Ended,
    MergeEffect,
    RequestReplay,
    SourceRange,
    Takeover,
)
from tandemfeed.feedcore.merge.gaps.declared_gaps import DeclaredGaps
from tandemfeed.feedcore.merge.gaps.gap_repair import ChannelRepair
from tandemfeed.feedcore.merge.history.former_places import FormerPlaces
from tandemfeed.feedcore.merge.history.history_gate import CLOSED, HistoryGate
from tandemfeed.feedcore.merge.history.place import Place, ResumePoint, first_place, place_of_message
from tandemfeed.feedcore.merge.provisional.provisional_merge import ProvisionalMerge
from tandemfeed.feedcore.merge.source_order import SourceOrder
from tandemfeed.feedcore.range_set import Range
from tandemfeed.feedcore.wire.lineage import Lineage, decode_lineage
from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    END_OF_STREAM_BIT,
    FROM_ACTIVE_BIT,
    HEARTBEAT_BIT,
    PROVISIONAL_BIT,
    RETRANSMISSION_BIT,
    OutputPacket,
)
from tandemfeed.feedcore.wire.packet_parts import part_of
from tandemfeed.feedcore.wire.packet_series import PacketSeries
from tandemfeed.feedcore.wire.position import FIRST_SEQ
from tandemfeed.feedcore.wire.refusal import PacketRefused

LOOKING_FOR_START = 0  # not an input_seq: the place of the subscription's first message is not known yet
NOT_NUMBERED_BITS = HEARTBEAT_BIT | PROVISIONAL_BIT | ANNOUNCEMENT_BIT  # not numbered messages


class StreamMerger:
    """One channel's merge.

    Args:
        channel_id: the shell passes in only packets of this channel.
        counters: the counters to update.
        config: timers and limits.
        start_message_seq: the first message to deliver; None: live, from the first packet heard.
        session: the session to name in requests; 0: the services' current session.
        resume: where an earlier merge ended, instead of a first message.

    Attributes:
        next_input_seq: one past the last that was delivered or skipped; None until the start is known.
        next_message_seq: of the next message; None until a live subscription has begun.
        next_source_seqs: by source stream, one past the newest `source_seq` that was delivered or skipped.
        has_ended: the active reported that every source stream had ended, when all of it had been delivered.
    """

    def __init__(
        self,
        channel_id: int,
        counters: CounterSet,
        config: MergerConfig | None = None,
        start_message_seq: int | None = None,
        session: int = 0,
        resume: ResumePoint | None = None,
    ) -> None:
        self.channel_id = channel_id
        self.next_input_seq = FIRST_SEQ if start_message_seq == FIRST_SEQ else None
        self.next_message_seq = start_message_seq
        self.has_ended = False
        self._reported_end: Place | None = None  # in the present epoch
        self._session = session
        self._config = config = config or MergerConfig()
        self._counters = counters
        self._gate = HistoryGate(counters, config)
        self._streams = AdapterStreams(channel_id, config)
        is_from_start = start_message_seq == FIRST_SEQ
        self._order = SourceOrder(channel_id, counters, config.declared_count_max, is_from_start=is_from_start)
        self.next_source_seqs = self._order.next_source_seqs
        self._provisional = ProvisionalMerge(channel_id, self._order, counters, config, start_message_seq)
        self._is_confirming = config.confirm > 1
        self._confirmation = Confirmation(channel_id, counters, config.held_count_max)
        self._late_confirmation = Confirmation(channel_id, counters, config.declared_count_max)
        self._held: HoldQueue[OutputPacket] = HoldQueue(config.held_count_max)
        self._comparison = CopyComparison(channel_id, counters, config)
        self._gap = ChannelRepair(config)
        self._reported_progress: int | None = None  # next message_seq of the newest `CatchingUp`; None: near the end
        self._former = FormerPlaces()
        self._requested_from = LOOKING_FOR_START  # the first missing input_seq at the newest request
        if resume is not None:
            self.next_input_seq, self.next_message_seq = resume.place
            self._gate.follow(resume.lineage)
            self.next_source_seqs.update(resume.next_source_seqs)
        self._declared = DeclaredGaps(channel_id, counters, self._order, config.declared_count_max)

    @property
    def lineage(self) -> Lineage:
        """The history that the merge follows."""
        return self._gate.lineage

    @property
    def has_missing_messages(self) -> bool:
        """True while known messages have neither been delivered nor declared missing."""
        if self.next_input_seq is None:  # the start is not known yet, so only message numbers can tell
            return 0 < (self.next_message_seq or 0) < self._gap.known_end_message_seq
        return self.next_input_seq < self._gap.known_end_input_seq

    @property
    def knows_end(self) -> bool:
        """True if an adapter reported, in the present epoch, where every source stream had ended."""
        return self.has_ended or self._reported_end is not None

    @property
    def missing_message_count(self) -> int:
        """How many messages are known to follow `next_message_seq`; early ones that are held are among them."""
        return max(0, self._gap.known_end_message_seq - (self.next_message_seq or self._gap.known_end_message_seq))

    # ---- events ----

    def on_packet(self, packet: OutputPacket, now_ns: int) -> list[MergeEffect]:
        """Take an opened packet of any adapter's stream, or a replayed one."""
        effects: list[MergeEffect] = []
        flags, end = packet.flags, packet.first_input_seq
        if packet.runs:
            last = packet.runs[-1]
            end = last.first_input_seq + last.source_count
        if not flags & RETRANSMISSION_BIT:
            self._streams.on_packet(packet.adapter_id, flags, end, now_ns, effects)
        if flags & NOT_NUMBERED_BITS:
            self._on_not_numbered(packet, now_ns, effects)
        elif packet.epoch == self._gate.passing_epoch:
            self._take(packet, end, now_ns, effects)
        else:
            self._on_other_epoch(packet, now_ns, effects)
        return effects

    def on_series(self, series: PacketSeries, now_ns: int) -> list[MergeEffect]:
        """Take replayed packets that continue each other: in one step if all of them come next, else one by one."""
        effects: list[MergeEffect] = []
        if not self._comes_next(series):
            for packet in series.packets:
                effects += self.on_packet(packet, now_ns)
            return effects
        end = series.end_input_seq
        self._gap.extend_known_end(Place(end, series.end_message_seq))
        self._order.next_source_seqs.update(series.end_source_seqs)
        self._counters.add(Counter.MERGE_DELIVERED, series.message_count)
        effects.append(DeliverSeries(series))
        self.next_input_seq, self.next_message_seq = end, series.end_message_seq
        self._comparison.remember_series(series)
        self._release(effects)
        self._after_taking(now_ns, effects)
        return effects

    def note_moved_on(self, adapter_id: int) -> None:
        """Note that the adapter sends a later session."""
        self._streams.note_moved_on(adapter_id)

    def on_timer(self, now_ns: int, jitter: float = 0.0) -> list[MergeEffect]:
        """Request, declare and report stale what is due; `jitter` in [0, 1) spreads requests."""
        effects: list[MergeEffect] = []
        self._streams.on_timer(now_ns, effects)
        for packet in self._gate.on_timer(now_ns):
            self._on_other_epoch(packet, now_ns, effects)
        source_ranges = self._provisional.on_timer(now_ns, jitter, effects)
        if (waiting_until_ns := self._gate.next_deadline_ns()) is not None:
            self._gap.extend_to(waiting_until_ns)  # a packet that waits for a lineage may close the gap
        is_due = not self._gap.has_timed_out(now_ns) and self._gap.is_request_due(now_ns, jitter)
        while self._gap.has_timed_out(now_ns):
            self._declare(now_ns, effects)
        if is_due or source_ranges:
            self._counters.add(Counter.MERGE_REPLAY_REQUESTS)
            if is_due:
                self._report_progress(effects)
            effects.append(self._request(source_ranges, with_numbered=is_due))
        return effects

    def on_replay_ended(self, now_ns: int) -> None:
        """The answer to a request has been passed in. If it helped, what is still missing is requested next: a long
        history comes in parts, without pauses between them."""
        if (self.next_input_seq or LOOKING_FOR_START) != self._requested_from:
            self._gap.request_now(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer` next."""
        deadline_ns = self._streams.next_deadline_ns
        for core in (self._gap, self._provisional, self._gate):
            at_ns = core.next_deadline_ns()
            if at_ns is not None and (deadline_ns is None or at_ns < deadline_ns):
                deadline_ns = at_ns
        return deadline_ns

    # ---- inside: which history counts ----

    def _on_not_numbered(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        """Take a heartbeat, a provisional packet or an announcement."""
        try:
            if packet.flags & HEARTBEAT_BIT:
                self._on_heartbeat(packet, now_ns, effects)
            elif not (packet.flags & ANNOUNCEMENT_BIT or self._is_confirming or self.has_ended):  # ended: all is old
                self._provisional.on_packet(packet, self.lineage, self.next_input_seq, now_ns, effects)
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)

    def _on_heartbeat(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        lineage = decode_lineage(packet.payload)
        if lineage.epoch > self.lineage.epoch:
            self._follow(lineage, packet, now_ns, effects)
        if packet.flags & PROVISIONAL_BIT:
            self._provisional.forwarders.on_heartbeat(packet, lineage)
            return  # its numbers are only its sender's
        if self._gate.passing_epoch == CLOSED:
            return  # its numbers cannot be judged until the lineage is known
        if packet.first_input_seq > self.lineage.end_of(packet.epoch):
            self._counters.add(Counter.STALE_EPOCH_PACKETS)
            return
        self._gap.extend_known_end(first_place(packet))
        if self.next_input_seq is None:
            self._begin(packet, effects)
        self._watch(now_ns)
        if packet.flags & END_OF_STREAM_BIT and packet.epoch == self.lineage.epoch:
            self._reported_end = first_place(packet)
            self._end_if_due(effects)

    def _end_if_due(self, effects: list[MergeEffect]) -> None:
        """Report the end once everything before it was delivered or declared, which may be after its last heartbeat."""
        end = self._reported_end
        if end is not None and not self.has_ended and end.input_seq == self.next_input_seq:
            self.has_ended = True
            effects.append(Ended(self.channel_id, *end))

    def _on_other_epoch(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        """Take a packet of an epoch other than the followed one, or any packet while the merge awaits a lineage."""
        counted = self._gate.admit(packet, now_ns)
        if counted is not None:
            self._take(counted, counted.end_input_seq, now_ns, effects)

    def _follow(self, lineage: Lineage, heartbeat: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        """Follow a newer history, and forget what it numbers differently."""
        is_first = not self.lineage.epoch
        self._reported_end = None
        former, fork = self.lineage, self._gate.follow(lineage)
        if fork is not None:
            self._rewind_to(first_place(fork), former)
        self._gap.extend_known_end(first_place(lineage))
        if not is_first:
            sender = heartbeat.adapter_id if heartbeat.flags & FROM_ACTIVE_BIT else 0
            first_seq, resumes_at = lineage.first_message_seq, self.next_input_seq or 0
            effects.append(Takeover(self.channel_id, lineage.epoch, sender, first_seq, now_ns, resumes_at))
        for packet in self._gate.take_waiting():
            self._on_other_epoch(packet, now_ns, effects)
        self._watch(now_ns)

    def _rewind_to(self, fork: Place, former: Lineage) -> None:
        """Return to where messages are renumbered, or to a former place that counts again. No held packet comes next
        there: up to the fork none was next, and none from there on counts any more."""
        place = Place(self.next_input_seq or 0, self.next_message_seq or 0)
        if place.input_seq > fork.input_seq and not self._declared.ranges.overlaps(fork.input_seq, place.input_seq):
            self._former.note(former, place)
        end_of = self._gate.lineage.end_of
        self._cut_held(end_of)
        self._confirmation.drop_superseded(end_of)
        self._late_confirmation.drop_superseded(end_of)
        self._comparison.renumbered_from(fork.input_seq)
        self._declared.ranges.truncate_from(fork.input_seq)
        self._streams.renumbered_from(fork.input_seq)
        self._gap.forget_from(fork)
        if self.next_input_seq is not None:
            place = max(min(place, fork), self._former.furthest_in(self.lineage))
            self.next_input_seq, self.next_message_seq = place

    def _cut_held(self, end_of: Callable[[int], int]) -> None:
        """Keep only the part of each held packet that still counts."""
        for first, end, packet in self._held.take_all():
            counted_end = min(end, end_of(packet.epoch))
            if first < counted_end:
                with suppress(PacketRefused):  # it can be requested again
                    self._held.add(first, counted_end, part_of(packet, first, counted_end))

    # ---- inside: order ----

    def _take(self, packet: OutputPacket, end: int, now_ns: int, effects: list[MergeEffect]) -> None:
        """Take a packet that counts as a whole."""
        gap = self._gap
        if end > gap.known_end_input_seq:
            gap.known_end_input_seq = end
            gap.known_end_message_seq = packet.first_message_seq + packet.message_count
        try:
            if self._is_confirming:
                self._confirm(packet, end, effects)
            else:
                self._place(packet, end, effects)
        except PacketRefused as refused:  # treated as if it had been lost
            self._counters.refuse(refused.reason)
        if self._provisional.gaps:
            self._provisional.release_unblocked(now_ns, effects)
        self._after_taking(now_ns, effects)

    def _after_taking(self, now_ns: int, effects: list[MergeEffect]) -> None:
        """Watch what is missing now, or report that nothing is."""
        if self.next_input_seq is None or self._gap.known_end_input_seq > self.next_input_seq:
            self._watch(now_ns)
        else:
            self._gap.closed()
            if self._reported_progress is not None:
                self._reported_progress = None
                effects.append(CaughtUp(self.channel_id, self.next_message_seq or 0))
            if self._reported_end is not None:
                self._end_if_due(effects)

    def _comes_next(self, series: PacketSeries) -> bool:
        """True if each packet of a series would be delivered as it is, by the hot path of `_deliver`, and nothing else
        would come between them."""
        if series.epoch != self._gate.passing_epoch or series.first_input_seq != self.next_input_seq:
            return False
        if self._is_confirming or self._provisional.gaps or self._provisional.unnumbered:
            return False
        held = self._held.first_item
        if held is not None and held.first_input_seq < series.end_input_seq:
            return False
        return series.first_source_seqs.items() <= self._order.next_source_seqs.items()

    def _place(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        next_input_seq = self.next_input_seq
        if next_input_seq is None:
            if packet.end_message_seq > (self.next_message_seq or 0):
                self._held.add(packet.first_input_seq, end, packet)
            self._begin(packet, effects)
        elif end <= next_input_seq:
            self._counters.counts[Counter.MERGE_DUPLICATES] += 1
            self._on_old(packet, end, effects)
        elif packet.first_input_seq <= next_input_seq:
            self._deliver(packet, end, effects)
            if self._held.items:
                self._release(effects)
        else:
            self._counters.add(Counter.MERGE_HELD)
            other = self._held.add(packet.first_input_seq, end, packet)
            if other is not None:
                self._comparison.compare_held(other, packet, effects)

    def _begin(self, packet: OutputPacket, effects: list[MergeEffect]) -> None:
        """Begin at the place that this packet or heartbeat shows, if it shows one, and deliver held packets."""
        place: Place | None
        if self.next_message_seq is None:
            place = self._provisional.forwarders.numbers_begin(packet, self.lineage)
        else:
            place = place_of_message(packet, self.next_message_seq)
        if place is not None:
            self.next_input_seq, self.next_message_seq = place
            self._release(effects)

    def _deliver(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        """Deliver the new part of a packet that contains the next source message."""
        next_input_seq, order = self.next_input_seq, self._order
        assert next_input_seq is not None
        run = packet.runs[0]
        stream, first_source = run.source_stream_id, run.first_source_seq
        if (
            len(packet.runs) == 1
            and packet.first_input_seq == next_input_seq
            and order.next_source_seqs.get(stream) == first_source
            and not run.is_source_gap
        ):  # the hot path: what SourceOrder.take does with such a packet
            order.next_source_seqs[stream] = first_source + run.source_count
            self._counters.counts[Counter.MERGE_DELIVERED] += packet.message_count
            effects.append(Deliver(packet))
        else:
            try:
                new = part_of(packet, next_input_seq, end)
                if new is not packet:
                    self._on_old(packet, next_input_seq, effects)
                order.take(new, effects)
            except PacketRefused as refused:  # treated as if it had been lost
                self._counters.refuse(refused.reason)
                return
        self.next_input_seq = end
        self.next_message_seq = packet.first_message_seq + packet.message_count
        self._comparison.remember(packet, end)
        if self._provisional.unnumbered:
            self._provisional.on_numbered(packet, effects)

    def _release(self, effects: list[MergeEffect]) -> None:
        """Deliver held packets that have become next."""
        assert self.next_input_seq is not None
        while (packet := self._held.pop_reaching(self.next_input_seq)) is not None:
            end = packet.end_input_seq
            if end > self.next_input_seq:
                self._deliver(packet, end, effects)
            else:
                self._comparison.compare(packet, end, effects)

    def _confirm(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        """Place what another adapter's copy confirms. Copies of declared gaps are confirmed separately."""
        next_input_seq = self.next_input_seq
        if self.next_message_seq is None:
            self._begin(packet, effects)
        confirmation = self._confirmation
        if next_input_seq is not None and end <= next_input_seq:
            if not self._declared.ranges.overlaps(packet.first_input_seq, end):
                self._place(packet, end, effects)
                return
            confirmation = self._late_confirmation
        for part in confirmation.on_packet(packet, effects):
            self._place(part, part.end_input_seq, effects)
        self._confirmation.passed(self.next_input_seq or 0)

    def _on_old(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        """Take a copy of what precedes `end` and was delivered or skipped: fill a declared gap, or compare it."""
        if self._declared.ranges and self._declared.fill(packet, end, effects):
            self._comparison.remember(packet, packet.end_input_seq)
        else:
            self._comparison.compare(packet, end, effects)

    # ---- inside: gaps ----

    def _watch(self, now_ns: int) -> None:
        """Start, request_soon or end the timers of the first gap."""
        gap, next_input_seq = self._gap, self.next_input_seq
        if not self.has_missing_messages:
            gap.closed()
            return
        gap.watch(next_input_seq or LOOKING_FOR_START, now_ns)
        if next_input_seq is not None and not gap.has_asked and self._streams.are_all_past(next_input_seq):
            gap.request_soon(now_ns)

    def _report_progress(self, effects: list[MergeEffect]) -> None:
        """Report how much of a long history is missing, once for each part of it."""
        next_seq, known_end = self.next_message_seq or 0, self._gap.known_end_message_seq
        is_far = self._gap.known_end_input_seq - (self.next_input_seq or FIRST_SEQ) >= self._config.catching_up_count
        if (is_far or self._reported_progress is not None) and next_seq != self._reported_progress:
            self._reported_progress = next_seq
            effects.append(CatchingUp(self.channel_id, next_seq, known_end))

    def _request(self, source_ranges: tuple[SourceRange, ...], *, with_numbered: bool) -> RequestReplay:
        """The request for everything that is missing now."""
        ranges: tuple[Range, ...] = ()
        message_range: Range | None = None
        count_max = self._config.request_count_max
        self._requested_from = self.next_input_seq or LOOKING_FOR_START
        if with_numbered and self.next_input_seq is not None:
            known_end = self._gap.known_end_input_seq
            limits = self._config.request_range_count_max, count_max
            ranges = self._held.missing(self.next_input_seq, known_end, *limits)
            self._gap.requested_end = ranges[-1][1] if ranges else 0
        elif with_numbered and self.next_message_seq is not None:
            first = self.next_message_seq
            message_range = (first, min(self._gap.known_end_message_seq, first + count_max))
        holders = self._confirmation.adapters_with(*ranges[0]) if self._is_confirming and ranges else ()
        copy_count = max(1, self._config.confirm - len(holders))
        asked = (ranges, message_range, source_ranges)
        return RequestReplay(self.channel_id, *asked, copy_count, holders, self._streams.silent, self._session)

    def _declare(self, now_ns: int, effects: list[MergeEffect]) -> None:
        """Declare the first gap and continue after it, but only as far as the channel was known when patience began:
        the merge has not waited long enough for anything newer."""
        assert self.next_message_seq is not None
        held = self._held.first_item
        end = min(self._gap.known_end if held is None else first_place(held), self._gap.declarable_end)
        first = Place(self.next_input_seq or 0, self.next_message_seq)
        is_begun = self.next_input_seq is not None
        if end.input_seq <= first.input_seq if is_begun else end.message_seq <= first.message_seq:
            self._gap.closed()
            self._watch(now_ns)
            return  # a newer history has withdrawn what was known
        for stretch in self._confirmation.split(first, end) if is_begun else [Stretch(first, end, is_waiting=False)]:
            self._declared.declare(stretch, effects)
        self.next_input_seq, self.next_message_seq = end
        for packet in self._confirmation.passed(end.input_seq):
            self._late_confirmation.keep(packet)
        self._release(effects)
        self._gap.passed_over(self.next_input_seq)
        self._end_if_due(effects)
        self._watch(now_ns)
