"""IEX TOPS and DEEP: our document reads a real capture as an independent decoder reads it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from iex_parser.messages import DEEP_1_0, TOPS_1_6, decode_message
from iex_parser.parser import DeepPcapReader
from scapy.all import UDP, PcapReader

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.formats.packets.iex_tp import IEX_TP_HEADER, PROTOCOL_TOPS, decode_iex_segment
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.real_data import shared_file

FORMAT = load_source_format(document("iex.xml"))
READER = FrameReader(FORMAT)
# our field: theirs, if the names differ
RENAMED = {
    "systemEvent": {"event": "event"},
    "securityDirectory": {"adjusted_poc_price": "adjusted_poc_close"},
    "operationalHalt": {"status": "halt_status"},
    "securityEvent": {"event": "security_event"},
    "auctionInformation": {
        "indicative_price": "indicative_clearing_price",
        "scheduled_time": "scheduled_auction_time",
        "book_clearing_price": "auction_book_clearing_price",
        "lower_collar": "lower_auction_collar_price",
        "upper_collar": "upper_auction_collar_price",
    },
}


def assert_equal(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare every field of ours with theirs, as they present it; they must have no field that we lack."""
    names = {field: RENAMED.get(name, {}).get(field, field) for field in ours}
    assert set(names.values()) == set(theirs) - {"type", "side"}
    for field, other in names.items():
        value, expected = ours[field], theirs[other]
        if isinstance(expected, datetime):  # made from a float of the nanoseconds, so it is not exact
            seconds = value if field == "scheduled_time" else value / 10**9
            assert datetime.fromtimestamp(seconds, tz=UTC) == expected, (name, field)
        elif isinstance(expected, Decimal) or (other == "adjusted_poc_close"):
            assert (Decimal(value) / 10**4 if isinstance(expected, Decimal) else value) == expected, (name, field)
        elif field == "flags" and isinstance(expected, bytes):  # in a broken trade, the flags are a character
            assert bytes([value]).strip() == expected
        else:
            assert value == expected, (name, field)


def test_a_real_capture_reads_as_another_decoder_reads_it() -> None:
    path = shared_file("iex/TOPS16.pcapng.gz")
    capture = CaptureReader(DecompressedFile(path))
    walker = DeepPcapReader(None, TOPS_1_6, 0)
    sequence, count = 1, 0
    with PcapReader(str(path)) as theirs:
        for datagram, packet in zip(capture, theirs, strict=True):
            assert datagram.payload == bytes(packet[UDP].payload)
            assert datagram.captured_at_ns == int(packet.time * 10**9)
            assert datagram.source_port == packet[UDP].sport
            segment = decode_iex_segment(datagram.payload)
            assert segment.protocol == PROTOCOL_TOPS
            assert segment.sequence == sequence, "the capture has no gap"
            sequence += segment.message_count
            chunk = segment.chunk()
            expected = walker._read(datagram.payload) or []
            if chunk is None:
                assert expected == []
                continue
            ours = list(READER.read(chunk.frames))
            for (name, values), other in zip(ours, expected, strict=True):
                assert_equal(name, values, dict(other))
            count += len(ours)
    assert count == 57_674
    assert capture.passed_over == 0


@pytest.mark.parametrize("name", sorted(FORMAT.messages))
def test_every_message_type_reads_as_another_decoder_reads_it(name: str) -> None:
    message = FORMAT.messages[name]
    body = bytes((13 * place + message.type_id) % 26 + 65 for place in range(1, message.size))
    if name == "auctionInformation":
        body = body[:52] + bytes(4) + body[56:]
    body = body[:1] + (1_500_000_000_000_000_000).to_bytes(8, "little") + body[9:]
    frame = message.size.to_bytes(2, "little") + bytes([message.type_id]) + body
    ((ours, values),) = READER.read(frame)
    assert ours == name
    their_types = {"8": 0x38, "5": 0x35}
    kind = their_types.get(chr(message.type_id), message.type_id)
    assert_equal(name, values, dict(decode_message(DEEP_1_0, kind, body)))


def segment(count: int, frames: bytes, version: int = 1, size: int | None = None) -> bytes:
    return (
        IEX_TP_HEADER.pack(version, PROTOCOL_TOPS, 1, 5, len(frames) if size is None else size, count, 0, 9, 7) + frames
    )


def test_segments_that_contradict_their_headers_are_refused() -> None:
    assert decode_iex_segment(segment(0, b"")).chunk() is None
    chunk = decode_iex_segment(segment(2, b"\1\0a\2\0bc")).chunk()
    assert chunk is not None
    assert (chunk.message_count, chunk.sequence, chunk.sent_at_ns, chunk.session) == (2, 9, 7, b"0x8003/1/5")
    for damaged, reason in (
        (segment(1, b"\1\0a")[:39], "39 bytes"),
        (segment(1, b"\1\0a", version=2), "version is 2"),
        (segment(1, b"\1\0a", size=4), "the payload has 3 bytes, but the header says 4"),
        (segment(2, b"\1\0a"), "2 messages do not fill 3 bytes"),
        (segment(1, b"\2\0a"), "1 messages do not fill 3 bytes"),
        (segment(0, b"\1\0a"), "0 messages do not fill 3 bytes"),
    ):
        with pytest.raises(FormatError, match=reason):
            decode_iex_segment(damaged)
