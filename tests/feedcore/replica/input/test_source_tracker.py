"""A source stream in order: what is next, what is missing, when it is requested (clauses 4.4 and 10.2)."""

from __future__ import annotations

from tandemfeed.feedcore.replica.effects import RequestSource
from tandemfeed.feedcore.replica.input.source_tracker import Slice, SourceTracker, TrackerConfig
from tandemfeed.feedcore.wire.source_packet import SourceFlag, SourcePacket, decode_source_packet
from tests.simulation.toy_feed import FEED_ID, SESSION, encode_source

MS = 1_000_000
STREAM = 3
CONFIG = TrackerConfig()
AFTER_NS, EVERY_NS = CONFIG.request_after_ns, CONFIG.retry_every_ns


def packet(first: int, count: int, flags: int = 0) -> SourcePacket:
    """A packet of `count` messages; without messages a heartbeat."""
    return decode_source_packet(encode_source(STREAM, first, [(1, 11)] * count, 0, flags), FEED_ID)


def a_tracker(config: TrackerConfig = CONFIG, next_source_seq: int = 1) -> SourceTracker:
    """An anchored tracker."""
    tracker = SourceTracker(STREAM, config, SESSION)
    assert tracker.anchor(next_source_seq, 0) == []
    return tracker


def numbers(slices: list[Slice]) -> list[tuple[int, int]]:
    """The first source_seq and the message count of each slice."""
    return [(piece.first_source_seq, piece.message_count) for piece in slices]


def asked(tracker: SourceTracker, now_ns: int) -> list[tuple[int, int]]:
    """The ranges requested at this time, both ends inclusive."""
    request = tracker.on_timer(now_ns)
    if request is None:
        return []
    assert (request.source_stream_id, request.session) == (STREAM, SESSION)
    return [(first, end - 1) for first, end in request.ranges]


def test_messages_in_order_pass_and_copies_do_not() -> None:
    tracker = a_tracker()
    assert numbers(tracker.on_packet(packet(1, 2), 1, 0)) == [(1, 2)]
    assert tracker.on_packet(packet(1, 2), 2, 0) == []
    assert tracker.on_packet(packet(2, 1), 3, 0) == []
    assert numbers(tracker.on_packet(packet(2, 3), 4, 0)) == [(3, 2)]  # the new part of it
    assert (tracker.next_source_seq, tracker.known_end) == (5, 5)
    assert tracker.next_deadline_ns() is None


def test_early_messages_are_held_until_the_gap_closes_and_then_become_available_together() -> None:
    tracker = a_tracker()
    assert tracker.on_packet(packet(5, 1), 1, 0) == []
    assert tracker.on_packet(packet(3, 2), 2, 0) == []
    slices = tracker.on_packet(packet(1, 3), 3, 0)
    assert numbers(slices) == [(1, 3), (4, 1), (5, 1)]
    assert [piece.arrival for piece in slices] == [3, 3, 3]
    assert tracker.next_deadline_ns() is None


def test_a_gap_is_requested_after_a_pause_and_again_until_it_closes() -> None:
    tracker = a_tracker()
    tracker.on_packet(packet(3, 2), 1, MS)
    assert tracker.next_deadline_ns() == MS + AFTER_NS
    tracker.on_packet(packet(5, 2), 2, 2 * MS)  # a further early packet does not postpone the request
    assert asked(tracker, MS + AFTER_NS - 1) == []
    assert asked(tracker, MS + AFTER_NS) == [(1, 2)]
    assert asked(tracker, MS + AFTER_NS + EVERY_NS - 1) == []
    assert asked(tracker, MS + AFTER_NS + EVERY_NS) == [(1, 2)]
    tracker.on_packet(packet(1, 2), 3, 100 * MS)
    assert (tracker.next_deadline_ns(), asked(tracker, 1_000 * MS)) == (None, [])


def test_a_heartbeat_or_a_decision_reveals_a_gap_at_the_end() -> None:
    by_heartbeat, by_decision = a_tracker(), a_tracker()
    assert by_heartbeat.on_packet(packet(3, 0, SourceFlag.HEARTBEAT), 1, 0) == []
    by_decision.note_end(1, 0)
    assert by_decision.next_deadline_ns() is None
    by_decision.note_end(3, 0)
    by_decision.note_end(2, MS)
    for tracker in (by_heartbeat, by_decision):
        assert tracker.known_end == 3
        assert tracker.ended_at is None
        assert asked(tracker, AFTER_NS) == [(1, 2)]
        tracker.on_packet(packet(1, 2), 2, AFTER_NS)
        assert tracker.next_deadline_ns() is None


def test_a_request_names_no_more_gaps_and_messages_than_the_limits() -> None:
    tracker = a_tracker(TrackerConfig(request_range_count_max=2, request_count_max=4))
    for first in (3, 5, 9):
        tracker.on_packet(packet(first, 1), 1, 0)
    assert asked(tracker, AFTER_NS) == [(1, 2), (4, 4)]
    tracker.on_packet(packet(1, 4), 2, AFTER_NS)
    tracker.on_packet(packet(20, 1), 2, AFTER_NS)
    assert asked(tracker, AFTER_NS + EVERY_NS) == [(6, 8), (10, 10)]


def test_a_gap_may_be_declared_lost_when_it_has_been_the_first_gap_for_the_limit() -> None:
    tracker = a_tracker()
    tracker.on_packet(packet(3, 1), 1, 0)
    tracker.on_packet(packet(6, 1), 2, 0)
    assert tracker.lost(CONFIG.declare_after_ns - 1) is None
    assert tracker.lost(CONFIG.declare_after_ns) == (1, 2)
    assert CONFIG.give_up_after_ns == 2 * CONFIG.declare_after_ns  # protocol 4.4
    assert not tracker.is_given_up(CONFIG.give_up_after_ns - 1)
    assert tracker.is_given_up(CONFIG.give_up_after_ns)
    tracker.on_packet(packet(1, 2), 3, MS)  # progress, so the next gap has its own patience
    assert tracker.lost(CONFIG.declare_after_ns) is None
    assert tracker.lost(MS + CONFIG.declare_after_ns) == (4, 5)
    tracker.on_packet(packet(4, 2), 4, 2 * MS)
    assert tracker.lost(10 * CONFIG.declare_after_ns) is None
    assert not tracker.is_given_up(10 * CONFIG.give_up_after_ns)


def test_after_a_declared_loss_the_stream_continues_with_held_messages() -> None:
    tracker = a_tracker()
    tracker.on_packet(packet(3, 2), 1, 0)
    assert numbers(tracker.skip_to(3, MS)) == [(3, 2)]
    assert tracker.skip_to(4, MS) == []
    assert tracker.next_source_seq == 5
    assert tracker.next_deadline_ns() is None


def test_without_a_place_everything_is_held_and_nothing_is_requested() -> None:
    tracker = SourceTracker(STREAM, CONFIG, SESSION)
    assert tracker.on_packet(packet(5, 2), 1, 0) == []
    tracker.note_end(9, 0)
    assert (tracker.next_deadline_ns(), tracker.lost(1 << 60)) == (None, None)
    assert numbers(tracker.anchor(6, MS)) == [(6, 1)]
    assert asked(tracker, MS + AFTER_NS) == [(7, 8)]


def test_losing_the_place_keeps_messages_that_were_passed_on_and_not_used() -> None:
    tracker = a_tracker()
    unused = tracker.on_packet(packet(1, 2), 1, 0)
    tracker.on_packet(packet(4, 1), 2, 0)
    tracker.unanchor(unused)
    assert (tracker.next_source_seq, tracker.next_deadline_ns(), tracker.lost(1 << 60)) == (None, None, None)
    assert numbers(tracker.anchor(1, MS)) == [(1, 2)]
    assert tracker.lost(CONFIG.declare_after_ns) is None  # the gap has been open since the new place was set
    assert tracker.lost(MS + CONFIG.declare_after_ns) == (3, 3)


# ---- the end of the session ----


def test_the_source_reports_where_the_stream_ends() -> None:
    tracker = a_tracker()
    tracker.on_packet(packet(3, 0, SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM), 1, 0)
    assert tracker.ended_at == 3
    assert asked(tracker, AFTER_NS) == [(1, 2)]


def test_messages_after_the_newest_one_are_requested_until_the_end_is_known() -> None:
    tracker = a_tracker(TrackerConfig(request_count_max=10))
    tracker.on_packet(packet(1, 2), 1, 0)
    tracker.seek_end(MS)
    tracker.seek_end(2 * MS)
    assert tracker.next_deadline_ns() == MS
    assert asked(tracker, MS - 1) == []
    assert asked(tracker, MS) == [(3, 12)]
    assert asked(tracker, MS + EVERY_NS - 1) == []
    assert asked(tracker, MS + EVERY_NS) == [(3, 12)]
    tracker.on_packet(packet(3, 0, SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM), 1, 60 * MS)
    assert asked(tracker, MS + 2 * EVERY_NS) == []
    assert tracker.next_deadline_ns() is None
    tracker.seek_end(200 * MS)
    assert tracker.next_deadline_ns() is None


def test_the_end_and_a_gap_before_the_newest_message_are_requested_together() -> None:
    tracker = a_tracker(TrackerConfig(request_count_max=10))
    tracker.on_packet(packet(3, 1), 1, 0)
    tracker.seek_end(AFTER_NS)
    assert asked(tracker, AFTER_NS) == [(1, 2), (4, 13)]


def test_a_concluded_session_ends_after_the_newest_known_message() -> None:
    tracker = a_tracker()
    tracker.on_packet(packet(1, 2), 1, 0)
    tracker.seek_end(MS)
    tracker.conclude(10 * MS)
    assert (tracker.ended_at, tracker.next_deadline_ns()) == (3, None)


def test_a_gap_in_a_concluded_session_is_lost_immediately_and_given_up_after_the_second_grace() -> None:
    tracker = a_tracker()
    tracker.on_packet(packet(3, 1), 1, 0)
    assert tracker.lost(MS) is None
    tracker.conclude(10 * MS)
    tracker.conclude(20 * MS)  # the first call counts
    assert tracker.ended_at is None
    assert tracker.lost(MS) == (1, 2)
    assert not tracker.is_given_up(10 * MS - 1)
    assert tracker.is_given_up(10 * MS)
    tracker.skip_to(3, 10 * MS)
    tracker.conclude(30 * MS)
    assert tracker.ended_at == 4


def test_a_request_names_the_stream_the_range_and_the_session() -> None:
    tracker = a_tracker()
    tracker.note_end(3, 0)
    assert tracker.on_timer(AFTER_NS) == RequestSource(STREAM, ((1, 3),), SESSION)


def test_a_packet_in_order_restarts_the_patience_with_messages_still_missing() -> None:
    tracker = a_tracker()
    tracker.note_end(10, 0)
    half_ns = CONFIG.declare_after_ns // 2
    assert numbers(tracker.on_packet(packet(1, 4), 1, half_ns)) == [(1, 4)]
    assert tracker.lost(CONFIG.declare_after_ns) is None
    assert tracker.lost(half_ns + CONFIG.declare_after_ns) == (5, 9)


def test_further_early_messages_do_not_restart_the_patience_with_a_gap() -> None:
    tracker = a_tracker()
    tracker.on_packet(packet(3, 1), 1, 0)
    tracker.on_packet(packet(5, 1), 2, 10 * MS)
    tracker.note_end(9, 20 * MS)
    assert tracker.lost(CONFIG.declare_after_ns) == (1, 2)


def test_after_a_declared_loss_the_next_gap_has_its_own_patience() -> None:
    tracker = a_tracker()
    tracker.note_end(9, 0)
    assert tracker.skip_to(5, 30 * MS) == []
    assert tracker.lost(CONFIG.declare_after_ns) is None
    assert tracker.lost(30 * MS + CONFIG.declare_after_ns) == (5, 8)


def test_a_loss_of_messages_that_are_here_by_now_changes_nothing() -> None:
    tracker = a_tracker()
    tracker.on_packet(packet(1, 4), 1, 0)
    tracker.note_end(9, 0)
    assert tracker.skip_to(5, 30 * MS) == []
    assert tracker.lost(CONFIG.declare_after_ns) == (5, 8)


def test_progress_within_a_gap_does_not_postpone_the_request_for_the_rest() -> None:
    tracker = a_tracker()
    tracker.note_end(9, 0)
    tracker.on_packet(packet(1, 2), 1, AFTER_NS - 1)
    assert asked(tracker, AFTER_NS) == [(3, 8)]


def test_an_early_packet_that_a_longer_one_contains_yields_no_slice() -> None:
    tracker = a_tracker()
    tracker.on_packet(packet(3, 2), 1, 0)
    assert numbers(tracker.on_packet(packet(1, 4), 2, 0)) == [(1, 4)]


def test_the_end_of_a_session_is_sought_from_the_place_on_if_nothing_newer_is_known() -> None:
    tracker = a_tracker(next_source_seq=10)
    tracker.seek_end(0)
    assert [first for first, _ in asked(tracker, 0)] == [10]


def test_a_stream_without_a_place_is_neither_concluded_nor_is_its_end_sought() -> None:
    tracker = SourceTracker(STREAM, CONFIG, SESSION)
    tracker.conclude(0)
    assert tracker.ended_at is None
    tracker.seek_end(0)
    assert asked(tracker, 0) == []
    assert tracker.next_deadline_ns() is None
