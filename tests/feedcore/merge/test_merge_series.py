"""Packets that continue each other are merged in one step if they come next, and otherwise as one by one."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import (
    CaughtUp,
    Deliver,
    DeliverSeries,
    Diverged,
    Ended,
    Gap,
    MergeEffect,
    Numbered,
    SessionChanged,
)
from tandemfeed.feedcore.merge.merger import StreamMerger
from tandemfeed.feedcore.merge.sessions import SessionMerger
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket, encode_output_packet
from tandemfeed.feedcore.wire.packet_series import PacketSeries, decode_series, packets_of
from tests.feedcore.merge.merge_feed import MS, Listener, Source, heartbeat, line, packet

REPLAYED = OutputFlag.RETRANSMISSION


def history(first: int, end: int, *, size: int = 5, **kind: int) -> list[OutputPacket]:
    """Replayed packets of one source stream."""
    return [packet(at, line(at, min(at + size, end) - 1), flags=REPLAYED, **kind) for at in range(first, end, size)]


def series_of(packets: Iterable[OutputPacket]) -> PacketSeries:
    (series,) = decode_series([encode_output_packet(each) for each in packets])[0]
    assert isinstance(series, PacketSeries)
    return series


def hear_all(listener: Listener, packets: Iterable[OutputPacket]) -> list[MergeEffect]:
    """Feed in packets as a replay service's answer arrives."""
    found: list[MergeEffect] = []
    for part in decode_series([encode_output_packet(each) for each in packets])[0]:
        if isinstance(part, PacketSeries):
            found += listener.merger.on_series(part, listener.now_ns)
        else:
            found += listener.merger.on_packet(part, listener.now_ns)
    return found


def unfolded(effects: Iterable[MergeEffect]) -> list[MergeEffect]:
    """The effects with a `Deliver` for each packet of a series."""
    found: list[MergeEffect] = []
    for effect in effects:
        found += map(Deliver, effect.series.packets) if isinstance(effect, DeliverSeries) else (effect,)
    return found


def begun(config: MergerConfig | None = None) -> Listener:
    """A listener that knows of 1,000 messages and has the first five."""
    listener = Listener(config)
    listener.hear(heartbeat(1_001), *history(1, 6))
    return listener


def test_packets_that_come_next_are_delivered_in_one_step() -> None:
    listener = begun()
    series = series_of(history(6, 501))
    assert listener.merger.on_series(series, 0) == [DeliverSeries(series)]
    assert (listener.merger.next_input_seq, listener.merger.next_message_seq) == (501, 501)
    assert listener.merger.next_source_seqs == {1: 501}
    assert listener.count(Counter.MERGE_DELIVERED) == 500


def test_after_a_series_held_packets_are_released_and_its_end_is_reported() -> None:
    listener = begun()
    live = packet(501, line(501, 1_000))
    listener.hear(live, heartbeat(1_001, flags=OutputFlag.END_OF_STREAM))
    series = series_of(history(6, 501))
    assert listener.merger.on_series(series, 0) == [DeliverSeries(series), Deliver(live), Ended(1, 1_001, 1_001)]


def test_the_end_of_a_long_history_is_reported() -> None:
    listener = begun(MergerConfig(catching_up_count=100))
    listener.wait(10 * MS)
    series = series_of(history(6, 1_001))
    assert listener.merger.on_series(series, 0) == [DeliverSeries(series), CaughtUp(1, 1_001)]


def test_only_the_new_part_of_a_series_is_delivered() -> None:
    listener = begun()
    effects = listener.merger.on_series(series_of(history(1, 21, size=4)), 0)
    assert [effect.packet.first_input_seq for effect in effects if isinstance(effect, Deliver)] == [6, 9, 13, 17]
    assert listener.merger.next_input_seq == 21


def test_a_series_of_an_old_epoch_ends_where_the_new_epoch_begins() -> None:
    listener = Listener(knows_lineage=False)
    listener.hear(heartbeat(1_001, ((1, 1), (2, 103)), epoch=2))
    effects = listener.merger.on_series(series_of(history(1, 201)), 0)
    assert sum(effect.packet.message_count for effect in effects if isinstance(effect, Deliver)) == 102
    assert listener.merger.next_input_seq == 103


def test_the_end_of_an_old_epoch_cuts_a_series_that_continues_what_was_delivered() -> None:
    listener = begun()
    listener.hear(heartbeat(1_001, ((1, 1), (2, 103)), epoch=2))
    effects = listener.merger.on_series(series_of(history(6, 201)), 0)
    assert sum(effect.packet.message_count for effect in effects if isinstance(effect, Deliver)) == 97
    assert listener.merger.next_input_seq == 103


def test_with_confirm_2_a_series_that_comes_next_waits_for_the_other_adapters_copy() -> None:
    listener = begun(MergerConfig(confirm=2))
    listener.hear(*history(1, 6, adapter=2))
    assert listener.merger.next_input_seq == 6
    assert not unfolded(listener.merger.on_series(series_of(history(6, 101)), 0))
    listener.merger.on_series(series_of(history(6, 101, adapter=2)), 0)
    assert listener.merger.next_input_seq == 101


def test_with_confirm_2_a_series_waits_for_the_other_adapters_copy() -> None:
    listener = Listener(MergerConfig(confirm=2))
    listener.hear(heartbeat(101))
    assert not unfolded(listener.merger.on_series(series_of(history(1, 101)), 0))
    effects = listener.merger.on_series(series_of(history(1, 101, adapter=2)), 0)
    assert sum(effect.packet.message_count for effect in effects if isinstance(effect, Deliver)) == 100


@pytest.mark.parametrize("size", [5, 7])
def test_later_copies_of_a_series_are_compared_with_it(size: int) -> None:
    listener = begun()
    listener.merger.on_series(series_of(history(6, 501)), 0)
    for copy in history(101, 201, size=size, adapter=2):
        assert listener.hear(copy) == []
    forged = packet(301, line(301, 305), adapter=2, tail=b"!", flags=REPLAYED)
    (alarm,) = listener.hear(forged)
    assert isinstance(alarm, Diverged)
    assert (alarm.first_input_seq, alarm.adapter_ids) == (301, (1, 2))
    assert not listener.count(Counter.MERGE_NOT_COMPARED)


def test_as_many_packets_of_series_are_remembered_as_of_others() -> None:
    listener = begun(MergerConfig(compared_count=40))
    for first in range(6, 906, 50):
        listener.merger.on_series(series_of(history(first, first + 50)), 0)
    listener.hear(*history(706, 906, adapter=2))
    assert not listener.count(Counter.MERGE_NOT_COMPARED)
    listener.hear(*history(6, 106, adapter=2))
    assert listener.count(Counter.MERGE_NOT_COMPARED) == 20


def test_a_series_whose_messages_were_renumbered_is_not_compared_any_more() -> None:
    listener = begun()
    listener.merger.on_series(series_of(history(6, 501)), 0)
    listener.hear(heartbeat(401, ((1, 1), (2, 401)), epoch=2))
    assert listener.merger.next_input_seq == 401
    other = packet(401, [(2, 1)], epoch=2)
    assert Deliver(other) in listener.hear(other)
    assert not listener.events(Diverged)


@pytest.mark.parametrize("seed", range(40))
def test_series_are_merged_as_their_packets_one_by_one(seed: int) -> None:
    """Two adapters' copies of three source streams, in pieces that overlap, repeat, come early, or differ."""
    source = random.Random(seed)
    whole = _line_of_three_streams(source)
    together, singly = Listener(MergerConfig(compared_count=64)), Listener(MergerConfig(compared_count=64))
    for listener in (together, singly):
        listener.hear(heartbeat(whole[100].end_input_seq))
    done: list[list[MergeEffect]] = [[], []]
    is_merged_at_once = False
    while (singly.merger.next_input_seq or 0) < whole[-1].end_input_seq:
        first = next((at for at, each in enumerate(whole) if each.end_input_seq > (singly.merger.next_input_seq or 0)))
        begin = max(0, first + source.choice((0, 0, 0, -3, -8, 2)))
        answer = [_as_sent_by(source.choice((1, 2)), each) for each in whole[begin : begin + source.randint(1, 30)]]
        if source.random() < 0.5:
            answer = [each._replace(adapter_id=1) for each in answer]
        effects = hear_all(together, answer)
        is_merged_at_once |= any(isinstance(each, DeliverSeries) for each in effects)
        done[0] += unfolded(effects)
        for each in answer:
            done[1] += singly.merger.on_packet(each, 0)
        assert done[0] == done[1]
        assert _state(together.merger) == _state(singly.merger)
        assert together.counters.counts == singly.counters.counts
    assert is_merged_at_once


def _line_of_three_streams(source: random.Random) -> list[OutputPacket]:
    packets, seq, next_sources = [], 1, {1: 1, 2: 1, 3: 1}
    for _ in range(300):
        stream, count = source.randint(1, 3), source.randint(1, 6)
        begin = next_sources[stream]
        packets.append(packet(seq, [(stream, begin + at) for at in range(count)], flags=REPLAYED))
        seq, next_sources[stream] = seq + count, begin + count
    return packets


def _as_sent_by(adapter_id: int, sent: OutputPacket) -> OutputPacket:
    return sent._replace(adapter_id=adapter_id)


def _state(merger: StreamMerger) -> tuple[object, ...]:
    known = merger._gap.known_end
    return (
        merger.next_input_seq,
        merger.next_message_seq,
        dict(merger.next_source_seqs),
        known,
        merger.next_deadline_ns(),
    )


def provisional(first: int, sources: list[Source]) -> OutputPacket:
    return packet(first, sources, adapter=2, flags=OutputFlag.PROVISIONAL)


def test_provisional_messages_that_wait_are_delivered_between_the_packets_of_a_series() -> None:
    listener = Listener()
    listener.hear(packet(1, [(1, 1)]), packet(2, [(2, 1)]), provisional(9, [(2, 3)]))
    packets = [packet(3, [(2, 2)], flags=REPLAYED), packet(4, [(1, 2)], flags=REPLAYED)]
    effects = listener.merger.on_series(series_of(packets), 0)
    delivered = [each.packet.runs[0] for each in effects if isinstance(each, Deliver)]
    assert [(run.source_stream_id, run.first_source_seq) for run in delivered] == [(2, 2), (2, 3), (1, 2)]


def test_the_first_numbers_after_provisional_messages_are_reported_right_after_their_packet() -> None:
    """Although the provisional messages themselves were lost under their numbers."""
    listener = Listener()
    listener.hear(*history(1, 6), provisional(6, line(6, 10)), heartbeat(11))
    listener.wait(10_000 * MS)
    assert listener.events(Gap) == [Gap(1, 6, 11, 6, 11)]
    effects = listener.merger.on_series(series_of(history(11, 21)), 0)
    assert [type(each) for each in effects] == [Deliver, Numbered, Deliver]


def test_a_replayed_history_of_the_present_session_is_merged_in_one_step() -> None:
    merger = SessionMerger(1, 20261121, CounterSet(), start_message_seq=1)
    merger.on_packet(heartbeat(1_001), 0)
    series = series_of(history(1, 501))
    (first, *others) = merger.on_series(series, 0)
    assert isinstance(first, Deliver)
    assert len(others) == len(series) - 1
    assert merger.on_series(following := series_of(history(501, 1_001)), 0) == [DeliverSeries(following)]


def test_a_replayed_history_of_a_later_session_waits_for_it() -> None:
    merger = SessionMerger(1, 20261120, CounterSet(), start_message_seq=1)
    merger.on_packet(heartbeat(1)._replace(session=20261120), 0)
    ended = heartbeat(1, flags=OutputFlag.END_OF_STREAM)._replace(session=20261120)
    later = history(1, 21)
    assert merger.on_series(series_of(later), 0) == []
    assert merger.on_packet(heartbeat(21), 0) == []
    effects = merger.on_packet(ended, 0)
    assert SessionChanged(1, 20261120, 20261121, is_complete=True) in effects
    assert sum(each.packet.message_count for each in effects if isinstance(each, Deliver)) == 20


def test_a_series_says_what_it_covers() -> None:
    series = series_of(history(6, 26))
    assert (series.first_input_seq, series.end_input_seq, series.message_count) == (6, 26, 20)
    assert [packets_of(each) for each in (series, series.packets[0])] == [series.packets, series.packets[:1]]
