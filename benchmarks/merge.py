"""The client's merge alone: microseconds per packet when two adapters send equal copies, when boundaries differ, and
when a history is replayed.

Only the core runs, without sockets or seals. The figure is the least processor time of several rounds, so that other
load matters little.
"""

from __future__ import annotations

import argparse
import time

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.merger import StreamMerger
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    OutputFlag,
    OutputPacket,
    encode_output_packet,
    encode_runs,
)
from tandemfeed.feedcore.wire.packet_series import PacketSeries, decode_series
from tandemfeed.feedcore.wire.position import Run

MESSAGES_PER_PACKET = 34  # a full Ethernet frame of the shipped tick feed
BODY = bytes(40)
PACKET_COUNT = 8_000
PACKETS_PER_CHUNK = 256  # of a replay service's answer
ROUNDS = 9
CHANNEL, EPOCH, SESSION = 1, 1, 20_261_121


def packets_of(adapter_id: int, stream_count: int, first_size: int = MESSAGES_PER_PACKET) -> list[OutputPacket]:
    """One adapter's packets, each of one source stream, in turn. `first_size` shifts the packets' boundaries."""
    found, next_sources, seq = [], dict.fromkeys(range(stream_count), 1), 1
    for number in range(PACKET_COUNT):
        count, stream = (MESSAGES_PER_PACKET if number else first_size), number % stream_count
        runs = (Run(EPOCH, seq, seq, stream, next_sources[stream], count, count),)
        next_sources[stream] += count
        frame_size = OUTPUT_FRAME_SIZE + len(BODY)
        payload = encode_runs(runs) + b"".join(OUTPUT_FRAME.pack(frame_size, at) + BODY for at in range(count))
        found.append(
            OutputPacket(OutputFlag.NONE, 1, CHANNEL, adapter_id, SESSION, EPOCH, seq, seq, count, runs, 0, 0, payload)
        )
        seq += count
    return found


def microseconds_per_packet(one: list[OutputPacket], other: list[OutputPacket]) -> float:
    """Processor time of the merge per packet, when the packets of two streams alternate."""
    best = float("inf")
    for _ in range(ROUNDS):
        merger, counters = _merger()
        begin_ns = time.process_time_ns()
        for ours, theirs in zip(one, other, strict=True):
            merger.on_packet(ours, 1_000)
            merger.on_packet(theirs, 1_000)
        best = min(best, (time.process_time_ns() - begin_ns) / 1_000 / (len(one) + len(other)))
        assert counters.counts[Counter.MERGE_DELIVERED] == max(each[-1].end_message_seq for each in (one, other)) - 1
        assert not counters.counts[Counter.MERGE_DIVERGED]
    return round(best, 2)


def microseconds_per_replayed_packet(packets: list[OutputPacket]) -> float:
    """Processor time per packet of a replayed history, in chunks: to check, decode and merge it."""
    sent = [encode_output_packet(each._replace(flags=each.flags | OutputFlag.RETRANSMISSION)) for each in packets]
    chunks = [sent[at : at + PACKETS_PER_CHUNK] for at in range(0, len(sent), PACKETS_PER_CHUNK)]
    best = float("inf")
    for _ in range(ROUNDS):
        merger, counters = _merger()
        begin_ns = time.process_time_ns()
        for chunk in chunks:
            for part in decode_series(chunk)[0]:
                if isinstance(part, PacketSeries):
                    merger.on_series(part, 1_000)
                else:
                    merger.on_packet(part, 1_000)
        best = min(best, (time.process_time_ns() - begin_ns) / 1_000 / len(sent))
        assert counters.counts[Counter.MERGE_DELIVERED] == packets[-1].end_message_seq - 1
    return round(best, 2)


def _merger() -> tuple[StreamMerger, CounterSet]:
    """A merge that has heard the first heartbeat of the epoch, and its counters."""
    counters = CounterSet()
    merger = StreamMerger(CHANNEL, counters, None, 1)
    lineage = Lineage((EpochStart(EPOCH, 1, 1),)).encode(100)
    merger.on_packet(OutputPacket(OutputFlag.HEARTBEAT, 1, CHANNEL, 1, SESSION, EPOCH, 1, 1, 0, (), 0, 0, lineage), 0)
    return merger, counters


def run(_arguments: argparse.Namespace) -> dict[str, object]:
    """Measure everything."""
    one = packets_of(1, 1)
    return {
        "messages_per_packet": MESSAGES_PER_PACKET,
        "equal_copies_us": microseconds_per_packet(one, packets_of(2, 1)),
        "equal_copies_of_four_source_streams_us": microseconds_per_packet(packets_of(1, 4), packets_of(2, 4)),
        "replayed_history_of_four_source_streams_us": microseconds_per_replayed_packet(packets_of(1, 4)),
        "copies_with_other_boundaries_us": microseconds_per_packet(one, packets_of(2, 1, MESSAGES_PER_PACKET // 2)),
    }
