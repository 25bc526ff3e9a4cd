"""Encoding of messages: vectors, round trips, and refused frames."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.journal.format.layout import COUNT_MASK, HAS_TABLE, IS_SEALED
from tandemfeed.journal.replication.limits import FRAME_SIZE_MAX, PIECE_SIZE_MAX, TAIL_COUNT_MAX, TEXT_SIZE_MAX
from tandemfeed.journal.replication.wire.codec import CRC, HEAD, BadMessage, check_segment, decode, encode
from tandemfeed.journal.replication.wire.messages import (
    Acknowledge,
    Heartbeat,
    Hello,
    Message,
    Piece,
    Position,
    Probe,
    Probed,
    Reason,
    Refused,
    Segment,
    SegmentDigest,
    Segments,
    Welcome,
)
from tests.journal.replication.replication_messages import MESSAGES, PLAIN, SESSION, VECTORS, WITH_TABLE

SESSIONS = st.integers(0, 2**64 - 1)
WORDS = st.integers(0, 2**63 - 1)
IDS = st.binary(min_size=16, max_size=16)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=TEXT_SIZE_MAX // 4)
DIGESTS = st.builds(SegmentDigest, WORDS, WORDS, IDS)


@st.composite
def _segments(draw: st.DrawFn) -> Segment:
    cycle, first, at_ns = draw(WORDS), draw(WORDS), draw(WORDS)
    records = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=6))
    if draw(st.booleans()):
        return Segment(cycle, first, at_ns, 1, len(records[0]), records[0])
    ends = [sum(map(len, records[: place + 1])) for place in range(len(records))]
    body = struct.pack(f"<{len(ends)}I", *ends) + b"".join(records)
    return Segment(cycle, first, at_ns, len(records) | HAS_TABLE, 0, body)


@st.composite
def _pieces(draw: st.DrawFn) -> Piece:
    data, offset, rest = (
        draw(st.binary(min_size=1, max_size=50)),
        draw(st.integers(0, 1 << 30)),
        draw(st.integers(0, 9)),
    )
    head = Segment(draw(WORDS), draw(WORDS), draw(WORDS), draw(st.integers(1, COUNT_MASK)), 7, b"")
    return Piece(draw(WORDS), draw(WORDS), head, offset + len(data) + rest, offset, data)


ANY = st.one_of(
    st.builds(Hello, SESSIONS, IDS),
    st.builds(Welcome, SESSIONS, IDS, TEXTS, st.integers(-(2**63), 2**63 - 1), TEXTS, WORDS, st.booleans(), WORDS),
    st.builds(Position, SESSIONS, IDS, WORDS, st.lists(DIGESTS, max_size=TAIL_COUNT_MAX).map(tuple)),
    st.builds(Probe, SESSIONS, WORDS),
    st.builds(Probed, SESSIONS, WORDS, st.none() | DIGESTS),
    st.builds(Segments, SESSIONS, WORDS, st.lists(_segments(), max_size=5).map(tuple)),
    _pieces(),
    st.builds(Acknowledge, SESSIONS, WORDS, WORDS),
    st.builds(Heartbeat, SESSIONS, WORDS),
    st.builds(Refused, SESSIONS, st.sampled_from(Reason), WORDS, TEXTS),
)


def _framed(body: bytes) -> bytes:
    return body + CRC.pack(google_crc32c.value(body))


@pytest.mark.parametrize("name", MESSAGES)
def test_the_bytes_of_a_message_never_change_and_decode_to_it(name: str) -> None:
    frame = bytes.fromhex(VECTORS[name])
    assert encode(MESSAGES[name]) == frame
    assert decode(frame) == MESSAGES[name]


@given(ANY)
def test_every_message_survives_encoding_and_decoding(message: Message) -> None:
    frame = encode(message)
    assert decode(frame) == message
    assert encode(decode(frame)) == frame


@given(ANY, st.data())
def test_a_changed_or_truncated_frame_is_refused(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    place = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(BadMessage):
        decode(bytes(frame[:place]))
    frame[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadMessage):
        decode(bytes(frame))


@given(st.integers(0, 11), st.binary(max_size=200))
def test_a_random_frame_with_a_valid_crc_is_decoded_or_refused(kind: int, body: bytes) -> None:
    frame = _framed(HEAD.pack(1, kind, SESSION) + body)
    with contextlib.suppress(BadMessage):
        assert encode(decode(frame)) == frame


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (HEAD.pack(2, 1, 0) + bytes(16), "replication format 2; expected 1"),
        (HEAD.pack(1, 99, 0), "unknown kind 99"),
        (HEAD.pack(1, 1, 0) + bytes(17), "1 unexpected bytes after Hello"),
        (HEAD.pack(1, 1, 0) + bytes(15), "16 bytes announced, but only 15 present"),
        (HEAD.pack(1, 6, 0) + struct.pack("<QI", 0, 1 << 30), "segments announced"),
        (HEAD.pack(1, 3, 0) + bytes(24) + b"\x05", "5 digests; the maximum"),
        (HEAD.pack(1, 5, 0) + bytes(8) + b"\x02", "2 digests"),
        (HEAD.pack(1, 10, 0) + b"\x63" + bytes(10), "unknown reason for a refusal: 99"),
        (HEAD.pack(1, 10, 0) + b"\x01" + bytes(8) + b"\x02\x00\xff\xff", "not UTF-8"),
        (HEAD.pack(1, 10, 0) + b"\x01" + bytes(8) + b"\xff\xff", "a text of 65535 bytes"),
        (HEAD.pack(1, 9, 0) + b"\xff" * 8, "63 bits"),
        (HEAD.pack(1, 2, 0) + bytes(32) + b"\x07" + bytes(12), "must be 0 or 1"),
    ],
)
def test_an_invalid_frame_is_refused_with_a_reason(body: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode(_framed(body))


def test_a_frame_beyond_the_size_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadMessage, match="a frame of"):
        decode(bytes(FRAME_SIZE_MAX + 1))
    with pytest.raises(AssertionError):
        encode(Segments(0, 0, (replace(PLAIN, body=bytes(PIECE_SIZE_MAX + 1)),)))


@pytest.mark.parametrize(
    "segment",
    [
        replace(PLAIN, body=b"abcde"),
        replace(PLAIN, count_and_flags=0),
        replace(PLAIN, first_sequence=1 << 63),
        replace(PLAIN, count_and_flags=2 | IS_SEALED),
        replace(WITH_TABLE, body=WITH_TABLE.body + b"!"),
        replace(WITH_TABLE, body=WITH_TABLE.body[:7]),
        replace(WITH_TABLE, body=struct.pack("<II", 5, 4) + b"xyzz"),
    ],
)
def test_a_segment_whose_body_contradicts_its_head_is_refused(segment: Segment) -> None:
    with pytest.raises(BadMessage):
        check_segment(segment)
    with pytest.raises(BadMessage):
        decode(encode(Segments(0, 0, (segment,))))


def test_a_piece_beyond_its_body_is_refused() -> None:
    good = encode(MESSAGES["piece"])[: -CRC.size]
    with pytest.raises(BadMessage, match="of a body of 9 bytes"):
        decode(_framed(good + b"three"))


def test_a_long_text_is_cut_between_characters() -> None:
    cut = decode(encode(Refused(0, Reason.TOO_MANY, 0, "–" * TEXT_SIZE_MAX)))
    assert isinstance(cut, Refused)
    assert cut.text == "–" * (TEXT_SIZE_MAX // 3)
