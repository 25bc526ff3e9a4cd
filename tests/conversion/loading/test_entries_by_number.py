"""`entry`: an entry of one group reads an entry of another, which it names by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.wire.source_packet import encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.feedcore.sbe.sbe_material import schema_text

FORMAT = """<sourceFormat name="venue"><message name="book" type="1">
<field name="at" type="uint32"/>
<group name="prices" headerSize="1" count="uint8">
  <field name="price" type="int32" null="-1" byteOrder="bigEndian"/><field name="side" type="char"/></group>
<group name="orders" headerSize="1" count="uint8"><field name="id" type="uint16"/><field name="ref" type="uint8"
  null="255"/></group>
<group name="texts" headerSize="1" count="uint8"><field name="n" type="uint8"/><data name="t" length="uint8"/></group>
</message></sourceFormat>"""
MODEL = schema_text(
    '<type name="Maybe" primitiveType="int64" presence="optional" nullValue="9223372036854775807"/>',
    '<message name="Order" id="1"><field name="id" id="1" type="uint16"/><field name="price" id="2" type="Maybe"/>'
    '<field name="side" id="3" type="Maybe"/></message>',
)
TABLE = """<converterTable name="orders" sourceFormat="venue"><convert message="book" to="Order" each="orders">
<let name="side" function="entry" group="prices" of="side" number="ref"/>
<field name="id" function="copy" of="id"/>
<field name="price" function="entry" group="prices" of="price" number="ref"/>
<field name="side" function="copy" of="side"/></convert></converterTable>"""
NONE = (1 << 63) - 1


def loaded(folder: Path, table: str = TABLE) -> ConverterTable:
    (folder / "format.xml").write_text(FORMAT)
    (folder / "model.xml").write_bytes(MODEL)
    (folder / "table.xml").write_text(table)
    return load_checked_table(folder / "format.xml", folder / "table.xml", folder / "model.xml")


def book(prices: list[tuple[int, bytes]], orders: list[tuple[int, int]]) -> bytes:
    body = bytes(4) + bytes([len(prices)])
    body += b"".join(price.to_bytes(4, "big", signed=True) + side for price, side in prices)
    body += bytes([len(orders)]) + b"".join(id_.to_bytes(2, "little") + bytes([ref]) for id_, ref in orders) + b"\0"
    return (4 + len(body)).to_bytes(2, "little") + (1).to_bytes(2, "little") + body


def converted(converter: Any, *messages: bytes) -> bytes:
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(messages), session=0, first_source_seq=1, sent_at_ns=0
    )
    out = np.zeros(4_000, np.uint8)
    return bytes(out[: converter.convert(header + b"".join(messages), 0, len(messages), out, 0, 4_000).end])


def test_each_order_has_price_and_side_of_the_entry_that_it_names(tmp_path: Path) -> None:
    table = loaded(tmp_path)
    whole = book([(7, b"B"), (-5, b"S"), (-1, b"N")], [(1, 2), (2, 1), (3, 3), (4, 4), (5, 0), (6, 255)])
    empty = book([], [(7, 1)])
    frames = converted(InterpretedConverter(table), whole, empty)
    assert converted(CompiledConverter(table), whole, empty) == frames
    rows = [tuple(fields.values()) for _, fields in Decoder(MODEL).messages(frames)]
    assert rows[:3] == [(1, -5, ord("S")), (2, 7, ord("B")), (3, NONE, ord("N"))]
    assert rows[3:] == [(each, NONE, NONE) for each in (4, 5, 6, 7)], "there are no such entries"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (('group="prices" of="side"', 'group="bids" of="side"'), "has no group 'bids' of fixed entries"),
        (('group="prices" of="side"', 'group="texts" of="n"'), "has no group 'texts' of fixed entries"),
        (('group="prices" of="side"', 'group="prices" of="size"'), "the entries of 'prices' have no field 'size'"),
        (('function="copy" of="id"', 'function="entry" group="prices" of="price" number="ref"'), "lose data"),
    ],
)
def test_an_entry_that_cannot_be_read_is_refused(tmp_path: Path, changed: tuple[str, str], reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        loaded(tmp_path, TABLE.replace(*changed))
