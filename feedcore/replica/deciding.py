"""What the active of a channel does: decides, publishes, declares losses (docs/protocol.md clauses 5.5, 5.6, 4.4).

Part of `feedcore.replica.replica`, which says when: everything here happens only while the replica is ACTIVE.
"""

from __future__ import annotations

from collections.abc import Mapping

from feedcore.counters import Counter, CounterSet
from feedcore.replica.config import PublishMode, ReplicaConfig
from feedcore.replica.effects import AdapterEffect, AppendToJournal, RequestEpoch, RequestHandOver, RunsLost, Transmit
from feedcore.replica.production import ProductionLine
from feedcore.replica.publish_gate import PublishGate
from feedcore.replica.source_tracker import Slice, SourceTracker
from feedcore.wire.output_packet import OutputPacket

RUN_SOURCE_COUNT_MAX = 0xFFFF  # a run's source_count is 16 bits on the wire


class Decider:
    """The active's duties for one channel."""

    def __init__(
        self,
        line: ProductionLine,
        trackers: Mapping[int, SourceTracker],
        config: ReplicaConfig,
        counters: CounterSet,
    ) -> None:
        self._line, self._trackers, self._counters = line, trackers, counters
        self._is_single_source = len(trackers) == 1
        self._ask_every_ns = config.ask_lease_store_every_ns
        self._ask_at_ns = 0
        self._elsewhere: dict[int, dict[int, int]] = {}  # adapter_id -> source_seqs that a synchronised backup has
        self.gate: PublishGate | None = None
        if config.publish is PublishMode.ACKED:
            self.gate = PublishGate(
                counters, config.ack_timeout_ns, config.announce_every_ns, config.acked_held_count_max
            )

    def begin(self) -> None:
        """A term begins."""
        self._elsewhere.clear()
        if self.gate is not None:
            self.gate.begin(self._line.next_message_seq)

    def decide(self, piece: Slice, effects: list[AdapterEffect], now_ns: int) -> None:
        """The next source messages of a stream."""
        packets = self._line.decide(piece)
        if self.gate is not None:
            effects += self.gate.publish(packets, now_ns)
            return
        for packet in packets:
            effects.append(AppendToJournal(packet))
            effects.append(Transmit(packet))

    @property
    def is_holding(self) -> bool:
        """True while something decided has not left: a state that includes it is not to be given away or kept."""
        return self.gate is not None and self.gate.is_holding

    def heartbeat_seq(self) -> int:
        """What the active says is next: what has left, not what was decided."""
        seq = self._line.next_message_seq
        return seq if self.gate is None else self.gate.released_end(seq)

    def on_peer_packet(self, packet: OutputPacket) -> list[AdapterEffect]:
        """A backup's packet of this epoch: it has applied everything before its end."""
        if self.gate is None or packet.epoch != self._line.epoch:
            return []
        return self.gate.on_acknowledged(packet.end_message_seq)

    def note_elsewhere(self, adapter_id: int, available_source_seqs: Mapping[int, int] | None) -> None:
        """What a backup has of the source streams; None: it is not synchronised."""
        if available_source_seqs is None:
            self._elsewhere.pop(adapter_id, None)
        else:
            self._elsewhere[adapter_id] = dict(available_source_seqs)

    def on_timer(self, now_ns: int) -> list[AdapterEffect]:
        """Acknowledgements that do not come, holes that stay."""
        effects = [] if self.gate is None else self.gate.on_timer(now_ns)
        for tracker in self._trackers.values():
            self.declare_lost(tracker, effects, now_ns)
        return effects

    def next_deadline_ns(self) -> int | None:
        """When an acknowledgement is due. (Holes have the trackers' deadlines.)"""
        return None if self.gate is None else self.gate.next_deadline_ns()

    def declare_lost(self, tracker: SourceTracker, effects: list[AdapterEffect], now_ns: int) -> None:
        """The first hole of a stream, if it has been open for too long."""
        hole = tracker.lost(now_ns)
        if hole is None:
            return
        first, last = hole
        stream, line = tracker.source_stream_id, self._line
        is_elsewhere = any(ends.get(stream, 0) > first for ends in self._elsewhere.values())
        if is_elsewhere and not tracker.is_given_up(now_ns):
            self._ask(RequestHandOver(line.epoch, f"a backup has source stream {stream} {first}"), effects, now_ns)
            return
        if self._is_single_source and line.lineage.first_message_seq != line.next_message_seq:
            # Backups number such a channel by themselves: only a new epoch makes their numbering of this void.
            self._ask(RequestEpoch(line.epoch), effects, now_ns)
            return
        effects.append(RunsLost(stream, first, last))
        self._counters.add(Counter.SOURCE_MESSAGES_LOST, last - first + 1)
        packets = []
        while first <= last:
            count = min(last - first + 1, RUN_SOURCE_COUNT_MAX)
            packets.append(line.decide_gap(stream, count))
            first += count
        if self.gate is not None:
            effects += self.gate.publish(packets, now_ns)
        else:
            for packet in packets:
                effects += (AppendToJournal(packet), Transmit(packet))
        for piece in tracker.skip_to(last + 1, now_ns):
            self.decide(piece, effects, now_ns)

    def _ask(self, request: RequestHandOver | RequestEpoch, effects: list[AdapterEffect], now_ns: int) -> None:
        if now_ns >= self._ask_at_ns:
            self._ask_at_ns = now_ns + self._ask_every_ns
            effects.append(request)
