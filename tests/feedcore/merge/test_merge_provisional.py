"""docs/protocol.md clause 7.5: packets sent without a lease are merged by source identity alone."""

from __future__ import annotations

import random

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import (
    Deliver,
    Ended,
    Filled,
    Gap,
    Numbered,
    Provisional,
    ProvisionalGap,
    RequestReplay,
)
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tests.feedcore.merge.merge_feed import FIRST, MS, Listener, Source, heartbeat, line, packet


def provisional(first: int, sources: list[Source], adapter: int = 2) -> OutputPacket:
    return packet(first, sources, adapter=adapter, flags=OutputFlag.PROVISIONAL)


def numbered_so_far() -> Listener:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, [(1, 1), (2, 1), (1, 2)]))
    return listener


def test_provisional_messages_continue_where_the_numbered_ones_ended() -> None:
    listener = numbered_so_far()
    effects = listener.hear(provisional(4, [(1, 3), (1, 4), (2, 2)]))
    assert listener.delivered == [(1, 1), (2, 1), (1, 2), (1, 3), (1, 4), (2, 2)]
    assert [type(effect) for effect in effects if not isinstance(effect, Deliver)][1:] == [Provisional]
    assert listener.events(Provisional) == [Provisional(1, 2)]
    assert listener.merger.next_message_seq == 4
    assert listener.count(Counter.MERGE_PROVISIONAL) == 3


def test_packets_of_two_provisional_senders_in_any_order_merge_into_one_stream_per_source() -> None:
    chance = random.Random(3)
    listener = numbered_so_far()
    packets = []
    for adapter in (2, 3):
        first = 3
        while first <= 40:
            count = chance.randint(1, 4)
            packets.append(provisional(first, line(first, min(40, first + count - 1)), adapter=adapter))
            first += count
    chance.shuffle(packets)
    listener.hear(*packets)
    assert listener.delivered == [(1, 1), (2, 1), (1, 2), *line(3, 40)]
    assert len(listener.events(Provisional)) == 1
    listener.wait(100 * MS)
    assert not listener.requests


def test_one_request_names_the_gaps_of_several_source_streams_by_source_range() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(9, [(1, 5), (2, 4)]), provisional(12, [(1, 8)]))
    assert listener.delivered == [(1, 1), (2, 1), (1, 2)]
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, source_ranges=((1, 3, 5), (1, 6, 8), (2, 2, 4)))]
    listener.hear(provisional(4, [(1, 3), (1, 4)]), provisional(6, [(2, 2), (2, 3)]), provisional(10, [(1, 6), (1, 7)]))
    assert sorted(listener.delivered) == [*line(1, 8), (2, 1), (2, 2), (2, 3), (2, 4)]


@pytest.mark.parametrize(
    ("config", "source_ranges"),
    [
        (MergerConfig(request_range_count_max=2), ((1, 1, 4), (1, 5, 6))),
        (MergerConfig(request_range_count_max=3), ((1, 1, 4), (1, 5, 6), (2, 1, 9))),
        (MergerConfig(request_count_max=4), ((1, 1, 4), (1, 5, 6))),
        (MergerConfig(request_count_max=6), ((1, 1, 4), (1, 5, 6), (2, 1, 3))),
    ],
)
def test_the_limits_of_a_request_apply_to_all_source_streams_together(
    config: MergerConfig, source_ranges: tuple[tuple[int, int, int], ...]
) -> None:
    listener = Listener(config)
    listener.hear(*(provisional(7, [source]) for source in [(2, 9), (3, 2), (1, 4), (1, 6)]))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, source_ranges=source_ranges)]


def test_numbered_and_provisional_gaps_are_both_requested() -> None:
    listener = numbered_so_far()
    listener.hear(heartbeat(6, FIRST), provisional(9, [(2, 4)]))
    listener.wait(4 * MS)
    assert RequestReplay(1, ((4, 6),)) in listener.requests
    listener.wait(40 * MS)
    assert RequestReplay(1, source_ranges=((2, 2, 4),)) in listener.requests


def test_a_provisional_gap_that_no_adapter_fills_is_declared_by_source_and_filled_if_it_arrives() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(9, [(1, 5), (1, 6)]))
    listener.wait(5_001 * MS)
    assert listener.events(ProvisionalGap) == [ProvisionalGap(1, 1, 3, 4)]
    assert listener.delivered[-2:] == [(1, 5), (1, 6)]
    listener.hear(provisional(8, [(1, 4)]))
    assert len(listener.events(Filled)) == 1
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    listener.hear(packet(4, [(1, 3), (1, 4), (1, 5), (1, 6), (1, 7)], adapter=2, epoch=2))
    assert len(listener.events(Filled)) == 2
    assert sorted(listener.delivered) == [*line(1, 7), (2, 1)]


def test_the_same_messages_with_final_numbers_are_dropped_and_the_numbers_continue() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(4, [(1, 3), (2, 2)]), provisional(6, [(2, 3)]))
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    listener.hear(packet(4, [(1, 3), (2, 2)], adapter=2, epoch=2))
    assert not listener.events(Numbered)
    listener.hear(packet(6, [(2, 3), (1, 4)], adapter=2, epoch=2))
    assert listener.events(Numbered) == [Numbered(1, 2, 8)]
    assert listener.delivered == [(1, 1), (2, 1), (1, 2), (1, 3), (2, 2), (2, 3), (1, 4)]
    assert listener.merger.next_message_seq == 8
    listener.hear(provisional(8, [(1, 5)]))
    assert len(listener.events(Provisional)) == 2


def test_numbered_messages_that_were_lost_before_let_provisional_delivery_continue() -> None:
    listener = numbered_so_far()
    listener.hear(heartbeat(6, FIRST), provisional(6, [(1, 5)]))
    assert (1, 5) not in listener.delivered
    listener.hear(packet(4, [(1, 3), (1, 4)], flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered[-3:] == [(1, 3), (1, 4), (1, 5)]
    listener.wait(100 * MS)
    assert not listener.events(Gap, ProvisionalGap)


def test_the_numbers_of_a_provisional_heartbeat_do_not_count() -> None:
    listener = numbered_so_far()
    listener.hear(heartbeat(50, FIRST, adapter=2, flags=OutputFlag.PROVISIONAL))
    listener.wait(100 * MS)
    assert not listener.requests


def test_with_confirm_2_provisional_messages_wait_for_their_numbers() -> None:
    listener = Listener(MergerConfig(confirm=2))
    listener.hear(provisional(1, line(1, 3)), provisional(1, line(1, 3), adapter=3))
    assert not listener.delivered
    listener.hear(packet(1, line(1, 3), adapter=2), packet(1, line(1, 3), adapter=3))
    assert listener.delivered == line(1, 3)


def test_the_number_of_packets_held_after_a_provisional_gap_is_limited() -> None:
    listener = Listener(MergerConfig(held_count_max=10))
    listener.hear(*(provisional(seq, line(seq, seq)) for seq in range(2, 100)))
    assert len(listener.merger._provisional.gaps[1].held) == 10
    listener.hear(provisional(1, line(1, 1)))
    assert listener.delivered == line(1, 11)


def test_the_limit_of_held_provisional_packets_applies_to_all_source_streams_together() -> None:
    listener = Listener(MergerConfig(held_count_max=10))
    listener.hear(*(provisional(seq, [(stream, seq)]) for seq in range(2, 10) for stream in (1, 2)))
    assert listener.count(Counter.MERGE_HELD) == 10
    listener.hear(provisional(1, [(1, 1), (2, 1)]))
    assert listener.delivered == [*line(1, 6), *line(1, 6, stream=2)]


def test_held_packets_whose_numbered_copies_arrive_first_begin_no_provisional_delivery() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(9, [(1, 5)]), packet(4, line(3, 5)))
    assert listener.delivered[3:] == line(3, 5)
    assert not listener.events(Provisional)
    assert not listener.merger._provisional.gaps


def test_a_live_subscription_takes_nothing_from_a_late_forwarder_after_the_end() -> None:
    listener = Listener(start=None)
    listener.hear(heartbeat(9, FIRST, flags=OutputFlag.END_OF_STREAM))
    assert listener.events(Ended) == [Ended(1, 9, 9)]
    listener.hear(provisional(8, [(2, 68)]))
    assert listener.delivered == []
    assert not listener.events(Provisional)


def forwarder_at(message_seq: int, lineage: tuple[tuple[int, int], ...] = FIRST) -> OutputPacket:
    """The heartbeat of adapter 2, a forwarder that has everything numbered before this place."""
    return heartbeat(message_seq, lineage, adapter=2, flags=OutputFlag.PROVISIONAL)


def test_a_live_start_takes_nothing_from_a_forwarder_that_lags_behind_the_active() -> None:
    listener = Listener(start=None)
    listener.hear(heartbeat(51, ((1, 1), (2, 51))), forwarder_at(31), provisional(31, line(31, 46)))
    listener.hear(packet(47, line(47, 50), adapter=2), packet(51, line(51, 53), epoch=2))
    assert listener.delivered == line(51, 53)
    assert listener.count(Counter.MERGE_NOT_BEGUN) == 1
    assert not listener.events(Provisional)


def test_after_a_live_start_with_a_lagging_forwarder_numbers_begin_at_the_forwarders_place() -> None:
    listener = Listener(start=None)
    listener.hear(forwarder_at(31), provisional(34, line(34, 46)), heartbeat(51, ((1, 1), (2, 51))))
    assert listener.merger.next_message_seq == 31
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((31, 51),))]
    listener.hear(packet(31, line(31, 50), flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == line(34, 50)


def test_live_start_accepts_forwarded_data_once_sender_position_is_known() -> None:
    listener = Listener(start=None)
    listener.hear(provisional(9, [(1, 9)]))  # its sender's position is not known yet
    listener.hear(heartbeat(9, FIRST, adapter=3), forwarder_at(9), provisional(10, line(10, 12)))
    assert listener.delivered == line(10, 12)
    listener.hear(provisional(8, [(2, 4)]))  # sent before the heartbeat that overtook it
    assert listener.delivered == line(10, 12)
    listener.hear(heartbeat(14, ((1, 1), (2, 9))), packet(9, [*line(9, 12), (2, 5)], epoch=2))
    assert listener.delivered == [*line(10, 12), (2, 5)]


def test_a_subscription_from_a_later_message_begins_no_source_stream_with_forwarded_data() -> None:
    listener = Listener(start=9)
    listener.hear(forwarder_at(9), provisional(10, line(10, 12)))
    assert listener.delivered == []
    listener.hear(packet(9, line(9, 12)), provisional(13, line(13, 14)))
    assert listener.delivered == line(9, 14)


def test_a_provisional_gap_that_a_declared_numbered_gap_closed_is_not_declared_backwards() -> None:
    listener = numbered_so_far()
    listener.hear(packet(6, [(1, 3), (1, 4)]))  # early: messages 4 and 5 are missing
    listener.wait(1_000 * MS)
    listener.hear(provisional(90, [(1, 4)]))  # held until (1, 3) comes
    listener.wait(10_000 * MS)  # the numbered gap is declared, and (1, 3) and (1, 4) are delivered
    assert len(listener.events(Gap)) == 1
    assert listener.events(ProvisionalGap) == []
    assert listener.delivered[-2:] == [(1, 3), (1, 4)]


def test_a_provisional_packet_without_anything_new_is_a_duplicate_and_begins_nothing() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(3, [(1, 2)]))
    assert listener.count(Counter.MERGE_DUPLICATES) == 1
    assert listener.count(Counter.MERGE_RENUMBERED) == listener.count(Counter.MERGE_PROVISIONAL) == 0
    assert not listener.events(Provisional)


def test_only_the_new_part_of_a_provisional_packet_is_delivered_and_counted() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(3, [(1, 2), (1, 3), (1, 4)]))
    assert listener.delivered[3:] == [(1, 3), (1, 4)]
    assert listener.count(Counter.MERGE_PROVISIONAL) == 2


def test_a_malformed_provisional_packet_that_has_to_be_cut_is_treated_as_lost() -> None:
    listener = numbered_so_far()
    whole = provisional(3, line(2, 5))
    listener.hear(whole._replace(payload=whole.payload[:-1]))
    assert sum(listener.counters.refusals.values()) == 1
    assert not listener.events(Provisional)
    listener.hear(packet(4, [(1, 3)]))
    assert not listener.events(Numbered)
    listener.hear(whole)
    assert listener.delivered[3:] == line(3, 5)


def test_a_second_copy_of_a_packet_held_after_a_provisional_gap_is_a_duplicate() -> None:
    listener = numbered_so_far()
    listener.hear(*(provisional(9, [(1, 5)], adapter=adapter) for adapter in (2, 3, 4)))
    assert (listener.count(Counter.MERGE_HELD), listener.count(Counter.MERGE_DUPLICATES)) == (1, 2)


def test_patience_with_a_later_provisional_gap_begins_when_numbered_packets_close_the_first() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(9, [(1, 5)]), provisional(11, [(1, 7)]))
    listener.wait(4_990 * MS)
    listener.hear(packet(4, [(1, 3), (1, 4)]))
    assert listener.delivered[-3:] == line(3, 5)
    listener.wait(4_999 * MS)
    assert not listener.events(ProvisionalGap)
    listener.wait(1 * MS)
    assert listener.events(ProvisionalGap) == [ProvisionalGap(1, 1, 6, 6)]
    assert listener.count(Counter.MERGE_GAPS) == 1


def test_a_provisional_gap_is_requested_again_until_it_is_filled() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(9, [(1, 5)]))
    listener.wait(24 * MS)
    assert listener.requests == [RequestReplay(1, source_ranges=((1, 3, 5),))] * 2
    listener.hear(provisional(7, [(1, 3), (1, 4)]))
    assert listener.merger.next_deadline_ns() == 200 * MS  # the only deadline left is that of silence
    assert not listener.merger._provisional.gaps


def test_a_later_gap_of_the_same_source_stream_has_its_own_patience() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(9, [(1, 5)]))
    listener.wait(10 * MS)
    listener.hear(provisional(11, [(1, 7)]))
    listener.wait(4_990 * MS)
    assert listener.events(ProvisionalGap) == [ProvisionalGap(1, 1, 3, 4)]
    assert listener.delivered[-1] == (1, 5)
    listener.wait(5_000 * MS)
    assert listener.events(ProvisionalGap)[1:] == [ProvisionalGap(1, 1, 6, 6)]
    assert listener.delivered[-1] == (1, 7)
    assert listener.count(Counter.MERGE_GAPS) == 3


def test_numbers_are_final_for_all_source_streams_only_once_the_last_of_each_is_numbered() -> None:
    listener = numbered_so_far()
    listener.hear(provisional(4, [(1, 3), (1, 4), (2, 2)]))
    listener.hear(packet(4, [(2, 2), (3, 1), (1, 3)]))
    assert not listener.events(Numbered)
    listener.hear(packet(7, [(1, 4)]))
    assert listener.events(Numbered) == [Numbered(1, 1, 8)]


def test_after_the_end_no_provisional_message_is_delivered() -> None:
    listener = numbered_so_far()
    listener.hear(heartbeat(4, FIRST, flags=OutputFlag.END_OF_STREAM), provisional(4, [(1, 3)]))
    assert listener.events(Ended) == [Ended(1, 4, 4)]
    assert (1, 3) not in listener.delivered
