"""Nested groups, and variable texts in groups, of a source message: walking over them, iterating, reading."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, SOURCE_FRAME_SIZE, encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter

FORMAT = """<sourceFormat name="books"><message name="book" type="1">
<field name="id" type="uint32"/>
<group name="levels" count="uint8"><field name="price" type="int32"/>
<group name="orders" count="uint8"><field name="size" type="uint16"/>
<data name="owner" length="uint8" maxLength="6"/></group>
<data name="note" length="uint8" maxLength="9"/></group>
<group name="after" count="uint8"><field name="last" type="uint8"/></group>
</message></sourceFormat>"""
MODEL = """<messageSchema package="x" id="7" version="0" byteOrder="littleEndian"><types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
<type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/>
<type name="version" primitiveType="uint16"/></composite>
<composite name="groupSizeEncoding"><type name="blockLength" primitiveType="uint16"/>
<type name="numInGroup" primitiveType="uint8"/></composite>
<composite name="text"><type name="length" primitiveType="uint16"/>
<type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite>
<type name="Text" primitiveType="char" length="9"/></types>
<message name="Book" id="1"><field name="id" id="1" type="uint32"/>
<group name="levels" id="2"><field name="price" id="3" type="int32"/>
<group name="orders" id="4"><field name="size" id="5" type="uint16"/><field name="price" id="6" type="int32"/>
<data name="owner" id="7" type="text"/></group>
<data name="note" id="8" type="text"/></group></message>
<message name="Order" id="2"><field name="id" id="1" type="uint32"/><field name="price" id="2" type="int32"/>
<field name="size" id="3" type="uint16"/><field name="owner" id="4" type="Text"/><field name="note" id="5" type="Text"/>
<field name="seen" id="6" type="int64"/></message>
<message name="Last" id="3"><field name="last" id="1" type="uint8"/></message></messageSchema>"""
TABLE = """<converterTable name="books" sourceFormat="books">
<convert message="book" to="Book"><field name="id" function="copy" of="id"/>
<group name="levels" of="levels"><when of="note" isNot="skip"/>
<field name="price" function="copy" of="price"/>
<group name="orders" of="orders"><when of="size" above="0"/>
<field name="size" function="copy" of="size"/><field name="price" function="copy" of="price"/>
<data name="owner" function="copy" of="owner"/></group>
<data name="note" function="copy" of="note"/></group></convert>
<convert message="book" to="Order" each="levels.orders"><when of="size" above="1"/>
<field name="id" function="copy" of="id"/><field name="price" function="copy" of="price"/>
<field name="size" function="copy" of="size"/><field name="owner" function="copy" of="owner"/>
<field name="note" function="copy" of="note"/><field name="seen" function="count" by="note owner"/></convert>
<convert message="book" to="Last" each="after"><field name="last" function="copy" of="last"/></convert>
</converterTable>"""
Level = tuple[int, list[tuple[int, bytes]], bytes]


def load(folder: Path, old: str = "", new: str = "") -> ConverterTable:
    for name, text in (("f.xml", FORMAT), ("t.xml", TABLE), ("m.xml", MODEL)):
        (folder / name).write_text(text.replace(old, new, 1) if old else text)
    return load_checked_table(folder / "f.xml", folder / "t.xml", folder / "m.xml")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ConverterTable:
    return load(tmp_path_factory.mktemp("books"))


def book(levels: list[Level], after: bytes) -> bytes:
    body = struct.pack("<IB", 5, len(levels))
    for price, orders, note in levels:
        body += struct.pack("<iB", price, len(orders))
        body += b"".join(struct.pack("<HB", size, len(owner)) + owner for size, owner in orders)
        body += bytes([len(note)]) + note
    body += bytes([len(after)]) + after
    return SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + len(body), 1) + body


def packet(*frames: bytes) -> bytes:
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(frames), session=20261121, first_source_seq=1, sent_at_ns=0
    )
    return header + b"".join(frames)


def converted(converter: Converter, data: bytes) -> bytes:
    out, count = np.zeros(3_000, np.uint8), int.from_bytes(data[10:12], "little")
    result = converter.convert(data, 0, count, out, 0, 1_400)
    assert result.source_count == count
    return bytes(out[: result.end])


LEVELS: list[Level] = [
    (-7, [(3, b"us"), (0, b"them"), (1, b"")], b"first"),
    (8, [], b""),
    (9, [(4, b"nobody")], b"skip"),
    (10, [(2, b"us")], b"first"),
]


def test_entries_of_any_depth_are_converted(table: ConverterTable) -> None:
    data = packet(book(LEVELS, b"\1\2"), book([], b""))
    frames = converted(CompiledConverter(table), data)
    assert frames == converted(InterpretedConverter(table), data)
    found = list(Decoder(MODEL.encode()).messages(frames))
    names = [name for name, _ in found]
    assert names == ["Book", "Order", "Order", "Order", "Last", "Last", "Book"]
    first, second = found[0][1]["levels"], found[6][1]["levels"]
    assert second == []
    assert [(level["price"], level["note"], len(level["orders"])) for level in first] == [
        (-7, "first", 2),
        (8, "", 0),
        (10, "first", 1),
    ]
    assert first[0]["orders"][0] == {"size": 3, "price": -7, "owner": "us"}
    orders = [(row["price"], row["size"], row["owner"], row["note"], row["seen"]) for _, row in found[1:4]]
    assert orders == [(-7, 3, b"us", b"first", 1), (9, 4, b"nobody", b"skip", 1), (10, 2, b"us", b"first", 2)]
    assert [row["last"] for _, row in found[4:6]] == [1, 2]


def test_the_plain_reader_reads_nested_entries(table: ConverterTable) -> None:
    ((name, values),) = FrameReader(table.source_format).read(book(LEVELS, b"\1"))
    assert name == "book"
    assert values["levels"][0]["orders"][1] == {"size": 0, "owner": b"them"}
    assert [level["note"] for level in values["levels"]] == [b"first", b"", b"skip", b"first"]
    assert values["after"] == [{"last": 1}]


def test_a_part_that_ends_beyond_its_message_is_refused(table: ConverterTable) -> None:
    whole = book(LEVELS, b"\1\2")
    damaged = []
    for place in range(8, len(whole)):
        for value in (0, 255):
            damaged.append(whole[:place] + bytes([value]) + whole[place + 1 :])
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    for frame in damaged:
        assert converted(compiled, packet(frame)) == converted(oracle, packet(frame))
    assert compiled.counts() == oracle.counts()
    assert compiled.counts()["wrong_length"] > 20


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('each="levels.orders"', 'each="levels.others"', "group 'levels' has no group 'others'"),
        ('each="levels.orders"', 'each="orders"', "source message 'book' has no group 'orders'"),
        ('<group name="levels" of="levels">', '<group name="levels" of="orders">', "has no group 'orders'"),
        ('<data name="owner" length', '<data name="id" length', "'id' is defined twice"),
    ],
)
def test_an_unknown_name_is_refused_with_file_line_and_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    with pytest.raises(DocumentError, match=rf"[ft]\.xml:\d+: .*{reason}"):
        load(tmp_path, old, new)
