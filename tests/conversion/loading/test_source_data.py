"""Variable texts of a source message: usable like any other text, never read beyond their message."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.wire.source_packet import (
    SOURCE_FRAME,
    SOURCE_FRAME_SIZE,
    encode_source_header,
    unpack_source_header,
)
from tests.conversion.oracle.interpreted import InterpretedConverter

FORMAT = """<sourceFormat name="news"><message name="news" type="1">
<field name="id" type="uint32"/>
<data name="symbol" length="uint8" maxLength="8"/>
<data name="headline" length="uint16" maxLength="20"/>
<data name="amount" length="uint8" headerSize="2"/>
</message></sourceFormat>"""
MODEL = """<messageSchema package="x" id="7" version="0" byteOrder="littleEndian"><types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
<type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/>
<type name="version" primitiveType="uint16"/></composite>
<type name="Text8" primitiveType="char" length="8"/><type name="Text20" primitiveType="char" length="20"/>
<type name="Text40" primitiveType="char" length="40"/></types>
<message name="News" id="1"><field name="symbol" id="1" type="Text8"/><field name="headline" id="2" type="Text20"/>
<field name="short" id="3" type="Text8"/><field name="both" id="4" type="Text40"/>
<field name="amount" id="5" type="int64"/><field name="kind" id="6" type="int32"/>
<field name="count" id="7" type="int64"/><field name="joined" id="8" type="Text20"/></message></messageSchema>"""
TABLE = """<converterTable name="news" sourceFormat="news">
<map name="kinds" default="0"><entry from="ACME" to="1"/><entry from="LONGNAME" to="2"/></map>
<convert message="news" to="News">
<when of="symbol" isNot="SKIP"/><when of="headline" isNot="nothing of note"/>
<field name="symbol" function="copy" of="symbol"/>
<field name="headline" function="copy" of="headline"/>
<field name="short" function="cut" of="headline" length="8"/>
<field name="both" function="concatenate" of="symbol headline id" separator="/"/>
<field name="amount" function="number" of="amount"/>
<field name="kind" function="map" of="symbol" map="kinds"/>
<field name="count" function="count" by="headline"/>
<let name="eight" function="cut" of="headline" length="8"/>
<field name="joined" function="concatenate" of="eight symbol" separator="+"/>
</convert></converterTable>"""


def table(folder: Path, change: tuple[str, str] = ("", "")) -> ConverterTable:
    for name, text in (("f.xml", FORMAT), ("t.xml", TABLE), ("m.xml", MODEL)):
        (folder / name).write_text(text.replace(*change, 1) if change[0] else text)
    return load_checked_table(folder / "f.xml", folder / "t.xml", folder / "m.xml")


def news(symbol: bytes, headline: bytes, amount: bytes = b"12") -> bytes:
    body = b"\5\0\0\0" + bytes([len(symbol)]) + symbol + len(headline).to_bytes(2, "little") + headline
    body += bytes([len(amount), 99]) + amount
    return SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + len(body), 1) + body


def packet(*frames: bytes) -> bytes:
    header = encode_source_header(
        feed_id=1,
        source_stream_id=1,
        message_count=len(frames),
        session=20261121,
        first_source_seq=1,
        sent_at_ns=0,
    )
    return header + b"".join(frames)


def converted(converter: Converter, data: bytes) -> bytes:
    out, count = np.zeros(3_000, np.uint8), unpack_source_header(data).message_count
    result = converter.convert(data, 0, count, out, 0, 1_400)
    assert result.source_count == count
    return bytes(out[: result.end])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> ConverterTable:
    return table(tmp_path_factory.mktemp("news"))


def test_a_variable_text_is_read_like_any_other(loaded: ConverterTable) -> None:
    data = packet(
        news(b"ACME", b"Profits  "),
        news(b"LONGNAME", b"a headline of twenty"),
        news(b"", b"", b" 7"),
        news(b"SKIP", b"x"),
        news(b"A", b"nothing of note"),
        news(b"ACME", b"Profits"),
        news(b"B", b"Profits rise"),
    )
    oracle = InterpretedConverter(loaded)
    frames = converted(oracle, data)
    assert converted(CompiledConverter(loaded), data) == frames
    (_, rows), *_ = load_message_model(MODEL.encode()).arrays(frames)
    assert rows["headline"].tolist() == [b"Profits  ", b"a headline of twenty", b"", b"Profits", b"Profits rise"]
    assert rows["short"].tolist() == [b"Profits", b"a headli", b"", b"Profits", b"Profits "]
    assert rows["both"].tolist()[:2] == [b"ACME/Profits/5", b"LONGNAME/a headline of twenty/5"]
    assert rows["joined"].tolist()[-1] == b"Profits +B", "a cut-off character is not a trailing blank"
    assert rows["amount"].tolist() == [12, 12, 7, 12, 12]
    assert rows["kind"].tolist() == [1, 2, 0, 1, 0]
    assert rows["count"].tolist() == [1, 1, 1, 2, 1], "trailing blanks of a key do not count"


def test_a_text_longer_than_its_maximum_or_its_message_is_refused(loaded: ConverterTable) -> None:
    whole = news(b"ACME", b"Profits")
    data = packet(news(b"ACME", b"x" * 21), news(b"NINECHARS", b"x"), whole[:8] + b"\xff" + whole[9:], whole)
    for converter in (CompiledConverter(loaded), InterpretedConverter(loaded)):
        assert converted(converter, data).count(b"Profits") == 4
        assert converter.counts()["wrong_length"] == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((' maxLength="20"', ""), "text of 65534 can lose data in headline"),
        ((' maxLength="8"', ""), "text of 255 can lose data in symbol"),
        (('by="headline"', 'by="headline headline headline"'), "the key has 72 bytes"),
        (('function="cut" of="headline" length="8"', 'function="copy" of="headline"'), "can lose data in short"),
        (('function="copy" of="headline"', 'function="sum" by="id" of="headline"'), "takes a number|is text"),
        (('maxLength="8"', 'maxLength="256"'), "maxLength of <data> is 256; it must be from 1 to 255"),
        (("<when", '<let name="symbol" function="copy" of="id"/><when'), "the name 'symbol' is already in use"),
    ],
)
def test_an_invalid_use_of_a_text_is_refused_with_file_line_and_reason(
    tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    with pytest.raises(DocumentError, match=rf"[ft]\.xml:\d+: .*({reason})"):
        table(tmp_path, change)
