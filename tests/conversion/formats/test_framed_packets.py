"""A venue that needs documents only: <packet> and <framing> decide how captures are read. NYSE XDP is the example."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.packets.framed_packets import PacketDecoder
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tests.conversion.formats.tick_material import interpreted
from tests.conversion.test_convert_captures import capture
from tests.real_data import shared_file

EXAMPLE = Path(__file__).resolve().parents[3] / "deploy" / "examples" / "nyse-xdp"
SECONDS, NS = 1_504_787_400, 455_000
E9 = 10**9


@cache
def table() -> ConverterTable:
    return load_checked_table(EXAMPLE / "source-format.xml", EXAMPLE / "converter-table.xml", document("tick.xml"))


def xdp(sequence: int, *messages: bytes) -> bytes:
    """A datagram of these messages."""
    body = b"".join(messages)
    return struct.pack("<HBBIII", 16 + len(body), 11, len(messages), sequence, SECONDS, NS) + body


def mapping(symbol: bytes, index: int, scale: int = 4) -> bytes:
    body = struct.pack("<I11sBHBcBcHI", index, symbol, 0, 1, 1, b"N", scale, b"A", 100, 424_000)
    return struct.pack("<HH", 4 + len(body) + 9, 3) + body + bytes(9)


def imbalance(index: int, price: int, size: int, side: bytes = b"B") -> bytes:
    body = struct.pack("<IIIIIIIIHccII", SECONDS, NS, index, 1, price, 600, size, 0, 930, b"M", side, 0, price + 1)
    return struct.pack("<HH", 4 + len(body), 105) + body


def expected(datagram: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tick-model messages of a datagram, decoded from NYSE's specification without the document."""
    offset, (count,) = 16, struct.unpack_from("<B", datagram, 3)
    for _ in range(count):
        size, kind = struct.unpack_from("<HH", datagram, offset)
        body = datagram[offset + 4 : offset + size]
        offset += size
        values: dict[str, Any] = {}
        if kind == 3:
            index, symbol, _, _, _, exchange, _, security, lot, close = struct.unpack_from("<I11sBHBcBcHI", body)
            values = {"instrumentId": index, "symbol": symbol.rstrip(b"\0").decode(), "exchange": exchange.decode()}
            values |= {"kind": security.decode(), "lotSize": lot, "previousClose": close * 10**5}
            yield "Instrument", values
        elif kind == 34:
            seconds, ns, index, _, status, halt = struct.unpack_from("<IIIIcc", body)
            values = {"instrumentId": index, "eventAt": seconds * E9 + ns, "topic": "status", "event": status.decode()}
            values |= {"reason": halt.decode(), "state": {b"4": "H", b"5": "T"}.get(status, "U")}
            yield "Status", values
        elif kind == 105:
            seconds, ns, index, _, reference, paired, total, _, _, auction, side, near, far = struct.unpack_from(
                "<IIIIIIIIHccII", body
            )
            values = {"instrumentId": index, "eventAt": seconds * E9 + ns, "auction": auction.decode()}
            prices = {"referencePrice": reference, "nearPrice": near, "farPrice": far}
            values |= {name: price * 10**5 for name, price in prices.items() if price}
            values |= {"pairedSize": paired * E9, "imbalanceSize": total * E9}
            yield "Imbalance", values | {"side": {b"B": "B", b"S": "S"}.get(side, "N")}
    assert offset == len(datagram)


def test_a_real_recording_converts_to_what_the_specification_says() -> None:
    path, decoder = shared_file("nyse/imbalances-v2.1.f.pcap"), PacketDecoder(table().source_format)
    payloads = [datagram.payload for datagram in CaptureReader(path.open("rb"))]
    packets = [decoder.decode(payload) for payload in payloads]
    assert [packet.end for packet in packets] == list(range(2, len(payloads) + 2)), "no message is missing"
    chunks = [packet.chunk for packet in packets if packet.chunk is not None]
    wanted = [each for payload in payloads for each in expected(payload)]
    assert len(wanted) == 11_818
    for number, (ours, other) in enumerate(zip(interpreted(table(), chunks), wanted, strict=True)):
        assert ours == other, f"output {number}"


def test_seconds_and_nanoseconds_of_the_header_are_one_time() -> None:
    packet = PacketDecoder(table().source_format).decode(xdp(7, mapping(b"ADM", 1), imbalance(1, 10, 20)))
    assert packet.chunk is not None
    assert (packet.chunk.sequence, packet.chunk.message_count, packet.end) == (7, 2, 9)
    assert packet.chunk.sent_at_ns == SECONDS * E9 + NS


def test_prices_of_a_symbol_with_other_decimals_are_not_converted() -> None:
    decoder = PacketDecoder(table().source_format)
    messages = [mapping(b"ADM", 1), mapping(b"XYZ", 2, scale=6), imbalance(1, 10, 20), imbalance(2, 10, 20)]
    chunk = decoder.decode(xdp(1, *messages)).chunk
    assert chunk is not None
    found = [(name, values["instrumentId"], values["symbol"]) for name, values in interpreted(table(), [chunk])]
    assert found == [("Instrument", 1, "ADM"), ("Imbalance", 1, "ADM")]


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (b"\0" * 15, "the datagram has 15 bytes; a XDP header has 16"),
        (xdp(1, imbalance(1, 1, 1))[:-1], "the header gives 64 bytes, the datagram has 63"),
        (xdp(1, b"\x09\0\x69\0"), "offset 16: no whole message begins here"),
        (xdp(1, imbalance(1, 1, 1)).replace(b"\x0b\x01", b"\x0b\x02", 1), "counts 2 messages, the datagram has 1"),
    ],
)
def test_a_datagram_that_contradicts_its_header_is_refused(datagram: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        PacketDecoder(table().source_format).decode(datagram)


def test_a_capture_of_both_lines_is_converted_with_documents_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packets = [xdp(number, imbalance(1, number, 5)) for number in range(2, 12)]
    path = capture(tmp_path / "day.pcap", xdp(1, mapping(b"ADM", 1)), *packets[:3], *packets[1:6], *packets[8:], b"?")
    options = ["--source-format", str(EXAMPLE / "source-format.xml"), "--table", str(EXAMPLE / "converter-table.xml")]
    options += ["--message-model", str(document("tick.xml")), "--to", str(tmp_path / "out")]
    assert main(["file", str(path), *options]) == 3
    shown = capsys.readouterr().err
    assert "2 missing, 8 to 9" in shown
    assert "1 datagrams refused: the datagram has 1 bytes; a XDP header has 16" in shown
    rows = pyarrow.parquet.read_table(tmp_path / "out" / "Imbalance.parquet").to_pylist()
    assert [int(row["referencePrice"] * 10_000) for row in rows] == [2, 3, 4, 5, 6, 7, 10, 11], "each once, in order"


def with_packet(folder: Path, packet: str, kind: str = "0x21") -> SourceFormat:
    path = folder / "format.xml"
    path.write_text(
        f'<sourceFormat name="venue">{packet}<message name="one" type="{kind}"><field name="n" type="uint8"/>'
        "</message></sourceFormat>"
    )
    return load_source_format(path)


def test_numbers_belong_to_the_channel_of_their_header(tmp_path: Path) -> None:
    header = '<packet name="unit" headerSize="5" byteOrder="bigEndian"><channel type="uint8" offset="0"/>'
    loaded = with_packet(tmp_path, header + '<sequence type="uint32" offset="1"/></packet>')
    assert loaded.messages["one"].type_id == 0x21
    packet = PacketDecoder(loaded).decode(bytes([3]) + (9).to_bytes(4, "big") + struct.pack("<HHB", 5, 0x21, 1))
    assert (packet.channel, packet.end) == (b"3", 10)
    assert packet.chunk is not None
    assert packet.chunk.session == b"3"


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        ('<packet name="p" headerSize="4"><sequence type="uint64" offset="0"/></packet>', "ends beyond headerSize=4"),
        ('<packet name="p" headerSize="4"><sequence type="int32" offset="0"/></packet>', "must be an unsigned integer"),
        ('<packet name="p" headerSize="4"><sum type="uint32" offset="0"/></packet>', "<sum> is not allowed"),
        ('<packet name="p" headerSize="4"><sentAt type="uint32" unit="m"/></packet>', "must be one of s, ms, us, ns"),
        ('<packet name="p" headerSize="4"><count type="uint8" unit="s"/></packet>', "no attribute 'unit'"),
    ],
)
def test_a_packet_header_that_cannot_be_read_is_refused(tmp_path: Path, packet: str, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        with_packet(tmp_path, packet)


def test_a_reader_of_packets_needs_their_numbers(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"needs a <packet> with a <sequence>"):
        PacketDecoder(with_packet(tmp_path, ""))
    with pytest.raises(DocumentError, match="is not an integer"):
        with_packet(tmp_path, "", kind="0x")
