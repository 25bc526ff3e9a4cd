"""Both lines of a capture become one stream: each message once and in order, and what neither line has is named."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.line_merge import HOLD_NS, LineMerge
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.formats.frames.frame_walk import part_of_chunk
from tandemfeed.feedcore.documents.source_format import load_source_format

FRAMING = load_source_format(document("itch50.xml")).framing
END = 31


def frame(number: int) -> bytes:
    """Message `number`, whose size differs from its neighbours'."""
    body = b"S" + bytes([number]) * (number % 5)
    return len(body).to_bytes(2, "big") + body


def chunk(first: int, end: int) -> FrameChunk:
    return FrameChunk(b"".join(map(frame, range(first, end))), end - first, first, session=b"S")


@dataclass
class Captured:
    """One packet in the capture."""

    first: int
    end: int
    at_ns: int


@st.composite
def captures(draw: st.DrawFn) -> list[Captured]:
    """The packets 1 … 30 of two lines, cut differently, some lost, some late, in the order of their arrival."""
    found = []
    for line in range(2):
        ends = sorted(draw(st.sets(st.integers(2, END - 1), max_size=12)) | {END})
        for number, (first, end) in enumerate(itertools.pairwise([1, *ends])):
            delay = draw(st.sampled_from((0, 0, 0, 3, HOLD_NS // 2, 2 * HOLD_NS)))
            if draw(st.integers(0, 5)) or (number, line) == (0, 0):
                found.append(Captured(first, end, first * 10 + line + delay))
    found.sort(key=lambda each: each.at_ns)
    return found


@settings(max_examples=400)
@given(captures())
def test_each_captured_message_is_delivered_once_and_the_others_are_missing(packets: list[Captured]) -> None:
    merge, delivered = LineMerge(part_of_chunk(FRAMING)), []
    for each in packets:
        delivered += merge.on_chunk(chunk(each.first, each.end), each.at_ns)
        merge.note_end(b"S", END)
    delivered += merge.finish()
    numbers = [number for each in delivered for number in range(each.sequence, each.sequence + each.message_count)]
    missing = [number for each in merge.missing for number in range(each.first, each.end)]
    captured = [number for each in packets for number in range(each.first, each.end)]
    assert sorted(numbers) == sorted(set(captured))
    assert sorted(numbers + missing) == list(range(min(captured), END))
    assert b"".join(each.frames for each in delivered) == b"".join(map(frame, numbers))
    assert len(captured) == len(numbers) + merge.duplicate_count
    if all(each.at_ns < HOLD_NS for each in packets) and packets[0].first == 1:
        assert numbers == sorted(numbers)
        assert merge.late_count == 0


def test_what_the_other_line_brings_in_time_is_not_missing() -> None:
    merge = LineMerge(part_of_chunk(FRAMING))
    delivered = [
        *merge.on_chunk(chunk(1, 3), 0),
        *merge.on_chunk(chunk(5, 7), 1),
        *merge.on_chunk(chunk(3, 5), HOLD_NS),
    ]
    assert [each.sequence for each in delivered] == [1, 3, 5]
    assert not merge.missing


def test_an_early_packet_does_not_wait_longer_than_the_limit() -> None:
    merge = LineMerge(part_of_chunk(FRAMING))
    assert [*merge.on_chunk(chunk(1, 3), 0), *merge.on_chunk(chunk(5, 7), 1)] == [chunk(1, 3)]
    assert [*merge.on_chunk(chunk(7, 8), HOLD_NS + 1)] == [chunk(5, 7), chunk(7, 8)]
    assert merge.missing == [("S", 3, 5)]
