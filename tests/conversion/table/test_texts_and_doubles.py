"""Texts kept as state, floats as decimals and back, and the book of an order that a message names only by its id."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.wire.source_packet import encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.feedcore.sbe.sbe_material import schema_text

FORMAT = """<sourceFormat name="venue">
<message name="listing" type="1"><field name="id" type="uint32"/><field name="name" type="char" length="21"/></message>
<message name="named" type="2"><field name="id" type="uint32"/><data name="long" length="uint8" maxLength="24"/>
</message>
<message name="tick" type="3"><field name="id" type="uint32"/><field name="price" type="double"/>
  <field name="size" type="float" byteOrder="bigEndian"/><field name="text" type="char" length="8"/></message>
<message name="add" type="4"><field name="order" type="uint64"/><field name="side" type="char"/>
  <field name="symbol" type="char" length="6"/><field name="price" type="int32"/><field name="size" type="uint16"/>
</message>
<message name="change" type="5"><field name="order" type="uint64"/><field name="what" type="char"/>
  <field name="price" type="int32"/><field name="size" type="uint16"/></message>
</sourceFormat>"""
MODEL = schema_text(
    '<type name="Maybe" primitiveType="int64" presence="optional" nullValue="9223372036854775807"/>'
    '<type name="Name" primitiveType="char" length="24"/><type name="Double" primitiveType="double"/>'
    '<composite name="Decimal"><type name="mantissa" primitiveType="int64" presence="optional" '
    'nullValue="9223372036854775807"/><type name="exponent" primitiveType="int8" presence="constant">-9</type>'
    "</composite>",
    '<message name="Tick" id="1"><field name="name" id="1" type="Name"/><field name="price" id="2" type="Decimal"/>'
    '<field name="size" id="3" type="Decimal"/><field name="number" id="4" type="Double"/>'
    '<field name="stream" id="5" type="uint16"/><field name="last" id="6" type="Decimal"/></message>'
    '<message name="Change" id="2"><field name="symbol" id="1" type="Name"/><field name="size" id="2" type="Maybe"/>'
    '<field name="best" id="3" type="Maybe"/></message>',
)
TABLE = """<converterTable name="t" sourceFormat="venue">
<book name="book" exponent="0"/>
<convert message="listing"><keep cell="name" function="last_text" of="name" length="24" by="id"/></convert>
<convert message="named"><let name="short" function="cut" of="long" length="20"/>
  <keep cell="name" function="last_text" of="short" length="24" by="id"/></convert>
<convert message="tick" to="Tick">
  <let name="price9" function="decimal" of="price" exponent="-9"/>
  <let name="parsed" function="number" of="text" exponent="-4"/>
  <field name="name" function="peek" cell="name" by="id"/>
  <field name="price" function="copy" of="price9"/>
  <field name="size" function="decimal" of="size" exponent="-9" rounding="half_up"/>
  <field name="number" function="double" of="parsed"/>
  <field name="stream" function="copy" of="packet.source_stream_id"/>
  <field name="last" function="max" of="price9" by="packet.source_stream_id"/></convert>
<convert message="add"><order book="book" action="add" by="symbol" id="order" side="side" price="price" size="size"/>
</convert>
<convert message="change" to="Change">
  <order book="book" action="reduce" id="order" size="size" if="what" is="X"/>
  <order book="book" action="delete" id="order" if="what" is="D"/>
  <order book="book" action="replace" id="order" newId="order" price="price" size="size" if="what" is="M"/>
  <field name="symbol" function="order_by" book="book"/><field name="size" function="order_size" book="book"/>
  <field name="best" function="book_price" book="book" side="bid" level="1"/></convert>
</converterTable>"""
NONE = (1 << 63) - 1
DAY = 20261123


def loaded(folder: Path, table: str = TABLE) -> ConverterTable:
    (folder / "format.xml").write_text(FORMAT)
    (folder / "model.xml").write_bytes(MODEL)
    (folder / "table.xml").write_text(table)
    return load_checked_table(folder / "format.xml", folder / "table.xml", folder / "model.xml")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ConverterTable:
    return loaded(tmp_path_factory.mktemp("table"))


class Both:
    """The kernel and the interpreter, which must agree on everything."""

    def __init__(self, table: ConverterTable) -> None:
        self.kernel, self.oracle = CompiledConverter(table), InterpretedConverter(table)

    def rows(self, *bodies: tuple[int, bytes], stream: int = 1) -> list[tuple[Any, ...]]:
        frames = b"".join(struct.pack("<HH", 4 + len(body), kind) + body for kind, body in bodies)
        given = {"feed_id": 1, "source_stream_id": stream, "message_count": len(bodies), "session": DAY}
        packet = encode_source_header(**given, first_source_seq=1, sent_at_ns=0) + frames
        outs = []
        for converter in (self.kernel, self.oracle):
            out = np.zeros(20_000, np.uint8)
            result = converter.convert(packet, 0, len(bodies), out, 0, len(out))
            outs.append((result, bytes(out[: result.end]), converter.counts(), list(converter.digests())))
        assert outs[0] == outs[1]
        assert self.kernel.snapshot() == self.oracle.snapshot()
        return [tuple(fields.values()) for _, fields in Decoder(MODEL).messages(outs[0][1])]


@pytest.fixture
def both(table: ConverterTable) -> Both:
    return Both(table)


def listing(number: int, name: bytes) -> tuple[int, bytes]:
    return 1, struct.pack("<I21s", number, name)


def tick(number: int, price: float = 1.0, size: float = 1.0, text: bytes = b"") -> tuple[int, bytes]:
    return 3, struct.pack("<Id", number, price) + struct.pack(">f", size) + text.ljust(8)


def test_a_text_of_any_length_is_kept_by_key(both: Both) -> None:
    names = [b"BTC-PERPETUAL", b"BTC-29DEC26-100000-C", b"X", b"twenty-one bytes here"]
    assert both.rows(*(listing(number, name) for number, name in enumerate(names))) == []
    rows = both.rows(*(tick(number) for number in range(5)))
    assert [row[0] for row in rows] == [*names, b""]


def test_a_blank_text_changes_nothing_and_a_shorter_one_leaves_nothing_of_the_longer(both: Both) -> None:
    long = b"ETH_USDC-PERPETUAL-LONG."
    assert both.rows((2, struct.pack("<IB", 7, len(long)) + long), tick(7))[0][0] == long[:20], "its beginning is kept"
    assert both.rows((2, struct.pack("<IB", 7, 3) + b"  \0"), tick(7))[0][0] == long[:20]
    assert both.rows(listing(7, b"SOL"), tick(7))[0][0] == b"SOL"


def test_doubles_become_the_decimals_that_they_stand_for(both: Both) -> None:
    (row,) = both.rows(tick(1, 97_123.45, 0.25, b" -0.0625"))
    assert (row[1], row[2]) == (97_123_450_000_000, 250_000_000)
    (row,) = both.rows(tick(1, 97_123.45, 0.25, b"-12.5"))
    assert row[3] == -12.5
    assert row[5] == 97_123_450_000_000, "what is scaled is kept as state like any number"


def test_a_double_that_is_no_decimal_of_the_exponent_is_refused_unless_it_is_rounded(both: Both) -> None:
    assert both.rows(tick(1, 1 / 3)) == []
    assert both.kernel.counts()["out_of_range"] == 1
    ((_, _, size, *_),) = both.rows(tick(1, 2.0, 2 / 3))
    assert size == math.floor(float(np.float32(2 / 3)) * 1e9 + 0.5)


@pytest.mark.parametrize("price", [math.inf, -math.inf, 1e10, -5e9, 1e300])
def test_a_double_beyond_the_range_is_refused(both: Both, price: float) -> None:
    assert both.rows(tick(1, price)) == []
    assert both.kernel.counts()["out_of_range"] == 1


def test_nan_is_null_and_null_is_nan(both: Both) -> None:
    (row,) = both.rows(tick(1, math.nan, math.nan))
    assert (row[1], row[2], row[5]) == (NONE, NONE, NONE)
    assert math.isnan(row[3])


def test_random_doubles_become_the_same_decimals_in_the_kernel_and_in_python(both: Both) -> None:
    random.seed(7)
    prices = [round(random.uniform(-1e6, 1e6), random.randrange(10)) for _ in range(200)]
    prices += [random.uniform(-1, 1) * 10.0 ** random.randrange(-12, 12) for _ in range(200)]
    rows = both.rows(*(tick(1, price, abs(price) % 1e6) for price in prices))
    assert len(rows) > 200


def test_a_key_may_be_the_source_stream(both: Both) -> None:
    assert [both.rows(tick(1, price), stream=stream)[0][4:] for stream, price in [(3, 5.0), (4, 2.0), (3, 1.0)]] == [
        (3, 5 * 10**9),
        (4, 2 * 10**9),
        (3, 5 * 10**9),
    ]


def add(order: int, side: bytes, symbol: bytes, price: int, size: int) -> tuple[int, bytes]:
    return 4, struct.pack("<Qc6siH", order, side, symbol.ljust(6), price, size)


def change(order: int, what: bytes, price: int = 0, size: int = 0) -> tuple[int, bytes]:
    return 5, struct.pack("<QciH", order, what, price, size)


def test_an_order_is_found_by_its_id_and_names_its_book(both: Both) -> None:
    both.rows(add(1, b"B", b"ACME", 100, 10), add(2, b"B", b"ACME", 90, 5), add(3, b"B", b"OTHER2", 7, 8))
    assert both.rows(change(1, b"X", size=4)) == [(b"ACME", 6, 100)]
    assert both.rows(change(3, b"M", price=9, size=3)) == [(b"OTHER2", 3, 9)]
    assert both.rows(change(1, b"D"), change(2, b"D"), change(3, b"D")) == [
        (b"ACME", 0, 90),
        (b"ACME", 0, NONE),
        (b"OTHER2", 0, NONE),
    ]


def test_an_unknown_order_has_no_book(both: Both) -> None:
    assert both.rows(change(9, b"D"), change(9, b"?")) == [(b"", 0, NONE), (b"", 0, NONE)]
    assert both.kernel.counts()[Reason.UNKNOWN_ORDER.name.lower()] == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            ('of="name" length="24"', 'of="name" length="20"'),
            "name is text of 21; length is 20, and must be at least 21",
        ),
        (('of="name" length="24"', 'of="id" length="24"'), "of='id' is .*; last_text needs a text"),
        (('of="name" length="24"', 'of="name"'), "length"),
        (('function="decimal" of="price"', 'function="decimal" of="id"'), "decimal needs a float or double"),
        (('function="double" of="parsed"', 'function="double" of="text"'), "double needs a number"),
        (('<book name="book" exponent="0"/>', '<book name="book" exponent="0" ids="perBook"/>'), "only with by="),
        (('action="add" by="symbol"', 'action="add"'), "'by'"),
    ],
)
def test_what_cannot_be_computed_is_refused_at_load(tmp_path: Path, changed: tuple[str, str], reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        loaded(tmp_path, TABLE.replace(*changed, 1))
