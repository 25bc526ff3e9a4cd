"""The compiled walk over a capture finds what the reader in Python finds: every datagram, every count, every error."""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.all import IP, TCP, UDP, CookedLinux, Dot1Q, Ether, IPv6, IPv6ExtHdrHopByHop, Packet, Raw

from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.captures.capture_file import ENHANCED_PACKET, INTERFACE, SECTION_HEADER
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.convert_command.captures.capture_walk import TIME_MAX, CaptureWalk, destination
from tandemfeed.adapter.convert_command.captures.keys import KEYS_FIRST, KeyTable
from tandemfeed.adapter.convert_command.captures.rows import AT_NS, FLOW, FRAME, SIZE, START

Found: TypeAlias = tuple[int, tuple[bytes, int], bytes, int]
LONG = bytes(range(256)) * 6


def udp(number: int) -> Packet:
    return UDP(sport=1, dport=26_400 + number % 3) / Raw(bytes([number]) * (number % 7))


def to(number: int) -> Packet:
    return IP(dst=f"233.54.12.{number % 5}") / udp(number)


ETHERNET: list[Packet] = [
    *(Ether() / to(number) for number in range(8)),
    Ether() / IPv6(dst="ff02::7") / udp(3),
    Ether() / Dot1Q(vlan=5) / to(4),
    Ether(type=0x88A8) / Dot1Q(vlan=5, type=0x8100) / Dot1Q(vlan=6) / to(5),
    Ether() / IP() / TCP(),
    Ether(type=0x0806) / Raw(bytes(28)),
    Ether() / IPv6(dst="ff02::7") / IPv6ExtHdrHopByHop() / udp(6),
    Ether() / IP(dst="233.54.12.1", options=b"\1" * 8) / udp(5),
    *(Ether() / part for part in (IP(dst="233.54.12.9", id=7) / UDP(dport=5) / Raw(LONG)).fragment(600)),
]
FRAMES = [bytes(each) for each in ETHERNET]
ODD = [
    *FRAMES,
    bytes(to(3)),
    bytes(CookedLinux(proto=0x800) / to(4)),
    b"",
    b"\x45",
    FRAMES[0][:20],
    FRAMES[0] + bytes(6),
]


def pcap(frames: list[bytes], order: str = "<", link: int = 1) -> bytes:
    head = struct.pack(order + "IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 16, link)
    return head + b"".join(
        struct.pack(order + "IIII", 1_500_000_000 + at, at, len(frame), len(frame)) + frame
        for at, frame in enumerate(frames)
    )


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def pcapng(frames: list[bytes], order: str = "<", link: int = 1) -> bytes:
    """A section whose interfaces have times in microseconds, in 1/1024 s, and in units too small for 64 bits."""
    out = block(order, SECTION_HEADER, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    for option in (b"", struct.pack(order + "HHB3x", 9, 1, 0x80 | 10), struct.pack(order + "HHB3x", 9, 1, 12)):
        out += block(order, INTERFACE, struct.pack(order + "HHI", link, 0, 0) + option)
    for at, frame in enumerate(frames):
        head = struct.pack(order + "IIIII", at % 3, at * 90_000, 77 * at, len(frame), len(frame))
        out += block(order, ENHANCED_PACKET, head + frame) + (block(order, 5, bytes(12)) if at % 4 == 0 else b"")
    return out


def read(data: bytes) -> tuple[list[Found], int, str]:
    """The datagrams, the number of frames passed over, and the error, as the reader in Python finds them."""
    reader, found, error = CaptureReader(BytesIO(data)), list[Found](), ""
    try:
        for each in reader:
            at_ns = max(min(each.captured_at_ns, TIME_MAX), -TIME_MAX)
            found.append((at_ns, (each.destination, each.destination_port), each.payload, reader.frame_count))
    except FormatError as reason:
        error = str(reason)
    return found, reader.passed_over, error


def walked(data: bytes, block_size: int = 1 << 16, rows_max: int = 100) -> tuple[list[Found], int, str]:
    """The same, as the compiled walk finds them."""
    flows = KeyTable()
    walk, found, error = CaptureWalk(BytesIO(data), flows, block_size, rows_max), list[Found](), ""
    try:
        for content, rows in walk:
            for row in rows:
                payload = content[row[START] : row[START] + row[SIZE]].tobytes()
                found.append((int(row[AT_NS]), destination(flows[int(row[FLOW])]), payload, int(row[FRAME])))
    except FormatError as reason:
        error = str(reason)
    return found, walk.reader.passed_over, error


@pytest.mark.parametrize("make", [pcap, pcapng])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("link", [0, 1, 12, 101, 108, 113, 147, 276])
def test_frames_of_every_kind_are_found(make: object, order: str, link: int) -> None:
    assert callable(make)
    data = make(ODD, order, link)
    assert walked(data) == read(data)
    assert link != 1 or len(walked(data)[0]) > 12


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_capture_that_is_cut_or_damaged_gives_the_same_datagrams_and_the_same_error(data: st.DataObject) -> None:
    frames = data.draw(st.lists(st.sampled_from(ODD), max_size=12))
    make, order = data.draw(st.sampled_from((pcap, pcapng))), data.draw(st.sampled_from("<>"))
    whole = bytearray(make(frames, order))
    for place, value in data.draw(st.lists(st.tuples(st.integers(4, len(whole) - 1), st.integers(0, 255)), max_size=3)):
        whole[place] = value
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    size, rows = data.draw(st.integers(16, 700)), data.draw(st.integers(1, 5))
    assert walked(cut, size, rows) == read(cut)


def test_there_is_room_for_any_number_of_destinations() -> None:
    frames = [bytes(Ether() / IP(dst=f"10.0.{at // 250}.{at % 250}") / udp(1)) for at in range(5 * KEYS_FIRST)]
    data = pcap(frames * 2)
    assert walked(data) == read(data)
    assert len({where for _, where, _, _ in walked(data)[0]}) == 5 * KEYS_FIRST


def test_a_record_larger_than_a_block_is_read() -> None:
    data = pcap([bytes(Ether() / IP(dst="10.0.0.1") / UDP() / Raw(bytes(5_000))), FRAMES[0]])
    assert walked(data, 1_000) == read(data)
    assert [len(payload) for _, _, payload, _ in walked(data, 1_000)[0]] == [5_000, 0]


@pytest.mark.parametrize("make", [pcap, pcapng])
def test_captures_that_were_joined_are_read_to_the_end(make: Callable[..., bytes]) -> None:
    data = make(FRAMES[:8], "<") + make(FRAMES[:8], ">") + make([bytes(to(3))], "<", 101)
    assert walked(data) == read(data)
    assert len(read(data)[0]) == 17
