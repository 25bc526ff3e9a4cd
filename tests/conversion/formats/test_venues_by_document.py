"""Cboe PITCH and Deribit, whose examples consist of documents only.

Bytes are made here by the venues' specifications, and real captures are compared with decoders written here, which
share no code with the converter.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import read_table

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.formats.packets.framed_packets import PacketDecoder
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tests.conversion.formats.tick_material import as_another_decoder_reads, converted, messages
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.conversion.test_convert_captures import capture
from tests.real_data import shared_file

EXAMPLES = Path(__file__).resolve().parents[3] / "deploy" / "examples"
E9 = 10**9
AT_MS = 1_795_500_000_123
DAY, MIDNIGHT_NS = 20261123, 1_795_410_000 * E9  # midnight in New York


@cache
def table(name: str) -> ConverterTable:
    folder = EXAMPLES / name
    return load_checked_table(folder / "source-format.xml", folder / "converter-table.xml", document("tick.xml"))


# --- Cboe PITCH


def unit(sequence: int, *messages: bytes, number: int = 17) -> bytes:
    body = b"".join(bytes([len(each) + 1]) + each for each in messages)
    return struct.pack("<HBBI", 8 + len(body), len(messages), number, sequence) + body


def time(second: int) -> bytes:
    return struct.pack("<BI", 0x20, second)


def add_short(order: int, side: bytes, size: int, symbol: bytes, cents: int, offset: int = 5) -> bytes:
    return struct.pack("<BIQcH6sHB", 0x22, offset, order, side, size, symbol.ljust(6), cents, 1)


def add_long(order: int, side: bytes, size: int, symbol: bytes, price: int, offset: int = 5) -> bytes:
    return struct.pack("<BIQcI6sQB", 0x21, offset, order, side, size, symbol.ljust(6), price, 1)


def executed(order: int, size: int, trade: int) -> bytes:
    return struct.pack("<BIQIQ", 0x23, 9, order, size, trade)


def executed_at(order: int, size: int, left: int, trade: int, price: int) -> bytes:
    return struct.pack("<BIQIIQQ", 0x24, 9, order, size, left, trade, price)


def reduced(order: int, size: int) -> bytes:
    return struct.pack("<BIQI", 0x25, 9, order, size)


def modified(order: int, size: int, cents: int) -> bytes:
    return struct.pack("<BIQHHB", 0x28, 9, order, size, cents, 1)


def deleted(order: int) -> bytes:
    return struct.pack("<BIQ", 0x29, 9, order)


def made(name: str, *packets: bytes) -> list[tuple[str, dict[str, Any]]]:
    """What the kernel makes of these packets, as an independent decoder reads it; the interpreter makes the same."""
    decoder = PacketDecoder(table(name).source_format)
    chunks = [chunk for packet in packets if (chunk := decoder.decode(packet).chunk) is not None]
    frames = b"".join(converted(CompiledConverter(table(name)), chunks, DAY))
    assert b"".join(converted(InterpretedConverter(table(name)), chunks, DAY)) == frames
    return [as_another_decoder_reads(each) for each in messages(frames)]


def pitch(*packets: bytes) -> list[tuple[str, dict[str, Any]]]:
    return made("cboe-pitch", *packets)


def short(tick: tuple[str, dict[str, Any]], *names: str) -> tuple[Any, ...]:
    return tuple(tick[1].get(name) for name in names)


def test_an_order_of_pitch_is_followed_by_its_id_alone() -> None:
    found = pitch(
        unit(1, time(34_200), add_short(7, b"B", 300, b"MAT", 1_944), add_long(8, b"S", 50, b"ZXIET", 101_250)),
        unit(4, executed(7, 100, 900), reduced(7, 50)),
        unit(6, modified(7, 120, 1_950), executed_at(7, 20, 90, 901, 195_100), deleted(7), deleted(8)),
    )
    names = ("symbol", "action", "side", "price", "size")
    assert [short(each, *names) for each in found if each[0] == "OrderEvent"] == [
        ("MAT", "A", "B", 19_440_000_000, 300 * E9),
        ("ZXIET", "A", "S", 10_125_000_000, 50 * E9),
        ("MAT", "E", "B", 19_440_000_000, 100 * E9),
        ("MAT", "R", "B", 19_440_000_000, 50 * E9),
        ("MAT", "M", "B", 19_500_000_000, 120 * E9),
        ("MAT", "M", "B", 19_500_000_000, 90 * E9),
        ("MAT", "D", "B", 19_500_000_000, None),
        ("ZXIET", "D", "S", 10_125_000_000, None),
    ]
    trades = [short(each, "symbol", "tradeId", "side", "price", "size") for each in found if each[0] == "Trade"]
    assert trades == [
        ("MAT", 900, "S", 19_440_000_000, 100 * E9),
        ("MAT", 901, "S", 19_510_000_000, 20 * E9),
    ]


def test_a_time_of_pitch_is_the_second_of_its_unit_and_an_offset() -> None:
    add = add_short(7, b"B", 300, b"MAT", 1_944, offset=123)
    assert "eventAt" not in pitch(unit(1, add))[0][1], "no time message came before"
    (tick,) = pitch(unit(1, time(34_200), add))
    assert tick[1]["eventAt"] == MIDNIGHT_NS + 34_200 * E9 + 123


def test_units_of_one_capture_have_their_own_seconds(tmp_path: Path) -> None:
    one, other = time(10), time(70)
    path = capture(
        tmp_path / "day.pcap",
        unit(1, one, number=1),
        unit(1, other, number=2),
        unit(2, add_short(1, b"B", 1, b"A", 1), number=1),
        unit(2, add_short(2, b"B", 1, b"B", 1), number=2),
        unit(4, add_short(3, b"B", 1, b"A", 1), number=1),
    )
    folder = EXAMPLES / "cboe-pitch"
    options = ["--source-format", str(folder / "source-format.xml"), "--table", str(folder / "converter-table.xml")]
    options += ["--message-model", str(document("tick.xml")), "--session", str(DAY), "--to", str(tmp_path / "out")]
    assert main(["file", str(path), *options]) == 3, "message 3 of unit 1 is missing"
    rows = read_table(tmp_path / "out" / "OrderEvent.parquet").to_pylist()
    seconds = {row["orderId"]: row["eventAt"].minute * 60 + row["eventAt"].second for row in rows}
    assert seconds == {1: 10, 2: 70, 3: 10}


PITCH_TYPES = {0x20: "time", 0x22: "addOrderShort", 0x28: "modifyOrderShort"}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("AddOrderShortMessage", {"time": 2, "addOrderShort": 7}),
        ("ModifyOrderShortMessage", {"modifyOrderShort": 1}),
        ("MultipleMessages", {"time": 1, "addOrderShort": 2}),
    ],
)
def test_real_packets_of_pitch_are_read_field_by_field(name: str, kinds: dict[str, int]) -> None:
    loaded = table("cboe-pitch").source_format
    decoder, reader, seen = PacketDecoder(loaded), FrameReader(loaded), Counter[str]()
    with shared_file(f"cboe/{name}.pcap").open("rb") as file:
        for datagram in CaptureReader(file):
            packet = decoder.packet(datagram.payload)
            length, count, channel, sequence = struct.unpack_from("<HBBI", datagram.payload)
            assert (packet.message_count, packet.channel, packet.sequence) == (count, channel, sequence)
            at = 8
            for kind, values in reader.read(packet.frames):
                size, number = datagram.payload[at : at + 2]
                assert PITCH_TYPES[number] == kind
                fields = datagram.payload[at + 2 : at + size]
                if kind == "time":
                    assert values["time"] == struct.unpack("<I", fields)[0] == 34_200
                elif kind == "addOrderShort":
                    offset, order, side, quantity, symbol, price, _ = struct.unpack("<IQcH6sHB", fields)
                    assert list(values.values())[:6] == [offset, order, side, quantity, symbol.rstrip(), price]
                else:
                    assert list(values.values()) == list(struct.unpack("<IQHHB", fields))
                seen[kind] += 1
                at += size
            assert at == length
    assert seen == kinds


# --- Deribit


def sbe(
    template: int, block: bytes, *groups: tuple[int, list[bytes]], text: bytes | None = None, version: int = 2
) -> bytes:
    data = struct.pack("<6H", len(block), template, 1, 2, len(groups), text is not None) + block
    for size, entries in groups:
        data += struct.pack("<4H", size, len(entries), 0, 0) + b"".join(entries)
    return data if text is None else data + bytes([len(text)]) + text


def deribit_packet(sequence: int, *messages: bytes, channel: int = 3) -> bytes:
    body = b"".join(messages)
    return struct.pack("<HHI", len(body), channel, sequence) + body


def instrument(number: int, name: bytes, *, tick_size: float = 0.5) -> bytes:
    block = struct.pack("<I5BBH", number, 1, 0, 1, 0, 1, 0, 1) + b"BTC".ljust(8, b"\0") * 5
    block += struct.pack("<QQ9d", 1, 32_503_708_800_000, float("nan"), 10.0, 10.0, tick_size, *[0.0005] * 5)
    return sbe(1000, block, text=name)


def book(number: int, at_ms: int, change: int, *changes: tuple[int, int, float, float]) -> bytes:
    block = struct.pack("<IQQQB", number, at_ms, change - 1, change, 1)
    return sbe(1001, block, (18, [struct.pack("<BBdd", *each) for each in changes]))


def trade(number: int, *trades: tuple[int, float, float, int]) -> bytes:
    entries = [
        struct.pack("<BddQddQQBBdQQ", way, price, amount, AT_MS, price, price, 77, trade_id, 0, 0, 0.0, 0, 0)
        for way, price, amount, trade_id in trades
    ]
    return sbe(1002, struct.pack("<I", number), (83, entries))


def test_messages_of_deribit_are_found_without_lengths() -> None:
    found = made(
        "deribit",
        deribit_packet(
            9,
            instrument(210, b"BTC-PERPETUAL"),
            trade(210, (0, 97_123.5, 0.1, 501), (1, 97_123.0, 20.0, 502)),
            book(210, 1_795_500_000_456, 6, (1, 0, 97_123.0, 1_000.0), (0, 2, 97_124.5, 0.0)),
        ),
    )
    names = [name for name, _ in found]
    assert names == ["Instrument", "Status", "Trade", "Trade", "OrderEvent", "OrderEvent"]
    listed = short(found[0], "instrumentId", "symbol", "currency", "kind", "priceIncrement", "strikePrice", "expiresAt")
    assert listed == (210, "BTC-PERPETUAL", "BTC", "future", E9 // 2, None, None)
    assert {each["symbol"] for _, each in found[1:]} == {"BTC-PERPETUAL"}, "ticks have the symbol of their instrument"
    assert [short(each, "side", "price", "size", "tradeId", "eventAt") for each in found[2:4]] == [
        ("B", 97_123_500_000_000, E9 // 10, 501, AT_MS * 1_000_000),
        ("S", 97_123_000_000_000, 20 * E9, 502, AT_MS * 1_000_000),
    ]
    assert [short(each, "action", "side", "price", "size", "sequence") for each in found[4:]] == [
        ("L", "B", 97_123_000_000_000, 1_000 * E9, 6),
        ("L", "S", 97_124_500_000_000, 0, 6),
    ]


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (deribit_packet(1, sbe(1999, b"")), "offset 8: no whole message begins here"),
        (deribit_packet(1, book(1, 2, 3), book(1, 2, 3, (0, 0, 1.0, 1.0))[:-1]), "offset 57: no whole message"),
        (deribit_packet(1, instrument(1, b"X")[:-1]), "offset 8: no whole message begins here"),
        (deribit_packet(1, book(1, 2, 3))[:-1], "the header gives 57 bytes, the datagram has 56"),
    ],
)
def test_a_message_of_deribit_that_is_not_whole_is_refused(packet: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        PacketDecoder(table("deribit").source_format).decode(packet)


def test_a_capture_whose_packets_are_numbered_has_each_once_and_reports_the_missing_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = deribit_packet(9, instrument(210, b"BTC-PERPETUAL"), trade(210, (0, 97_123.5, 0.1, 501)))
    second = deribit_packet(10, trade(210, (0, 97_123.5, 0.1, 502)))
    last = deribit_packet(12, trade(210, (0, 97_123.5, 0.1, 504)))
    other = deribit_packet(9, trade(7, (0, 1.0, 1.0, 601)), channel=4)
    path = capture(tmp_path / "day.pcap", first, second, second, other, last)
    folder = EXAMPLES / "deribit"
    options = ["--source-format", str(folder / "source-format.xml"), "--table", str(folder / "converter-table.xml")]
    options += ["--message-model", str(document("tick.xml")), "--to", str(tmp_path / "out")]
    assert main(["file", str(path), *options]) == 3
    shown = capsys.readouterr().err
    assert "1 missing" in shown
    rows = read_table(tmp_path / "out" / "Trade.parquet").to_pylist()
    assert sorted(row["tradeId"] for row in rows) == [501, 502, 504, 601]


def own_walk(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """The messages of a real packet, by the counts in their headers, which the converter does not use."""
    at = 8
    while at < len(payload):
        size, template, _, _, groups, texts = struct.unpack_from("<6H", payload, at)
        end = at + 12 + size
        for _ in range(groups):
            entry, count, *_ = struct.unpack_from("<4H", payload, end)
            end += 8 + entry * count
        for _ in range(texts):
            end += 1 + payload[end]
        yield template, payload[at:end]
        at = end


@pytest.mark.parametrize("name", ["sample_capture_v1_6", "combo_legs", "price_index", "rfq"])
def test_a_real_capture_of_deribit_is_read_message_by_message(name: str) -> None:
    loaded = table("deribit").source_format
    decoder, reader, count = PacketDecoder(loaded), FrameReader(loaded), 0
    with shared_file(f"deribit/{name}.pcapng").open("rb") as file:
        for datagram in CaptureReader(file):
            packet = decoder.packet(datagram.payload)
            expected = list(own_walk(datagram.payload))
            frames = b"".join(struct.pack("<H", 2 + len(message)) + message for _, message in expected)
            assert packet.frames == frames
            for (template, message), (kind, values) in zip(expected, reader.read(packet.frames), strict=True):
                if kind == "ticker":
                    expected_values = list(struct.unpack_from("<IBQ15d", message, 12))
                    assert repr(list(values.values())) == repr(expected_values), "NaN is not equal to itself"
                elif kind == "trades":
                    entries = list(struct.iter_unpack("<BddQddQQBBdQQ", message[24:]))
                    assert repr([tuple(each.values()) for each in values["executions"]]) == repr(entries)
                count += 1
                assert loaded.messages[kind].type_id == template
    assert count > 0


def test_a_real_capture_of_deribit_is_converted_with_documents_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shared_file("deribit/sample_capture_v1_6.pcapng")
    folder = EXAMPLES / "deribit"
    options = ["--source-format", str(folder / "source-format.xml"), "--table", str(folder / "converter-table.xml")]
    options += ["--message-model", str(document("tick.xml")), "--to", str(tmp_path / "out")]
    assert main(["file", str(path), *options]) == 0
    assert "6,780 messages read" in capsys.readouterr().err
    payloads = [datagram.payload for datagram in CaptureReader(path.open("rb"))]
    tickers = [message for payload in payloads for kind, message in own_walk(payload) if kind == 1003]
    rows = read_table(tmp_path / "out" / "Quote.parquet").to_pylist()
    bids = Counter((struct.unpack_from("<I", each, 12)[0], struct.unpack_from("<d", each, 73)[0]) for each in tickers)
    assert Counter((row["instrumentId"], float(row["bidPrice"])) for row in rows if row["bidPrice"] is not None) == {
        each: count for each, count in bids.items() if each[1] == each[1]
    }


@pytest.mark.parametrize(
    ("framing", "message", "reason"),
    [
        ('lengthAdds="2"', '<message name="a" type="1"/>', "needs length"),
        ("", '<message name="a" type="1" longer="allowed"/>', "may be longer"),
        ("", '<message name="a" type="1"/><message name="b" type="1" size="4"/>', "several messages have the type 1"),
        (
            "",
            '<message name="a" type="1"><group name="g" count="uint8"><field name="x" type="int8"/>'
            '<data name="d" length="uint8"/></group></message>',
            "has groups with parts of their own",
        ),
    ],
)
def test_without_lengths_the_parts_must_tell_where_a_message_ends(
    tmp_path: Path, framing: str, message: str, reason: str
) -> None:
    path = tmp_path / "format.xml"
    path.write_text(f'<sourceFormat name="v"><framing headerSize="2" type="uint16" {framing}/>{message}</sourceFormat>')
    with pytest.raises(DocumentError, match=reason):
        load_source_format(path)
