"""Applies decisions to the available source messages, for all roles of a backup."""

from __future__ import annotations

from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.output.bucket_repair import BucketRepair
from tandemfeed.feedcore.replica.output.provisional import Provisional, Throttle
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import Run


def apply_decisions(
    channel: Channel, now_ns: int, *, only_quiet: bool = False, repair: BucketRepair | None = None
) -> None:
    """Convert every decided run whose source messages are here. Transmit it unless a previous process did.

    Args:
        only_quiet: apply only runs that a previous process transmitted.
        repair: a repair during which decisions may have to wait.

    Raises:
        ConversionDiverged: this replica's conversion state is not the active's.
    """
    ready, line = channel.intake.ready, channel.line
    if ready and line.provisional is not None and not _leads_past(channel, line.provisional):
        return
    while ready:
        if repair is not None and repair.buckets and not repair.may_apply():
            return
        run = ready[0]
        is_quiet = run.end_input_seq <= channel.transmitted_ends.get(run.epoch, 0)
        if only_quiet and not is_quiet:
            return
        packets = _apply_one(channel, run, now_ns)
        if packets is None:
            return
        ready.popleft()
        if not is_quiet:
            channel.publish(packets)


def anticipate(channel: Channel) -> None:
    """Number, convert and transmit source messages that need no decision, just as the active does."""
    count = min(channel.undecided_count(), channel.backlog.message_count)
    (stream,) = channel.trackers
    for piece in channel.backlog.take(stream, count):
        for packet in channel.line.decide(piece, OutputFlag.NONE):
            channel.intake.advance(packet.runs[0])
            if packet.end_input_seq > channel.transmitted_ends.get(packet.epoch, 0):
                channel.publish((packet,))


def forward(channel: Channel, throttle: Throttle, now_ns: int, *, is_throttled: bool) -> None:
    """Convert and send the available source messages provisionally, with pauses if an active decides again."""
    if is_throttled and not throttle.may_send(now_ns):
        return
    for piece in channel.backlog.take_all():
        if is_throttled and not throttle.may_send(now_ns):  # a pause began: the rest waits, in order
            channel.backlog.add(piece.packet.source_stream_id, [piece])
            continue
        packets = channel.line.forward(piece)
        channel.publish(packets)
        if is_throttled:
            throttle.on_sent(sum(packet.message_count for packet in packets), now_ns)


def _leads_past(channel: Channel, provisional: Provisional) -> bool:
    """True if the decisions whose source messages are here cover everything that was sent ahead.

    Until then none of them is applied. If only some were, an adapter that is then granted the lease could not commit
    what it sent, because part of it would already have other numbers.
    """
    line, intake = channel.line, channel.intake
    if not provisional.is_past(intake.position().next_source_seqs):
        return False  # not even with all of them
    missing = {stream for stream, end in provisional.ends.items() if end > line.next_source_seqs[stream]}
    for run in intake.ready:
        known_end = channel.trackers[run.source_stream_id].next_source_seq or 0
        if run.end_source_seq > known_end and not run.is_source_gap:
            return False
        if run.end_source_seq >= provisional.ends[run.source_stream_id]:
            missing.discard(run.source_stream_id)
        if not missing:
            return True
    return False


def _apply_one(channel: Channel, run: Run, now_ns: int) -> list[OutputPacket] | None:
    """Apply one decision and return its packets; None if its source messages are not here."""
    line, stream = channel.line, run.source_stream_id
    tracker = channel.trackers[stream]
    if run.is_source_gap:
        packet = line.follow_gap(run, OutputFlag.NONE, channel.intake.lineage)
        channel.backlog.drop_before(stream, run.end_source_seq)
        channel.backlog.add(stream, tracker.skip_to(run.end_source_seq, now_ns))
        return [packet]
    if tracker.next_source_seq is None or run.end_source_seq > tracker.next_source_seq:
        return None
    first = run.first_source_seq if line.provisional is None else line.provisional.unconverted_from(run)
    pieces = channel.backlog.take(stream, run.end_source_seq - first)
    return line.follow(run, pieces, channel.intake.lineage)
