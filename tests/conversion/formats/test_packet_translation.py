"""Live packets of venues become source packets by the documents alone: IEX-TP, NYSE XDP, a request in the header."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.packets.iex_tp import IEX_TP_HEADER
from tandemfeed.adapter.conversion.formats.packets.packet_translation import PacketTranslation
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.wire.source_packet import SourceFlag, SourcePacket, decode_source_packet

FEED, STREAM, DAY = 3, 7, 20261123
XDP = Path(__file__).resolve().parents[3] / "deploy" / "examples" / "nyse-xdp" / "source-format.xml"
STATUS = struct.pack("<HcB", 2, b"S", ord("O"))  # not a message of IEX, but framed like one


def iex(sequence: int, count: int, *, session: int = 5, channel: int = 1) -> bytes:
    frames = STATUS * count
    return IEX_TP_HEADER.pack(1, 0x8003, channel, session, len(frames), count, 0, sequence, 99) + frames


def translation(source_format: SourceFormat, channel: int | None) -> PacketTranslation:
    return PacketTranslation(source_format, FEED, STREAM, DAY, channel)


def source(translated: PacketTranslation, datagram: bytes) -> SourcePacket:
    made = translated.source_packet(datagram)
    assert made is not None
    return decode_source_packet(made, FEED)


def test_iex_tp_is_received_by_its_document() -> None:
    iex_lines = translation(load_source_format(document("iex.xml")), 1)
    first, beat = source(iex_lines, iex(1, 2)), source(iex_lines, iex(3, 0))
    assert (first.source_stream_id, first.session) == (STREAM, DAY)
    assert (first.first_source_seq, first.message_count, first.datagram[32:]) == (1, 2, STATUS * 2)
    assert (beat.first_source_seq, beat.message_count, beat.flags) == (3, 0, SourceFlag.HEARTBEAT)
    assert first.sent_at_ns == 0, "the lines of a venue may differ in it"


def test_packets_of_other_channels_and_sessions_are_foreign() -> None:
    iex_lines = translation(load_source_format(document("iex.xml")), 1)
    assert iex_lines.source_packet(iex(1, 1, channel=2, session=9)) is None, "it does not determine the session"
    assert iex_lines.source_packet(iex(1, 1)) is not None
    assert iex_lines.source_packet(iex(2, 1, session=6)) is None
    assert iex_lines.source_packet(iex(2, 1)[:-1]) is None
    assert iex_lines.source_packet(iex(0, 1)) is None, "it has no number"
    assert (iex_lines.foreign, iex_lines.malformed) == (2, 2)


def test_a_venue_without_sessions_and_channels_needs_no_python() -> None:
    xdp = translation(load_source_format(XDP), None)
    status = struct.pack("<HHIIII2s", 22, 0x22, 1, 2, 3, 4, b"4~")
    packet = source(xdp, struct.pack("<HBBIII", 16 + 22, 11, 1, 41, 1_504_787_400, 5) + status)
    assert (packet.first_source_seq, packet.message_count, packet.datagram[32:]) == (41, 1, status)
    assert xdp.request(1, 2) is None, "the venue's requests have another form"


def test_the_stream_of_a_header_with_channels_is_selected() -> None:
    with pytest.raises(FormatError, match=r"the header of IEX-TP has a channel; select it with --channel 7=NUMBER"):
        translation(load_source_format(document("iex.xml")), None)
    with pytest.raises(FormatError, match=r"the header of XDP has no channel; omit --channel"):
        translation(load_source_format(XDP), 2)


def venue(folder: Path, packet: str) -> SourceFormat:
    path = folder / "format.xml"
    message = '<message name="one" type="1"><field name="n" type="uint8"/></message>'
    path.write_text(f'<sourceFormat name="venue" byteOrder="bigEndian">{packet}{message}</sourceFormat>')
    return load_source_format(path)


def test_a_request_is_the_header_with_the_missing_numbers(tmp_path: Path) -> None:
    loaded = venue(
        tmp_path,
        '<packet name="unit" headerSize="8" requests="header"><sequence type="uint32" offset="4"/>'
        '<count type="uint8" offset="1"/><channel type="uint8"/><session type="uint16" offset="2"/></packet>',
    )
    unit = translation(loaded, 9)
    assert unit.request(1, 5) is None, "the name of the session is not yet known"
    assert unit.source_packet(struct.pack(">BBHI", 9, 0, 777, 4)) is not None
    assert unit.request(2, 3) == struct.pack(">BBHI", 9, 2, 777, 2)
    assert unit.request(2, 10_000) == struct.pack(">BBHI", 9, 254, 777, 2)


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        ('<packet name="p" headerSize="4"><sequence type="uint32" counts="bytes"/></packet>', "counts of <sequence>"),
        ('<packet name="p" headerSize="4" requests="yes"/>', "requests is 'yes'"),
        ('<packet name="p" headerSize="4" requests="header"><sequence type="uint32"/></packet>', "sequence and count"),
        ('<packet name="p" headerSize="4"><session type="char" length="5"/></packet>', "session ends beyond"),
        ('<packet name="p" headerSize="4"><session type="int16"/></packet>', "must be an unsigned integer"),
        ('<packet name="p" headerSize="4"><length type="uint16" adds="256"/></packet>', "must be from 0 to 255"),
    ],
)
def test_a_packet_header_that_cannot_be_used_is_refused(tmp_path: Path, packet: str, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        venue(tmp_path, packet)
