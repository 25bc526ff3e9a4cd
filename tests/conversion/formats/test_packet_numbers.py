"""Venues that number packets, not messages, are received live: each message has one number at every adapter."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats.packets.packet_translation import PacketTranslation
from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.packet_numbers import filler_frame, filler_type, packets_of
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.replica.input.source_tracker import SourceTracker, TrackerConfig
from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, decode_source_packet
from tests.conversion.formats.test_venues_by_document import EXAMPLES, deribit_packet, table, trade
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.feedcore.sbe.sbe_material import schema_text

FEED, STREAM, DAY = 3, 7, 20261123
NUMBERS = 128  # of a packet, unless the document says otherwise
SMALL = """<sourceFormat name="venue" byteOrder="bigEndian">
<packet name="Venue" headerSize="6" requests="header">
  <sequence type="uint32" counts="packets" messagesMax="4"/><count type="uint16" offset="4"/></packet>
<framing headerSize="4" length="uint16" type="uint16" typeOffset="2"/>
<message name="one" type="65535"><field name="number" type="uint32"/></message></sourceFormat>"""
MODEL = schema_text("", '<message name="One" id="1"><field name="number" id="1" type="uint32"/></message>')
TABLE = """<converterTable name="t" sourceFormat="venue"><convert message="one" to="One">
<field name="number" function="copy" of="number"/></convert></converterTable>"""


@pytest.fixture
def small(tmp_path: Path) -> SourceFormat:
    (tmp_path / "format.xml").write_text(SMALL)
    return load_source_format(tmp_path / "format.xml")


def packet(number: int, *messages: int) -> bytes:
    body = b"".join(struct.pack(">HHI", 8, 65535, message) for message in messages)
    return struct.pack(">IH", number, len(messages)) + body


def deribit() -> SourceFormat:
    return load_source_format(EXAMPLES / "deribit" / "source-format.xml")


def output(converter: CompiledConverter | InterpretedConverter, datagram: bytes, count: int) -> bytes:
    assert converter.check(datagram)
    out = np.zeros(100_000, np.uint8)
    result = converter.convert(datagram, 0, count, out, 0, len(out))
    assert result.source_count == count
    return bytes(out[: result.end])


class Adapter:
    """The receiving part of an adapter: packets of any line, in the order of their numbers."""

    def __init__(self) -> None:
        self._translation = PacketTranslation(deribit(), FEED, STREAM, DAY, 3)
        self._tracker = SourceTracker(STREAM, TrackerConfig())
        self._tracker.anchor(1, 0)
        self._converter = InterpretedConverter(table("deribit"))
        self.converted: dict[int, bytes] = {}

    def receive(self, datagram: bytes) -> None:
        found = self._translation.source_packet(datagram)
        assert found is not None
        for part in self._tracker.on_packet(decode_source_packet(found, FEED), 0, 0):
            assert part.first_source_seq not in self.converted
            made = output(self._converter, part.packet.datagram, part.message_count)
            self.converted[part.first_source_seq] = made

    @property
    def refused(self) -> int:
        return sum(self._converter.counts().values())


def test_the_lines_of_a_venue_that_numbers_packets_give_each_message_once_with_one_number() -> None:
    packets = [
        deribit_packet(number, *(trade(5, (each, 10.5, 1.0, 0)) for each in range(number % 3 + 1)))
        for number in range(1, 8)
    ]
    one, other = Adapter(), Adapter()
    for number, datagram in enumerate(packets, 1):
        for line in range(2):
            if number % 2 != line:  # each line loses every second packet at this adapter
                one.receive(datagram)
            if number != 4 or line:
                other.receive(datagram)
    assert list(one.converted) == [NUMBERS * place + 1 for place in range(7)]
    assert one.converted == other.converted
    assert all(one.converted.values())
    assert one.refused == 0, "nothing is counted for the numbers that no message has"


def test_an_adapter_that_lost_packets_gives_later_messages_the_same_numbers() -> None:
    lines = PacketTranslation(deribit(), FEED, STREAM, DAY, 3)
    late = PacketTranslation(deribit(), FEED, STREAM, DAY, 3)
    for number in (1, 2, 3):
        assert lines.source_packet(deribit_packet(number, trade(5, (1, 1.0, 1.0, 0)))) is not None
    datagram = deribit_packet(4, trade(5, (1, 1.0, 1.0, 0)), trade(6, (1, 1.0, 1.0, 0)))
    assert lines.source_packet(datagram) == late.source_packet(datagram)


def test_a_packet_has_as_many_numbers_as_the_document_says(small: SourceFormat) -> None:
    lines = PacketTranslation(small, FEED, STREAM, DAY, None)
    found = decode_source_packet(lines.source_packet(packet(3, 11, 12)) or b"", FEED)
    assert (found.first_source_seq, found.message_count, found.flags) == (9, 4, 0)
    filler = struct.pack(">HH", 4, 65534)
    assert found.datagram[SOURCE_HEADER_SIZE:] == packet(3, 11, 12)[6:] + 2 * filler
    empty = decode_source_packet(lines.source_packet(packet(4)) or b"", FEED)
    assert (empty.first_source_seq, empty.message_count) == (13, 4)
    assert empty.datagram[SOURCE_HEADER_SIZE:] == 4 * filler, "a packet without messages has its number, too"


def test_a_packet_with_more_messages_than_numbers_is_malformed_and_becomes_a_gap(small: SourceFormat) -> None:
    lines = PacketTranslation(small, FEED, STREAM, DAY, None)
    assert lines.source_packet(packet(1, 1, 2, 3, 4)) is not None
    assert lines.source_packet(packet(2, 1, 2, 3, 4, 5)) is None
    assert lines.malformed == 1


def test_requests_name_packets(small: SourceFormat) -> None:
    lines = PacketTranslation(small, FEED, STREAM, DAY, None)
    lines.source_packet(packet(1))
    assert lines.request(5, 8) == struct.pack(">IH", 2, 1)
    assert lines.request(8, 13) == struct.pack(">IH", 2, 3)
    assert [packets_of(1, 4, 4), packets_of(4, 5, 4), packets_of(9, 9, 4)] == [(1, 1), (1, 2), (3, 1)]


def test_kernel_and_interpreter_pass_over_numbers_that_no_message_has(small: SourceFormat) -> None:
    loaded: ConverterTable = load_table(TABLE.encode(), small, load_message_model(MODEL), 1_472)
    datagram = PacketTranslation(small, FEED, STREAM, DAY, None).source_packet(packet(2, 7, 8))
    assert datagram is not None
    outputs = []
    for converter in (CompiledConverter(loaded), InterpretedConverter(loaded)):
        outputs.append(output(converter, datagram, 4))
        assert not any(converter.counts().values())
        assert converter.take_dead_letters() == []
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 2 * (4 + 8 + 4)


def test_the_filler_has_a_type_that_the_venue_does_not_use(small: SourceFormat) -> None:
    assert filler_type(small) == 65_534
    assert filler_frame(small.framing, 65_534) == b"\0\4\xff\xfe"
    assert filler_type(load_source_format(EXAMPLES / "nyse-xdp" / "source-format.xml")) is None
