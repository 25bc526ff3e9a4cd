"""Parts of packets, cut by `input_seq`: source messages are never divided, and those without a message are kept."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, decode_output_packet, encode_output_packet, encode_runs
from tandemfeed.feedcore.wire.packet_parts import first_messages_of, identified_messages, part_of, placed_frames
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tests.feedcore.merge.merge_feed import Source, line, packet


@st.composite
def sources(draw: st.DrawFn) -> tuple[list[Source], frozenset[Source]]:
    """Source messages of some streams, and which of them make no message."""
    streams = draw(st.lists(st.integers(1, 3), min_size=1, max_size=20))
    found = [(stream, 1 + streams[:at].count(stream)) for at, stream in enumerate(streams)]
    return found, frozenset(draw(st.sets(st.sampled_from(found))))


@given(sources(), st.data())
def test_the_parts_of_a_packet_together_have_the_content_of_the_whole(
    made: tuple[list[Source], frozenset[Source]], data: st.DataObject
) -> None:
    whole = packet(50, made[0], first_input=70, silent=made[1])
    cuts = data.draw(st.sets(st.integers(70, whole.end_input_seq)))
    bounds = sorted({70, *cuts, whole.end_input_seq})
    messages = []
    next_message = 50
    for first, end in itertools.pairwise(bounds):
        part = part_of(whole, first, end)
        assert (part.first_input_seq, part.end_input_seq, part.first_message_seq) == (first, end, next_message)
        assert decode_output_packet(encode_output_packet(part)) == part
        messages += list(identified_messages(part, first, end))
        assert messages[len(messages) - part.message_count :] == list(identified_messages(whole, first, end))
        next_message += part.message_count
    assert messages == list(identified_messages(whole, 70, whole.end_input_seq))


def test_two_messages_of_one_source_message_are_never_separated() -> None:
    run = Run(1, 10, 20, 1, 5, 2, 3)
    frames = b"".join(OUTPUT_FRAME.pack(5, offset) + body for offset, body in ((0, b"a"), (1, b"b"), (1, b"c")))
    whole = packet(20, line(5, 6), first_input=10)._replace(
        message_count=3, runs=(run,), payload=encode_runs((run,)) + frames
    )
    assert [input_seq for input_seq, _, _ in placed_frames(whole)] == [10, 11, 11]
    bodies = [[each.body for each in identified_messages(part_of(whole, at, at + 1), at, at + 1)] for at in (10, 11)]
    assert bodies == [[b"a"], [b"b", b"c"]]
    assert part_of(whole, 11, 12).first_message_seq == 21


def test_the_message_of_a_declared_source_gap_belongs_to_its_first_source_message() -> None:
    run = Run(1, 10, 20, 1, 5, 4, 1, is_source_gap=True)
    gap = packet(20, [(1, 5)], first_input=10)
    gap = gap._replace(runs=(run,), payload=encode_runs((run,)) + gap.payload[gap.messages_offset :])
    assert [input_seq for input_seq, _, _ in placed_frames(gap)] == [10]
    assert [each.lost_count for each in identified_messages(gap, 10, 14)] == [4]


@pytest.mark.parametrize("offsets", [(1, 0), (0, 2)])
def test_source_offsets_that_decrease_or_exceed_their_run_are_refused(offsets: tuple[int, int]) -> None:
    whole = packet(1, line(1, 2))
    frames = b"".join(OUTPUT_FRAME.pack(5, offset) + b"x" for offset in offsets)
    with pytest.raises(PacketRefused) as refused:
        placed_frames(whole._replace(payload=encode_runs(whole.runs) + frames))
    assert refused.value.reason is Refusal.MALFORMED


@given(sources(), st.data())
def test_the_first_messages_of_a_packet_are_those_of_the_whole(
    made: tuple[list[Source], frozenset[Source]], data: st.DataObject
) -> None:
    whole = packet(50, made[0], first_input=70, silent=made[1])
    count = data.draw(st.integers(1, max(1, whole.message_count)))
    first = first_messages_of(whole, count)
    assert decode_output_packet(encode_output_packet(first)) == first
    expected = list(identified_messages(whole, 70, whole.end_input_seq))[:count]
    assert list(identified_messages(first, 70, whole.end_input_seq)) == expected


def test_the_first_messages_may_separate_those_of_one_source_message() -> None:
    run = Run(1, 10, 20, 1, 5, 2, 3)
    frames = b"".join(OUTPUT_FRAME.pack(5, offset) + body for offset, body in ((0, b"a"), (1, b"b"), (1, b"c")))
    whole = packet(20, line(5, 6), first_input=10)._replace(
        message_count=3, runs=(run,), payload=encode_runs((run,)) + frames
    )
    first = first_messages_of(whole, 2)
    assert decode_output_packet(encode_output_packet(first)) == first
    assert [each.body for each in identified_messages(first, 10, 12)] == [b"a", b"b"]
    assert first_messages_of(whole, 3) is whole


def test_a_packets_messages_name_the_source_messages_that_made_them() -> None:
    whole = packet(50, [*line(501, 503), *line(9, 10, stream=2)], first_input=70)
    assert whole.runs[0].end_message_seq == 53
    found = [(each.message_seq, each.source_stream_id, each.source_seq) for each in identified_messages(whole, 71, 74)]
    assert found == [(51, 1, 502), (52, 1, 503), (53, 2, 9)]
    assert {each.lost_count for each in identified_messages(whole, 71, 74)} == {0}


def test_a_packet_is_the_part_of_itself_that_contains_everything() -> None:
    whole = packet(50, line(501, 503), first_input=70)
    assert part_of(whole, 70, 73) is whole
    assert part_of(whole, 60, 90) is whole
    rest = part_of(whole, 71, 90)
    assert (rest.first_input_seq, rest.first_message_seq, rest.message_count) == (71, 51, 2)
    begin = part_of(whole, 60, 72)
    assert (begin.first_input_seq, begin.first_message_seq, begin.message_count) == (70, 50, 2)


def test_the_first_messages_of_a_packet_end_with_their_last_source_message() -> None:
    first = first_messages_of(packet(50, line(501, 505), first_input=70), 2)
    assert (first.message_count, first.end_input_seq, first.end_message_seq) == (2, 72, 52)
