"""Output messages of variable size: groups from source groups, counted ones, levels of books, nested ones, texts."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.conversion import CompiledConverter, ConverterTable, InterpretedConverter
from adapter.conversion.loading import load_checked_table
from feedcore.converter import Converter
from feedcore.documents import DocumentError
from feedcore.message_model import load_message_model
from feedcore.output_packet import DATAGRAM_SIZE_DEFAULT
from feedcore.source_packet import SOURCE_FRAME, encode_source_header

FORMAT = """<sourceFormat name="deals">
<message name="deal" type="1">
<field name="id" type="uint32"/><field name="symbol" type="char" length="8"/>
<group name="legs" count="uint16">
<field name="price" type="int64" null="0"/><field name="size" type="uint16"/><field name="side" type="char"/></group>
<group name="pair" count="2"><field name="party" type="char" length="4"/></group>
<data name="headline" length="uint8" maxLength="30"/></message>
<message name="order" type="2">
<field name="instrument" type="uint16"/><field name="number" type="uint32"/><field name="what" type="char"/>
<field name="at" type="int32"/><field name="lots" type="uint16"/></message>
</sourceFormat>"""
MODEL = """<messageSchema package="x" id="7" version="0" byteOrder="littleEndian"><types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
<type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/>
<type name="version" primitiveType="uint16"/></composite>
<composite name="groupSizeEncoding"><type name="blockLength" primitiveType="uint16"/>
<type name="numInGroup" primitiveType="uint8"/></composite>
<composite name="wideSize"><type name="blockLength" primitiveType="uint32"/>
<type name="numGroups" primitiveType="uint8"/><type name="numVarDataFields" primitiveType="uint8"/>
<type name="spare" primitiveType="int8"/>
<type name="numInGroup" primitiveType="uint16" offset="10"/></composite>
<composite name="fewSize"><type name="blockLength" primitiveType="uint8"/>
<type name="numInGroup" primitiveType="uint8" maxValue="3"/></composite>
<composite name="text"><type name="length" primitiveType="uint16"/>
<type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite>
<composite name="octets"><type name="length" primitiveType="uint8" maxValue="12"/>
<type name="varData" primitiveType="uint8" length="0"/></composite>
<type name="Symbol" primitiveType="char" length="8"/><type name="Side" primitiveType="char"/>
<type name="optionalInt" primitiveType="int64" presence="optional"/></types>
<message name="Deal" id="1" blockLength="16"><field name="id" id="1" type="uint32"/>
<group name="legs" id="2" blockLength="12"><field name="price" id="3" type="optionalInt"/>
<field name="size" id="4" type="uint16" offset="9"/></group>
<group name="steps" id="5" dimensionType="wideSize"><field name="step" id="6" type="uint8"/>
<group name="inner" id="7" dimensionType="fewSize"><field name="product" id="8" type="uint32"/>
<data name="note" id="9" type="octets"/></group>
<group name="unused" id="10"><field name="x" id="11" type="uint8"/></group>
<data name="party" id="12" type="octets"/></group>
<data name="headline" id="13" type="text"/><data name="symbol" id="14" type="text"/>
<data name="nothing" id="15" type="text"/></message>
<message name="Depth" id="2"><field name="instrument" id="1" type="uint16"/>
<group name="bids" id="2"><field name="level" id="3" type="uint8"/><field name="price" id="4" type="int64"/>
<field name="size" id="5" type="int64"/></group>
<group name="asks" id="6"><field name="price" id="7" type="int64"/><field name="orders" id="8" type="int64"/></group>
<group name="fixed" id="9"><field name="bid" id="10" type="optionalInt"/></group></message>
</messageSchema>"""
TABLE = """<converterTable name="deals" sourceFormat="deals">
<map name="words" default="many"><entry from="1" to="one"/><entry from="2" to="two"/></map>
<book name="book"/>
<convert message="deal" to="Deal">
<field name="id" function="copy" of="id"/>
<group name="legs" of="legs">
<when of="side" is="B"/>
<field name="price" function="copy" of="price"/><field name="size" function="copy" of="size"/></group>
<group name="steps" of="pair">
<when of="party" isNot="none"/>
<let name="seven" function="constant" value="7"/>
<field name="step" function="copy" of="seven"/>
<group name="inner" count="3" index="number">
<when of="number" isNot="2"/>
<let name="product" function="increase" of="number" amount="40"/>
<let name="word" function="map" of="number" map="words"/>
<field name="product" function="copy" of="product"/>
<data name="note" function="concatenate" of="word party" separator=" "/></group>
<data name="party" function="copy" of="party"/></group>
<data name="headline" function="copy" of="headline"/>
<data name="symbol" function="copy" of="symbol"/></convert>
<convert message="order" to="Depth">
<order book="book" action="add" by="instrument" id="number" side="what" price="at" size="lots"/>
<field name="instrument" function="copy" of="instrument"/>
<group name="bids" levels="3" book="book" side="bid" index="level">
<field name="level" function="copy" of="level"/>
<field name="price" function="book_price"/><field name="size" function="book_size"/></group>
<group name="asks" count="4" index="n">
<let name="price" function="book_price" book="book" side="ask" level="n"/>
<when of="price" isNull="false"/><when of="price" isNot="13"/>
<field name="price" function="copy" of="price"/>
<field name="orders" function="book_orders" book="book" side="ask" level="n"/></group>
<group name="fixed" count="2"><field name="bid" function="book_price" book="book" side="bid" level="1"/></group>
</convert></converterTable>"""
DOCUMENTS = {"f.xml": FORMAT, "t.xml": TABLE, "m.xml": MODEL}


def load(folder: Path, old: str = "", new: str = "", size_max: int = DATAGRAM_SIZE_DEFAULT) -> ConverterTable:
    assert not old or any(old in text for text in DOCUMENTS.values())
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text.replace(old, new, 1) if old else text)
    return load_checked_table(folder / "f.xml", folder / "t.xml", folder / "m.xml", size_max)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ConverterTable:
    return load(tmp_path_factory.mktemp("deals"))


def deal(legs: list[tuple[int, int, bytes]], parties: tuple[bytes, bytes], headline: bytes) -> bytes:
    body = struct.pack("<I8sH", 5, b"ACME  ", len(legs)) + b"".join(struct.pack("<qHc", *leg) for leg in legs)
    body += b"".join(party.ljust(4) for party in parties) + bytes([len(headline)]) + headline
    return SOURCE_FRAME.pack(4 + len(body), 1) + body


def order(instrument: int, number: int, side: bytes, price: int, size: int) -> bytes:
    return SOURCE_FRAME.pack(17, 2) + struct.pack("<HIciH", instrument, number, side, price, size)


def packet(*frames: bytes) -> bytes:
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(frames), session=20261121, first_source_seq=1, sent_at_ns=0
    )
    return header + b"".join(frames)


def converted(converter: Converter, data: bytes) -> bytes:
    out, count, done, frames = np.full(9_000, 0xEE, np.uint8), int.from_bytes(data[10:12], "little"), 0, b""
    while done < count:
        result = converter.convert(data, done, count - done, out, 0, 1_392)
        assert result.source_count > 0
        frames += bytes(out[: result.end])
        done += result.source_count
    return frames


def read(frames: bytes, schema: bytes = MODEL.encode()) -> list[dict[str, Any]]:
    model, found, at = load_message_model(schema), [], 0
    while at < len(frames):
        size = int.from_bytes(frames[at : at + 2], "little")
        message = model.read(frames[at : at + size])
        assert message.size == size - 4, "every byte of the message is accounted for"
        found.append(message.fields)
        at += size
    return found


def both(table: ConverterTable, data: bytes) -> list[dict[str, Any]]:
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    frames = converted(compiled, data)
    assert frames == converted(oracle, data)
    assert compiled.counts() == oracle.counts()
    return read(frames)


def test_groups_and_texts_of_a_source_message_become_those_of_the_output(table: ConverterTable) -> None:
    legs = [(100, 7, b"B"), (200, 8, b"S"), (0, 9, b"B")]
    (message,) = both(table, packet(deal(legs, (b"us", b"none"), "grüße ".encode())))
    inner = [{"product": 41, "note": b"one us"}, {"product": 43, "note": b"many us"}]
    assert message == {
        "id": 5,
        "legs": [{"price": 100, "size": 7}, {"price": None, "size": 9}],
        "steps": [{"step": 7, "inner": inner, "unused": [], "party": b"us"}],
        "headline": "grüße ",
        "symbol": "ACME",
        "nothing": "",
    }


def test_an_output_with_groups_is_this_to_the_byte(table: ConverterTable) -> None:
    frames = converted(InterpretedConverter(table), packet(deal([(-1, 2, b"B")], (b"none", b"x"), b"hi")))
    body = struct.pack("<I12x", 5)
    body += struct.pack("<HB", 12, 1) + struct.pack("<qxHx", -1, 2)
    body += struct.pack("<IBBb3xH", 1, 2, 1, 0, 1) + b"\7"
    body += struct.pack("<BB", 4, 2) + struct.pack("<IB", 41, 5) + b"one x" + struct.pack("<IB", 43, 6) + b"many x"
    body += struct.pack("<HB", 1, 0) + b"\1x"
    body += struct.pack("<H", 2) + b"hi" + struct.pack("<H", 4) + b"ACME" + struct.pack("<H", 0)
    assert frames == struct.pack("<HHHHHH", 12 + len(body), 0, 16, 1, 7, 0) + body


def test_depth_of_a_book_is_as_deep_as_the_book(table: ConverterTable) -> None:
    messages = both(
        table,
        packet(
            order(1, 1, b"B", 10, 5),
            order(1, 2, b"B", 11, 6),
            order(2, 3, b"S", 12, 7),
            *(order(1, 10 + n, b"B", 20 + n, 1) for n in range(4)),
            *(order(2, 20 + n, b"S", 12 + n, 1) for n in range(5)),
        ),
    )
    assert messages[0] == {
        "instrument": 1,
        "bids": [{"level": 1, "price": 10, "size": 5}],
        "asks": [],
        "fixed": [{"bid": 10}, {"bid": 10}],
    }
    assert messages[1]["bids"] == [{"level": 1, "price": 11, "size": 6}, {"level": 2, "price": 10, "size": 5}]
    assert messages[2]["bids"] == []
    assert messages[2]["fixed"] == [{"bid": None}, {"bid": None}]
    assert [level["price"] for level in messages[6]["bids"]] == [23, 22, 21]
    prices = [(level["price"], level["orders"]) for level in messages[-1]["asks"]]
    assert prices == [(12, 2), (14, 1), (15, 1)], "the guard leaves out 13, the count ends at four levels"


def test_more_entries_than_their_count_can_say_or_a_datagram_holds_are_too_large(tmp_path: Path) -> None:
    few = load(tmp_path, 'name="legs" id="2"', 'name="legs" id="2" dimensionType="fewSize"')
    legs = [(100, 7, b"B")] * 3 + [(100, 7, b"S")] * 4
    fits, too_many = deal(legs, (b"a", b"b"), b""), deal([(1, 1, b"B"), *legs], (b"a", b"b"), b"")
    much = deal([(100, 7, b"B")] * 200, (b"a", b"b"), b"")
    compiled, oracle = CompiledConverter(few), InterpretedConverter(few)
    data = packet(fits, too_many, much, fits)
    assert converted(compiled, data) == converted(oracle, data)
    assert compiled.counts()["too_large"] == oracle.counts()["too_large"] == 2
    model = (tmp_path / "m.xml").read_bytes()
    assert [len(message["legs"]) for message in read(converted(compiled, data), model)] == [3, 3]


def test_what_is_larger_than_a_datagram_is_too_large_and_the_stream_goes_on(table: ConverterTable) -> None:
    much = deal([(100, 7, b"B")] * 150, (b"a", b"b"), b"")
    fits = deal([(100, 7, b"B")] * 80, (b"a", b"b"), b"x" * 30)
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    data = packet(fits, much, fits, fits)
    frames = converted(compiled, data)
    assert frames == converted(oracle, data)
    assert [len(message["legs"]) for message in read(frames)] == [80, 80, 80]
    assert compiled.counts()["too_large"] == oracle.counts()["too_large"] == 1


HEADLINE = '<data name="headline" function="copy" of="headline"/>'
NOTHING = '<data name="nothing" id="15" type="text"/>'
LONG = """<composite name="long"><type name="length" primitiveType="uint16" minValue="1"/>
<type name="varData" primitiveType="uint8" length="0"/></composite><composite name="text">"""
LEGS = '<group name="legs" of="legs">'


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (LEGS, '<group name="arms" of="legs">', "Deal has no group 'arms'"),
        (LEGS, '<group name="legs" of="arms">', "'deal' has no group 'arms'"),
        (LEGS, '<group name="legs">', "exactly one of of=, count= and levels="),
        (LEGS, '<group name="legs" of="legs" index="i">', "belongs to count= and levels="),
        (LEGS, '<group name="legs" of="legs" side="bid">', "belongs to levels="),
        ('<convert message="deal" to="Deal">', '<convert message="deal" to="Deal" each="legs">', "gone through here"),
        ('<field name="size" function="copy" of="size"/></group>', "</group>", "field 'size' of legs is written 0"),
        ('of="number" amount="40"', 'of="numero" amount="40"', "no field 'numero'"),
        ('count="3" index="number"', 'count="4" index="number"', "count=4 is not within 1 and 3"),
        (NOTHING, NOTHING.replace('"text"', '"long"'), "nothing has at least 1 bytes"),
        (HEADLINE, HEADLINE.replace('of="headline"', 'of="id"'), "use digits"),
        (HEADLINE, HEADLINE.replace('"copy" of="headline"', '"count" by="id"'), "use digits"),
        ('"party" function="copy" of="party"', '"party" function="copy" of="headline"', "can lose data in party"),
        ('<data name="symbol" function="copy"', '<data name="headline" function="copy"', "written twice"),
        ('function="constant" value="7"', 'function="count" by="party"', "count in a <group>"),
        ('level="n"/>', 'level="instrument"/>', "a number, or the index of a <group>"),
        ('levels="3" book="book"', 'levels="3" book="boot"', "there is no <book> 'boot'"),
        ('maxValue="3"', 'minValue="1" maxValue="3"', "inner has at least 1 entries"),
        ('<group name="fixed" count="2">', '<group name="fixed" count="200">', "Depth takes 1738 bytes"),
        ('<when of="side"', '<order/><when of="side"', "<order> in <group>"),
        ('characterEncoding="UTF-8"', 'characterEncoding="UTF-16"', "only a source's <data>"),
    ],
)
def test_what_cannot_be_written_is_refused_with_file_line_and_reason(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    if '"long"' in new:
        old, new = MODEL, MODEL.replace(old, new).replace('<composite name="text">', LONG)
    with pytest.raises(DocumentError, match=rf"t\.xml:\d+: .*{reason}"):
        load(tmp_path, old, new)
