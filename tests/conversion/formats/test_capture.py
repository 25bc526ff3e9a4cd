"""The reader returns the datagrams of packet captures of every kind, which another tool writes."""

from __future__ import annotations

import contextlib
import struct
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.all import (
    IP,
    TCP,
    UDP,
    CookedLinux,
    Dot1Q,
    Ether,
    IPv6,
    IPv6ExtHdrFragment,
    Packet,
    Raw,
    fragment6,
    wrpcap,
    wrpcapng,
)

from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader, Datagram
from tandemfeed.adapter.conversion.formats.captures.fragments import PACKETS_MAX, Reassembly
from tandemfeed.adapter.conversion.formats.chunks import FormatError

TO = UDP(sport=1000, dport=26_400) / Raw(b"hello")
V4 = IP(src="10.0.0.1", dst="233.54.12.111") / TO
V6 = IPv6(src="fe80::1", dst="ff02::7") / TO


def written(tmp_path: Path, packets: list[Packet], **options: object) -> bytes:
    path = tmp_path / "capture.pcap"
    wrpcap(str(path), packets, **options)
    return path.read_bytes()


def read(data: bytes) -> CaptureReader:
    return CaptureReader(BytesIO(data))


def at(packet: Packet, seconds: int, fraction_ns: int) -> Packet:
    packet.time = seconds + fraction_ns / 10**9
    return packet


@pytest.mark.parametrize(
    ("packet", "where"),
    [
        (Ether() / V4, "233.54.12.111:26400"),
        (Ether() / V6, "[ff02::7]:26400"),
        (Ether() / Dot1Q(vlan=5) / V4, "233.54.12.111:26400"),
        (Ether(type=0x88A8) / Dot1Q(vlan=5, type=0x8100) / Dot1Q(vlan=6) / V4, "233.54.12.111:26400"),
        (CookedLinux(proto=0x800) / V4, "233.54.12.111:26400"),
        (V4, "233.54.12.111:26400"),
    ],
    ids=["ethernet", "ipv6", "vlan", "two tags", "cooked", "raw"],
)
def test_datagrams_are_read_from_every_link_layer(tmp_path: Path, packet: Packet, where: str) -> None:
    (datagram,) = read(written(tmp_path, [packet]))
    assert (datagram.where, datagram.source_port, datagram.payload) == (where, 1000, b"hello")


@pytest.mark.parametrize("endianness", ["<", ">"])
@pytest.mark.parametrize("is_nano", [False, True])
def test_times_are_read_in_either_unit_and_byte_order(tmp_path: Path, endianness: str, is_nano: bool) -> None:
    data = written(tmp_path, [at(Ether() / V4, 1_500_000_000, 125_000_000)] * 2, endianness=endianness, nano=is_nano)
    assert [each.captured_at_ns for each in read(data)] == [1_500_000_000_125_000_000] * 2


def test_pcapng_written_by_another_tool_is_read(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcapng"
    wrpcapng(str(path), [at(Ether() / V4, 1_500_000_000, 125_000_000), at(Ether() / V6, 1, 0)])
    first, second = read(path.read_bytes())
    assert (first.captured_at_ns, first.payload, second.where) == (
        1_500_000_000_125_000_000,
        b"hello",
        "[ff02::7]:26400",
    )


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_interfaces_have_their_own_resolution_and_sections_their_own_byte_order(order: str) -> None:
    frame = bytes(Ether() / V4)
    section = block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    nano = block(order, 1, struct.pack(order + "HHI", 1, 0, 0) + struct.pack(order + "HHB3xHH", 9, 1, 9, 0, 0))
    binary = block(
        order,
        1,
        struct.pack(order + "HHI", 1, 0, 0)
        + struct.pack(order + "HHB3x", 9, 1, 0x80 | 10)
        + struct.pack(order + "HHqHH", 14, 8, 100, 0, 0),
    )
    packets = block(order, 6, struct.pack(order + "IIIII", 0, 0, 77, len(frame), len(frame)) + frame)
    packets += block(order, 6, struct.pack(order + "IIIII", 1, 0, 512, len(frame), len(frame)) + frame)
    packets += block(order, 2, struct.pack(order + "HHIIII", 0, 0, 1, 0, len(frame), len(frame)) + frame)
    packets += block(order, 3, struct.pack(order + "I", len(frame)) + frame)
    packets += block(order, 5, bytes(12))  # statistics, not a packet
    times = [each.captured_at_ns for each in read((section + nano + binary + packets) * 2)]
    assert times == [77, 100_500_000_000, 1 << 32, 0] * 2


def test_packets_that_are_not_udp_are_counted_and_skipped(tmp_path: Path) -> None:
    fragment = IP(src="10.0.0.1", dst="10.0.0.2", flags="MF") / TO
    packets = [Ether() / IP() / TCP(), Ether() / fragment, Ether(type=0x0806) / Raw(bytes(28)), Ether() / V4]
    capture = read(written(tmp_path, packets))
    assert [each.payload for each in capture] == [b"hello"]
    assert capture.passed_over == 3


LONG = bytes(range(256)) * 12
LONG_V4 = IP(src="10.0.0.1", dst="233.54.12.111", id=7) / UDP(sport=1000, dport=26_400) / Raw(LONG)
LONG_V6 = IPv6(src="fe80::1", dst="ff02::7") / IPv6ExtHdrFragment(id=9) / UDP(sport=1000, dport=26_400) / Raw(LONG)


@pytest.mark.parametrize(
    "fragments", [LONG_V4.fragment(1_000), fragment6(LONG_V6, 1_280)], ids=["four of IPv4", "three of IPv6"]
)
@given(st.data())
@settings(max_examples=20)
def test_fragments_are_put_together_in_any_order(
    fragments: list[Packet], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp()
    shuffled = [Ether() / each for each in data.draw(st.permutations(fragments))]
    capture = read(written(path, [Ether() / V4, *shuffled, *shuffled[:1]]))
    assert [each.payload for each in capture] == [b"hello", LONG]
    assert capture.passed_over == 1  # the fragment that came again


def test_an_incomplete_datagram_is_passed_over_and_fragments_of_others_are_never_mixed(tmp_path: Path) -> None:
    one, other = LONG_V4.fragment(1_000), IP(src="10.0.0.2", dst="233.54.12.111", id=7) / LONG_V4.payload
    packets = [Ether() / each for each in (*one[:2], *other.fragment(1_000)[2:])]
    capture = read(written(tmp_path, packets))
    assert list(capture) == []
    assert capture.passed_over == 4


def test_fragments_of_endless_incomplete_datagrams_take_bounded_memory() -> None:
    reassembly = Reassembly()
    for number in range(10 * PACKETS_MAX):
        assert reassembly.add(b"s", b"d", 17, number, 0, b"x", is_last=False) is None
    assert reassembly.add(b"s", b"d", 17, number, 1, b"y", is_last=True) == b"xy"
    assert reassembly.add(b"s", b"d", 17, 0, 1, b"y", is_last=True) is None  # given up
    assert reassembly.incomplete_count == 10 * PACKETS_MAX


def test_a_capture_is_read_as_a_stream(tmp_path: Path) -> None:
    file = BytesIO(written(tmp_path, [Ether() / LONG_V4] * 1_000))
    first = next(iter(CaptureReader(file)))
    assert first.payload == LONG
    assert file.tell() < 2 * len(LONG)


def test_a_file_that_is_not_a_capture_is_refused() -> None:
    for nothing in (b"", b"abc", bytes(40)):
        with pytest.raises(FormatError, match="offset 0: neither"):
            list(read(nothing))


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_capture_gives_an_error_or_fewer_datagrams_but_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.pcap"
    if not path.exists():
        wrpcap(str(path), [Ether() / V4, Ether() / V6] * 2)
        wrpcapng(str(path) + "ng", [Ether() / V4, Ether() / V6] * 2)
    whole = bytearray((path if data.draw(st.booleans()) else Path(str(path) + "ng")).read_bytes())
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)):
        whole[place] = value
    cut = bytes(whole[: data.draw(st.integers(4, len(whole)))])
    found: list[Datagram] = []
    with contextlib.suppress(FormatError):
        found += read(cut)
    assert len(found) <= len(cut) // 42
