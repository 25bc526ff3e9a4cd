"""A long stream leaves no objects that refer to others.

A full garbage collection traverses every such object and stops the process meanwhile. With the tens of thousands of
decisions that are remembered, it would stop for 10 to 30 ms.
"""

from __future__ import annotations

import gc

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.merger import StreamMerger
from tests.feedcore.merge.merge_feed import CHANNEL, FIRST_LINEAGE, line, packet
from tests.feedcore.replica.engines import hear, pair

PACKETS = 3_000
FEW = 60  # objects that come and go meanwhile, here and in the interpreter


def tracked_count() -> int:
    """The number of objects that a full collection traverses."""
    gc.collect()
    return len(gc.get_objects())


def test_active_and_backup_remember_decisions_without_keeping_objects() -> None:
    active, backup = pair()

    def play(first: int, count: int) -> None:
        for number in range(first, first + count):
            stream, seq = 1 + number % 2, 1 + number // 2
            decided = active.source(stream, seq, [number])
            backup.source(stream, seq, [number])
            hear(backup, decided, 0)

    play(0, 100)
    before = tracked_count()
    play(100, PACKETS)
    assert backup.next_message_seq == active.next_message_seq > PACKETS
    assert tracked_count() - before < FEW


def test_a_client_remembers_what_it_was_delivered_without_keeping_objects() -> None:
    counters = CounterSet()
    merger = StreamMerger(CHANNEL, counters, None, 1)
    merger.on_packet(FIRST_LINEAGE, 0)

    def play(first: int, count: int) -> None:
        for seq in range(1 + 3 * first, 1 + 3 * (first + count), 3):
            for adapter in (1, 2):
                merger.on_packet(packet(seq, line(seq, seq + 2), adapter=adapter), 0)

    play(0, 100)
    before = tracked_count()
    play(100, PACKETS)
    assert counters.counts[Counter.MERGE_DELIVERED] == 3 * (100 + PACKETS)
    assert tracked_count() - before < FEW
