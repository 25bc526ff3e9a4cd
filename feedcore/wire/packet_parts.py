"""Parts of an output packet, cut by `input_seq`. Such a cut never separates the messages that one source message made.

Takes time per message: for packets whose boundaries differ between adapters, for overlaps and tests, never for the hot
path.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    OutputPacket,
    encode_runs,
    message_frames,
)
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal


class IdentifiedMessage(NamedTuple):
    """One application message and the source message it came from.

    Attributes:
        lost_count: source messages declared lost, if this is a gap marker; else 0.
        body: SBE message header and body.
    """

    message_seq: int
    source_stream_id: int
    source_seq: int
    lost_count: int
    body: bytes


def placed_frames(packet: OutputPacket) -> list[tuple[int, int, int]]:
    """For each message: the `input_seq` of its source message (ascending; the first one of a declared gap), and the
    offset and length of its frame in the payload.

    Raises:
        PacketRefused: MALFORMED frames, or source messages out of their run's order.
    """
    frames = message_frames(packet)
    placed = []
    for run in packet.runs:
        begin = run.first_message_seq - packet.first_message_seq
        newest = 0
        for offset, length in frames[begin : begin + run.message_count]:
            source_offset = OUTPUT_FRAME.unpack_from(packet.payload, offset)[1]
            if not newest <= source_offset < run.source_count:
                raise PacketRefused(Refusal.MALFORMED, f"source offset {source_offset} after {newest} in {run}")
            newest = source_offset
            placed.append((run.first_input_seq + source_offset, offset, length))
    return placed


def identified_messages(packet: OutputPacket, first_input_seq: int, end_input_seq: int) -> Iterator[IdentifiedMessage]:
    """The messages made from `input_seq` first … end - 1.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    frames = placed_frames(packet)
    for run in packet.runs:
        begin = run.first_message_seq - packet.first_message_seq
        lost_count = run.source_count if run.is_source_gap else 0
        of_run = frames[begin : begin + run.message_count]
        for message_seq, (input_seq, offset, length) in enumerate(of_run, run.first_message_seq):
            if first_input_seq <= input_seq < end_input_seq:
                source_seq = run.first_source_seq + input_seq - run.first_input_seq
                body = packet.payload[offset + OUTPUT_FRAME_SIZE : offset + length]
                yield IdentifiedMessage(message_seq, run.source_stream_id, source_seq, lost_count, body)


def part_of(packet: OutputPacket, first_input_seq: int, end_input_seq: int) -> OutputPacket:
    """A packet with only `input_seq` first … end - 1 of this packet; the packet itself if that is all of it.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    if first_input_seq <= packet.first_input_seq and end_input_seq >= packet.end_input_seq:
        return packet
    frames = placed_frames(packet)
    runs: list[Run] = []
    messages = bytearray()
    for run in packet.runs:
        first, end = max(run.first_input_seq, first_input_seq), min(run.end_input_seq, end_input_seq)
        if first >= end:
            continue
        low, high = bisect_left(frames, (first,)), bisect_left(frames, (end,))
        cut = run._replace(
            first_input_seq=first,
            first_message_seq=packet.first_message_seq + low,
            first_source_seq=run.first_source_seq + first - run.first_input_seq,
            source_count=end - first,
            message_count=high - low,
        )
        runs.append(cut)
        for input_seq, offset, length in frames[low:high]:
            messages += OUTPUT_FRAME.pack(length, input_seq - first)
            messages += packet.payload[offset + OUTPUT_FRAME_SIZE : offset + length]
    return packet._replace(
        first_input_seq=max(first_input_seq, packet.first_input_seq),
        first_message_seq=packet.first_message_seq + bisect_left(frames, (first_input_seq,)),
        message_count=sum(run.message_count for run in runs),
        runs=tuple(runs),
        payload=encode_runs(tuple(runs)) + messages,
    )


def first_messages_of(packet: OutputPacket, message_count: int) -> OutputPacket:
    """A packet with only the first messages, and the source messages that they and earlier silent ones consume.

    Unlike `part_of` it may separate the messages of one source message: it is for showing, not for continuing there.

    Args:
        message_count: at least 1.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    if message_count >= packet.message_count:
        return packet
    newest_input_seq = placed_frames(packet)[message_count - 1][0]
    part = part_of(packet, packet.first_input_seq, newest_input_seq + 1)
    *runs, last = part.runs
    runs.append(last._replace(message_count=last.message_count - (part.message_count - message_count)))
    length = sum(length for _, length in message_frames(part)[:message_count])
    frames = part.payload[part.messages_offset : part.messages_offset + length]
    return part._replace(message_count=message_count, runs=tuple(runs), payload=encode_runs(tuple(runs)) + frames)
