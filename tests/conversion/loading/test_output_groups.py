"""Output messages of variable size: groups from source groups, counted and nested groups, levels of books, texts."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tests.conversion.deal_material import MODEL, converted, deal, load, order, packet, read
from tests.conversion.oracle.interpreted import InterpretedConverter


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ConverterTable:
    return load(tmp_path_factory.mktemp("deals"))


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


def test_an_output_with_groups_has_these_bytes(table: ConverterTable) -> None:
    frames = converted(InterpretedConverter(table), packet(deal([(-1, 2, b"B")], (b"none", b"x"), b"hi")))
    body = struct.pack("<I12x", 5)
    body += struct.pack("<HB", 12, 1) + struct.pack("<qxHx", -1, 2)
    body += struct.pack("<IBBb3xH", 1, 2, 1, 0, 1) + b"\7"
    body += struct.pack("<BB", 4, 2) + struct.pack("<IB", 41, 5) + b"one x" + struct.pack("<IB", 43, 6) + b"many x"
    body += struct.pack("<HB", 1, 0) + b"\1x"
    body += struct.pack("<H", 2) + b"hi" + struct.pack("<H", 4) + b"ACME" + struct.pack("<H", 0)
    assert frames == struct.pack("<HHHHHH", 12 + len(body), 0, 16, 1, 7, 0) + body


def test_as_many_levels_are_written_as_the_book_has(table: ConverterTable) -> None:
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


def test_too_many_entries_for_their_count_or_a_datagram_are_too_large(tmp_path: Path) -> None:
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


def test_an_output_larger_than_a_datagram_is_too_large_and_the_stream_continues(table: ConverterTable) -> None:
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
        (LEGS, '<group name="legs" of="legs" index="i">', "needs count= or levels="),
        (LEGS, '<group name="legs" of="legs" side="bid">', "needs levels="),
        (
            '<convert message="deal" to="Deal">',
            '<convert message="deal" to="Deal" each="legs">',
            "already iterates over",
        ),
        ('<field name="size" function="copy" of="size"/></group>', "</group>", "field 'size' of legs is written 0"),
        ('of="number" amount="40"', 'of="numero" amount="40"', "no field 'numero'"),
        ('count="3" index="number"', 'count="4" index="number"', "count is 4; it must be from 1 to 3"),
        (NOTHING, NOTHING.replace('"text"', '"long"'), "nothing needs at least 1 bytes"),
        (HEADLINE, HEADLINE.replace('of="headline"', 'of="id"'), "use digits"),
        (HEADLINE, HEADLINE.replace('"copy" of="headline"', '"count" by="id"'), "use digits"),
        ('"party" function="copy" of="party"', '"party" function="copy" of="headline"', "can lose data in party"),
        ('<data name="symbol" function="copy"', '<data name="headline" function="copy"', "written twice"),
        ('function="constant" value="7"', 'function="count" by="party"', "count is not allowed in a <group>"),
        ('level="n"/>', 'level="instrument"/>', "a number or the index of a <group>"),
        ('levels="3" book="book"', 'levels="3" book="boot"', "there is no <book> 'boot'"),
        ('maxValue="3"', 'minValue="1" maxValue="3"', "inner needs at least 1 entries"),
        ('<group name="fixed" count="2">', '<group name="fixed" count="200">', "Depth takes 1738 bytes"),
        ('<when of="side"', '<order/><when of="side"', "<order> is not allowed in <group>"),
        ('characterEncoding="UTF-8"', 'characterEncoding="UTF-16"', "only a source's <data>"),
    ],
)
def test_an_invalid_group_or_text_is_refused_with_file_line_and_reason(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    if '"long"' in new:
        old, new = MODEL, MODEL.replace(old, new).replace('<composite name="text">', LONG)
    with pytest.raises(DocumentError, match=rf"t\.xml:\d+: .*{reason}"):
        load(tmp_path, old, new)
