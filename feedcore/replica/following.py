"""What a backup of a channel does: applies decisions, goes by its own where none are needed, sends provisionally.

Part of `feedcore.replica.replica`, which says when. It holds what is here and not yet converted: decisions in `intake`,
source messages in the trackers and the backlog.

Invariant: the line's decided position, the intake's and the trackers' continue each other without a seam while
`is_anchored`.
"""

from __future__ import annotations

from feedcore.replica.backlog import Backlog
from feedcore.replica.bucket_repair import BucketRepair
from feedcore.replica.channel_state import Buckets
from feedcore.replica.config import ReplicaConfig
from feedcore.replica.decision_intake import DecisionIntake, OutOfStep
from feedcore.replica.decision_log import RunsReply
from feedcore.replica.effects import AdapterEffect, AppendToJournal, Transmit
from feedcore.replica.production import ProductionLine
from feedcore.replica.provisional import Provisional, Throttle
from feedcore.replica.source_tracker import SourceTracker
from feedcore.wire.lineage import decode_lineage
from feedcore.wire.output_packet import HEARTBEAT_BIT, OutputFlag, OutputPacket
from feedcore.wire.position import FIRST_SEQ, Run
from feedcore.wire.refusal import PacketRefused, Refusal


class Follower:
    """The backup's side of one channel."""

    def __init__(self, line: ProductionLine, config: ReplicaConfig) -> None:
        self.line = line
        self.intake = DecisionIntake(config.intake)
        self.trackers = {stream: SourceTracker(stream, config.tracker) for stream in line.next_source_seqs}
        self.backlog = Backlog(self.trackers)
        self.repair = BucketRepair()
        self.throttle = Throttle(config.throttle_message_count, config.throttle_pause_ns)
        self.is_single_source = len(self.trackers) == 1

    # ---- places ----

    def anchor(self, now_ns: int) -> None:
        """Begin at the line's position: everything heard so far is sorted in from there."""
        self.intake.anchor(self.line.position())
        self._put_back()
        for stream, tracker in self.trackers.items():
            self.backlog.add(stream, tracker.anchor(self.line.next_source_seqs.get(stream, FIRST_SEQ), now_ns))

    def unanchor(self) -> None:
        """Without a place in the channel: from now on only hold.

        The source messages that wait stay: whoever decides may be gone before it has told where to go on, and the next
        one to decide may be this adapter (protocol 5.1).
        """
        self.repair.end()
        self.intake.unanchor()
        self._put_back()

    def _put_back(self) -> None:
        for stream, tracker in self.trackers.items():
            tracker.unanchor(self.backlog.take_stream(stream))

    def follow_on(self) -> None:
        """This adapter decided until now: from its position on it follows."""
        self.intake.lineage = self.line.lineage
        self.intake.anchor(self.line.position())

    # ---- what is heard ----

    def hear(self, packet: OutputPacket, now_ns: int) -> None:
        """Another adapter's packet: history, decisions, or where the decisions end.

        Raises:
            PacketRefused: it names a source stream that the channel does not have, or no history.
            OutOfStep: what was applied here contradicts it.
        """
        intake = self.intake
        if packet.flags & HEARTBEAT_BIT:
            if packet.epoch > intake.epoch and packet.payload:
                intake.on_lineage(decode_lineage(packet.payload), self.line.position())
            if packet.epoch == intake.epoch:
                intake.on_next_message_seq(packet.first_message_seq, now_ns)
            return
        for run in packet.runs:
            if run.source_stream_id not in self.trackers:
                raise PacketRefused(Refusal.UNKNOWN_STREAM, f"source stream {run.source_stream_id} in a decision")
        intake.on_runs(packet.runs, now_ns)
        self._note_source_ends(packet.runs, now_ns)

    def take(self, reply: RunsReply, now_ns: int) -> None:
        """The decisions asked for.

        Raises:
            OutOfStep: what was applied here contradicts them.
        """
        self.intake.on_lineage(reply.lineage, self.line.position())
        self.intake.on_runs(reply.runs, now_ns)
        self._note_source_ends(reply.runs, now_ns)

    def _note_source_ends(self, runs: tuple[Run, ...], now_ns: int) -> None:
        for run in runs:
            self.trackers[run.source_stream_id].note_end(run.end_source_seq, now_ns)

    # ---- what is done ----

    @property
    def is_blocked(self) -> bool:
        """True while decisions, or the source messages that they need, are outstanding."""
        return bool(self.intake.ready) or self.intake.has_hole

    def apply(self, effects: list[AdapterEffect], now_ns: int, *, quiet_end: int = 0, is_quiet: bool = False) -> None:
        """Convert and transmit every decided run whose source messages are here.

        Args:
            quiet_end: runs that end before were transmitted in a former life; they are not again.
            is_quiet: only those are applied.

        Raises:
            ConversionDiverged: this replica's conversion state is not the active's.
        """
        ready, repair = self.intake.ready, self.repair
        if ready and self.line.provisional is not None and not self._leads_past(self.line.provisional):
            return
        while ready:
            if repair.buckets and not repair.may_apply(self.line.position()):
                return
            run = ready[0]
            is_old = run.end_message_seq <= quiet_end
            if is_quiet and not is_old:
                return
            packets = self._apply_one(run, now_ns)
            if packets is None:
                return
            ready.popleft()
            if not is_old:
                for packet in packets:
                    effects += (AppendToJournal(packet), Transmit(packet))

    def _leads_past(self, provisional: Provisional) -> bool:
        """True if the decisions here, with the source messages here, cover all that was sent ahead.

        Until then none of them is taken: whoever is granted the lease half-way could not number for good what it sent,
        of which a part would have other numbers already.
        """
        if not provisional.is_past(self.intake.position().next_source_seqs):
            return False  # not even with all of them
        behind = {stream for stream, end in provisional.ends.items() if end > self.line.next_source_seqs[stream]}
        for run in self.intake.ready:
            known_end = self.trackers[run.source_stream_id].next_source_seq or 0
            if run.end_source_seq > known_end and not run.is_source_gap:
                return False
            if run.end_source_seq >= provisional.ends[run.source_stream_id]:
                behind.discard(run.source_stream_id)
            if not behind:
                return True
        return False

    def _apply_one(self, run: Run, now_ns: int) -> list[OutputPacket] | None:
        """None if its source messages are not here."""
        line, stream = self.line, run.source_stream_id
        tracker = self.trackers[stream]
        if run.is_source_gap:
            packet = line.follow_gap(run, OutputFlag.NONE, self.intake.lineage)
            self.backlog.drop_before(stream, run.end_source_seq)
            self.backlog.add(stream, tracker.skip_to(run.end_source_seq, now_ns))
            return [packet]
        if tracker.next_source_seq is None or run.end_source_seq > tracker.next_source_seq:
            return None
        first = run.first_source_seq if line.provisional is None else line.provisional.unconverted_from(run)
        pieces = self.backlog.take(stream, run.end_source_seq - first)
        return line.follow(run, pieces, self.intake.lineage)

    def set_buckets(self) -> bool:
        """True if this was just the position of the active's answer and the buckets that differed were set.

        Raises:
            ConversionDiverged: the state still differs.
        """
        if not self.repair.buckets:
            return False
        answer: Buckets | None = self.repair.due_answer(self.line.position())
        if answer is None:
            return False
        self.repair.end()
        self.line.set_buckets(answer)
        return True

    def may_anticipate(self) -> bool:
        """True if the numbering needs no decisions: one source stream, and an epoch in which one was heard.

        Not before: an epoch that its active asked for in order to declare a source gap begins with that.
        """
        line = self.line
        return (
            self.is_single_source
            and not self.intake.ready
            and not self.repair.is_under_way
            and line.epoch == self.intake.epoch
            and line.next_message_seq > line.lineage.first_message_seq
        )

    def anticipate(self, effects: list[AdapterEffect]) -> None:
        """Number, convert and transmit what is here, as the active does or will."""
        for piece in self.backlog.take_all():
            for packet in self.line.decide(piece, OutputFlag.NONE):
                self.intake.advance(packet.runs[0])
                effects += (AppendToJournal(packet), Transmit(packet))

    def forward(self, effects: list[AdapterEffect], now_ns: int, *, is_throttled: bool) -> None:
        """Convert and send provisionally what is here, with pauses if somebody decides again."""
        if is_throttled and not self.throttle.may_send(now_ns):
            return
        for piece in self.backlog.take_all():
            if is_throttled and not self.throttle.may_send(now_ns):  # a pause began: the rest waits, in its order
                self.backlog.add(piece.packet.source_stream_id, [piece])
                continue
            packets = self.line.forward(piece)
            for packet in packets:
                effects += (AppendToJournal(packet), Transmit(packet))
            if is_throttled:
                self.throttle.on_sent(sum(packet.message_count for packet in packets), now_ns)


__all__ = ["Follower", "OutOfStep"]
