"""Source messages with groups and texts, order books, and a model that uses everything an output message can have."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from tandemfeed.adapter.conversion import ConverterTable
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT, OUTPUT_FRAME, OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.source_packet import encode_source_header, unpack_source_header

FORMAT = """<sourceFormat name="deals">
<framing headerSize="3" length="uint16" lengthAdds="2" type="uint8" typeOffset="2" byteOrder="bigEndian"/>
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
<message name="Depth" id="2" blockLength="2"><field name="instrument" id="1" type="uint16"/>
<group name="bids" id="2" dimensionType="groupSizeEncoding" blockLength="17">
<field name="level" id="3" type="uint8"/><field name="price" id="4" type="int64"/>
<field name="size" id="5" type="int64"/></group>
<group name="asks" id="6" dimensionType="groupSizeEncoding" blockLength="16">
<field name="price" id="7" type="int64"/><field name="orders" id="8" type="int64"/></group>
<group name="fixed" id="9" dimensionType="groupSizeEncoding" blockLength="8">
<field name="bid" id="10" type="optionalInt"/></group></message>
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


def deal(legs: list[tuple[int, int, bytes]], parties: tuple[bytes, bytes], headline: bytes) -> bytes:
    body = struct.pack("<I8sH", 5, b"ACME  ", len(legs)) + b"".join(struct.pack("<qHc", *leg) for leg in legs)
    body += b"".join(party.ljust(4) for party in parties) + bytes([len(headline)]) + headline
    return struct.pack(">HB", 1 + len(body), 1) + body


def order(instrument: int, number: int, side: bytes, price: int, size: int) -> bytes:
    return struct.pack(">HB", 14, 2) + struct.pack("<HIciH", instrument, number, side, price, size)


def packet(*frames: bytes, first_source_seq: int = 1) -> bytes:
    header = encode_source_header(
        feed_id=1,
        source_stream_id=1,
        message_count=len(frames),
        session=20261121,
        first_source_seq=first_source_seq,
        sent_at_ns=0,
    )
    return header + b"".join(frames)


def converted(converter: Converter, data: bytes) -> bytes:
    out, count, done, frames = np.full(9_000, 0xEE, np.uint8), unpack_source_header(data).message_count, 0, b""
    while done < count:
        result = converter.convert(data, done, count - done, out, 0, 1_392)
        assert result.source_count > 0
        frames += bytes(out[: result.end])
        done += result.source_count
    return frames


def read(frames: bytes, schema: bytes = MODEL.encode()) -> list[dict[str, Any]]:
    decoder, found, at = Decoder(schema), [], 0
    while at < len(frames):
        size, _ = OUTPUT_FRAME.unpack_from(frames, at)
        message = decoder.read(frames[at : at + size])
        assert message.size == size - OUTPUT_FRAME_SIZE, "every byte of the message is accounted for"
        found.append(message.fields)
        at += size
    return found
