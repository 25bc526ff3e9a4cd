"""The compiled kernel compared with the plain-Python interpreter of the same table, and the errors of bad tables."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.state import state_kernels
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.replica.output.converter import Converted
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, SOURCE_FRAME_SIZE, encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter

DOCUMENTS = Path(__file__).resolve().parents[3] / "deploy" / "examples" / "ticks"
NULL = (1 << 63) - 1
TABLE = load_checked_table(
    DOCUMENTS / "source-format.xml", DOCUMENTS / "converter-table.xml", DOCUMENTS / "message-model.xml"
)
SYMBOLS = [b"A", b"BRKB", b"LONGNAME", b""]


@pytest.fixture(scope="module")
def shared() -> CompiledConverter:
    return CompiledConverter(TABLE)


def fresh(converter: CompiledConverter) -> CompiledConverter:
    """The same kernel without state; it is compiled only once."""
    empty = InterpretedConverter(TABLE)
    assert empty.snapshot() == EMPTY_SNAPSHOT
    converter.restore(EMPTY_SNAPSHOT)
    return converter


EMPTY_SNAPSHOT = CompiledConverter(TABLE).snapshot()


def packet(messages: list[tuple[int, bytes]]) -> bytes:
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(messages), session=20261121, first_source_seq=1, sent_at_ns=0
    )
    return header + b"".join(SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + len(body), kind) + body for kind, body in messages)


symbols = st.sampled_from(SYMBOLS).map(lambda symbol: symbol.ljust(8, b"\0"))
prices = st.one_of(st.just(NULL), st.integers(-(10**15), 10**15))
sizes = st.integers(0, 2**32 - 1)
trades = st.builds(lambda s, p, n: (1, s + struct.pack("<QqIcBH", 5, p, n, b"B", 1, 0)), symbols, prices, sizes)
quotes = st.builds(lambda s, p, n: (2, s + struct.pack("<QqqII", 5, p, p, n, n)), symbols, prices, sizes)
orders = st.builds(
    lambda s, p, n: (3, s + struct.pack("<QQQqIIiccBB", 5, 6, 7, p, n, 9, -3, b"A", b"B", 1, 0)), symbols, prices, sizes
)
bad = st.builds(lambda kind, body: (kind, body), st.integers(0, 70), st.binary(max_size=70))
messages = st.lists(st.one_of(trades, trades, quotes, orders, bad), min_size=1, max_size=25)


def convert_both(
    compiled: CompiledConverter, oracle: InterpretedConverter, data: bytes, skip: int, count: int, room: int
) -> Converted:
    ours, theirs = np.zeros(4_096, np.uint8), np.zeros(4_096, np.uint8)
    result = compiled.convert(data, skip, count, ours, 16, 16 + room)
    assert result == oracle.convert(data, skip, count, theirs, 16, 16 + room)
    assert bytes(ours) == bytes(theirs)
    return result


@settings(max_examples=300)
@given(st.lists(messages, min_size=1, max_size=4), st.integers(80, 3_000))
def test_kernel_and_interpreter_agree_to_the_byte(
    shared: CompiledConverter, packets: list[list[tuple[int, bytes]]], room: int
) -> None:
    compiled, oracle = fresh(shared), InterpretedConverter(TABLE)
    before = compiled.counts()
    compiled.take_dead_letters()
    for rows in packets:
        data = packet(rows)
        assert compiled.check(data)
        assert oracle.check(data)
        skip = 0
        while skip < len(rows):
            result = convert_both(compiled, oracle, data, skip, len(rows) - skip, room)
            assert result.source_count > 0
            skip += result.source_count
    assert compiled.digests().tolist() == oracle.digests().tolist()
    assert {reason: count - before[reason] for reason, count in compiled.counts().items()} == oracle.counts()
    assert compiled.take_dead_letters() == oracle.take_dead_letters()


@settings(max_examples=200)
@given(st.binary(max_size=200), messages, st.integers(0, 300), st.integers(0, 255))
def test_packets_with_inconsistent_frames_are_detected(
    shared: CompiledConverter, noise: bytes, rows: list[tuple[int, bytes]], place: int, value: int
) -> None:
    oracle = InterpretedConverter(TABLE)
    damaged = bytearray(packet(rows))
    damaged[place % len(damaged)] = value
    for data in (noise, bytes(damaged), packet(rows)[:-1], packet(rows) + b"\0"):
        assert shared.check(data) == oracle.check(data)
    assert not shared.check(packet(rows)[:-1])


def test_a_converted_trade_has_these_bytes(shared: CompiledConverter) -> None:
    compiled = fresh(shared)
    out = np.zeros(200, np.uint8)
    price = 101_250_000_000
    body = b"ACME\0\0\0\0" + struct.pack("<QqIcBH", 1_700_000_000_000_000_001, price, 300, b"B", 2, 0)
    result = compiled.convert(packet([(1, body)]), 0, 1, out, 0, 200)
    assert result == Converted(1, 1, 74)
    expected = struct.pack("<HHHHHH", 74, 0, 62, 1, 1, 0)
    expected += b"ACME\0\0\0\0" + struct.pack("<QqIcB", 1_700_000_000_000_000_001, price, 300, b"B", 2)
    expected += struct.pack("<Qqqq", 300, price, price, price)
    assert bytes(out[:74]) == expected
    decoder = Decoder((DOCUMENTS / "message-model.xml").read_bytes())
    assert list(decoder.messages(expected)) == [
        (
            "TradeTick",
            {
                "symbol": b"ACME",
                "eventAt": 1_700_000_000_000_000_001,
                "price": price,
                "size": 300,
                "side": b"B",
                "flags": 2,
                "dayVolume": 300,
                "dayHigh": price,
                "dayLow": price,
                "vwap": price,
            },
        )
    ]


def test_vwap_is_exact_beyond_64_bits(shared: CompiledConverter) -> None:
    compiled, oracle = fresh(shared), InterpretedConverter(TABLE)
    top, full = 10**15, 2**32 - 1
    rows = [(1, b"A".ljust(8, b"\0") + struct.pack("<QqIcBH", 5, top - n, full, b"B", 0, 0)) for n in range(30)]
    convert_both(compiled, oracle, packet(rows), 0, 30, 3_000)
    assert compiled.digests().tolist() == oracle.digests().tolist()


def test_state_that_grows_in_mid_packet_does_not_change_the_output(shared: CompiledConverter) -> None:
    compiled, oracle = fresh(shared), InterpretedConverter(TABLE)
    for first in range(0, 3_000, 30):
        rows = [
            (1, b"%d".ljust(8, b"\0") % number + struct.pack("<QqIcBH", 5, number, 1, b"B", 0, 0))
            for number in range(10_000 + first, 10_030 + first)
        ]
        rows = [(kind, body[:5].ljust(8, b"\0") + body[-24:]) for kind, body in rows]
        convert_both(compiled, oracle, packet(rows), 0, 30, 3_000)
    assert compiled.key_count() == 3_000
    assert compiled.digests().tolist() == oracle.digests().tolist()


def test_a_snapshot_restores_the_same_state_in_another_converter(shared: CompiledConverter) -> None:
    compiled = fresh(shared)
    rows = [(1, symbol.ljust(8, b"\0") + struct.pack("<QqIcBH", 5, 10, 1, b"B", 0, 0)) for symbol in SYMBOLS]
    compiled.convert(packet(rows), 0, 4, np.zeros(1_000, np.uint8), 0, 1_000)
    snapshot, digests = compiled.snapshot(), compiled.digests().tolist()
    other = CompiledConverter(TABLE)
    other.restore(snapshot)
    assert (other.snapshot(), other.digests().tolist()) == (snapshot, digests)
    for damaged in (b"", snapshot[:-1], b"XXXX" + snapshot[4:], snapshot[:4] + bytes(16) + snapshot[20:]):
        with pytest.raises(ValueError, match="snapshot"):
            other.restore(damaged)
    assert other.digests().tolist() == digests


def load_changed(tmp_path: Path, old: str, new: str, document: str = "converter-table.xml") -> ConverterTable:
    paths = {}
    for name in ("source-format.xml", "converter-table.xml", "message-model.xml"):
        text = (DOCUMENTS / name).read_text()
        if name == document:
            assert old in text
            text = text.replace(old, new, 1)
        paths[name] = tmp_path / name
        paths[name].write_text(text)
    return load_checked_table(
        *(paths[name] for name in ("source-format.xml", "converter-table.xml", "message-model.xml"))
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('function="copy" of="symbol"', 'function="copy" of="ticker"', "no field 'ticker'"),
        ('name="vwap" function="vwap"', 'name="vwop" function="vwap"', "no field 'vwop'"),
        ('function="day_volume"', 'function="day_volumes"', "unknown converter function 'day_volumes'"),
        (
            '<field name="symbol" function="copy" of="symbol"/>',
            '<let name="t" function="constant" text="x"/><field name="symbol" function="text" of="t"/>',
            "'t' is a constant text",
        ),
        (
            '<keep cell="last_price" function="last" of="price" by="symbol"/>',
            '<let name="all" function="constant" text="of any symbol"/>'
            '<keep cell="all" function="last" of="price" by="all"/>',
            "'all' cannot be a key",
        ),
        (
            '<keep cell="last_price" function="last" of="price" by="symbol"/>',
            '<let name="told" function="digits" of="price"/><when of="told" is="1"/>',
            "'told' is a text made for the output",
        ),
        ('message="trade"', 'message="deal"', "no message 'deal'"),
        ('to="TradeTick"', 'to="Trade"', "no message 'Trade'"),
        ('<field name="flags" function="copy" of="flags"/>', "", "field 'flags' of TradeTick is written 0 times"),
        ('name="size" function="copy" of="size"', 'name="size" function="copy" of="event_at_ns"', "can lose data"),
        ('of="size" by="symbol"', 'of="event_at_ns" by="symbol"', "is summed"),
        ('of="price" weight="size"', 'of="price" wait="size"', "no attribute 'wait'"),
        ('function="peek" cell="last_price"', 'function="peek" cell="first_price"', "no element keeps a cell"),
        ('sourceFormat="ticks"', 'sourceFormat="tocks"', "made for the source format 'tocks'"),
        ("</converterTable>", "", "not well-formed"),
    ],
)
def test_a_bad_table_is_refused_with_file_line_and_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    with pytest.raises(DocumentError, match=rf"converter-table\.xml:\d+: .*{reason}") as refused:
        load_changed(tmp_path, old, new)
    assert refused.value.line > 0


@pytest.mark.parametrize(
    ("document", "old", "new", "reason"),
    [
        ("source-format.xml", 'type="uint32"', 'type="uint31"', "unknown type 'uint31'"),
        ("source-format.xml", 'name="trade" type="1"', 'name="trade" type="one"', "not an integer"),
        ("message-model.xml", 'type="Symbol"', 'type="Ticker"', "unknown type 'Ticker'"),
        ("message-model.xml", 'presence="constant"', 'presence="constnat"', "not one of required, optional"),
        ("message-model.xml", '<field name="size" id="4" type="uint32"/>', '<data name="x" id="4"/>', "needs the"),
    ],
)
def test_a_bad_format_or_model_is_refused_with_file_line_and_reason(
    tmp_path: Path, document: str, old: str, new: str, reason: str
) -> None:
    with pytest.raises(DocumentError, match=rf"{document}:\d+: .*{reason}"):
        load_changed(tmp_path, old, new, document)


def test_a_message_larger_than_a_datagram_is_refused_at_load() -> None:
    documents = [DOCUMENTS / name for name in ("source-format.xml", "converter-table.xml", "message-model.xml")]
    with pytest.raises(DocumentError, match="has room for"):
        load_checked_table(*documents, datagram_size_max=170)


def test_the_source_format_encodes_what_the_converter_reads(shared: CompiledConverter) -> None:
    compiled = fresh(shared)
    trade = load_source_format(DOCUMENTS / "source-format.xml").messages["trade"]
    rows = trade.encode({"symbol": np.array([b"A", b"B"]), "price": np.array([5, 7]), "size": np.array([1, 2])}, 2)
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=2, session=1, first_source_seq=1, sent_at_ns=0
    )
    out = np.zeros(500, np.uint8)
    result = compiled.convert(header + rows.tobytes(), 0, 2, out, 0, 500)
    decoder = Decoder((DOCUMENTS / "message-model.xml").read_bytes())
    decoded = [(name, row["symbol"], row["price"]) for name, row in decoder.messages(bytes(out[: result.end]))]
    assert decoded == [("TradeTick", b"A", 5), ("TradeTick", b"B", 7)]


def test_no_function_is_compiled_after_the_converter_is_made(shared: CompiledConverter) -> None:
    kernels = (state_kernels.settle, state_kernels.place_rows, state_kernels.drop_buckets)
    before = [list(kernel.signatures) for kernel in kernels]
    assert all(before), "compiled when the converter was made, not at the first digest: that stalled the feed by 0.13 s"
    compiled = fresh(shared)
    compiled.digests()
    compiled.restore(compiled.snapshot())
    compiled.restore_buckets(compiled.snapshot_buckets([1, 2]))
    assert [list(kernel.signatures) for kernel in kernels] == before
