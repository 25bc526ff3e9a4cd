"""Messages of one SBE schema, with nested groups and variable data, become those of another. One library writes the
input and reads the output."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.messages.sbe_writing import SbeWriter
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.sbe import load_schema
from tandemfeed.feedcore.wire.source_packet import encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter

TYPES = """<messageSchema package="x" id="{id}" version="{version}" byteOrder="{order}"><types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
<type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/>
<type name="version" primitiveType="uint16"/></composite>
<composite name="groupSizeEncoding"><type name="blockLength" primitiveType="uint16"/>
<type name="numInGroup" primitiveType="uint16"/></composite>
<composite name="text"><type name="length" primitiveType="uint16" maxValue="{most}"/>
<type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite></types>"""
BODY = """<message name="News" id="3"><field name="id" id="1" type="uint64"/>
<group name="topics" id="2"><field name="weight" id="3" type="int32"/>
<group name="words" id="4"><field name="place" id="5" type="uint16"/><data name="word" id="6" type="text"/></group>
<data name="topic" id="7" type="text"/></group>
<data name="headline" id="8" type="text"/><data name="story" id="9" type="text"{later}/></message></messageSchema>"""
FORMAT = """<sourceFormat name="news" sbe="venue.xml">
<framing headerSize="10" length="uint16" type="uint16" typeOffset="4" blockLength="uint16" blockLengthOffset="2"
version="uint16" versionOffset="8" byteOrder="{order}"/></sourceFormat>"""
TABLE = """<converterTable name="news" sourceFormat="news"><convert message="News" to="News">
<field name="id" function="copy" of="id"/>
<group name="topics" of="topics"><field name="weight" function="copy" of="weight"/>
<group name="words" of="words"><field name="place" function="copy" of="place"/>
<data name="word" function="copy" of="word"/></group>
<data name="topic" function="copy" of="topic"/></group>
<data name="headline" function="cut" of="headline" length="10"/>
<data name="story" function="text" of="story" length="30"/></convert></converterTable>"""
NEWS: dict[str, Any] = {
    "id": 2**40,
    "topics": [
        {"weight": -3, "words": [{"place": 1, "word": "naïve"}, {"place": 2, "word": ""}], "topic": "markets"},
        {"weight": 4, "words": [], "topic": ""},
    ],
    "headline": "Rates up",
    "story": "They rose.",
}


@pytest.fixture(params=["littleEndian", "bigEndian"])
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ConverterTable, SbeWriter]:
    """The table, and a writer of the venue's messages in one byte order."""
    order = request.param
    venue = TYPES.format(id=9, version=2, order=order, most=40) + BODY.format(later=' sinceVersion="2"')
    texts = {
        "venue.xml": venue,
        "f.xml": FORMAT.format(order=order),
        "t.xml": TABLE,
        "m.xml": TYPES.format(id=7, version=0, order="littleEndian", most=50) + BODY.format(later=""),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    table = load_checked_table(tmp_path / "f.xml", tmp_path / "t.xml", tmp_path / "m.xml")
    return table, SbeWriter(load_schema(venue.encode()))


def packet(messages: list[bytes], order: str) -> bytes:
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(messages), session=20261121, first_source_seq=1, sent_at_ns=0
    )
    sized = (struct.pack(f"{order}H", len(message) + 2) + message for message in messages)
    return header + b"".join(sized)


def converted(converter: Converter, data: bytes) -> bytes:
    out, count = np.zeros(3_000, np.uint8), int.from_bytes(data[10:12], "little")
    result = converter.convert(data, 0, count, out, 0, 1_400)
    assert result.source_count == count
    return bytes(out[: result.end])


def test_messages_written_with_one_schema_are_read_with_the_other(loaded: tuple[ConverterTable, SbeWriter]) -> None:
    table, writer = loaded
    whole = writer.write("News", NEWS)
    version = (1).to_bytes(2, "big" if writer.schema.is_big_endian else "little")
    older = whole[:6] + version + whole[8 : -2 - len(NEWS["story"])]  # as version 1 writes it: without a story
    long = writer.write("News", NEWS | {"headline": "Rates up again"})
    too_long = writer.write("News", NEWS | {"story": "x" * 31})
    data = packet([whole, older, long, too_long, whole[:-1]], writer.schema.byte_order)
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    frames = converted(compiled, data)
    assert frames == converted(oracle, data)
    decoder = Decoder(Path(table.document).with_name("m.xml").read_bytes())
    found = [fields for _, fields in decoder.messages(frames)]
    assert found == [NEWS, NEWS | {"story": ""}, NEWS | {"headline": "Rates up a"}]
    assert compiled.counts() == oracle.counts()
    assert (compiled.counts()["out_of_range"], compiled.counts()["wrong_length"]) == (1, 1)
