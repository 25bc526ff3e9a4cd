"""Samples of refused messages: which ones are kept, and what they contain."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.dead_letters import SAMPLES_KEPT_MAX, DeadLetter
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.state.state_kernels import SAMPLES_MAX
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter

DOCUMENTS = Path(__file__).resolve().parents[3] / "deploy" / "examples" / "ticks"
TABLE = load_checked_table(
    DOCUMENTS / "source-format.xml", DOCUMENTS / "converter-table.xml", DOCUMENTS / "message-model.xml"
)
TRADE = SOURCE_FRAME.pack(36, 1) + b"ACME\0\0\0\0" + struct.pack("<QqIcBH", 5, 1_000, 3, b"B", 0, 0)
UNKNOWN = SOURCE_FRAME.pack(9, 77) + b"????!"
SHORT_QUOTE = SOURCE_FRAME.pack(12, 2) + b"ACME\0\0\0\0"
TWO_LENGTHS = """<sourceFormat name="two" byteOrder="bigEndian">
  <framing headerSize="2" length="uint16" lengthAdds="2" type="char" typeOffset="2"/>
  <message name="short" type="S"><field name="number" type="uint16" offset="1"/></message>
  <message name="long" type="S"><field name="number" type="uint32" offset="1"/></message>
</sourceFormat>"""


def packet(frames: list[bytes], first: int = 1) -> bytes:
    header = encode_source_header(
        feed_id=1, source_stream_id=3, message_count=len(frames), session=20261121, first_source_seq=first, sent_at_ns=9
    )
    return header + b"".join(frames)


@pytest.fixture(params=[CompiledConverter, InterpretedConverter])
def converter(request: pytest.FixtureRequest) -> CompiledConverter | InterpretedConverter:
    made: CompiledConverter | InterpretedConverter = request.param(TABLE)
    return made


def convert(converter: CompiledConverter | InterpretedConverter, frames: list[bytes], first: int = 1) -> int:
    out = np.zeros(65_536, np.uint8)
    return converter.convert(packet(frames, first), 0, len(frames), out, 0, len(out)).message_count


def test_a_refused_message_is_reported_with_reason_number_name_and_bytes(
    converter: CompiledConverter | InterpretedConverter,
) -> None:
    assert convert(converter, [TRADE, UNKNOWN, TRADE, SHORT_QUOTE], 100) == 2
    assert converter.take_dead_letters() == [
        DeadLetter(Reason.UNKNOWN_TYPE, 3, 101, 20261121, 9, 77, "", UNKNOWN),
        DeadLetter(Reason.WRONG_LENGTH, 3, 103, 20261121, 9, 2, "quote", SHORT_QUOTE),
    ]
    assert converter.take_dead_letters() == []


def test_messages_refused_by_a_second_call_for_a_packet_have_their_own_numbers(
    converter: CompiledConverter | InterpretedConverter,
) -> None:
    data, out = packet([TRADE, UNKNOWN, SHORT_QUOTE], 7), np.zeros(2_000, np.uint8)
    assert converter.convert(data, 0, 2, out, 0, 2_000).source_count == 2
    assert converter.convert(data, 2, 1, out, 0, 2_000).source_count == 1
    assert [(each.source_seq, each.message) for each in converter.take_dead_letters()] == [(8, ""), (9, "quote")]


def test_the_first_samples_of_a_packet_and_the_newest_packets_are_kept(
    converter: CompiledConverter | InterpretedConverter,
) -> None:
    count = SAMPLES_MAX + 8
    packets = 2 * SAMPLES_KEPT_MAX // SAMPLES_MAX
    for number in range(packets):
        assert convert(converter, [UNKNOWN] * count, 1 + number * count) == 0
    expected = [1 + number * count + place for number in range(packets) for place in range(SAMPLES_MAX)]
    assert [each.source_seq for each in converter.take_dead_letters()] == expected[-SAMPLES_KEPT_MAX:]
    assert converter.counts()["unknown_type"] == packets * count


def test_a_frame_that_ends_beyond_its_packet_is_kept_up_to_the_packets_end(
    converter: CompiledConverter | InterpretedConverter,
) -> None:
    cut, nothing = SOURCE_FRAME.pack(36, 1) + b"ACME", SOURCE_FRAME.pack(0, 1) + b"rest"
    assert convert(converter, [TRADE, cut]) == 1
    assert convert(converter, [nothing, TRADE]) == 0
    found = converter.take_dead_letters()
    assert [(each.reason, each.frame) for each in found] == [
        (Reason.TRUNCATED, cut),
        (Reason.TRUNCATED, nothing + TRADE),
    ]


def test_a_type_shared_by_several_messages_is_named_after_those_that_fit_the_length(tmp_path: Path) -> None:
    path = tmp_path / "two.xml"
    path.write_text(TWO_LENGTHS)
    source_format = load_source_format(path)

    def name(body: bytes) -> str:
        frame = len(body).to_bytes(2, "big") + body
        return DeadLetter.of(packet([frame]), 32, 0, Reason.UNMAPPED, source_format).message

    assert name(b"S\0\1") == "short"
    assert name(b"S\0\0\0\1") == "long"
    assert name(b"S\0\0\1") == "short or long"
    assert name(b"T\0\0\1") == ""
