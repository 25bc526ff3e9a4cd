"""The client's merge (A/B arbitration) of one channel: every adapter's stream in, one ordered stream out.

Takes whichever copy of the next message comes first, holds what is early, drops what was delivered, asks for what
nobody sent again, and says what is missing rather than passing over it. Sans-I/O: packets and time in, effects out
(`feedcore.merge_effects`), in the order of the stream.

Invariants (docs/protocol.md clause 7): per source stream, delivered `source_seq` only grow; a source message is
delivered once, whatever number an epoch gave it; what is skipped is named by a `Gap` or `SourceGap` first.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from feedcore.counters import Counter, CounterSet
from feedcore.epoch_history import EpochHistory
from feedcore.gap_repair import GapRepair, RepairConfig
from feedcore.hold_queue import HoldQueue
from feedcore.merge_effects import (
    Deliver,
    Diverged,
    Ended,
    Filled,
    Gap,
    Live,
    MergeEffect,
    RequestReplay,
    SourceGap,
    Stale,
    Takeover,
)
from feedcore.output_packet import OUTPUT_FRAME, RETRANSMISSION_BIT, OutputFlag, OutputPacket, message_frames
from feedcore.position import FIRST_SEQ, Run
from feedcore.refusal import PacketRefused

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class MergerConfig:
    """Timers and limits.

    Attributes:
        stale_after_ns: silence (no packet, no heartbeat) after which an adapter's stream is called stale.
        held_count_max: packets held early; beyond it the newest are dropped and asked for later.
        request_range_count_max: holes named in one replay request.
        compared_count: delivered packets remembered for the byte-equality check of their other copies.
        declared_count_max: declared gaps remembered for a late `Filled`.
    """

    stale_after_ns: int = 200 * MS
    held_count_max: int = 65_536
    request_range_count_max: int = 256
    compared_count: int = 1_024
    declared_count_max: int = 1_024
    repair: RepairConfig = field(default_factory=RepairConfig)


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
        self.next_source_seqs: dict[int, int] = {}
        self._config = config = config or MergerConfig()
        self._counters = counters
        self._history = EpochHistory()
        self._held = HoldQueue(config.held_count_max)
        self._repair = GapRepair(config.repair)
        self._hole_seq = 0  # where the first hole was when last looked at
        self._known_end = FIRST_SEQ  # one past the newest message_seq anybody mentioned
        self._heard_at_ns: dict[int, int] = {}  # by adapter_id
        self._heard_end: dict[int, int] = {}  # by adapter_id, one past the newest message_seq heard of it
        self._stale: set[int] = set()
        self._compared: dict[int, OutputPacket] = {}  # by first_message_seq
        self._declared: list[tuple[int, int]] = []
        self._ended = False

    @property
    def epoch(self) -> int:
        """The newest epoch heard of; 0 before any packet."""
        return self._history.newest

    # ---- events ----

    def on_packet(self, packet: OutputPacket, now_ns: int) -> list[MergeEffect]:
        """A packet of any adapter's stream, opened, or a replayed one."""
        effects: list[MergeEffect] = []
        if not packet.flags & RETRANSMISSION_BIT:
            self._hear(packet, now_ns, effects)
        if packet.epoch != self._history.newest:
            self._note_epoch(packet, now_ns, effects)
        if self.next_message_seq is None:
            self.next_message_seq = packet.first_message_seq
        limit = self._history.limit(packet.epoch)
        if limit is not None and packet.end_message_seq > limit and packet.first_message_seq >= limit:
            self._counters.add(Counter.STALE_EPOCH_PACKETS)
            return effects
        end = packet.end_message_seq if limit is None else min(packet.end_message_seq, limit)
        if end > self._known_end:
            self._known_end = end
        if packet.message_count == 0:
            if packet.flags & OutputFlag.HEARTBEAT:
                self._on_heartbeat(packet, now_ns, effects)
            elif packet.first_message_seq == self.next_message_seq:
                self._consume(packet, effects)
            return effects
        if end <= self.next_message_seq:
            self._on_old(packet, effects)
        elif packet.first_message_seq <= self.next_message_seq:
            self._deliver(packet, end, effects)
            self._release(effects)
        else:
            self._counters.add(Counter.MERGE_HELD)
            self._held.add(packet)
        self._watch(now_ns)
        return effects

    def on_timer(self, now_ns: int, jitter: float = 0.0) -> list[MergeEffect]:
        """Requests, declared gaps and stale streams that are due; `jitter` in [0, 1) spreads requests."""
        effects: list[MergeEffect] = []
        for adapter_id, heard_at_ns in self._heard_at_ns.items():
            if adapter_id not in self._stale and now_ns - heard_at_ns >= self._config.stale_after_ns:
                self._stale.add(adapter_id)
                effects.append(Stale(self.channel_id, adapter_id))
        if self._repair.is_hopeless(now_ns):
            self._declare(effects)
            self._watch(now_ns)
        elif self._repair.is_request_due(now_ns, jitter):
            ranges = self.missing()
            if ranges:
                self._counters.add(Counter.MERGE_REPLAY_REQUESTS)
                effects.append(RequestReplay(self.channel_id, tuple(ranges)))
        return effects

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` wants to be called next."""
        live = [at for adapter, at in self._heard_at_ns.items() if adapter not in self._stale]
        stale_at_ns = min(live) + self._config.stale_after_ns if live else None
        repair_at_ns = self._repair.next_deadline_ns()
        if stale_at_ns is None or repair_at_ns is None:
            return repair_at_ns if stale_at_ns is None else stale_at_ns
        return min(stale_at_ns, repair_at_ns)

    def missing(self) -> list[tuple[int, int]]:
        """The holes, each (first, last) inclusive, in order, at most as many as one request may name."""
        if self.next_message_seq is None:
            return []
        return self._held.holes(self.next_message_seq, self._known_end)[: self._config.request_range_count_max]

    # ---- inside: order ----

    def _deliver(self, packet: OutputPacket, end: int, effects: list[MergeEffect]) -> None:
        """Deliver what is new in a packet that reaches the next message."""
        assert self.next_message_seq is not None
        first_seq = self.next_message_seq
        self.next_message_seq = end
        if len(packet.runs) == 1 and first_seq == packet.first_message_seq and end == packet.end_message_seq:
            run = packet.runs[0]
            stream = run.source_stream_id
            next_source = self.next_source_seqs.get(stream, run.first_source_seq)
            if run.first_source_seq >= next_source and not run.is_source_gap:  # the hot path
                self.next_source_seqs[stream] = run.end_source_seq
                self._remember(packet)
                self._counters.counts[Counter.MERGE_DELIVERED] += packet.message_count
                effects.append(Deliver(packet, 0, packet.message_count, first_seq))
                return
        self._remember(packet)
        self._deliver_by_source(packet, first_seq, end, effects)

    def _deliver_by_source(self, packet: OutputPacket, first_seq: int, end: int, effects: list[MergeEffect]) -> None:
        """The careful path: some messages of the packet may have been delivered, under these numbers or others."""
        for run in packet.runs:
            next_source = self.next_source_seqs.get(run.source_stream_id, run.first_source_seq)
            if run.end_message_seq <= first_seq and run.message_count:
                continue
            if run.first_message_seq >= end and run.message_count:
                continue
            # An epoch begins where a run ends, so its start never cuts one; were it so, the rest would be missed.
            assert run.end_message_seq <= end, f"epoch limit {end} inside {run}"
            if run.is_source_gap:
                if run.end_source_seq > next_source:
                    first_lost = max(run.first_source_seq, next_source)
                    effects.append(SourceGap(self.channel_id, run.source_stream_id, first_lost, run.end_source_seq - 1))
            else:
                self._deliver_run(packet, run, max(first_seq, run.first_message_seq), next_source, effects)
            self.next_source_seqs[run.source_stream_id] = max(next_source, run.end_source_seq)

    def _deliver_run(
        self, packet: OutputPacket, run: Run, first_seq: int, next_source: int, effects: list[MergeEffect]
    ) -> None:
        """Within one run source sequence numbers grow, so what is new is its tail."""
        first_index = first_seq - packet.first_message_seq
        end_index = run.end_message_seq - packet.first_message_seq
        if run.first_source_seq < next_source:
            offsets = _source_offsets(packet, first_index, end_index)
            known = sum(run.first_source_seq + offset < next_source for offset in offsets)
            self._counters.add(Counter.MERGE_RENUMBERED, known)
            first_index += known
        if first_index < end_index:
            self._counters.add(Counter.MERGE_DELIVERED, end_index - first_index)
            effects.append(Deliver(packet, first_index, end_index, packet.first_message_seq + first_index))

    def _consume(self, packet: OutputPacket, effects: list[MergeEffect]) -> None:
        """Source messages that became no message: told once, for those who keep count. Losing such a packet is no
        loss, so nobody asks for it again."""
        news = False
        for run in packet.runs:
            if run.end_source_seq > self.next_source_seqs.get(run.source_stream_id, 0):
                self.next_source_seqs[run.source_stream_id] = run.end_source_seq
                news = True
        if news:
            effects.append(Deliver(packet, 0, 0, packet.first_message_seq))

    def _release(self, effects: list[MergeEffect]) -> None:
        """Deliver what was held and has become next."""
        assert self.next_message_seq is not None
        while (packet := self._held.pop_reaching(self.next_message_seq)) is not None:
            limit = self._history.limit(packet.epoch)
            end = packet.end_message_seq if limit is None else min(packet.end_message_seq, limit)
            if end > self.next_message_seq:
                self._deliver(packet, end, effects)

    def _on_old(self, packet: OutputPacket, effects: list[MergeEffect]) -> None:
        """All of it has been passed: a second copy, or a late one of a declared gap."""
        self._counters.add(Counter.MERGE_DUPLICATES)
        if self._declared:
            self._fill(packet, effects)
        first = self._compared.get(packet.first_message_seq)
        if (
            first is not None
            and first.payload != packet.payload
            and (first.epoch, first.message_count, first.runs) == (packet.epoch, packet.message_count, packet.runs)
        ):
            self._counters.add(Counter.MERGE_DIVERGED)
            digests = (zlib.crc32(first.payload), zlib.crc32(packet.payload))
            adapters = (first.adapter_id, packet.adapter_id)
            effects.append(Diverged(self.channel_id, packet.first_message_seq, adapters, digests))

    def _remember(self, packet: OutputPacket) -> None:
        self._compared[packet.first_message_seq] = packet
        if len(self._compared) > self._config.compared_count:
            del self._compared[next(iter(self._compared))]

    # ---- inside: gaps ----

    def _watch(self, now_ns: int) -> None:
        assert self.next_message_seq is not None
        if self._known_end <= self.next_message_seq:
            self._repair.closed()
            return
        self._repair.opened(now_ns)
        if self.next_message_seq != self._hole_seq:
            self._hole_seq = self.next_message_seq
            self._repair.progressed(now_ns)
        live = [end for adapter, end in self._heard_end.items() if adapter not in self._stale]
        if live and min(live) > self.next_message_seq:
            self._repair.hurry(now_ns)

    def _declare(self, effects: list[MergeEffect]) -> None:
        """Nobody has the first hole: say so and go on behind it."""
        holes = self.missing()
        self._repair.closed()
        if not holes:
            return
        first, last = holes[0]
        self._counters.add(Counter.MERGE_GAPS, last - first + 1)
        self._declared.append((first, last))
        del self._declared[: -self._config.declared_count_max]
        effects.append(Gap(self.channel_id, first, last))
        self.next_message_seq = last + 1
        self._release(effects)

    def _fill(self, packet: OutputPacket, effects: list[MergeEffect]) -> None:
        left: list[tuple[int, int]] = []
        for first, last in self._declared:
            start = max(first, packet.first_message_seq)
            end = min(last + 1, packet.end_message_seq)
            if start >= end:
                left.append((first, last))
                continue
            base = packet.first_message_seq
            effects.append(Filled(self.channel_id, packet, start - base, end - base, start))
            left += [(a, b) for a, b in ((first, start - 1), (end, last)) if a <= b]
        self._declared = left

    # ---- inside: epochs and streams ----

    def _hear(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        adapter_id = packet.adapter_id
        if adapter_id in self._stale or adapter_id not in self._heard_at_ns:
            self._stale.discard(adapter_id)
            effects.append(Live(self.channel_id, adapter_id))
        self._heard_at_ns[adapter_id] = now_ns
        if packet.end_message_seq > self._heard_end.get(adapter_id, 0):
            self._heard_end[adapter_id] = packet.end_message_seq

    def _note_epoch(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        """A newer epoch numbers afresh from its start: what older ones had there is forgotten, not delivered twice."""
        is_first = self._history.newest == 0
        start = packet.epoch_first_message_seq
        if not self._history.note(packet.epoch, start) or is_first:
            return
        self._held.drop_superseded(packet.epoch, start)
        self._heard_end = {
            adapter: end if adapter == packet.adapter_id else min(end, start)
            for adapter, end in self._heard_end.items()
        }
        self._known_end = min(self._known_end, start)
        if self.next_message_seq is not None and self.next_message_seq > start:
            self.next_message_seq = start  # delivered messages come again under new numbers; their source tells
        sender = packet.adapter_id if packet.flags & OutputFlag.FROM_ACTIVE else 0
        effects.append(Takeover(self.channel_id, packet.epoch, sender, start, now_ns))

    def _on_heartbeat(self, packet: OutputPacket, now_ns: int, effects: list[MergeEffect]) -> None:
        self._watch(now_ns)
        is_end = packet.flags & OutputFlag.END_OF_STREAM and packet.epoch == self._history.newest
        if is_end and not self._ended and packet.first_message_seq == self.next_message_seq:
            self._ended = True
            effects.append(Ended(self.channel_id, packet.first_message_seq))


def _source_offsets(packet: OutputPacket, first_index: int, end_index: int) -> list[int]:
    """source_offset of messages `first_index` … `end_index - 1`; empty if the frames are malformed."""
    try:
        frames = message_frames(packet)
    except PacketRefused:
        return []
    return [OUTPUT_FRAME.unpack_from(packet.payload, offset)[1] for offset, _ in frames[first_index:end_index]]
