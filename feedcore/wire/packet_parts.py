"""Parts of an output packet, cut by `input_seq`: a cut never divides what one source message became.

Work per message: for packets whose boundaries differ between adapters, for overlaps and tests, never for the hot path.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    OutputPacket,
    encode_runs,
    message_frames,
)
from feedcore.wire.position import Run
from feedcore.wire.refusal import PacketRefused, Refusal


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


def message_input_seqs(packet: OutputPacket) -> list[int]:
    """Of each message, the `input_seq` of the source message it came from, ascending; a declared gap's first.

    Raises:
        PacketRefused: MALFORMED frames, or source messages out of their run's order.
    """
    return _input_seqs(packet, message_frames(packet))


def _input_seqs(packet: OutputPacket, frames: list[tuple[int, int]]) -> list[int]:
    """`message_input_seqs` of a packet whose frames are known."""
    payload, unpack_from = packet.payload, OUTPUT_FRAME.unpack_from
    offsets = [unpack_from(payload, offset)[1] for offset, _ in frames]
    found = []
    for run in packet.runs:
        begin = run.first_message_seq - packet.first_message_seq
        newest = 0
        for offset in offsets[begin : begin + run.message_count]:
            if not newest <= offset < run.source_count:
                raise PacketRefused(Refusal.MALFORMED, f"source offset {offset} after {newest} in {run}")
            newest = offset
            found.append(run.first_input_seq + offset)
    return found


def identified_messages(packet: OutputPacket, first_input_seq: int, end_input_seq: int) -> Iterator[IdentifiedMessage]:
    """The messages that came from `input_seq` first … end - 1.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    frames = message_frames(packet)
    input_seqs = _input_seqs(packet, frames)
    for run in packet.runs:
        for message_seq in range(run.first_message_seq, run.end_message_seq):
            index = message_seq - packet.first_message_seq
            if first_input_seq <= input_seqs[index] < end_input_seq:
                offset, length = frames[index]
                source_seq = run.first_source_seq + input_seqs[index] - run.first_input_seq
                lost_count = run.source_count if run.is_source_gap else 0
                body = packet.payload[offset + OUTPUT_FRAME_SIZE : offset + length]
                yield IdentifiedMessage(message_seq, run.source_stream_id, source_seq, lost_count, body)


def part_of(packet: OutputPacket, first_input_seq: int, end_input_seq: int) -> OutputPacket:
    """A packet of its own with just `input_seq` first … end - 1 of this one; the packet itself if that is all.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    if first_input_seq <= packet.first_input_seq and end_input_seq >= packet.end_input_seq:
        return packet
    frames = message_frames(packet)
    input_seqs = _input_seqs(packet, frames)
    runs = tuple(_cut(run, packet, input_seqs, first_input_seq, end_input_seq) for run in packet.runs)
    runs = tuple(run for run in runs if run.source_count > 0)
    payload = bytearray(encode_runs(runs))
    for run in runs:
        for message_seq in range(run.first_message_seq, run.end_message_seq):
            index = message_seq - packet.first_message_seq
            offset, length = frames[index]
            payload += OUTPUT_FRAME.pack(length, input_seqs[index] - run.first_input_seq)
            payload += packet.payload[offset + OUTPUT_FRAME_SIZE : offset + length]
    first_index = bisect_left(input_seqs, first_input_seq)
    return packet._replace(
        first_input_seq=max(first_input_seq, packet.first_input_seq),
        first_message_seq=packet.first_message_seq + first_index,
        message_count=sum(run.message_count for run in runs),
        runs=runs,
        payload=bytes(payload),
    )


def _cut(run: Run, packet: OutputPacket, input_seqs: list[int], first_input_seq: int, end_input_seq: int) -> Run:
    """What of a run lies in the range; with a `source_count` of 0 or less if nothing does."""
    first, end = max(run.first_input_seq, first_input_seq), min(run.end_input_seq, end_input_seq)
    low, high = bisect_left(input_seqs, first), bisect_left(input_seqs, end)
    return run._replace(
        first_input_seq=first,
        first_message_seq=packet.first_message_seq + low,
        first_source_seq=run.first_source_seq + first - run.first_input_seq,
        source_count=end - first,
        message_count=max(0, high - low),
    )
