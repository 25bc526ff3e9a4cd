"""Which source messages of a packet are new by identity, and which had been skipped (clauses 7.2 and 7.3)."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.effects import Deliver, Filled, MergeEffect, SourceGap
from tandemfeed.feedcore.merge.source_order import RememberedGaps, SourceOrder
from tandemfeed.feedcore.wire.output_packet import OutputPacket, encode_runs
from tandemfeed.feedcore.wire.packet_parts import identified_messages
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tests.feedcore.merge.merge_feed import CHANNEL, line, packet


class Taker:
    """A source order and its counters."""

    def __init__(self, count_max: int = 100, *, is_from_start: bool = True) -> None:
        self.counters = CounterSet()
        self.order = SourceOrder(CHANNEL, self.counters, count_max, is_from_start=is_from_start)

    def take(self, found: OutputPacket, *, is_late: bool = False) -> list[object]:
        """The effects: of packets the effect's name and the source messages, of events the event itself."""
        effects: list[MergeEffect] = []
        self.order.take(found, effects, is_late=is_late)
        story: list[object] = []
        for effect in effects:
            if isinstance(effect, Deliver | Filled):
                part = effect.packet
                messages = identified_messages(part, part.first_input_seq, part.end_input_seq)
                story.append((type(effect).__name__, [(each.source_stream_id, each.source_seq) for each in messages]))
            else:
                story.append(effect)
        return story

    def counts(self) -> tuple[int, int]:
        """The messages that were delivered, and those dropped because they had been delivered before."""
        counts = self.counters.counts
        return counts[Counter.MERGE_DELIVERED], counts[Counter.MERGE_RENUMBERED]


def source_gap(first: int, last: int) -> OutputPacket:
    """A declared source gap: its one message is the gap marker."""
    gap = packet(first, line(first, first))
    run = gap.runs[0]._replace(source_count=last + 1 - first, is_source_gap=True)
    return gap._replace(runs=(run,), payload=encode_runs((run,)) + gap.payload[16:])


def test_a_packet_that_continues_its_source_streams_is_delivered_as_a_whole() -> None:
    taker = Taker()
    assert taker.take(packet(1, [(1, 1), (2, 1), (1, 2)])) == [("Deliver", [(1, 1), (2, 1), (1, 2)])]
    assert taker.order.next_source_seqs == {1: 3, 2: 2}
    assert taker.counts() == (3, 0)


def test_delivered_messages_are_dropped_under_any_number_and_the_rest_is_delivered_together() -> None:
    taker = Taker()
    taker.take(packet(1, [(1, 1), (1, 2), (2, 1)]))
    again = packet(11, [(1, 2), (1, 3), (2, 2), (2, 3), (1, 4)])
    assert taker.take(again) == [("Deliver", [(1, 3), (2, 2), (2, 3), (1, 4)])]
    assert taker.counts() == (7, 1)
    assert taker.take(again) == []
    assert taker.counts() == (7, 6)


def test_skipped_messages_are_filled_once_and_in_order() -> None:
    taker = Taker()
    taker.take(packet(1, line(1, 2)))
    assert taker.take(packet(6, line(6, 7))) == [("Deliver", line(6, 7))]
    assert taker.order.has_missed(1)
    assert taker.take(packet(1, line(2, 8))) == [("Filled", line(3, 5)), ("Deliver", line(8, 8))]
    assert not taker.order.has_missed(1)
    assert taker.take(packet(3, line(3, 5))) == []
    assert taker.counts() == (5, 3 + 3)


def test_new_messages_of_a_late_packet_are_filled_too() -> None:
    taker = Taker()
    taker.take(packet(1, line(1, 2)))
    assert taker.take(packet(3, line(3, 4)), is_late=True) == [("Filled", line(3, 4))]
    assert taker.take(packet(4, line(4, 6)), is_late=True) == [("Filled", line(5, 6))]
    assert taker.order.next_source_seqs == {1: 7}
    assert taker.counts() == (2, 1)


def test_only_a_subscription_from_the_start_misses_what_precedes_the_first_message_of_a_source_stream() -> None:
    from_start, live = Taker(), Taker(is_from_start=False)
    for taker in (from_start, live):
        taker.take(packet(5, line(5, 6)))
    assert from_start.order.has_missed(1)
    assert not live.order.has_missed(1)
    early = packet(3, line(3, 5))
    assert from_start.take(early) == [("Filled", line(3, 4))]
    assert live.take(early) == []
    assert live.take(early, is_late=True) == [("Filled", line(3, 4))]
    assert live.take(early, is_late=True) == []


def test_nothing_is_missed_before_source_seq_1() -> None:
    taker = Taker()
    taker.take(packet(1, line(1, 1)))
    assert not taker.order.has_missed(1)


def test_a_source_gap_is_reported_once_in_its_place_and_is_not_counted_as_a_message() -> None:
    taker = Taker()
    taker.take(packet(1, line(1, 2)))
    assert taker.take(source_gap(3, 5)) == [SourceGap(CHANNEL, 1, 3, 5)]
    assert taker.take(source_gap(3, 5)) == []
    assert taker.order.next_source_seqs == {1: 6}
    assert taker.counts() == (2, 0)


def test_a_source_gap_comes_between_the_messages_before_and_after_it() -> None:
    taker = Taker()
    taker.take(packet(1, line(1, 2)))
    around = packet(11, [(2, 1), (2, 2), (1, 3), (2, 3)])
    before, gap, after = around.runs
    gap = gap._replace(source_count=3, is_source_gap=True)
    after = after._replace(first_input_seq=gap.end_input_seq)
    runs = (before, gap, after)
    around = around._replace(runs=runs, payload=encode_runs(runs) + around.payload[len(encode_runs(runs)) :])
    assert taker.take(around) == [
        ("Deliver", line(1, 2, stream=2)),
        SourceGap(CHANNEL, 1, 3, 5),
        ("Deliver", line(3, 3, stream=2)),
    ]


def test_only_the_new_part_of_a_source_gap_is_reported() -> None:
    taker = Taker()
    taker.take(packet(1, line(1, 3)))
    assert taker.take(source_gap(2, 5)) == [SourceGap(CHANNEL, 1, 4, 5)]


def test_a_source_gap_over_skipped_messages_is_reported_in_two_parts() -> None:
    taker = Taker()
    taker.take(packet(1, line(1, 2)))
    taker.take(packet(5, line(5, 6)))
    assert taker.take(source_gap(3, 8)) == [SourceGap(CHANNEL, 1, 3, 4), SourceGap(CHANNEL, 1, 7, 8)]


def test_messages_skipped_by_declaration_are_filled_later() -> None:
    taker = Taker()
    taker.take(packet(1, line(1, 2)))
    taker.order.pass_over(1, 5)
    assert taker.order.next_source_seqs == {1: 5}
    assert taker.take(packet(4, line(4, 6))) == [("Filled", line(4, 4)), ("Deliver", line(5, 6))]
    assert taker.order.has_missed(1)


def test_malformed_frames_change_nothing() -> None:
    taker = Taker()
    taker.take(packet(1, line(1, 2)))
    broken = packet(5, line(5, 6))
    with pytest.raises(PacketRefused):
        taker.take(broken._replace(payload=broken.payload[:-1]))
    assert taker.order.next_source_seqs == {1: 3}
    assert not taker.order.has_missed(1)


def test_a_stream_that_occurs_twice_in_a_packet_must_continue_itself() -> None:
    taker = Taker()
    assert taker.take(packet(1, [(1, 1), (2, 1), (1, 3)])) == [("Deliver", [(1, 1), (2, 1), (1, 3)])]
    assert taker.take(packet(4, [(1, 2)])) == [("Filled", [(1, 2)])]


def test_beyond_the_limit_the_lowest_range_is_forgotten() -> None:
    gaps = RememberedGaps(2)
    for first in (10, 20, 5):
        gaps.add(first, first + 3)
    assert list(gaps) == [(10, 13), (20, 23)]
    gaps.add(13, 20)
    assert list(gaps) == [(10, 23)]
