"""Reads UDP datagrams from packet captures: pcap (micro- and nanoseconds, either byte order) and pcapng.

Link layers: Ethernet with any number of VLAN tags, Linux "cooked" (both versions), raw IP, BSD loopback. IPv4 and IPv6.
Frames without UDP and fragments of IP packets are skipped; `CaptureReader.passed_over` counts them.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

from tandemfeed.adapter.conversion.formats.chunks import FormatError

PCAP_MAGICS = {0xA1B2C3D4: 1_000, 0xA1B23C4D: 1}  # -> nanoseconds per unit of the time stamp's fraction
SECTION_HEADER, INTERFACE, OLD_PACKET, SIMPLE_PACKET, ENHANCED_PACKET = 0x0A0D0D0A, 1, 2, 3, 6
BYTE_ORDER_MAGIC = 0x1A2B3C4D
OPTION_TIME_RESOLUTION, OPTION_TIME_OFFSET = 9, 14
LINK_ETHERNET, LINK_COOKED, LINK_COOKED_2 = 1, 113, 276
LINKS_LOOPBACK = (0, 108)
LINKS_RAW = (12, 14, 101, 228, 229)  # standard number, two system-specific ones, IPv4 only, IPv6 only
VLAN_TAGS = (0x8100, 0x88A8, 0x9100)
IPV4, IPV6, UDP = 0x0800, 0x86DD, 17
IPV6_EXTENSIONS = (0, 43, 60)  # hop-by-hop, routing, destination options; fragments are skipped


class Datagram(NamedTuple):
    """One UDP datagram.

    Attributes:
        captured_at_ns: the capturing host's wall clock.
        source, destination: the bytes of the IP addresses; `where` formats them.
    """

    captured_at_ns: int
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    payload: bytes

    @property
    def where(self) -> str:
        """The destination in the usual notation."""
        return f"{ip_address(self.destination)}:{self.destination_port}"


class CaptureReader:
    """The UDP datagrams of one capture, in order.

    Args:
        data: the bytes of the file, which may be compressed with gzip.
    """

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        self.passed_over = 0

    def __iter__(self) -> Iterator[Datagram]:
        """Raises FormatError, with the offset, if the file is damaged or not a capture."""
        for captured_at_ns, link, frame in self._frames():
            datagram = _datagram(captured_at_ns, link, frame)
            if datagram is None:
                self.passed_over += 1
            else:
                yield datagram

    def _frames(self) -> Iterator[tuple[int, int, memoryview]]:
        data = self._data
        if len(data) >= 4:
            if int.from_bytes(data[:4], "big") == SECTION_HEADER:
                yield from _pcapng_frames(data)
                return
            for order in "<>":
                if struct.unpack_from(order + "I", data)[0] in PCAP_MAGICS:
                    yield from _pcap_frames(data, order)
                    return
        raise FormatError("offset 0: neither a pcap nor a pcapng file")


def _take(data: memoryview, offset: int, size: int, what: str) -> memoryview:
    if offset + size > len(data):
        raise FormatError(f"offset {offset}: {what} has {size} bytes, but only {len(data) - offset} are left")
    return data[offset : offset + size]


def _pcap_frames(data: memoryview, order: str) -> Iterator[tuple[int, int, memoryview]]:
    magic, link = struct.unpack_from(order + "I16xI", _take(data, 0, 24, "the file's header"))
    unit_ns, link, offset = PCAP_MAGICS[magic], link & 0x0FFF_FFFF, 24
    header = struct.Struct(order + "IIII")
    while offset < len(data):
        seconds, fraction, size, _ = header.unpack_from(_take(data, offset, header.size, "a packet's header"))
        offset += header.size
        yield seconds * 1_000_000_000 + fraction * unit_ns, link, _take(data, offset, size, "a packet")
        offset += size


class _Interface(NamedTuple):
    link: int
    ticks_per_second: int
    offset_seconds: int
    size_max: int

    def at_ns(self, ticks: int) -> int:
        return ticks * 1_000_000_000 // self.ticks_per_second + self.offset_seconds * 1_000_000_000


def _pcapng_frames(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    offset, order = 0, "<"
    interfaces: list[_Interface] = []
    while offset < len(data):
        kind = int.from_bytes(_take(data, offset, 12, "a block")[:4], "big" if order == ">" else "little")
        if kind == SECTION_HEADER:
            magic = data[offset + 8 : offset + 12]
            order = "<" if int.from_bytes(magic, "little") == BYTE_ORDER_MAGIC else ">"
            if struct.unpack(order + "I", magic)[0] != BYTE_ORDER_MAGIC:
                raise FormatError(f"offset {offset}: a section has no byte-order magic")
            interfaces = []
        size = struct.unpack_from(order + "I", data, offset + 4)[0]
        if size < 12 or size % 4:
            raise FormatError(f"offset {offset}: a block has an impossible length of {size} bytes")
        body = _take(data, offset, size, "a block")[8 : size - 4]
        try:
            if kind == INTERFACE:
                interfaces.append(_interface(body, order))
            elif kind in (ENHANCED_PACKET, OLD_PACKET, SIMPLE_PACKET):
                yield _block_frame(kind, body, order, interfaces)
        except (struct.error, IndexError):
            raise FormatError(f"offset {offset}: a block of type {kind} is damaged") from None
        offset += size


def _interface(body: memoryview, order: str) -> _Interface:
    link, size_max = struct.unpack_from(order + "HxxI", body)
    ticks, seconds, offset = 1_000_000, 0, 8
    while offset + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, offset)
        if code == OPTION_TIME_RESOLUTION:
            exponent = body[offset + 4]
            ticks = 1 << (exponent & 0x7F) if exponent & 0x80 else 10 ** min(exponent, 18)
        elif code == OPTION_TIME_OFFSET:
            seconds = struct.unpack_from(order + "q", body, offset + 4)[0]
        offset += 4 + (length + 3) // 4 * 4
    return _Interface(link, ticks, seconds, size_max)


def _block_frame(kind: int, body: memoryview, order: str, interfaces: list[_Interface]) -> tuple[int, int, memoryview]:
    if kind == SIMPLE_PACKET:
        size = struct.unpack_from(order + "I", body)[0]
        size = min(size, interfaces[0].size_max or size)
        return 0, interfaces[0].link, _take(body, 4, size, "a packet")
    code = "IIII" if kind == ENHANCED_PACKET else "HxxIII"
    number, high, low, size = struct.unpack_from(order + code, body)
    interface = interfaces[number]
    return interface.at_ns(high << 32 | low), interface.link, _take(body, 20, size, "a packet")


def _datagram(captured_at_ns: int, link: int, frame: memoryview) -> Datagram | None:
    """The UDP datagram of a frame; None if it contains none."""
    try:
        kind, offset = _network_layer(link, frame)
        if kind == IPV4:
            return _ipv4(captured_at_ns, frame[offset:])
        if kind == IPV6:
            return _ipv6(captured_at_ns, frame[offset:])
    except (IndexError, struct.error):  # cut off by the capture's snap length
        return None
    return None


def _network_layer(link: int, frame: memoryview) -> tuple[int, int]:
    """(type, offset) of the network-layer packet in a frame."""
    if link == LINK_ETHERNET:
        offset = 12
    elif link == LINK_COOKED:
        offset = 14
    elif link == LINK_COOKED_2:
        return struct.unpack_from(">H", frame)[0], 20
    elif link in LINKS_RAW or link in LINKS_LOOPBACK:
        offset = 4 if link in LINKS_LOOPBACK else 0
        return (IPV4 if frame[offset] >> 4 == 4 else IPV6), offset
    else:
        return 0, 0
    kind = struct.unpack_from(">H", frame, offset)[0]
    while kind in VLAN_TAGS:
        offset += 4
        kind = struct.unpack_from(">H", frame, offset)[0]
    return kind, offset + 2


def _ipv4(captured_at_ns: int, packet: memoryview) -> Datagram | None:
    header_size, fragment = 4 * (packet[0] & 0xF), struct.unpack_from(">H", packet, 6)[0]
    if packet[9] != UDP or fragment & 0x3FFF:  # not the only fragment
        return None
    return _udp(captured_at_ns, bytes(packet[12:16]), bytes(packet[16:20]), packet[header_size:])


def _ipv6(captured_at_ns: int, packet: memoryview) -> Datagram | None:
    kind, offset = packet[6], 40
    while kind in IPV6_EXTENSIONS:
        kind, offset = packet[offset], offset + 8 * (packet[offset + 1] + 1)
    if kind != UDP:
        return None
    return _udp(captured_at_ns, bytes(packet[8:24]), bytes(packet[24:40]), packet[offset:])


def _udp(captured_at_ns: int, source: bytes, destination: bytes, segment: memoryview) -> Datagram | None:
    source_port, destination_port, size = struct.unpack_from(">HHH", segment)
    if not 8 <= size <= len(segment):
        return None
    return Datagram(captured_at_ns, source, source_port, destination, destination_port, bytes(segment[8:size]))
