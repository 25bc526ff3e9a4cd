"""docs/protocol.md clause 7.1: packets are ordered by `input_seq`, so the merge notices every lost packet."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.effects import Deliver, Filled, Gap, RequestReplay
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.packet_parts import part_of
from tests.feedcore.merge.merge_feed import FIRST, MS, Listener, Source, heartbeat, line, packet


def test_the_loss_of_a_packet_without_messages_is_noticed_and_the_packet_is_requested() -> None:
    listener = Listener()
    silent = packet(4, line(4, 6), silent=line(4, 6))
    listener.hear(packet(1, line(1, 3)), packet(4, line(7, 8), first_input=7))
    assert listener.delivered == line(1, 3)
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((4, 7),))]
    listener.hear(silent._replace(flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == [*line(1, 3), *line(7, 8)]
    assert (listener.merger.next_input_seq, listener.merger.next_message_seq) == (9, 6)
    delivered = [effect.packet for effect in listener.events(Deliver) if isinstance(effect, Deliver)]
    assert [each.message_count for each in delivered] == [3, 0, 2]


def test_a_heartbeat_reveals_the_loss_of_the_last_packet_without_messages() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), heartbeat(6, next_message=4))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((4, 6),))]


def test_a_gap_without_messages_is_counted_and_not_reported() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(4, line(7, 8), first_input=7))
    listener.wait(5_001 * MS)
    assert not listener.events(Gap)
    assert listener.count(Counter.MERGE_SILENT_GAPS) == 3
    assert listener.count(Counter.MERGE_GAPS) == 0
    assert listener.delivered == [*line(1, 3), *line(7, 8)]


def test_a_gap_names_the_missing_source_messages_and_the_missing_messages() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(6, line(9, 9), first_input=9), heartbeat(14, next_message=10))
    listener.wait(5_001 * MS)
    listener.wait(5_001 * MS)
    assert listener.events(Gap) == [Gap(1, 4, 9, 4, 6), Gap(1, 10, 14, 7, 10)]
    assert listener.count(Counter.MERGE_GAPS) == 5
    assert (listener.merger.next_input_seq, listener.merger.next_message_seq) == (14, 10)


def test_a_late_packet_fills_exactly_what_the_gap_named() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(6, line(8, 9), first_input=8))
    listener.wait(5_001 * MS)
    listener.hear(packet(2, line(2, 9), first_input=2, silent=[(1, 5), (1, 7)]))
    [filled] = listener.events(Filled)
    assert isinstance(filled, Filled)
    late = filled.packet
    assert (late.first_input_seq, late.end_input_seq, late.first_message_seq, late.message_count) == (4, 8, 4, 2)
    assert listener.delivered == [*line(1, 3), *line(8, 9), (1, 4), (1, 6)]


def test_a_copy_with_another_message_seq_is_an_alarm() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(2, line(1, 3), first_input=1, adapter=2))
    assert listener.count(Counter.MERGE_DIVERGED) == 1


def test_copies_that_differ_only_in_source_messages_without_messages_are_an_alarm() -> None:
    listener = Listener()
    listener.hear(packet(1, [(1, 1), (1, 2), (2, 1)], silent=[(1, 2), (2, 1)]))
    listener.hear(packet(1, [(1, 1), (2, 1)], silent=[(2, 1)], adapter=2))
    assert listener.count(Counter.MERGE_DIVERGED) == 1


# ---- a model: one history, packed and lost in any way ----


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Source], frozenset[Source]]:
    """Source messages by input_seq from 1, and which of them make no message."""
    streams = draw(st.lists(st.integers(1, 3), min_size=1, max_size=40))
    history = [(stream, 1 + streams[:at].count(stream)) for at, stream in enumerate(streams)]
    return history, frozenset(draw(st.sets(st.sampled_from(history))))


def packed(draw: st.DrawFn, whole: OutputPacket, adapter: int) -> list[OutputPacket]:
    """The history as one adapter cuts it into packets."""
    ends = draw(st.sets(st.integers(1, whole.end_input_seq)))
    bounds = sorted({1, *ends, whole.end_input_seq})
    parts = (part_of(whole, first, end) for first, end in itertools.pairwise(bounds))
    return [part._replace(adapter_id=adapter) for part in parts]


@settings(max_examples=150)
@given(st.data())
def test_with_replay_exactly_the_messages_are_delivered_in_order_whatever_the_cuts_order_and_losses(
    data: st.DataObject,
) -> None:
    draw = data.draw
    history, silent = draw(histories())
    whole = packet(1, history, silent=silent)
    journals = {adapter: packed(draw, whole, adapter) for adapter in (1, 2)}
    air = [each for journal in journals.values() for each in journal]
    listener = Listener()
    listener.hear(*draw(st.lists(st.sampled_from(air), max_size=2 * len(air))))  # lost, repeated and in any order
    listener.hear(heartbeat(len(history) + 1, FIRST, next_message=whole.end_message_seq))
    listener.wait(4 * MS)
    for request in listener.requests:
        for each in journals[draw(st.sampled_from((1, 2)))]:
            if any(each.first_input_seq < end and each.end_input_seq > first for first, end in request.input_ranges):
                listener.hear(each._replace(flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == [source for source in history if source not in silent]
    assert not listener.events(Gap)
    next_input = next_message = 1
    for effect in listener.events(Deliver):
        assert isinstance(effect, Deliver)
        assert (effect.packet.first_input_seq, effect.packet.first_message_seq) == (next_input, next_message)
        next_input, next_message = effect.packet.end_input_seq, effect.packet.end_message_seq
    assert (next_input, next_message) == (whole.end_input_seq, whole.end_message_seq)
    listener.wait(4_000 * MS)
    assert len(listener.requests) <= 1


@settings(max_examples=150)
@given(st.data())
def test_source_messages_between_two_deliveries_are_named_by_a_gap_or_made_no_message(data: st.DataObject) -> None:
    draw = data.draw
    history, silent = draw(histories())
    whole = packet(1, history, silent=silent)
    air = [each for adapter in (1, 2) for each in packed(draw, whole, adapter)]
    listener = Listener()
    for each in draw(st.lists(st.sampled_from(air), max_size=2 * len(air))):
        listener.hear(each)
        if draw(st.integers(0, 4)) == 0:
            listener.wait(6_000 * MS)
    listener.hear(heartbeat(len(history) + 1, FIRST, next_message=whole.end_message_seq))
    listener.wait(20_000 * MS)
    next_input = next_message = 1
    for effect in listener.events(Deliver, Gap):
        assert isinstance(effect, Deliver | Gap)
        span = effect.packet if isinstance(effect, Deliver) else effect
        assert span.first_input_seq >= next_input
        assert span.first_message_seq == next_message
        next_input, next_message = span.end_input_seq, span.end_message_seq
    assert next_message == whole.end_message_seq
    assert listener.merger.next_input_seq == whole.end_input_seq
