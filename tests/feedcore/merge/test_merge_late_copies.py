"""Copies that arrive after their gap was declared (docs/protocol.md clause 7.3), or that belong to no gap."""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Deliver, Diverged, Filled, Gap
from tests.feedcore.merge.merge_feed import FIRST, MS, Listener, heartbeat, line, packet


def with_a_gap() -> Listener:
    """Messages 1 to 3 and 7 to 8 were delivered; 4 to 6 were declared missing."""
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(7, line(7, 8)))
    listener.wait(5_001 * MS)
    assert listener.events(Gap) == [Gap(1, 4, 7, 4, 7)]
    return listener


def test_the_gap_of_a_start_that_was_not_found_is_not_filled_later() -> None:
    listener = Listener(start=4)
    listener.hear(packet(8, line(12, 13), first_input=12), heartbeat(14, next_message=10))
    listener.wait(5_001 * MS)
    assert listener.events(Gap) == [Gap(1, 0, 12, 4, 8)]
    listener.hear(packet(4, line(8, 9), first_input=8))
    assert not listener.events(Filled)
    assert listener.delivered == line(12, 13)


def test_other_copies_are_still_compared_after_a_declared_gap() -> None:
    listener = with_a_gap()
    listener.hear(packet(1, line(1, 3), adapter=2, tail=b"!"))
    assert [type(effect) for effect in listener.events(Diverged, Filled)] == [Diverged]


def test_a_late_copy_with_malformed_frames_is_refused_and_a_correct_one_fills_the_gap() -> None:
    listener = with_a_gap()
    late = packet(4, line(4, 6))
    listener.hear(late._replace(payload=late.payload[:-1]))
    assert sum(listener.counters.refusals.values()) == 1
    assert not listener.events(Filled)
    listener.hear(late)
    assert len(listener.events(Filled)) == 1
    assert sorted(listener.delivered) == line(1, 8)


def test_copies_of_a_packet_that_filled_a_gap_are_compared_with_it() -> None:
    listener = with_a_gap()
    listener.hear(packet(4, line(4, 6)), packet(4, line(4, 6), adapter=2))
    assert not listener.events(Diverged)
    assert listener.count(Counter.MERGE_NOT_COMPARED) == 0
    listener.hear(packet(4, line(4, 6), adapter=3, tail=b"!"))
    assert [type(effect) for effect in listener.events(Diverged, Filled)] == [Filled, Diverged]


def test_filled_messages_are_not_counted_as_delivered() -> None:
    listener = with_a_gap()
    listener.hear(packet(4, line(4, 6)))
    assert listener.count(Counter.MERGE_DELIVERED) == 5
    assert listener.count(Counter.MERGE_GAPS) == 3
    assert listener.count(Counter.MERGE_RENUMBERED) == 0


def test_beyond_the_limit_the_oldest_gaps_are_no_longer_filled() -> None:
    listener = Listener(MergerConfig(declared_count_max=2))
    listener.hear(packet(1, line(1, 1)))
    for seq in (3, 5, 7):
        listener.hear(packet(seq, line(seq, seq)))
        listener.wait(5_001 * MS)
    assert len(listener.events(Gap)) == 3
    listener.hear(*(packet(seq, line(seq, seq), adapter=2) for seq in (2, 4, 6)))
    assert [each.packet.first_input_seq for each in listener.effects if isinstance(each, Filled)] == [4, 6]
    assert len(listener.events(Deliver)) == 4


def test_a_gap_that_no_stream_is_past_is_declared_up_to_the_known_end() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), heartbeat(6, FIRST))
    listener.wait(5_001 * MS)
    assert listener.events(Gap) == [Gap(1, 4, 6, 4, 6)]
    listener.hear(packet(6, line(6, 6)))
    assert listener.delivered == [*line(1, 3), *line(6, 6)]
