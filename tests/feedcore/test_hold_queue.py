"""The queue of early packets: the oldest are kept, one for each first number, and what it lacks is listed."""

from __future__ import annotations

from feedcore.merge.hold_queue import HoldQueue
from feedcore.wire.output_packet import OutputPacket
from tests.feedcore.merge_feed import line, packet


def holding(*packets: OutputPacket, count_max: int = 100) -> HoldQueue:
    queue = HoldQueue(count_max)
    for each in packets:
        queue.add(each.first_input_seq, each.end_input_seq, each)
    return queue


def spans(queue: HoldQueue) -> list[tuple[int, int]]:
    """What it holds, taken out in order."""
    found = []
    while (each := queue.pop_reaching(1_000)) is not None:
        found.append((each.first_input_seq, each.end_input_seq))
    return found


def span(first: int, last: int, epoch: int = 1) -> OutputPacket:
    return packet(first, line(first, last), epoch=epoch)


def test_packets_come_out_in_order_once_their_first_number_is_reached() -> None:
    queue = holding(span(7, 8), span(3, 4), span(5, 6))
    assert len(queue) == 3
    assert queue.pop_reaching(2) is None
    assert queue.pop_reaching(3) == span(3, 4)
    assert queue.pop_reaching(4) is None
    assert spans(queue) == [(5, 7), (7, 9)]
    assert not queue
    assert queue.first_packet is None


def test_of_two_packets_that_begin_together_the_longer_one_stays_and_the_other_is_returned() -> None:
    queue = holding(span(3, 4))
    assert queue.add(3, 7, span(3, 6)) == span(3, 4)
    assert queue.add(3, 4, span(3, 3)) == span(3, 6)
    assert queue.add(3, 7, span(3, 6)._replace(adapter_id=2)) == span(3, 6)
    assert queue.first_packet == span(3, 6)
    assert len(queue) == 1
    assert queue.end == 7


def test_a_full_queue_drops_the_newest_numbers() -> None:
    queue = holding(span(3, 3), span(5, 5), span(9, 9), count_max=3)
    assert queue.add(11, 12, span(11, 11)) is None
    assert queue.end == 10
    assert queue.add(7, 8, span(7, 7)) is None
    assert queue.end == 8
    assert queue.add(4, 5, span(4, 4)) is None
    assert queue.end == 6
    assert spans(queue) == [(3, 4), (4, 5), (5, 6)]


def test_a_full_queue_still_takes_the_longer_of_two_packets() -> None:
    queue = holding(span(3, 3), count_max=1)
    assert queue.add(3, 9, span(3, 8)) == span(3, 3)
    assert spans(queue) == [(3, 9)]


def test_the_end_is_the_furthest_one_not_that_of_the_last_packet() -> None:
    assert holding(span(3, 9), span(5, 6)).end == 10


def test_what_is_missing_is_listed_from_the_lowest_within_both_limits() -> None:
    queue = holding(span(3, 4), span(7, 9), span(20, 21))
    assert queue.missing(1, 30, 10, 100) == ((1, 3), (5, 7), (10, 20), (22, 30))
    assert queue.missing(4, 6, 10, 100) == ((5, 6),)
    assert queue.missing(1, 30, 2, 100) == ((1, 3), (5, 7))
    assert queue.missing(1, 30, 10, 3) == ((1, 3), (5, 6))
    assert queue.missing(1, 30, 10, 4) == ((1, 3), (5, 7))
    assert queue.missing(1, 30, 10, 0) == ()
    assert queue.missing(30, 25, 10, 100) == ()


def test_packets_keep_only_what_their_epoch_decided() -> None:
    queue = holding(span(1, 2), span(3, 6), span(7, 8), span(5, 9, epoch=2))
    queue.cut_superseded({1: 5, 2: 1_000}.__getitem__)
    assert len(queue) == 3
    assert spans(queue) == [(1, 3), (3, 5), (5, 10)]


def test_a_packet_that_ends_where_its_epoch_does_stays_whole() -> None:
    queue = holding(span(1, 4), span(5, 6))
    queue.cut_superseded(lambda epoch: 5)
    assert queue.first_packet == span(1, 4)
    assert queue.end == 5
    assert spans(queue) == [(1, 5)]


def test_a_broken_packet_that_would_have_to_be_cut_is_dropped_alone() -> None:
    broken = span(3, 6)
    queue = holding(span(1, 2), broken._replace(payload=broken.payload[:-1]))
    queue.cut_superseded(lambda epoch: 5)
    assert spans(queue) == [(1, 3)]
