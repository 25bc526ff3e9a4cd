"""Unusual output packets: gap runs, several runs, heartbeats, frames that do not fill the payload."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_HEADER,
    OUTPUT_HEADER_SIZE,
    OutputFlag,
    OutputPacket,
    checked_output_packet,
    decode_output_packet,
    decode_runs,
    encode_output_header,
    encode_output_packet,
    encode_runs,
    message_frames,
)
from tandemfeed.feedcore.wire.position import SEQ_MAX, Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tests.feedcore.packets import output_packet

HEARTBEAT = OutputPacket(
    OutputFlag.HEARTBEAT | OutputFlag.FROM_ACTIVE | OutputFlag.END_OF_STREAM,
    7, 1, 2, 20261121, 3, 301, 101, 0, (), 0, 12, b"",
)  # fmt: skip
GOLDEN_HEARTBEAT = bytes.fromhex(
    "54464f32" "02" "15" "0700" "0100" "0200" "01293501" "03000000" "00000000" "00000000" "0000" "0000"
    "0000000000000000" "6500000000000000" "2d01000000000000" "0000000000000000" "0c00000000000000"
)  # fmt: skip
GAP_AND_RUN = (Run(3, 301, 101, 1, 501, 40, 1, True), Run(3, 341, 102, 65_535, 9, 3, 0))
GOLDEN_RUNS = bytes.fromhex(
    "0100" "2800" "0100" "0100" "f501000000000000"
    "ffff" "0300" "0000" "0000" "0900000000000000"
)  # fmt: skip


def refusal_of(datagram: bytes) -> Refusal:
    with pytest.raises(PacketRefused) as refused:
        decode_output_packet(datagram)
    return refused.value.reason


def test_the_golden_heartbeat_decodes_and_encodes_to_itself() -> None:
    assert decode_output_packet(GOLDEN_HEARTBEAT) == HEARTBEAT
    assert encode_output_packet(HEARTBEAT) == GOLDEN_HEARTBEAT
    assert HEARTBEAT.end_message_seq == HEARTBEAT.first_message_seq
    assert HEARTBEAT.end_input_seq == HEARTBEAT.first_input_seq
    assert message_frames(HEARTBEAT) == []


def test_the_golden_runs_of_a_gap_and_of_filtered_messages_decode_and_encode_to_themselves() -> None:
    assert encode_runs(GAP_AND_RUN) == GOLDEN_RUNS
    marker = OUTPUT_FRAME.pack(4, 0)
    packet = HEARTBEAT._replace(flags=0, message_count=1, runs=GAP_AND_RUN, payload=GOLDEN_RUNS + marker)
    decoded = decode_output_packet(encode_output_packet(packet))
    assert decoded == packet
    assert (decoded.messages_offset, decoded.end_message_seq, decoded.end_input_seq) == (32, 102, 344)
    assert message_frames(decoded) == [(32, 4)]


def test_the_transports_fields_do_not_affect_decoding() -> None:
    packet = output_packet()
    header = encode_output_header(packet, key_id=1, incarnation=2, packet_counter=3, sent_at_ns=4)
    assert decode_output_packet(header + packet.payload) == packet._replace(sent_at_ns=4)


def test_a_sealed_datagram_is_decoded_from_its_header_and_the_opened_payload() -> None:
    packet = output_packet()
    sealed = encode_output_packet(packet)[:OUTPUT_HEADER_SIZE] + bytes(len(packet.payload) + 16)
    assert checked_output_packet(OUTPUT_HEADER.unpack_from(sealed), packet.payload) == packet


def test_every_prefix_of_a_packet_is_refused_by_its_frames_at_the_latest() -> None:
    whole = encode_output_packet(output_packet())
    for length in range(len(whole)):
        with pytest.raises(PacketRefused) as refused:
            message_frames(decode_output_packet(whole[:length]))
        assert refused.value.reason in (Refusal.TRUNCATED, Refusal.MALFORMED)


def test_a_stray_byte_in_a_heartbeat_and_a_packet_without_runs_are_refused() -> None:
    assert refusal_of(GOLDEN_HEARTBEAT + b"x") is Refusal.MALFORMED
    assert refusal_of(encode_output_packet(HEARTBEAT._replace(flags=0))) is Refusal.MALFORMED


@pytest.mark.parametrize("seq", [0, SEQ_MAX + 1, 2**64 - 1])
def test_a_sequence_number_out_of_range_is_refused_in_every_field(seq: int) -> None:
    packet = output_packet()
    assert refusal_of(encode_output_packet(packet._replace(first_message_seq=seq))) is Refusal.MALFORMED
    assert refusal_of(encode_output_packet(packet._replace(first_input_seq=seq))) is Refusal.MALFORMED
    run = packet.runs[0]._replace(first_source_seq=seq)
    payload = encode_runs((run,)) + packet.payload[16:]
    assert refusal_of(encode_output_packet(packet._replace(payload=payload))) is Refusal.MALFORMED


@pytest.mark.parametrize("lengths", [(0, 14), (3, 11), (7, 6), (7, 8), (14, 7), (65_535, 7)])
def test_frames_that_do_not_fill_the_payload_exactly_are_refused(lengths: tuple[int, int]) -> None:
    packet = output_packet()
    payload = bytearray(packet.payload)
    offset = packet.messages_offset
    for length in lengths:
        if offset + 4 <= len(payload):
            OUTPUT_FRAME.pack_into(payload, offset, length, 0)
        offset += length
    with pytest.raises(PacketRefused) as refused:
        message_frames(packet._replace(payload=bytes(payload)))
    assert refused.value.reason is Refusal.MALFORMED


def test_version_1_is_refused() -> None:
    assert refusal_of(GOLDEN_HEARTBEAT[:4] + b"\x01" + GOLDEN_HEARTBEAT[5:]) is Refusal.VERSION
    assert refusal_of(b"TFO1" + GOLDEN_HEARTBEAT[4:]) is Refusal.FOREIGN


@pytest.mark.parametrize(("length", "is_lineage"), [(20, True), (240, True), (19, False), (12, False)])
def test_the_payload_of_a_heartbeat_is_a_lineage(length: int, is_lineage: bool) -> None:
    datagram = GOLDEN_HEARTBEAT + bytes(length)
    if is_lineage:
        assert decode_output_packet(datagram).payload == bytes(length)
    else:
        assert refusal_of(datagram) is Refusal.MALFORMED


def test_the_header_has_the_documented_size() -> None:
    assert OUTPUT_HEADER.size == OUTPUT_HEADER_SIZE == 72


def test_an_announcement_contains_its_runs_and_no_messages() -> None:
    flags = OutputFlag.FROM_ACTIVE | OutputFlag.ANNOUNCEMENT
    announcement = HEARTBEAT._replace(flags=flags, message_count=1, runs=GAP_AND_RUN, payload=GOLDEN_RUNS)
    assert decode_output_packet(encode_output_packet(announcement)) == announcement
    with_message = announcement._replace(payload=GOLDEN_RUNS + OUTPUT_FRAME.pack(4, 0))
    assert refusal_of(encode_output_packet(with_message)) is Refusal.MALFORMED


def test_the_largest_numbers_are_valid() -> None:
    last = HEARTBEAT._replace(first_input_seq=SEQ_MAX, first_message_seq=SEQ_MAX)
    assert decode_output_packet(encode_output_packet(last)) == last
    runs = (GAP_AND_RUN[0]._replace(first_source_seq=SEQ_MAX),)
    assert decode_runs(encode_runs(runs), 1, 1, 3, 301, 101, 0) == runs


def test_a_refusal_says_what_does_not_fit() -> None:
    with pytest.raises(PacketRefused, match="the runs have 1 messages, but the header says 2"):
        decode_runs(GOLDEN_RUNS, 2, 2, 3, 301, 101, 0)
    packet = HEARTBEAT._replace(message_count=1, payload=OUTPUT_FRAME.pack(5, 0))
    with pytest.raises(PacketRefused, match="frame length 5 at offset 0"):
        message_frames(packet)
    with pytest.raises(PacketRefused, match="2 bytes after the last message"):
        message_frames(packet._replace(payload=OUTPUT_FRAME.pack(4, 0) + bytes(2)))
