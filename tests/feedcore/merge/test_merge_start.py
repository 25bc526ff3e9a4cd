"""docs/protocol.md clause 7.7: a subscription begins live, with the first message, or with a given `message_seq`."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Ended, Filled, Gap, RequestReplay, Takeover
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tests.feedcore.merge.merge_feed import MS, Listener, Source, heartbeat, line, packet


def test_a_subscription_from_the_first_message_waits_for_source_messages_without_one_before_it() -> None:
    listener = Listener(start=1)
    listener.hear(packet(1, line(4, 6), first_input=4))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((1, 4),))]
    listener.hear(packet(1, line(1, 3), silent=line(1, 3)))
    assert listener.delivered == line(4, 6)


@pytest.mark.parametrize("next_message", [3, 4])
def test_a_subscription_from_a_future_message_waits_for_it(next_message: int) -> None:
    listener = Listener(start=4)
    listener.hear(packet(1, line(1, next_message - 1)), heartbeat(next_message))
    listener.wait(10_000 * MS)
    assert listener.delivered == []
    assert not listener.requests
    listener.hear(packet(next_message, line(next_message, 6)))
    assert listener.delivered == line(4, 6)


def test_a_packet_that_ends_where_the_subscription_begins_only_shows_the_place() -> None:
    listener = Listener(start=4)
    listener.hear(packet(1, line(1, 3)))
    assert listener.merger.next_input_seq == 4
    assert not listener.count(Counter.MERGE_NOT_COMPARED)


def test_a_past_message_is_requested_by_number_until_its_place_is_known() -> None:
    listener = Listener(start=4)
    listener.hear(packet(8, line(12, 13), first_input=12), heartbeat(14, next_message=10))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, message_range=(4, 10))]
    # Message 3 was made from source message 5, message 4 from 7, message 5 from 8.
    listener.hear(packet(3, line(5, 8), first_input=5, silent=[(1, 6)], flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == line(7, 8)
    assert listener.merger.next_input_seq == 9
    listener.wait(100 * MS)
    assert listener.requests[-1] == RequestReplay(1, ((9, 12),))
    listener.hear(packet(6, line(9, 11), first_input=9, silent=[(1, 10)], flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == [*line(7, 9), *line(11, 13)]


@pytest.mark.parametrize(
    ("shown", "delivered"),
    [(packet(1, line(4, 6), first_input=4), []), (packet(4, line(7, 8), first_input=7), line(7, 8))],
)
def test_a_packet_that_begins_with_the_message_or_ends_before_it_shows_its_place(
    shown: OutputPacket, delivered: list[Source]
) -> None:
    listener = Listener(start=4)
    listener.hear(shown)
    assert listener.delivered == delivered
    assert listener.merger.next_input_seq == 7 + len(delivered)


def test_a_heartbeat_at_the_message_shows_its_place() -> None:
    listener = Listener(start=4)
    listener.hear(heartbeat(9, next_message=4))
    assert listener.merger.next_input_seq == 9
    listener.hear(packet(4, line(11, 12), first_input=11))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((9, 11),))]


def test_if_no_adapter_still_has_the_first_message_a_gap_is_reported_and_the_stream_continues() -> None:
    listener = Listener(start=4)
    listener.hear(packet(20, line(30, 31), first_input=30), packet(24, line(34, 35), first_input=34))
    listener.wait(5_001 * MS)
    assert listener.events(Gap) == [Gap(1, 0, 30, 4, 20)]
    assert listener.delivered == line(30, 31)
    listener.hear(packet(22, line(32, 33), first_input=32))
    assert listener.delivered == line(30, 35)


def test_a_request_names_no_more_than_a_service_accepts() -> None:
    config = MergerConfig(request_count_max=50)
    late = Listener(config, start=4)
    late.hear(heartbeat(1_000))
    late.wait(4 * MS)
    assert late.requests == [RequestReplay(1, message_range=(4, 54))]
    listener = Listener(config)
    listener.hear(packet(20, line(20, 21)), heartbeat(1_000))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((1, 20), (22, 53)))]


def test_with_confirm_2_it_takes_two_adapters_to_show_the_place() -> None:
    listener = Listener(MergerConfig(confirm=2), start=4)
    listener.hear(packet(4, line(50, 52), first_input=50), heartbeat(53, next_message=7))
    assert listener.merger.next_input_seq is None
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, message_range=(4, 7), copy_count=2)]
    for adapter in (2, 3):
        listener.hear(packet(4, line(4, 6), adapter=adapter, flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == line(4, 6)


def test_with_confirm_2_a_start_that_is_never_confirmed_is_one_gap() -> None:
    listener = Listener(MergerConfig(confirm=2), start=4)
    listener.hear(packet(2, line(2, 5)), heartbeat(7))
    listener.wait(20_000 * MS)
    assert next(gap for gap in listener.events(Gap) if isinstance(gap, Gap)).first_message_seq == 4
    assert listener.merger.next_message_seq == 7


def test_a_subscription_from_the_next_message_ends_with_the_stream() -> None:
    listener = Listener(start=4)
    listener.hear(heartbeat(9, next_message=4, flags=OutputFlag.END_OF_STREAM))
    assert listener.events(Ended) == [Ended(1, 9, 4)]


def test_after_a_takeover_the_start_is_looked_up_in_the_new_history() -> None:
    listener = Listener(start=8)
    listener.hear(packet(9, line(9, 10)))
    listener.hear(heartbeat(5, ((1, 1), (2, 5)), adapter=2), packet(7, line(7, 8), adapter=2, epoch=2))
    assert listener.delivered == [(1, 8)]
    assert listener.merger.next_input_seq == 9


@pytest.mark.parametrize("fork", [3, 4])
def test_a_subscription_never_begins_before_its_first_message_even_if_a_takeover_withdraws_known_messages(
    fork: int,
) -> None:
    listener = Listener(start=4)
    listener.hear(heartbeat(10))
    listener.wait(1_000 * MS)
    listener.hear(heartbeat(8, ((1, 1), (2, fork), (3, 8)), adapter=3))
    listener.wait(4_900 * MS)
    assert listener.merger.next_message_seq == 4
    assert listener.merger.next_input_seq is None
    listener.wait(10_000 * MS)
    assert listener.events(Gap) == [Gap(1, 0, 8, 4, 8)]


def test_packets_before_the_start_take_no_place_among_those_that_are_held() -> None:
    listener = Listener(MergerConfig(held_count_max=2), start=9)
    listener.hear(packet(1, line(1, 1)), packet(3, line(3, 3)), packet(10, line(10, 11)))
    listener.hear(packet(9, line(9, 9)))
    assert listener.delivered == line(9, 11)


def test_a_live_subscription_that_begins_with_a_source_message_without_message_requests_nothing() -> None:
    listener = Listener(start=None)
    listener.hear(packet(1, line(1, 1), silent=line(1, 1)))
    listener.wait(100 * MS)
    assert not listener.requests
    assert listener.merger.next_input_seq == 2


def test_a_takeover_before_a_subscription_has_begun_resumes_nowhere() -> None:
    listener = Listener(start=8)
    listener.hear(heartbeat(5, ((1, 1), (2, 5)), adapter=2, flags=OutputFlag.FROM_ACTIVE))
    assert listener.events(Takeover) == [Takeover(1, 2, 2, 5, 0, 0)]


@pytest.mark.parametrize(("start", "filled"), [(1, 1), (None, 0)])
def test_only_a_subscription_from_the_first_message_misses_what_precedes_the_beginning_of_a_source_stream(
    start: int | None, filled: int
) -> None:
    listener = Listener(start=start)
    listener.hear(packet(1, [(1, 3)]), packet(2, [(1, 1), (1, 2)]))
    assert len(listener.events(Filled)) == filled
