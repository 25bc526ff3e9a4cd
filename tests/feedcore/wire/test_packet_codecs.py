"""Wire formats: golden vectors (never edited, because a change requires a new version), round trips, refusals."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_HEADER_SIZE,
    OUTPUT_LAYOUT,
    OutputFlag,
    OutputPacket,
    decode_output_packet,
    encode_output_header,
    encode_output_packet,
    message_frames,
)
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.feedcore.wire.source_packet import SourceFlag, decode_source_packet, encode_source_header
from tests.feedcore.packets import output_packet, output_packets

GOLDEN_OUTPUT = bytes.fromhex(
    "54464f32"  # magic TFO2
    "02"
    "04"  # version, flags: from the active
    "0700"
    "0100"
    "0200"  # feed, channel, adapter
    "01293501"  # session 20261121... as u32
    "03000000"
    "05000000"
    "09000000"  # epoch, key, incarnation
    "0200"
    "0100"  # messages, runs
    "2a00000000000000"  # packet counter
    "6500000000000000"
    "2d01000000000000"  # first message_seq, first input_seq
    "0b00000000000000"
    "0c00000000000000"  # source sent at, sent at
    "0100"
    "0200"
    "0200"
    "0000"
    "f501000000000000"  # the run
    "0700"
    "0000"
    "6f6e65"  # "one"
    "0700"
    "0100"
    "74776f"  # "two"
)
GOLDEN_SOURCE = bytes.fromhex("544653310100070002000100012935010a000000000000000b00000000000000060001006869")


def test_the_golden_output_packet_decodes_and_encodes_to_itself() -> None:
    packet = decode_output_packet(GOLDEN_OUTPUT)
    assert packet == output_packet()
    header = encode_output_header(packet, key_id=5, incarnation=9, packet_counter=42, sent_at_ns=12)
    assert header + packet.payload == GOLDEN_OUTPUT
    assert [packet.payload[offset + 4 : offset + length] for offset, length in message_frames(packet)] == [
        b"one",
        b"two",
    ]


def test_the_golden_source_packet_decodes_and_encodes_to_itself() -> None:
    packet = decode_source_packet(GOLDEN_SOURCE, 7)
    assert (packet.source_stream_id, packet.first_source_seq, packet.message_count, packet.end_source_seq) == (
        2,
        10,
        1,
        11,
    )
    header = encode_source_header(
        feed_id=7, source_stream_id=2, message_count=1, session=20261121, first_source_seq=10, sent_at_ns=11
    )
    assert header + GOLDEN_SOURCE[32:] == GOLDEN_SOURCE


@given(output_packets)
def test_output_packets_round_trip(packet: OutputPacket) -> None:
    assert decode_output_packet(encode_output_packet(packet)) == packet
    assert len(message_frames(packet)) == packet.message_count


@given(st.binary(max_size=200))
def test_whatever_the_bytes_a_decoder_decodes_or_refuses_them(data: bytes) -> None:
    for decode in (decode_output_packet, lambda datagram: decode_source_packet(datagram, 7)):
        for candidate in (data, GOLDEN_OUTPUT[:6] + data, GOLDEN_SOURCE[:6] + data):
            with suppress(PacketRefused):
                decoded = decode(candidate)
                if isinstance(decoded, OutputPacket):
                    message_frames(decoded)


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, 0, Refusal.FOREIGN),
        (4, 9, Refusal.VERSION),
        (5, OutputFlag.HEARTBEAT, Refusal.MALFORMED),
        (OUTPUT_LAYOUT.offsets["message_count"], 3, Refusal.MALFORMED),
        (OUTPUT_LAYOUT.offsets["message_count"], 200, Refusal.TRUNCATED),
        (OUTPUT_LAYOUT.offsets["run_count"], 9, Refusal.TRUNCATED),
        (OUTPUT_LAYOUT.offsets["first_message_seq"], 0, Refusal.MALFORMED),
        (OUTPUT_HEADER_SIZE + 2, 0, Refusal.MALFORMED),
    ],
)
def test_a_damaged_output_packet_is_refused_with_the_right_reason(offset: int, value: int, reason: Refusal) -> None:
    damaged = bytearray(GOLDEN_OUTPUT)
    damaged[offset] = value
    with pytest.raises(PacketRefused) as refused:
        decode_output_packet(bytes(damaged))
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, 0, Refusal.FOREIGN),
        (4, 9, Refusal.VERSION),
        (5, SourceFlag.HEARTBEAT, Refusal.MALFORMED),
        (6, 8, Refusal.WRONG_FEED),
        (10, 90, Refusal.TRUNCATED),
        (16, 0, Refusal.MALFORMED),
    ],
)
def test_a_damaged_source_packet_is_refused_with_the_right_reason(offset: int, value: int, reason: Refusal) -> None:
    damaged = bytearray(GOLDEN_SOURCE)
    damaged[offset] = value
    with pytest.raises(PacketRefused) as refused:
        decode_source_packet(bytes(damaged), 7)
    assert refused.value.reason is reason


def test_a_truncated_header_is_refused() -> None:
    for data, decode in ((GOLDEN_OUTPUT, decode_output_packet), (GOLDEN_SOURCE, lambda d: decode_source_packet(d, 7))):
        with pytest.raises(PacketRefused) as refused:
            decode(data[:20])
        assert refused.value.reason is Refusal.TRUNCATED
