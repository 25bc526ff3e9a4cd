"""The role of a channel's active: decides, publishes and declares losses (protocol 4.4, 5.5, 5.6, 6.5, 6.6)."""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.effects import CommitProvisional, RequestEpoch, RequestHandOver, RunsLost, Transmit
from tandemfeed.feedcore.replica.input.source_tracker import Slice, SourceTracker
from tandemfeed.feedcore.replica.output.publish_gate import PublishGate
from tandemfeed.feedcore.replica.roles.role import Next, Role, ToDeciding, ToFailed, ToFollowing
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket

RUN_SOURCE_COUNT_MAX = 0xFFFF  # a run's source_count is 16 bits on the wire


class Deciding(Role):
    """Owns the term: its epoch, and the packets that wait for acknowledgement."""

    is_placed = True
    heartbeat_flags = int(OutputFlag.FROM_ACTIVE)

    def __init__(self, channel: Channel, terms: ToDeciding) -> None:
        super().__init__(channel)
        self._epoch, self._is_unplaced = terms.epoch, terms.is_unplaced
        self._gate = PublishGate(channel)

    @property
    def is_holding(self) -> bool:
        """True while decided packets wait. A state that includes them must be neither sent to a peer nor saved."""
        return self._gate.is_holding

    @property
    def is_savable(self) -> bool:
        return not self.is_holding

    def begin(self, now_ns: int) -> Next:
        """Commit what was sent provisionally, announce the epoch, and decide the waiting source messages."""
        channel, line = self.channel, self.channel.line
        first = line.next_input_seq
        end = line.commit_provisional(self._epoch)
        if self._is_unplaced:
            channel.anchor(now_ns)  # there was no better candidate, so this position is the cluster's best
        channel.keep_own_history()
        channel.hand_over.begin()
        self._gate.begin()
        if end > first:
            channel.emit(CommitProvisional(channel.channel_id, self._epoch, first, end, line.session))
        channel.emit(Transmit(self.heartbeat(now_ns)))
        for piece in channel.backlog.take_all():
            self._decide(piece, now_ns)
        return None

    # ---- deciding ----

    def on_slices(self, source_stream_id: int, slices: list[Slice], now_ns: int) -> Next:
        for piece in slices:
            self._decide(piece, now_ns)
        return None

    def _decide(self, piece: Slice, now_ns: int) -> None:
        self._gate.publish(self.channel.line.decide(piece), now_ns)

    # ---- acknowledgements ----

    def on_output_packet(self, packet: OutputPacket, now_ns: int) -> Next:
        """Take a packet of a backup. If it is of this history, the backup has applied everything before its end."""
        lineage = self.channel.line.lineage
        if packet.epoch == lineage.epoch or lineage.holds(packet.epoch, packet.end_input_seq):
            self._gate.on_acknowledged(packet.end_input_seq)
        return None

    # ---- losses ----

    def _declare_lost(self, tracker: SourceTracker, now_ns: int) -> None:
        """Declare the first gap of a stream lost if it has been open for too long."""
        gap = tracker.lost(now_ns)
        if gap is None:
            return
        first, last = gap
        channel, line, stream = self.channel, self.channel.line, tracker.source_stream_id
        end, heir = max(
            ((ends.get(stream, 0), each) for each, ends in channel.available_at_peers.items()), default=(0, 0)
        )
        if end > first and not tracker.is_given_up(now_ns):
            reason = f"adapter {heir} has source stream {stream} from {first} to {end - 1}"
            self._ask(RequestHandOver(line.epoch, heir, reason), now_ns)
            return
        if channel.is_single_source and line.lineage.first_input_seq != line.next_input_seq:
            # Backups number such a channel themselves; only a new epoch voids the numbers they gave to these messages.
            self._ask(RequestEpoch(line.epoch), now_ns)
            return
        channel.emit(RunsLost(channel.channel_id, stream, first, last))
        channel.counters.add(Counter.SOURCE_MESSAGES_LOST, last - first + 1)
        packets = []
        while first <= last:
            count = min(last - first + 1, RUN_SOURCE_COUNT_MAX)
            packets.append(line.decide_gap(stream, count))
            first += count
        self._gate.publish(packets, now_ns)
        for piece in tracker.skip_to(last + 1, now_ns):
            self._decide(piece, now_ns)

    def _ask(self, request: RequestHandOver | RequestEpoch, now_ns: int) -> None:
        channel = self.channel
        if now_ns >= channel.ask_lease_store_at_ns:
            channel.ask_lease_store_at_ns = now_ns + channel.config.ask_lease_store_every_ns
            channel.emit(request)

    # ---- the lease ----

    def promote(self, epoch: int, now_ns: int) -> Next:
        """Begin the next epoch, granted to the same active. Only the epoch changes, but a loss may be declared now."""
        self.channel.line.open_epoch(epoch)
        self.channel.keep_own_history()
        self.channel.emit(Transmit(self.heartbeat(now_ns)))
        self._declare_losses(now_ns)
        return None

    def demote(self, reason: str, now_ns: int) -> Next:
        """Become a backup that hears no active yet."""
        self._gate.journal_unsent()
        self.channel.keep_own_history()
        self.channel.active.heard_at_ns = now_ns - self.channel.config.proceed_after_ns
        return ToFollowing(ReplicaState.DETACHED, reason)

    def give_up_epoch(self, heir_adapter_id: int, now_ns: int) -> Next:
        """End the epoch in an orderly way, and become a synchronized backup of the heir."""
        channel = self.channel
        self._gate.release_all()
        channel.keep_own_history()
        channel.hand_over.on_ended(channel.line.epoch, channel.line.next_input_seq)
        channel.active.adapter_id, channel.active.heard_at_ns = heir_adapter_id, now_ns
        channel.counters.add(Counter.HAND_OVERS)
        return ToFollowing(ReplicaState.SYNCHRONIZED, f"handed over to adapter {heir_adapter_id}")

    def fail(self, reason: str) -> Next:
        self._gate.journal_unsent()
        return ToFailed(reason)

    # ---- time ----

    def on_own_pause(self, pause_ns: int) -> None:
        self._gate.on_own_pause(pause_ns)

    def on_timer(self, now_ns: int) -> Next:
        self._gate.on_timer(now_ns)
        self._declare_losses(now_ns)
        return None

    def _declare_losses(self, now_ns: int) -> None:
        for tracker in self.channel.trackers.values():
            self._declare_lost(tracker, now_ns)

    def next_deadline_ns(self) -> int | None:
        """When an acknowledgement is due. The trackers have the deadlines of gaps."""
        return self._gate.next_deadline_ns()

    def heartbeat(self, now_ns: int) -> OutputPacket:
        """A heartbeat whose next numbers follow the packets that have left, not those that still wait."""
        return self.channel.heartbeat(self.heartbeat_flags, self._gate.released(), now_ns)
