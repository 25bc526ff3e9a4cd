"""Changes of session in the client's merge (docs/protocol.md clause 10)."""

from __future__ import annotations

from typing import Any

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import (
    Deliver,
    Ended,
    Gap,
    Live,
    MergeEffect,
    RequestReplay,
    SessionChanged,
    Stale,
    Takeover,
)
from tandemfeed.feedcore.merge.history.place import Place, ResumePoint
from tandemfeed.feedcore.merge.sessions import FormerSession, SessionMerger
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.refusal import Refusal
from tests.feedcore.merge.merge_feed import CHANNEL, FIRST, MS, heartbeat, line, lineage_of, packet

OLD = 20261121
NEW = OLD + 1
SECOND = 1_000 * MS


def of_new(found: OutputPacket) -> OutputPacket:
    return found._replace(session=NEW)


def end(next_seq: int) -> OutputPacket:
    return heartbeat(next_seq, flags=OutputFlag.FROM_ACTIVE | OutputFlag.END_OF_STREAM)


class Reader:
    """A merge and its effects."""

    def __init__(self, start_message_seq: int | None = 1, config: MergerConfig | None = None) -> None:
        self.counters = CounterSet()
        self.merger = SessionMerger(CHANNEL, OLD, self.counters, config, start_message_seq)
        self.effects: list[MergeEffect] = []

    def hear(self, *packets: OutputPacket, now_ns: int = 0) -> None:
        for each in packets:
            self.effects += self.merger.on_packet(each, now_ns)

    def wait(self, now_ns: int) -> None:
        """Call the timer at every deadline up to this time."""
        while (deadline := self.merger.next_deadline_ns()) is not None and deadline <= now_ns:
            self.effects += self.merger.on_timer(deadline)

    @property
    def story(self) -> list[object]:
        """Deliveries as (session, first_input_seq); changes and gaps unchanged."""
        found: list[object] = []
        for effect in self.effects:
            if isinstance(effect, Deliver):
                found.append((effect.packet.session, effect.packet.first_input_seq))
            elif isinstance(effect, SessionChanged | Gap):
                found.append(effect)
        return found


def changed(*, is_complete: bool = True) -> SessionChanged:
    return SessionChanged(CHANNEL, OLD, NEW, is_complete)


def test_packets_of_the_next_session_wait_for_the_end_of_the_present_one() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), of_new(heartbeat(1)), of_new(packet(1, line(1, 2))), packet(1, line(1, 3)))
    assert reader.story == [(OLD, 1)]
    reader.hear(end(4))
    assert reader.story == [(OLD, 1), changed(), (NEW, 1)]
    assert reader.merger.session == NEW


def test_the_end_is_not_enough_while_a_gap_before_it_is_open() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), packet(1, line(1, 3)), end(6), of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    assert reader.story == [(OLD, 1)]
    reader.wait(10 * MS)
    asked = [effect for effect in reader.effects if isinstance(effect, RequestReplay)]
    assert [(request.session, request.input_ranges) for request in asked] == [(OLD, ((4, 6),))]
    reader.hear(packet(4, line(4, 5)), end(6), now_ns=11 * MS)
    assert reader.story == [(OLD, 1), (OLD, 4), changed(), (NEW, 1)]


def test_an_end_that_was_reported_while_a_gap_was_open_need_not_be_reported_again() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), packet(1, line(1, 3)), end(6), of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    reader.hear(packet(4, line(4, 5)), now_ns=SECOND)
    assert reader.story == [(OLD, 1), (OLD, 4), changed(), (NEW, 1)]
    assert [effect for effect in reader.effects if isinstance(effect, Ended)] == [Ended(CHANNEL, 6, 6)]


def test_an_end_of_an_older_epoch_does_not_count() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), packet(1, line(1, 3)), end(6), heartbeat(4, (*FIRST, (2, 4))))
    reader.hear(packet(4, line(4, 5), epoch=2))
    assert not any(isinstance(effect, Ended) for effect in reader.effects)


def test_an_adapter_that_sends_the_next_session_already_is_asked_for_the_rest_of_the_old_one() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), packet(1, line(1, 3)), packet(6, line(6, 8)), of_new(heartbeat(1)))
    reader.wait(SECOND)
    asked = [effect for effect in reader.effects if isinstance(effect, RequestReplay)]
    assert {request.silent_adapter_ids for request in asked} == {()}


def test_a_session_whose_end_no_adapter_reports_ends_as_incomplete_after_the_grace() -> None:
    reader = Reader(config=MergerConfig(session_grace_ns=SECOND))
    reader.hear(heartbeat(1), packet(1, line(1, 3)), of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    reader.wait(SECOND - 1)
    assert reader.story == [(OLD, 1)]
    reader.wait(SECOND)
    assert reader.story == [(OLD, 1), changed(is_complete=False), (NEW, 1)]


def test_missing_messages_are_named_before_the_session_changes() -> None:
    reader = Reader(config=MergerConfig(session_grace_ns=SECOND))
    reader.hear(heartbeat(1), packet(1, line(1, 3)), heartbeat(6), of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    reader.wait(9 * SECOND)
    assert reader.story == [(OLD, 1), Gap(CHANNEL, 4, 6, 4, 6), changed(is_complete=False), (NEW, 1)]


def test_nothing_of_the_old_session_is_delivered_after_the_change() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), packet(1, line(1, 3)), end(4), of_new(heartbeat(1)))
    reader.hear(packet(4, line(4, 6)), end(7))
    assert reader.story == [(OLD, 1), changed()]


def test_a_live_client_that_heard_nothing_of_the_old_session_moves_on_immediately() -> None:
    reader = Reader(start_message_seq=None)
    reader.hear(of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    assert reader.story == [changed(is_complete=False), (NEW, 1)]


def test_the_new_session_is_delivered_from_its_first_message() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), end(1), of_new(heartbeat(8)), of_new(packet(8, line(8, 9))))
    reader.wait(10 * MS)
    (asked,) = [effect for effect in reader.effects if isinstance(effect, RequestReplay)]
    assert (asked.session, asked.input_ranges) == (NEW, ((1, 8),))


def test_no_more_packets_are_held_than_the_limit() -> None:
    reader = Reader(config=MergerConfig(held_count_max=3))
    reader.hear(heartbeat(1), *(of_new(packet(seq, line(seq, seq))) for seq in range(1, 9)))
    assert reader.counters.counts[Counter.MERGE_HELD] == 3
    reader.hear(end(1), of_new(heartbeat(1)))
    assert reader.story == [changed(), (NEW, 1), (NEW, 2), (NEW, 3)]


def test_two_changes_of_session_follow_one_after_the_other() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), packet(1, line(1, 1)))
    later = [each._replace(session=NEW + 1) for each in (heartbeat(1), packet(1, line(1, 1)))]
    reader.hear(*later, of_new(heartbeat(1)), of_new(packet(1, line(1, 1))), end(2))
    assert reader.story == [(OLD, 1), changed(), (NEW, 1)]
    reader.hear(of_new(end(2)))
    assert reader.story[3:] == [SessionChanged(CHANNEL, NEW, NEW + 1, is_complete=True), (NEW + 1, 1)]
    assert len([effect for effect in reader.effects if isinstance(effect, Ended)]) == 2


def test_a_packet_of_an_older_session_is_refused() -> None:
    reader = Reader()
    reader.hear(packet(1, line(1, 1))._replace(session=OLD - 1))
    assert reader.counters.refusals[Refusal.WRONG_SESSION] == 1
    assert reader.effects == []
    assert reader.merger.next_deadline_ns() is None


def test_the_grace_counts_from_the_first_packet_of_a_later_session() -> None:
    reader = Reader(config=MergerConfig(session_grace_ns=SECOND, stale_after_ns=100 * SECOND))
    reader.hear(heartbeat(1), packet(1, line(1, 3)))
    reader.hear(of_new(heartbeat(1)), now_ns=5 * MS)
    reader.hear(of_new(packet(1, line(1, 2))), now_ns=9 * MS)
    assert reader.merger.next_deadline_ns() == 5 * MS + SECOND
    assert reader.merger.on_timer(4 * MS + SECOND) == []
    reader.effects += reader.merger.on_timer(5 * MS + SECOND)
    assert reader.story == [(OLD, 1), changed(is_complete=False), (NEW, 1)]


def test_while_messages_are_missing_after_the_grace_the_merge_checks_again_after_a_pause() -> None:
    config = MergerConfig(session_grace_ns=SECOND, session_look_ns=10 * MS, stale_after_ns=100 * SECOND)
    reader = Reader(config=config)
    reader.hear(heartbeat(1), packet(1, line(1, 3)), of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    reader.hear(heartbeat(6), now_ns=SECOND - 1)
    reader.effects += reader.merger.on_timer(SECOND)
    assert reader.story == [(OLD, 1)]
    reader.hear(packet(4, line(4, 5)), now_ns=SECOND + MS)
    assert reader.story == [(OLD, 1), (OLD, 4)]
    assert reader.merger.next_deadline_ns() == SECOND + 10 * MS
    reader.effects += reader.merger.on_timer(SECOND + 10 * MS)
    assert reader.story == [(OLD, 1), (OLD, 4), changed(is_complete=False), (NEW, 1)]


def test_a_client_that_waits_for_its_first_message_does_not_leave_the_session_immediately() -> None:
    reader = Reader(start_message_seq=5, config=MergerConfig(session_grace_ns=SECOND))
    reader.hear(heartbeat(1), of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    assert reader.story == []
    reader.wait(SECOND)
    assert reader.story == [changed(is_complete=False), (NEW, 1)]


def test_a_session_that_continued_after_its_reported_end_lasts_while_something_is_missing() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), packet(1, line(1, 3)), end(4), packet(6, line(6, 7)), of_new(heartbeat(1)))
    assert reader.story == [(OLD, 1)]
    reader.hear(packet(4, line(4, 5)))
    assert reader.story == [(OLD, 1), (OLD, 4), (OLD, 6), changed()]


# ---- a merge that continues an earlier one ----


def resumed(next_seq: int, *, is_over: bool = False, config: MergerConfig | None = None) -> Reader:
    """A merge that continues after `next_seq` - 1 messages of one stream."""
    reader = Reader(config=config)
    point = ResumePoint(Place(next_seq, next_seq), lineage_of(FIRST), {1: next_seq})
    if is_over:
        former = (FormerSession(OLD, point),)
        reader.merger = SessionMerger(CHANNEL, NEW, reader.counters, config, former=former)
    else:
        reader.merger = SessionMerger(CHANNEL, OLD, reader.counters, config, next_seq, point)
    return reader


def test_a_resumed_merge_continues_at_its_place() -> None:
    reader = resumed(4)
    reader.hear(packet(1, line(1, 3)), packet(3, line(3, 5)), packet(8, line(8, 9)), heartbeat(10))
    assert reader.story == [(OLD, 4)]
    reader.wait(10 * MS)
    assert next(effect.input_ranges for effect in reader.effects if isinstance(effect, RequestReplay)) == ((6, 8),)


def test_a_resumed_merge_returns_to_where_a_newer_history_departs_and_repeats_nothing() -> None:
    reader = resumed(10)
    reader.hear(heartbeat(12, [(1, 1), (2, 6)]), packet(6, [(2, 1), (2, 2), (1, 6), *line(7, 9)], epoch=2))
    reader.hear(packet(12, line(10, 11), epoch=2))
    delivered = [run for each in reader.effects if isinstance(each, Deliver) for run in each.packet.runs]
    assert [(run.source_stream_id, run.first_source_seq, run.source_count) for run in delivered] == [
        (2, 1, 2),
        (1, 10, 2),
    ]
    assert any(isinstance(effect, Takeover) for effect in reader.effects)


def answer(reader: Reader, *packets: OutputPacket, is_answered: bool = True) -> None:
    """Answer the newest request."""
    request = [effect for effect in reader.effects if isinstance(effect, RequestReplay)][-1]
    reader.hear(*(each._replace(flags=each.flags | OutputFlag.RETRANSMISSION) for each in packets))
    reader.merger.on_replay_ended(request, 0, is_answered=is_answered)


def test_the_rest_of_a_session_that_is_over_is_requested_until_no_adapter_has_more() -> None:
    reader = resumed(4, is_over=True, config=MergerConfig(request_count_max=3))
    reader.hear(of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    reader.wait(0)
    answer(reader, packet(4, line(4, 6)))
    reader.wait(0)
    answer(reader, packet(7, line(7, 7)))
    reader.wait(0)
    assert reader.story == [(OLD, 4), (OLD, 7)]
    answer(reader)
    reader.wait(60 * SECOND)
    assert reader.story == [(OLD, 4), (OLD, 7), changed(is_complete=False), (NEW, 1)]
    requests = [effect for effect in reader.effects if isinstance(effect, RequestReplay)]
    assert [(each.session, each.input_ranges) for each in requests[:3]] == [
        (OLD, ((4, 7),)), (OLD, ((7, 10),)), (OLD, ((8, 11),))
    ]  # fmt: skip


def test_a_session_that_is_over_is_not_left_before_an_adapter_has_answered() -> None:
    reader = resumed(4, is_over=True)
    reader.hear(of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    reader.wait(0)
    answer(reader, is_answered=False)
    reader.wait(60 * SECOND)
    assert reader.story == []
    answer(reader)
    reader.wait(61 * SECOND)
    assert reader.story == [changed(is_complete=False), (NEW, 1)]


def requests_of(reader: Reader) -> list[RequestReplay]:
    """All requests so far."""
    return [effect for effect in reader.effects if isinstance(effect, RequestReplay)]


def test_the_rest_is_requested_again_only_after_a_pause() -> None:
    config = MergerConfig()
    reader = resumed(4, is_over=True, config=config)
    for now_ns, count in ((0, 1), (config.retry_every_max_ns - 1, 1), (config.retry_every_max_ns, 2)):
        reader.effects += reader.merger.on_timer(now_ns)
        assert len(requests_of(reader)) == count


def test_the_answer_to_another_request_does_not_end_the_rest() -> None:
    reader = resumed(4, is_over=True)
    reader.hear(of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    reader.wait(0)
    reader.merger.on_replay_ended(RequestReplay(CHANNEL, ((4, 5),)), 0, is_answered=True)
    reader.wait(60 * SECOND)
    assert reader.story == []


def test_after_the_rest_of_a_session_the_next_one_lasts_until_its_own_end() -> None:
    reader = resumed(4, is_over=True)
    reader.hear(of_new(heartbeat(1)), of_new(packet(1, line(1, 2))))
    reader.wait(0)
    answer(reader)
    reader.wait(0)
    reader.hear(heartbeat(1)._replace(session=NEW + 1))
    assert reader.story == [changed(is_complete=False), (NEW, 1)]
    reader.hear(of_new(end(3)))
    assert reader.story[2:] == [SessionChanged(CHANNEL, NEW, NEW + 1, is_complete=True)]


def test_a_part_of_an_answer_is_followed_by_a_request_for_the_next_part_without_a_pause() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), packet(10, line(10, 10)))
    reader.wait(10 * MS)
    answer(reader, packet(1, line(1, 5)))
    reader.wait(0)
    assert [request.input_ranges for request in requests_of(reader)] == [((1, 10),), ((6, 10),)]


# ---- a merge that begins in a former session ----

EVE = OLD - 1  # the session before


def final(session: int, next_seq: int, lineage: list[tuple[int, int]] | None = None) -> OutputPacket:
    """The final heartbeat of a session at an adapter that applied all of it."""
    flags = OutputFlag.END_OF_STREAM
    return heartbeat(next_seq, lineage or list(FIRST), flags=flags)._replace(session=session)


def former(session: int, first_seq: int, *heartbeats: OutputPacket, epochs: Any = FIRST) -> FormerSession:
    """A session that is delivered from a number on."""
    return FormerSession(session, ResumePoint(Place(first_seq, first_seq), lineage_of(epochs), {}), heartbeats)


def beginning_with(*sessions: FormerSession, config: MergerConfig | None = None) -> Reader:
    """A merge that begins in former sessions."""
    reader = Reader(config=config)
    reader.merger = SessionMerger(CHANNEL, NEW, reader.counters, config, former=sessions)
    return reader


def in_session(session: int, *packets: OutputPacket) -> list[OutputPacket]:
    return [each._replace(session=session) for each in packets]


def ask(reader: Reader, now_ns: int) -> tuple[int, tuple[Any, ...]]:
    """Wait for the next request; returns its session and ranges."""
    count = len(requests_of(reader))
    reader.wait(now_ns)
    assert len(requests_of(reader)) > count
    return requests_of(reader)[-1].session, requests_of(reader)[-1].input_ranges


def test_the_rest_of_a_former_session_those_between_and_the_present_one_follow_each_other() -> None:
    reader = beginning_with(former(EVE, 4, final(EVE, 9)), former(OLD, 1, final(OLD, 4)))
    reader.hear(of_new(heartbeat(3)), of_new(packet(1, line(1, 2))))
    assert ask(reader, 10 * MS) == (EVE, ((4, 9),))
    answer(reader, *in_session(EVE, packet(2, line(2, 6)), packet(7, line(7, 8))))
    change = SessionChanged(CHANNEL, EVE, OLD, is_complete=True)
    assert reader.story == [(EVE, 4), (EVE, 7), change]
    assert reader.merger.is_in_former_session
    assert ask(reader, 20 * MS) == (OLD, ((1, 4),))
    answer(reader, packet(1, line(1, 3)))
    assert reader.story[3:] == [(OLD, 1), changed(), (NEW, 1)]
    assert not reader.merger.is_in_former_session
    reader.hear(of_new(packet(3, line(3, 4))))
    assert reader.story[6:] == [(NEW, 3)]
    assert [effect for effect in reader.effects if isinstance(effect, Ended)] == [
        Ended(CHANNEL, 9, 9), Ended(CHANNEL, 4, 4)
    ]  # fmt: skip


def test_a_former_session_needs_no_live_packet() -> None:
    reader = beginning_with(former(EVE, 4, final(EVE, 4)), former(OLD, 1, final(OLD, 1)))
    reader.wait(0)
    assert reader.story == [SessionChanged(CHANNEL, EVE, OLD, is_complete=True), changed()]
    assert reader.merger.session == NEW
    assert requests_of(reader) == []


def test_what_no_adapter_has_of_a_former_session_is_a_gap_before_its_end() -> None:
    reader = beginning_with(former(OLD, 1, final(OLD, 9)))
    reader.hear(of_new(heartbeat(1)))
    reader.wait(10 * MS)
    answer(reader, packet(1, line(1, 3)), packet(6, line(6, 7)))
    reader.wait(20 * SECOND)
    gaps = [Gap(CHANNEL, 4, 6, 4, 6), Gap(CHANNEL, 8, 9, 8, 9)]
    assert reader.story == [(OLD, 1), gaps[0], (OLD, 6), gaps[1], changed()]


def test_a_former_session_whose_end_no_adapter_knows_is_requested_beyond_what_is_known_and_is_not_complete() -> None:
    known = heartbeat(4)  # without END_OF_STREAM
    reader = beginning_with(former(OLD, 1, known), config=MergerConfig(request_count_max=100))
    assert ask(reader, 10 * MS) == (OLD, ((1, 4),))
    answer(reader, packet(1, line(1, 3)))
    assert ask(reader, 0) == (OLD, ((4, 104),))
    answer(reader, packet(4, line(4, 5)), packet(8, line(8, 8)))
    reader.wait(20 * SECOND)
    assert reader.story == [(OLD, 1), (OLD, 4), Gap(CHANNEL, 6, 8, 6, 8), (OLD, 8)]
    assert requests_of(reader)[-1].input_ranges == ((9, 109),)
    answer(reader)
    reader.wait(21 * SECOND)
    assert reader.story[4:] == [changed(is_complete=False)]


def test_the_newest_history_of_a_former_session_shows_where_the_place_counts_no_more() -> None:
    """The place was located at an adapter that had been cut off in epoch 1, of which epoch 2 keeps five messages."""
    history = [(1, 1), (2, 6)]
    reader = beginning_with(former(OLD, 8, final(OLD, 10, history), heartbeat(12, [(1, 1)])))
    assert ask(reader, 10 * MS) == (OLD, ((6, 10),))
    answer(reader, packet(6, [(2, 1), (2, 2), *line(6, 7)], epoch=2), packet(6, line(6, 11)))
    assert reader.story == [(OLD, 6), changed()]


def test_final_heartbeats_are_no_stream_that_can_fall_silent() -> None:
    reader = beginning_with(former(OLD, 1, heartbeat(1)))
    reader.hear(final(OLD, 4), now_ns=SECOND)
    reader.wait(3 * SECOND)
    assert not [effect for effect in reader.effects if isinstance(effect, Live | Stale)]
    answer(reader, packet(1, line(1, 3)))
    reader.hear(final(OLD, 4), now_ns=4 * SECOND)
    answer(reader)
    assert reader.story == [(OLD, 1), changed()]


def test_with_confirmation_the_rest_of_a_session_is_requested_twice() -> None:
    reader = beginning_with(former(OLD, 1), config=MergerConfig(confirm=2))
    reader.wait(0)
    assert [each.copy_count for each in requests_of(reader)] == [2]


def test_an_adapter_that_is_heard_in_the_present_session_after_former_ones_is_live() -> None:
    reader = beginning_with(former(OLD, 1, final(OLD, 1)))
    reader.wait(0)
    reader.hear(of_new(heartbeat(1)))
    assert [effect for effect in reader.effects if isinstance(effect, Live)] == [Live(CHANNEL, 1)]


def test_a_present_session_that_has_ended_needs_no_timer() -> None:
    reader = Reader()
    reader.hear(heartbeat(1), packet(1, line(1, 3)), end(4), now_ns=SECOND)
    assert (reader.merger.next_deadline_ns() or SECOND) >= SECOND


def test_what_a_final_heartbeat_adds_after_the_last_answer_is_delivered_before_the_session_is_left() -> None:
    reader = beginning_with(former(OLD, 1))
    reader.wait(0)
    answer(reader)
    reader.hear(final(OLD, 4), now_ns=SECOND)
    assert (reader.merger.next_deadline_ns() or 0) >= SECOND
    assert ask(reader, SECOND + 10 * MS) == (OLD, ((1, 4),))
    answer(reader, packet(1, line(1, 3)))
    assert reader.story == [(OLD, 1), changed()]
