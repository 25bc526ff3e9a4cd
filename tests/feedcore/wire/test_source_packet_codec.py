"""Unusual source packets: heartbeats, lengths and ranges; and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.feedcore.wire.source_packet import (
    SOURCE_FRAME,
    SOURCE_FRAME_SIZE,
    SOURCE_HEADER_SIZE,
    SourceFlag,
    SourcePacket,
    decode_source_packet,
    encode_source_header,
    unpack_source_header,
)

GOLDEN_END = bytes.fromhex(
    "54465331" "01" "05" "0700" "0200" "0000" "01293501" "0a00000000000000" "0b00000000000000"
)  # fmt: skip


def refusal_of(datagram: bytes) -> Refusal:
    with pytest.raises(PacketRefused) as refused:
        decode_source_packet(datagram, 7)
    return refused.value.reason


def header(count: int, first: int = 10, flags: int = 0) -> bytes:
    return encode_source_header(
        feed_id=7,
        source_stream_id=2,
        message_count=count,
        session=20261121,
        first_source_seq=first,
        sent_at_ns=11,
        flags=flags,
    )


def test_the_golden_end_of_a_stream_decodes_and_encodes_to_itself() -> None:
    packet = decode_source_packet(GOLDEN_END, 7)
    assert packet.flags == SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM
    assert (packet.first_source_seq, packet.end_source_seq, packet.sent_at_ns) == (10, 10, 11)
    assert header(0, flags=packet.flags) == GOLDEN_END


@given(
    stream=st.integers(0, 2**16 - 1),
    first=st.integers(1, SEQ_MAX),
    session=st.integers(0, 2**32 - 1),
    sent_at_ns=st.integers(0, 2**64 - 1),
    is_again=st.booleans(),
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=20),
)
def test_source_packets_round_trip(
    stream: int, first: int, session: int, sent_at_ns: int, is_again: bool, bodies: list[bytes]
) -> None:
    flags = SourceFlag.RETRANSMISSION if is_again else SourceFlag.NONE
    datagram = encode_source_header(
        feed_id=7,
        source_stream_id=stream,
        message_count=len(bodies),
        session=session,
        first_source_seq=first,
        sent_at_ns=sent_at_ns,
        flags=flags,
    ) + b"".join(SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + len(body), 1) + body for body in bodies)
    packet = decode_source_packet(datagram, 7)
    assert packet == SourcePacket(stream, first, len(bodies), session, flags, sent_at_ns, datagram)
    assert packet.end_source_seq == first + len(bodies)


def test_a_packet_too_short_for_its_frame_headers_is_truncated() -> None:
    whole = header(3) + bytes(12)
    decode_source_packet(whole, 7)  # the converter checks the frames' contents
    for length in range(len(whole)):
        assert refusal_of(whole[:length]) is Refusal.TRUNCATED


def test_a_heartbeat_and_only_a_heartbeat_has_no_messages() -> None:
    assert refusal_of(header(0)) is Refusal.MALFORMED
    assert refusal_of(header(1, flags=SourceFlag.HEARTBEAT) + bytes(4)) is Refusal.MALFORMED


def test_a_heartbeat_ends_with_its_header() -> None:
    heartbeat = header(0, flags=SourceFlag.HEARTBEAT)
    decode_source_packet(heartbeat, 7)
    with pytest.raises(PacketRefused, match="3 bytes after a heartbeat's header"):
        decode_source_packet(heartbeat + bytes(3), 7)


def test_a_header_can_be_read_unchecked() -> None:
    assert unpack_source_header(b"x" + header(3, SEQ_MAX), 1)[3:] == (7, 2, 3, 20261121, SEQ_MAX, 11)


def test_the_largest_source_sequence_number_is_valid() -> None:
    assert decode_source_packet(header(1, SEQ_MAX) + bytes(4), 7).first_source_seq == SEQ_MAX


@pytest.mark.parametrize("first", [0, SEQ_MAX + 1, 2**64 - 1])
def test_a_source_sequence_number_out_of_range_is_refused(first: int) -> None:
    assert refusal_of(header(1, first) + bytes(4)) is Refusal.MALFORMED


def test_a_packet_of_another_feed_is_refused_with_that_reason() -> None:
    with pytest.raises(PacketRefused, match="feed 7, expected 8") as refused:
        decode_source_packet(GOLDEN_END, 8)
    assert refused.value.reason is Refusal.WRONG_FEED


def test_the_header_has_the_documented_size() -> None:
    assert len(header(0)) == SOURCE_HEADER_SIZE == 32
