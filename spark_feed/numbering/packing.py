"""Numbers the messages of one micro-batch and packs them into source packets. Pure.

A packet contains consecutive messages of one source stream in record order. It ends when it is full, when it has
`packet_messages_max` messages, or at the end of the micro-batch.

Invariant: packets and numbers are a function of (plan, next numbers, rows), so a rerun gives the same bytes.
`sent_at_ns` is 0 here; the sender fills it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, encode_source_header
from tandemfeed.spark_feed.feed_plan import FeedPlan
from tandemfeed.transport.sealing.source_sealing import SOURCE_SEAL_SIZE


class Frames(NamedTuple):
    """Framed messages of one micro-batch in record order.

    Attributes:
        record_index: shape (n,).
        stream_id: shape (n,).
        event_at_ns: shape (n,).
        offsets: shape (n + 1,): message i is data[offsets[i]:offsets[i + 1]].
        data: shape (bytes,), uint8.
    """

    record_index: NDArray[np.int64]
    stream_id: NDArray[np.int64]
    event_at_ns: NDArray[np.int64]
    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PackedPacket:
    """A source packet and what pacing must know about it.

    Attributes:
        last_record_index: of its last message; orders the packets of a micro-batch.
        event_at_ns: of its last message; a packet is not sent before that event.
    """

    source_stream_id: int
    first_source_seq: int
    message_count: int
    last_record_index: int
    event_at_ns: int
    datagram: bytes


def pack_batch(
    plan: FeedPlan, packet_messages_max: int, next_source_seqs: Mapping[int, int], frames: Frames
) -> tuple[list[PackedPacket], dict[int, int]]:
    """All packets of a micro-batch in sending order, and the next source_seq of each stream.

    Raises:
        ValueError: if a message does not fit in any packet, or its source stream is not one of the feed's.
    """
    foreign = np.setdiff1d(frames.stream_id, np.array(plan.source_stream_ids))
    if foreign.size:
        raise ValueError(f"source stream {foreign[0]} is not one of the feed's {plan.source_stream_ids}")
    after = dict(next_source_seqs)
    packets: list[PackedPacket] = []
    for stream_id in plan.source_stream_ids:
        rows = np.flatnonzero(frames.stream_id == stream_id)
        if rows.size:
            packed = _pack_stream(plan, packet_messages_max, stream_id, after[stream_id], frames, rows)
            packets.extend(packed)
            after[stream_id] += rows.size
    packets.sort(key=lambda packet: packet.last_record_index)
    return packets, after


def _pack_stream(
    plan: FeedPlan, messages_max: int, stream_id: int, next_seq: int, frames: Frames, rows: NDArray[np.int64]
) -> list[PackedPacket]:
    sizes = frames.offsets[rows + 1] - frames.offsets[rows]
    ends = np.cumsum(sizes)
    payload = _gather(frames.data, frames.offsets[rows], sizes, ends)
    room = plan.datagram_size_max - SOURCE_HEADER_SIZE - SOURCE_SEAL_SIZE
    packets = []
    first, start = 0, 0
    while first < rows.size:
        end = min(int(np.searchsorted(ends, start + room, side="right")), first + messages_max)
        if end == first:
            raise ValueError(
                f"record {frames.record_index[rows[first]]}: a message of {sizes[first]} bytes does not fit in a "
                f"datagram of {plan.datagram_size_max} bytes (datagram_size_max)"
            )
        stop = int(ends[end - 1])
        header = encode_source_header(
            feed_id=plan.feed_id,
            source_stream_id=stream_id,
            message_count=end - first,
            session=plan.session,
            first_source_seq=next_seq + first,
            sent_at_ns=0,
        )
        last = int(rows[end - 1])
        packets.append(
            PackedPacket(
                source_stream_id=stream_id,
                first_source_seq=next_seq + first,
                message_count=end - first,
                last_record_index=int(frames.record_index[last]),
                event_at_ns=int(frames.event_at_ns[last]),
                datagram=header + payload[start:stop],
            )
        )
        first, start = end, stop
    return packets


def _gather(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], ends: NDArray[np.int64]
) -> bytes:
    """The given pieces of `data`, concatenated."""
    total = int(ends[-1])
    if total == data.size:
        return data.tobytes()
    shifts = np.repeat(starts - (ends - sizes), sizes)
    return data[shifts + np.arange(total)].tobytes()
