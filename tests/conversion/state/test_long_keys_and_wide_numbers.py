"""Books and state by texts of any length, sums beyond 64 bits, and doubles in state: kernel and interpreter agree."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.wire.source_packet import encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.feedcore.sbe.sbe_material import schema_text

FORMAT = """<sourceFormat name="venue">
<message name="order" type="1"><field name="what" type="char"/><field name="order" type="char" length="36"/>
  <field name="new" type="char" length="30"/><field name="symbol" type="char" length="24"/>
  <field name="side" type="char"/><field name="price" type="int32"/><field name="size" type="uint16"/></message>
<message name="change" type="2"><field name="what" type="char"/><field name="order" type="char" length="36"/>
  <field name="new" type="char" length="8"/><field name="price" type="int32"/><field name="size" type="uint16"/>
</message>
<message name="trade" type="3"><field name="source" type="uint8"/><field name="amount" type="int64"/>
  <field name="weight" type="uint64"/><field name="price" type="double"/>
  <field name="size" type="float" byteOrder="bigEndian"/><data name="pair" length="uint8"/></message>
</sourceFormat>"""
DOUBLES = ("last", "first", "high", "low", "total", "mean", "bid", "ask")
MODEL = schema_text(
    '<type name="Maybe" primitiveType="int64" presence="optional" nullValue="9223372036854775807"/>'
    '<type name="Name" primitiveType="char" length="24"/><type name="Double" primitiveType="double"/>',
    '<message name="Change" id="1"><field name="symbol" id="1" type="Name"/><field name="size" id="2" type="Maybe"/>'
    '<field name="bid" id="3" type="Maybe"/><field name="ask" id="4" type="Maybe"/></message>'
    '<message name="Trade" id="2"><field name="total" id="1" type="Maybe"/><field name="average" id="2" type="Maybe"/>'
    '<field name="rounded" id="3" type="Maybe"/>'
    + "".join(f'<field name="d_{name}" id="{place}" type="Double"/>' for place, name in enumerate(DOUBLES, 4))
    + "</message>",
)
ORDERS = """
  <order book="{book}" action="add" by="symbol" id="order" side="side" price="price" size="size" if="what" is="A"/>
  <order book="{book}" action="reduce" by="symbol" id="order" size="size" if="what" is="X"/>
  <order book="{book}" action="delete" by="symbol" id="order" if="what" is="D"/>
  <order book="{book}" action="replace" by="symbol" id="order" newId="new" price="price" size="size" if="what" is="R"/>
  <order book="{book}" action="clear" by="symbol" if="what" is="C"/>"""
TABLE = f"""<converterTable name="t" sourceFormat="venue">
<book name="unique" ordersMax="20"/><book name="own" ids="perBook" ordersMax="20"/>
<convert message="order" to="Change">{ORDERS.format(book="unique")}{ORDERS.format(book="own")}
  <field name="symbol" function="order_by" book="unique"/>
  <field name="size" function="order_size" book="own"/>
  <field name="bid" function="book_price" book="unique" side="bid" level="1"/>
  <field name="ask" function="book_price" book="own" side="ask" level="2"/></convert>
<convert message="change" to="Change">
  <order book="unique" action="resize" id="order" size="size" if="what" is="X"/>
  <order book="unique" action="delete" id="order" if="what" is="D"/>
  <order book="unique" action="replace" id="order" newId="new" price="price" size="size" if="what" is="R"/>
  <field name="symbol" function="order_by" book="unique"/>
  <field name="size" function="order_size" book="unique"/>
  <field name="bid" function="book_price" book="unique" side="bid" level="1"/></convert>
<convert message="trade" to="Trade">
  <let name="key" function="text" of="pair" length="24"/>
  <let name="w" function="cast" of="weight" type="int64"/>
  <field name="total" function="wide_sum" of="amount" by="key"/>
  <field name="average" function="wide_vwap" of="amount" weight="w" by="key" reset="session"/>
  <let name="sum" function="sum" of="price" by="key source"/>
  <field name="rounded" function="decimal" of="sum" exponent="0" rounding="half_up" otherwise="null"/>
  <field name="d_last" function="last" of="size" by="key"/>
  <field name="d_first" function="first" of="price" by="key"/>
  <field name="d_high" function="max" of="price" by="key" cell="high"/>
  <field name="d_low" function="min" of="size" by="key"/>
  <field name="d_total" function="copy" of="sum"/>
  <field name="d_mean" function="vwap" of="price" weight="size" by="key"/>
  <field name="d_bid" function="best_bid" of="price" source="source" sources="3" by="key"/>
  <field name="d_ask" function="best_ask" of="size" source="source" sources="2" by="key"/></convert>
</converterTable>"""
NONE = (1 << 63) - 1
SYMBOLS = [b"BTC-PERP", b"BTC-PERPETUAL", b"BTC-PERPETUAL-2", b"BTC-27JUN25-100000-C-USDC", b""]
IDS = [b"8f14e45f", b"8f14e45f-ceea-467f-ab2d-000000000001", b"8f14e45f-ceea-467f-ab2d-000000000002", b"8f14e45f-ceea"]


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
        self.kernel, self.oracle = CompiledConverter(table, near_rows=0), InterpretedConverter(table)

    def rows(self, *bodies: tuple[int, bytes], session: int = 20_261_123) -> list[tuple[Any, ...]]:
        frames = b"".join(struct.pack("<HH", 4 + len(body), kind) + body for kind, body in bodies)
        given = {"feed_id": 1, "source_stream_id": 1, "message_count": len(bodies), "session": session}
        packet = encode_source_header(**given, first_source_seq=1, sent_at_ns=0) + frames
        outs = []
        for converter in (self.kernel, self.oracle):
            out = np.zeros(20_000, np.uint8)
            result = converter.convert(packet, 0, len(bodies), out, 0, len(out))
            outs.append((result, bytes(out[: result.end]), converter.counts(), list(converter.digests())))
        assert outs[0] == outs[1]
        assert self.kernel.snapshot() == self.oracle.snapshot()
        return [tuple(fields.values()) for _, fields in Decoder(MODEL).messages(outs[0][1])]

    def restart(self) -> None:
        """Continue from snapshots."""
        self.kernel.restore(self.oracle.snapshot())
        self.kernel.restore_buckets(self.oracle.snapshot_buckets(list(range(64))))


@pytest.fixture
def both(table: ConverterTable) -> Both:
    return Both(table)


def order(
    what: bytes, number: bytes, symbol: bytes, side: bytes = b"B", price: int = 0, size: int = 0, new: bytes = b""
) -> tuple[int, bytes]:
    texts = what + number.ljust(36) + new[:30].ljust(30, b"\0") + symbol[:24].ljust(24) + side
    return 1, texts + struct.pack("<iH", price, size)


def change(what: bytes, number: bytes, price: int = 0, size: int = 0, new: bytes = b"") -> tuple[int, bytes]:
    return 2, what + number.ljust(36, b"\0") + new[:8].ljust(8) + struct.pack("<iH", price, size)


def trade(
    pair: bytes, amount: int = 0, weight: int = 0, price: float = math.nan, size: float = math.nan, source: int = 0
) -> tuple[int, bytes]:
    numbers = struct.pack("<BqQd", source, amount, weight, price) + struct.pack(">f", size)
    return 3, numbers + bytes([len(pair)]) + pair


def test_symbols_with_equal_beginnings_have_books_of_their_own(both: Both) -> None:
    rows = both.rows(
        order(b"A", IDS[1], b"BTC-PERPETUAL", price=100, size=3),
        order(b"A", IDS[2], b"BTC-PERPETUAL-2", price=200, size=4),
        order(b"A", IDS[0], b"BTC-PERPETUAL", b"S", price=300, size=5),
        order(b"A", IDS[3], b"BTC-PERPETUAL", b"S", price=301, size=6),
    )
    assert rows[0][:3] == (b"BTC-PERPETUAL", 3, 100)
    assert rows[1][:3] == (b"BTC-PERPETUAL-2", 4, 200)
    assert rows[3] == (b"BTC-PERPETUAL", 6, 100, 301)
    assert both.rows(change(b"R", IDS[2], price=250, size=9, new=b"new")) == [(b"BTC-PERPETUAL-2", 9, 250, NONE)]
    assert both.rows(change(b"D", IDS[2])) == [(b"", 0, NONE, NONE)]
    assert both.rows(change(b"D", b"new"), order(b"C", b"", b"BTC-PERPETUAL")) == [
        (b"BTC-PERPETUAL-2", 0, NONE, NONE),
        (b"BTC-PERPETUAL", 0, NONE, NONE),
    ]


def test_an_unknown_order_is_not_in_the_book_of_a_blank_symbol(both: Both) -> None:
    both.rows(order(b"A", IDS[0], b"", price=5, size=1))
    assert both.rows(change(b"X", IDS[2]), change(b"?", IDS[0])) == [(b"", 0, NONE, NONE)] * 2


def test_an_order_id_of_another_book_is_another_order(both: Both) -> None:
    both.rows(order(b"A", IDS[1], SYMBOLS[1], b"S", 7, 1), order(b"A", IDS[1], SYMBOLS[2], b"S", 8, 2))
    assert both.rows(order(b"A", IDS[2], SYMBOLS[1], b"S", 9, 3))[0][3] == 9  # the second level of the first book
    assert both.rows(order(b"D", IDS[1], SYMBOLS[2]))[0][1] == 0


def test_a_sum_is_exact_beyond_64_bits_and_null_while_it_does_not_fit(both: Both) -> None:
    many = 1 << 62
    totals = [row[0] for row in both.rows(*(trade(b"A", amount) for amount in (many, many, -5, -many, -many, -many)))]
    assert totals == [many, NONE, 2**63 - 5, many - 5, -5, -many - 5]


def test_an_average_is_exact_for_weights_of_63_bits(both: Both) -> None:
    values = [
        (-1, 2**63 - 2),
        (9 * 10**18, 2**63 - 2),
        (-7, 2**63 - 2),
        (3, 1),
        (-(2**63), 2**62),
        (-(2**63), 2**63 - 2),
    ]
    products = weights = 0
    for value, weight in values:
        products, weights = products + value * weight, weights + weight
        assert both.rows(trade(b"A", value, weight))[0][1] == products // weights


def test_doubles_are_kept_summed_and_compared_as_ieee_says(both: Both) -> None:
    prices = [0.1, math.nan, 0.2, -1e300, 1e300, 0.3]
    rows = both.rows(*(trade(b"A", price=price, size=2.5, source=1) for price in prices))
    assert rows[2][3 + DOUBLES.index("total")] == 0.1 + 0.2
    assert rows[-1][3:] == (2.5, 0.1, 1e300, 2.5, 0.1 + 0.2 - 1e300 + 1e300 + 0.3, pytest.approx(0.3 / 5), 0.3, 2.5)
    assert both.rows(trade(b"B"))[0][2] == 0  # the sum of nothing
    assert all(math.isnan(value) for value in both.rows(trade(b"C"))[0][3:7])


WHOLE = st.one_of(
    st.sampled_from([0, 1, -1, 2**31, 2**32 - 1, 2**62, -(2**63), 2**63 - 1, 2**63 - 2]),
    st.integers(-(2**63), 2**63 - 1),
)
FLOAT = st.one_of(st.sampled_from([0.0, -0.0, 0.1, 1e308, math.inf, -math.inf, math.nan]), st.floats(width=32))
SYMBOL, ID = st.sampled_from(SYMBOLS), st.sampled_from(IDS)
MESSAGE = st.one_of(
    st.builds(
        order,
        st.sampled_from([b"A", b"A", b"A", b"X", b"D", b"R", b"C"]),
        ID,
        SYMBOL,
        st.sampled_from([b"B", b"S"]),
        st.integers(-3, 3),
        st.integers(0, 4),
        ID,
    ),
    st.builds(change, st.sampled_from([b"X", b"D", b"R"]), ID, st.integers(-3, 3), st.integers(0, 4), ID),
    st.builds(
        trade,
        st.one_of(SYMBOL, st.just(b"longer than twenty-four bytes")),
        WHOLE,
        WHOLE.map(lambda value: value % 2**64),
        st.one_of(FLOAT, st.floats()),
        FLOAT.map(lambda value: value if abs(value) < 3e38 or math.isinf(value) else math.nan),
        st.integers(0, 3),
    ),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(packets=st.lists(st.lists(MESSAGE, min_size=1, max_size=12), min_size=1, max_size=5), session=st.integers(0, 1))
def test_kernel_and_interpreter_agree(
    table: ConverterTable, packets: list[list[tuple[int, bytes]]], session: int
) -> None:
    both = Both(table)
    for number, messages in enumerate(packets):
        both.rows(*messages, session=20_261_123 + session * number)
        if number % 2:
            both.restart()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (('of="pair" length="24"', 'of="pair"'), "'key' is text of 255; a key has at most 64 bytes"),
        (('by="key"/>', 'by="pair"/>'), "'pair' is text of 255; a key has at most 64 bytes"),
        (('function="wide_sum"', 'function="sum"'), "must have at most 32 bits; use wide_sum, or cast it"),
        (('function="wide_vwap"', 'function="vwap"'), "must be unsigned, with at most 32 bits; use wide_vwap"),
        (('weight="w"', 'weight="amount"'), "amount is a weight and must not be negative"),
        (('of="price" weight="size"', 'of="amount" weight="size"'), "both be integers, or both be floats or doubles"),
        (
            (
                '<convert message="change" to="Change">',
                '<convert message="change" to="Change"><let name="key" function="cut" of="order" length="24"/>'
                '<keep cell="high" function="max" of="size" by="key"/>',
            ),
            "cell 'high' has a double in one element",
        ),
        (('otherwise="null"/>', "/>"), "could refuse a message after state was changed"),
        (('id="order" size="size" if="what" is="X"/>\n  <order book="unique" action="delete" id="order"',
          'id="order" size="size" if="what" is="X"/>\n  <order book="unique" action="delete" id="price"'),
         "id='price' is .*, but other <order>s of book 'unique' have text of 36"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_at_load(tmp_path: Path, changed: tuple[str, str], reason: str) -> None:
    assert changed[0] in TABLE
    with pytest.raises(DocumentError, match=reason):
        loaded(tmp_path, TABLE.replace(*changed, 1))
