"""Parts of an output packet: its messages by their identity, and the packet that a part of it would be.

Work per message: for packets whose boundaries differ between adapters, for overlaps and tests, never for the hot path.
"""

from __future__ import annotations

from collections.abc import Iterator

from feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    OutputPacket,
    encode_runs,
    message_frames,
)
from feedcore.wire.position import Run
from feedcore.wire.refusal import PacketRefused, Refusal


def source_seqs(packet: OutputPacket) -> list[int]:
    """Of each message, which source message it came from; a declared gap's first.

    Raises:
        PacketRefused: MALFORMED frames, or source messages out of their run's order.
    """
    offsets = [OUTPUT_FRAME.unpack_from(packet.payload, offset)[1] for offset, _ in message_frames(packet)]
    found = []
    for run in packet.runs:
        begin = run.first_message_seq - packet.first_message_seq
        newest = 0
        for offset in offsets[begin : begin + run.message_count]:
            if not newest <= offset < run.source_count:
                raise PacketRefused(Refusal.MALFORMED, f"source offset {offset} behind {newest} in {run}")
            newest = offset
            found.append(run.first_source_seq + offset)
    return found


def identified_messages(packet: OutputPacket, first_seq: int, end_seq: int) -> Iterator[tuple[int, int, int, bytes]]:
    """(source_stream_id, source_seq, source messages declared lost, body) of `message_seq` first … end - 1.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    frames = message_frames(packet)
    sources = source_seqs(packet)
    for run in packet.runs:
        for seq in range(max(first_seq, run.first_message_seq), min(end_seq, run.end_message_seq)):
            index = seq - packet.first_message_seq
            offset, length = frames[index]
            lost_count = run.source_count if run.is_source_gap else 0
            body = packet.payload[offset + OUTPUT_FRAME_SIZE : offset + length]
            yield run.source_stream_id, sources[index], lost_count, body


def cut_runs(packet: OutputPacket, first_index: int, end_index: int) -> list[Run]:
    """The runs of messages `first_index` … `end_index - 1`: a run is cut behind its last message's source message.

    Packets hold whole source messages, so no honest cut parts two messages of the same one.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    sources = source_seqs(packet)
    runs = []
    for run in packet.runs:
        start = run.first_message_seq - packet.first_message_seq
        end = start + run.message_count
        first, last = max(start, first_index), min(end, end_index)
        is_trailing = start == end_index == packet.message_count
        if first >= last and not (run.message_count == 0 and (first_index <= start < end_index or is_trailing)):
            continue
        first_source = run.first_source_seq if first == start else min(sources[first - 1] + 1, sources[first])
        end_source = run.end_source_seq if last == end else sources[last - 1] + 1
        runs.append(
            run._replace(
                first_message_seq=packet.first_message_seq + first,
                first_source_seq=first_source,
                source_count=end_source - first_source,
                message_count=last - first,
            )
        )
    return runs


def part_of(packet: OutputPacket, first_seq: int, end_seq: int) -> OutputPacket:
    """A packet of its own with just `message_seq` first … end - 1 of this one; the packet itself if that is all.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    if first_seq <= packet.first_message_seq and end_seq >= packet.end_message_seq:
        return packet
    base = packet.first_message_seq
    runs = cut_runs(packet, first_seq - base, end_seq - base)
    frames = message_frames(packet)
    sources = source_seqs(packet)
    payload = bytearray(encode_runs(tuple(runs)))
    for run in runs:
        for index in range(run.first_message_seq - base, run.end_message_seq - base):
            offset, length = frames[index]
            payload += OUTPUT_FRAME.pack(length, sources[index] - run.first_source_seq)
            payload += packet.payload[offset + OUTPUT_FRAME_SIZE : offset + length]
    return packet._replace(
        first_message_seq=first_seq, message_count=end_seq - first_seq, runs=tuple(runs), payload=bytes(payload)
    )
