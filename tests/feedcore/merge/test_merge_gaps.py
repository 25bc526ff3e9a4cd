"""docs/protocol.md clause 7.3: missing messages are requested, reported as a gap, and filled if they arrive later."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Deliver, Diverged, Ended, Filled, Gap, RequestReplay, SourceGap, Stale
from tandemfeed.feedcore.merge.gaps.gap_repair import GapRepair
from tandemfeed.feedcore.wire.output_packet import OutputFlag, encode_runs
from tests.feedcore.merge.merge_feed import FIRST, MS, Listener, heartbeat, line, packet


def test_a_second_copy_is_a_duplicate() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2))
    assert listener.delivered == line(1, 3)
    assert (listener.count(Counter.MERGE_DELIVERED), listener.count(Counter.MERGE_DUPLICATES)) == (3, 1)


def test_one_request_names_every_known_gap() -> None:
    listener = Listener()
    listener.hear(packet(3, line(3, 4)), packet(7, line(7, 7)), packet(12, line(12, 13)), heartbeat(20, FIRST))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((1, 3), (5, 7), (8, 12), (14, 20)))]
    listener.hear(*(packet(first, line(first, end - 1)) for first, end in listener.requests[0].input_ranges))
    assert listener.delivered == line(1, 19)
    listener.wait(100 * MS)
    assert len(listener.requests) == 1


def test_a_request_names_no_more_gaps_than_the_limit() -> None:
    listener = Listener(MergerConfig(request_range_count_max=3))
    listener.hear(*(packet(seq, line(seq, seq)) for seq in range(2, 40, 2)))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((1, 2), (3, 4), (5, 6)))]


def test_a_heartbeat_reveals_the_loss_of_the_last_message() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 3)), heartbeat(4, FIRST))
    listener.wait(100 * MS)
    assert not listener.requests
    listener.hear(heartbeat(6, FIRST))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((4, 6),))]


def test_nothing_is_requested_while_another_live_stream_may_still_deliver_it() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 2)), packet(1, line(1, 2), adapter=2), packet(4, line(4, 5)))
    listener.wait(3 * MS)
    assert not listener.requests
    listener.hear(packet(3, line(3, 3), adapter=2))
    listener.wait(100 * MS)
    assert listener.delivered == line(1, 5)
    assert not listener.requests


def test_once_every_live_stream_is_past_a_gap_it_is_requested_after_the_reorder_window() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 2)), packet(1, line(1, 2), adapter=2))
    listener.hear(packet(4, line(4, 5)), packet(4, line(4, 5), adapter=2))
    listener.wait(MS // 5 - 1)
    assert not listener.requests
    listener.wait(1)
    assert listener.requests == [RequestReplay(1, ((3, 4),))]


def test_pauses_between_requests_double_up_to_a_maximum_and_differ_between_clients() -> None:
    config = MergerConfig(retry_every_max_ns=50 * MS, declare_after_ns=1_000 * MS)

    def times(jitter: float) -> list[int]:
        repair, asked, now_ns = GapRepair(config), [], 0
        repair.watch(1, 0)
        while now_ns < 400 * MS:
            now_ns = repair.next_deadline_ns() or 0
            if repair.is_request_due(now_ns, jitter):
                asked.append(now_ns / MS)
        return asked

    assert times(0.0)[:6] == [4, 24, 64, 114, 164, 214]
    assert times(0.5)[:4] == [4, 34, 94, 169]
    pauses = [b - a for a, b in zip(times(0.99), times(0.99)[1:], strict=False)]
    assert max(pauses) < 2 * 50


def test_messages_that_no_adapter_has_are_a_gap_and_are_filled_once_if_they_arrive() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(7, line(7, 8)))
    listener.wait(5_001 * MS)
    assert listener.events(Gap) == [Gap(1, 4, 7, 4, 7)]
    listener.hear(packet(5, line(5, 6)))
    listener.hear(packet(5, line(5, 6), adapter=2), packet(3, line(3, 4)))
    filled = [effect for effect in listener.events(Filled) if isinstance(effect, Filled)]
    assert [(each.packet.first_message_seq, each.packet.message_count) for each in filled] == [(5, 2), (4, 1)]
    assert sorted(listener.delivered) == line(1, 8)


def test_a_late_copy_that_reaches_beyond_its_gap_fills_it_and_continues_the_stream() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), heartbeat(7, FIRST))
    listener.wait(5_001 * MS)
    assert listener.events(Gap) == [Gap(1, 4, 7, 4, 7)]
    listener.hear(packet(5, line(5, 9)))
    assert listener.delivered == [*line(1, 3), *line(5, 9)]
    assert [type(effect) for effect in listener.events(Filled, Deliver)] == [Deliver, Filled, Deliver]
    listener.hear(packet(4, line(4, 4)))
    assert sorted(listener.delivered) == line(1, 9)


def test_a_late_copy_that_begins_with_its_gap_fills_it_and_continues_the_stream() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), heartbeat(7, FIRST))
    listener.wait(5_001 * MS)
    listener.hear(packet(4, line(4, 9)))
    assert [type(effect) for effect in listener.events(Filled, Deliver)] == [Deliver, Filled, Deliver]
    assert listener.delivered == line(1, 9)


def test_every_source_stream_of_a_packet_continues_after_it() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 2)), packet(3, [(1, 3), (2, 1), (2, 2)]))
    assert listener.merger.next_source_seqs == {1: 4, 2: 3}


def test_only_what_was_known_when_patience_began_is_declared() -> None:
    listener = Listener()
    listener.hear(heartbeat(4, FIRST))
    listener.wait(4_990 * MS)
    listener.hear(heartbeat(10, FIRST))
    listener.wait(20 * MS)
    assert listener.events(Gap) == [Gap(1, 1, 4, 1, 4)]
    listener.hear(packet(4, line(4, 9)))
    assert listener.delivered == line(4, 9)


def test_gaps_that_were_requested_together_are_declared_together() -> None:
    listener = Listener()
    listener.hear(packet(3, line(3, 4)), packet(7, line(7, 7)), heartbeat(10, FIRST))
    listener.wait(5_010 * MS)  # the first request came after 4 ms
    assert listener.events(Gap) == [Gap(1, 1, 3, 1, 3), Gap(1, 5, 7, 5, 7), Gap(1, 8, 10, 8, 10)]
    assert listener.delivered == [*line(3, 4), *line(7, 7)]


def test_a_gap_that_no_request_named_is_not_declared_with_those_before_it() -> None:
    listener = Listener(MergerConfig(request_range_count_max=2))
    listener.hear(*(packet(seq, line(seq, seq)) for seq in range(2, 10, 2)))
    listener.wait(5_010 * MS)
    assert listener.events(Gap) == [Gap(1, 1, 2, 1, 2), Gap(1, 3, 4, 3, 4)]
    listener.wait(5_010 * MS)
    assert listener.events(Gap)[2:] == [Gap(1, 5, 6, 5, 6), Gap(1, 7, 8, 7, 8)]


def test_a_declared_source_gap_is_reported_once_although_two_adapters_send_it() -> None:
    gap = packet(4, [(1, 4)], flags=OutputFlag.FROM_ACTIVE)
    run = gap.runs[0]._replace(source_count=3, is_source_gap=True)
    gap = gap._replace(runs=(run,), payload=encode_runs((run,)) + gap.payload[16:])
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), gap, gap._replace(adapter_id=2), packet(5, line(5, 6, base=-2), first_input=7))
    assert listener.events(SourceGap) == [SourceGap(1, 1, 4, 6)]
    assert listener.delivered == [*line(1, 3), (1, 7), (1, 8)]


def test_the_end_is_reported_when_everything_has_been_delivered() -> None:
    listener = Listener()
    end = heartbeat(4, FIRST, flags=OutputFlag.END_OF_STREAM)
    listener.hear(packet(1, line(1, 2)), end)
    assert not listener.events(Ended)
    listener.hear(packet(3, line(3, 3)), end, end)
    assert listener.events(Ended) == [Ended(1, 4, 4)]


def test_an_announcement_is_only_a_sign_of_life() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST))
    announced = packet(1, line(1, 3))
    announced = announced._replace(flags=OutputFlag.ANNOUNCEMENT, payload=encode_runs(announced.runs))
    for _ in range(4):
        listener.wait(100 * MS)
        listener.hear(announced)
    assert not listener.events(Stale)
    assert not listener.requests
    assert listener.merger.next_message_seq == 1
    listener.hear(packet(1, line(1, 3)))
    assert listener.delivered == line(1, 3)


def test_the_heartbeat_of_an_active_that_ended_its_epoch_still_shows_how_far_it_came() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), heartbeat(6, FIRST, flags=OutputFlag.EPOCH_ENDED))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((4, 6),))]


def test_a_packet_with_malformed_frames_is_refused_when_it_is_cut_and_another_copy_is_taken() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)))
    whole = packet(2, line(2, 5))
    listener.hear(whole._replace(payload=whole.payload[:-1]))
    assert sum(listener.counters.refusals.values()) == 1
    listener.hear(whole)
    assert listener.delivered == line(1, 5)
    assert listener.count(Counter.MERGE_GAPS) == 0


@pytest.mark.parametrize("start", [1, None])
def test_late_first_messages_of_a_source_stream_are_filled_too(start: int | None) -> None:
    listener = Listener(start=start)
    listener.hear(packet(1, line(1, 3)), packet(6, [(2, 3), (2, 4)]))
    listener.wait(5_100 * MS)
    assert listener.events(Gap) == [Gap(1, 4, 6, 4, 6)]
    listener.hear(packet(4, [(2, 1), (2, 2)], adapter=2))
    assert [each.packet.message_count for each in listener.effects if isinstance(each, Filled)] == [2]
    listener.hear(packet(4, [(2, 1), (2, 2)], adapter=3))
    assert listener.delivered == [*line(1, 3), (2, 3), (2, 4), (2, 1), (2, 2)]


def test_a_late_timer_declares_a_gap_without_requesting_it_again() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 2)), packet(4, line(4, 5)))
    listener.wait(4 * MS)
    assert len(listener.requests) == 1
    effects = listener.merger.on_timer(20_000 * MS)
    assert Gap(1, 3, 4, 3, 4) in effects
    assert not any(isinstance(effect, RequestReplay) for effect in effects)


def test_a_stream_that_ends_within_a_gap_ends_once_the_gap_is_declared() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 2)), heartbeat(5, FIRST, flags=OutputFlag.END_OF_STREAM))
    listener.wait(5_100 * MS)
    assert listener.events(Gap, Ended) == [Gap(1, 3, 5, 3, 5), Ended(1, 5, 5)]


def test_every_delivered_message_and_every_early_packet_is_counted() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(4, line(4, 5)), packet(7, line(7, 7)), packet(6, line(6, 6)))
    assert (listener.count(Counter.MERGE_DELIVERED), listener.count(Counter.MERGE_HELD)) == (7, 1)


@pytest.mark.parametrize(("first", "last"), [(5, 6), (4, 5)])
def test_an_early_packet_is_compared_with_a_longer_one_that_contains_it(first: int, last: int) -> None:
    listener = Listener()
    listener.hear(packet(first, line(first, last), adapter=2, tail=b"!"), packet(1, line(1, 6)))
    assert listener.delivered == line(1, 6)
    assert len(listener.events(Diverged)) == 1
