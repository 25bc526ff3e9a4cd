"""How far a merge is from the end that it knows of: what the client's lag and its waiting for an end rest on."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import CatchingUp, CaughtUp, RequestReplay
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tests.feedcore.merge.merge_feed import CHANNEL, MS, Listener, heartbeat, line, packet


def progress(listener: Listener) -> tuple[bool, int]:
    """Whether messages are missing, and how many."""
    return listener.merger.has_missing_messages, listener.merger.missing_message_count


@pytest.mark.parametrize("start", [None, 1, 4])
def test_before_anything_is_heard_nothing_is_missing(start: int | None) -> None:
    assert progress(Listener(start=start)) == (False, 0)


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (heartbeat(14, next_message=10), (True, 6)),
        (heartbeat(9, next_message=5), (True, 1)),
        (heartbeat(9, next_message=4), (False, 0)),
        (heartbeat(9, next_message=3), (False, 0)),
        (packet(8, line(12, 13), first_input=12), (True, 6)),
        (packet(4, line(12, 13), first_input=12), (False, 0)),
    ],
)
def test_messages_from_a_start_by_number_to_the_known_end_are_missing(
    heard: OutputPacket, expected: tuple[bool, int]
) -> None:
    listener = Listener(start=4)
    listener.hear(heard)
    assert progress(listener) == expected


def test_the_messages_of_a_gap_and_early_ones_after_it_are_missing_until_they_are_delivered() -> None:
    listener = Listener(start=1)
    listener.hear(packet(1, line(1, 2)))
    assert progress(listener) == (False, 0)
    listener.hear(packet(5, line(5, 7)))
    assert progress(listener) == (True, 5)
    listener.hear(packet(3, line(3, 3)))
    assert progress(listener) == (True, 4)
    listener.hear(packet(4, line(4, 4)))
    assert progress(listener) == (False, 0)


def test_a_subscription_that_begins_live_misses_what_it_hears_of_after_its_first_packet() -> None:
    listener = Listener(start=None)
    listener.hear(packet(8, line(8, 9)))
    assert progress(listener) == (False, 0)
    listener.hear(heartbeat(13))
    listener.wait(1 * MS)
    assert progress(listener) == (True, 3)


def with_a_requested_gap() -> Listener:
    """A merge that misses 3 to 9 and has requested them."""
    listener = Listener()
    listener.hear(packet(1, line(1, 2)), packet(10, line(10, 10)))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((3, 10),))]
    return listener


def test_an_answer_with_a_part_of_a_gap_is_followed_by_a_request_for_the_rest_without_a_pause() -> None:
    listener = with_a_requested_gap()
    listener.hear(packet(3, line(3, 5), flags=OutputFlag.RETRANSMISSION))
    listener.merger.on_replay_ended(listener.now_ns)
    listener.wait(0)
    assert listener.requests[1:] == [RequestReplay(1, ((6, 10),))]


def test_an_answer_that_did_not_help_is_followed_by_a_pause() -> None:
    listener = with_a_requested_gap()
    listener.merger.on_replay_ended(listener.now_ns)
    listener.wait(0)
    assert len(listener.requests) == 1
    listener.wait(1_000 * MS)
    assert len(listener.requests) > 1


def test_an_answer_with_the_whole_gap_is_followed_by_nothing() -> None:
    listener = with_a_requested_gap()
    listener.hear(packet(3, line(3, 9), flags=OutputFlag.RETRANSMISSION))
    listener.merger.on_replay_ended(listener.now_ns)
    listener.wait(100 * MS)
    assert len(listener.requests) == 1
    assert listener.delivered == line(1, 10)


def test_a_long_history_is_reported_with_each_request_that_follows_progress_and_at_its_end() -> None:
    listener = Listener(MergerConfig(catching_up_count=10))
    listener.hear(packet(10, line(10, 10)))
    listener.wait(4 * MS)
    assert listener.events(CatchingUp) == [CatchingUp(CHANNEL, 1, 11)]
    listener.wait(100 * MS)
    assert len(listener.requests) > 1
    assert listener.count(Counter.MERGE_REPLAY_REQUESTS) == len(listener.requests)
    assert len(listener.events(CatchingUp)) == 1, "a request without progress since"
    listener.hear(packet(1, line(1, 8), flags=OutputFlag.RETRANSMISSION))
    listener.merger.on_replay_ended(listener.now_ns)
    listener.wait(0)
    assert listener.events(CatchingUp)[1:] == [CatchingUp(CHANNEL, 9, 11)]
    listener.hear(packet(9, line(9, 9), flags=OutputFlag.RETRANSMISSION))
    assert listener.events(CaughtUp) == [CaughtUp(CHANNEL, 11)]
    listener.hear(packet(11, line(11, 11)))
    assert len(listener.events(CaughtUp)) == 1


def test_a_short_gap_is_requested_and_not_reported_as_history() -> None:
    listener = Listener(MergerConfig(catching_up_count=11))
    listener.hear(packet(10, line(10, 10)))
    listener.wait(4 * MS)
    assert len(listener.requests) == 1
    listener.hear(packet(1, line(1, 9), flags=OutputFlag.RETRANSMISSION))
    assert not listener.events(CatchingUp, CaughtUp)


def test_a_gap_far_into_a_channel_is_not_a_long_history() -> None:
    listener = Listener(MergerConfig(catching_up_count=10), start=None)
    listener.hear(packet(100, line(100, 100)), packet(103, line(103, 103)))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((101, 103),))]
    assert not listener.events(CatchingUp)


@pytest.mark.parametrize(("count", "is_reported"), [(13, True), (14, False)])
def test_before_the_place_of_its_start_is_known_a_subscription_may_miss_the_whole_channel(
    count: int, is_reported: bool
) -> None:
    listener = Listener(MergerConfig(catching_up_count=count), start=4)
    listener.hear(heartbeat(14, next_message=10))
    listener.wait(4 * MS)
    assert listener.events(CatchingUp) == [CatchingUp(CHANNEL, 4, 10)] * is_reported


def test_requests_for_provisional_messages_do_not_report_a_long_history() -> None:
    listener = Listener(MergerConfig(catching_up_count=10), start=None)
    listener.hear(heartbeat(50, ((1, 1), (2, 50)), adapter=2, flags=OutputFlag.PROVISIONAL))
    for seq in (7, 10):
        listener.hear(packet(43 + seq, line(seq, seq), adapter=2, flags=OutputFlag.PROVISIONAL))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, source_ranges=((1, 8, 10),))]
    assert not listener.events(CatchingUp)


@pytest.mark.parametrize("start", [None, 5])
def test_a_subscription_that_has_not_begun_misses_nothing_before_its_start(start: int | None) -> None:
    listener = Listener(start=start)
    listener.hear(heartbeat(5, ((1, 1), (2, 5)), adapter=2, flags=OutputFlag.PROVISIONAL))
    assert progress(listener) == (False, 0)


def test_a_lineage_alone_shows_how_far_the_channel_reaches() -> None:
    listener = Listener()
    listener.hear(heartbeat(30, ((1, 1), (2, 9)), adapter=2, flags=OutputFlag.PROVISIONAL))
    assert progress(listener) == (True, 8)
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((1, 9),))]


def test_an_answer_to_a_request_of_another_part_of_the_client_has_what_is_missing_requested_at_once() -> None:
    listener = Listener()
    listener.hear(packet(10, line(10, 10)))
    listener.merger.on_replay_ended(listener.now_ns)
    listener.wait(0)
    assert listener.requests == [RequestReplay(1, ((1, 10),))]
