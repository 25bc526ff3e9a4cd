"""Unit tests of the copies that wait for another adapter's copy (docs/protocol.md clause 7.6)."""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.copies.confirmation import Confirmation, Stretch
from tandemfeed.feedcore.merge.effects import Diverged, MergeEffect
from tandemfeed.feedcore.merge.history.place import Place
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tests.feedcore.merge.merge_feed import line, packet


class Gatherer:
    """A confirmation and its effects."""

    def __init__(self, count_max: int = 100) -> None:
        self.counters = CounterSet()
        self.confirmation = Confirmation(1, self.counters, count_max)
        self.effects: list[MergeEffect] = []

    def hear(self, found: OutputPacket) -> list[tuple[int, int]]:
        """The ranges of `input_seq` that a copy confirms."""
        confirmed = self.confirmation.on_packet(found, self.effects)
        return [(part.first_input_seq, part.end_input_seq) for part in confirmed]

    def waiting(self) -> list[tuple[int, int]]:
        """Remove and return the ranges that wait, ascending."""
        return [(each.first_input_seq, each.end_input_seq) for each in self.confirmation.passed(1_000)]


def span(first: int, last: int, adapter: int = 1, tail: bytes = b"", epoch: int = 1) -> OutputPacket:
    return packet(first, line(first, last), adapter=adapter, tail=tail, epoch=epoch)


def test_a_second_adapters_copy_confirms_and_then_nothing_waits() -> None:
    gatherer = Gatherer()
    assert gatherer.hear(span(3, 5)) == []
    assert gatherer.hear(span(3, 5, adapter=2)) == [(3, 6)]
    assert gatherer.waiting() == []


def test_copies_of_one_adapter_confirm_nothing_and_wait_once() -> None:
    gatherer = Gatherer()
    for _ in range(3):
        assert gatherer.hear(span(3, 5)) == []
    assert gatherer.hear(span(3, 4)) == []
    assert gatherer.waiting() == [(3, 6), (3, 5)]


def test_the_common_part_of_two_packets_is_confirmed_and_the_rest_waits() -> None:
    gatherer = Gatherer()
    gatherer.hear(span(3, 8))
    assert gatherer.hear(span(5, 6, adapter=2)) == [(5, 7)]
    assert gatherer.waiting() == [(3, 5), (7, 9)]


def test_many_short_packets_confirm_a_long_one_in_order() -> None:
    gatherer = Gatherer()
    for seq in (7, 3, 5):
        gatherer.hear(span(seq, seq + 1))
    assert gatherer.hear(span(2, 9, adapter=2)) == [(3, 5), (5, 7), (7, 9)]
    assert gatherer.waiting() == [(2, 3), (9, 10)]


def test_adjoining_copies_have_nothing_in_common() -> None:
    gatherer = Gatherer()
    gatherer.hear(span(3, 4))
    assert gatherer.hear(span(5, 6, adapter=2)) == []
    assert gatherer.hear(span(1, 2, adapter=2)) == []
    assert gatherer.waiting() == [(1, 3), (3, 5), (5, 7)]


def test_a_third_copy_decides_between_two_that_differ_and_each_difference_raises_one_alarm() -> None:
    gatherer = Gatherer()
    gatherer.hear(span(3, 5))
    assert gatherer.hear(span(3, 5, adapter=2, tail=b"!")) == []
    assert gatherer.hear(span(3, 5, adapter=2, tail=b"!")) == []
    assert [each.adapter_ids for each in gatherer.effects if isinstance(each, Diverged)] == [(1, 2)]
    assert gatherer.hear(span(3, 5, adapter=3, tail=b"!")) == [(3, 6)]
    assert len(gatherer.effects) == 2
    assert gatherer.counters.counts[Counter.MERGE_DIVERGED] == 2
    assert gatherer.waiting() == [(3, 6)]


def test_alarms_are_remembered_up_to_the_limit() -> None:
    gatherer = Gatherer(count_max=4)
    gatherer.hear(span(3, 5))
    gatherer.hear(span(9, 9))
    for _ in range(2):
        gatherer.hear(span(3, 5, adapter=2, tail=b"!"))
    assert len(gatherer.effects) == 1
    for tail in (b"?", b"!"):
        gatherer.hear(span(9, 9, adapter=2, tail=tail))
    assert len(gatherer.effects) == 2


def test_beyond_the_limit_the_oldest_alarm_is_forgotten_and_raised_again() -> None:
    gatherer = Gatherer(count_max=2)

    def differ(seq: int) -> int:
        """How many alarms two copies of a source message raise that differ."""
        count = len(gatherer.effects)
        gatherer.hear(span(seq, seq))
        gatherer.hear(span(seq, seq, adapter=2, tail=b"!"))
        gatherer.waiting()
        return len(gatherer.effects) - count

    assert [differ(seq) for seq in (3, 5, 3, 5)] == [1, 1, 0, 0]
    assert [differ(seq) for seq in (7, 5, 3)] == [1, 0, 1]


def test_beyond_the_limit_packets_with_the_highest_numbers_are_dropped() -> None:
    gatherer = Gatherer(count_max=2)
    for seq in (3, 7, 9):
        gatherer.hear(span(seq, seq + 1))
    gatherer.hear(span(7, 9))
    assert gatherer.confirmation.adapters_with(9, 10) == ()
    for seq in (5, 7):
        gatherer.hear(span(seq, seq + 1))
    assert gatherer.waiting() == [(3, 5), (5, 7)]


def test_the_limit_drops_the_highest_of_several_packets() -> None:
    gatherer = Gatherer(count_max=3)
    for seq in (1, 5, 9, 7):
        gatherer.hear(span(seq, seq + 1))
    assert gatherer.waiting() == [(1, 3), (5, 7), (7, 9)]


def test_copies_stop_waiting_once_they_are_passed_as_a_whole() -> None:
    gatherer = Gatherer()
    for first, last in ((3, 4), (3, 9), (5, 6), (8, 9)):
        gatherer.hear(span(first, last))
    gone = gatherer.confirmation.passed(7)
    assert [(each.first_input_seq, each.end_input_seq) for each in gone] == [(3, 5), (5, 7)]
    assert gatherer.confirmation.passed(7) == []
    assert gatherer.waiting() == [(3, 10), (8, 10)]


def test_copies_that_no_longer_count_as_a_whole_are_forgotten() -> None:
    gatherer = Gatherer()
    for each in (span(3, 4), span(3, 5), span(9, 9, epoch=2)):
        gatherer.hear(each)
    gatherer.confirmation.drop_superseded({1: 5, 2: 100}.__getitem__)
    assert gatherer.waiting() == [(3, 5), (9, 10)]


def test_what_lies_between_two_places_is_split_by_whether_a_copy_waits() -> None:
    gatherer = Gatherer()
    for first, last in ((1, 4), (5, 6), (9, 30)):
        gatherer.hear(span(first, last))
    assert gatherer.confirmation.split(Place(3, 3), Place(12, 12)) == [
        Stretch(Place(3, 3), Place(7, 7), is_waiting=True),
        Stretch(Place(7, 7), Place(9, 9), is_waiting=False),
        Stretch(Place(9, 9), Place(12, 12), is_waiting=True),
    ]
    assert gatherer.confirmation.split(Place(7, 7), Place(9, 9)) == [
        Stretch(Place(7, 7), Place(9, 9), is_waiting=False),
    ]


def test_the_adapters_whose_copies_wait_are_known_by_range() -> None:
    gatherer = Gatherer()
    gatherer.hear(span(1, 20))
    gatherer.hear(span(5, 6, adapter=3, tail=b"!"))
    assert gatherer.confirmation.adapters_with(2, 5) == (1,)
    assert gatherer.confirmation.adapters_with(6, 7) == (1, 3)
    assert gatherer.confirmation.adapters_with(7, 9) == (1,)
    assert gatherer.confirmation.adapters_with(21, 30) == ()
