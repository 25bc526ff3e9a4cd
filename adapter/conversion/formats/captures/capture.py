"""The UDP datagrams of a packet capture.

Link layers: Ethernet with any number of VLAN tags, Linux "cooked" (both versions), raw IP, BSD loopback. IPv4 and IPv6;
fragments are put together. Frames without UDP are passed over and counted; so are datagrams that are not whole, which
the capture's snap length cut off.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from typing import BinaryIO, NamedTuple

from tandemfeed.adapter.conversion.formats.captures.capture_file import CaptureFrames, Frame
from tandemfeed.adapter.conversion.formats.captures.fragments import Reassembly

LINK_ETHERNET, LINK_COOKED, LINK_COOKED_2 = 1, 113, 276
LINKS_LOOPBACK = (0, 108)
LINKS_RAW = (12, 14, 101, 228, 229)  # standard number, two system-specific ones, IPv4 only, IPv6 only
VLAN_TAGS = (0x8100, 0x88A8, 0x9100)
IPV4, IPV6, UDP = 0x0800, 0x86DD, 17
IPV4_MORE_FRAGMENTS, IPV4_FRAGMENT_OFFSET = 0x2000, 0x1FFF
UDP_SIZE, PORTS_SIZE = 8, 4
IPV6_FRAGMENT, IPV6_EXTENSIONS = 44, (0, 43, 60)  # hop-by-hop, routing, destination options


class Destination(NamedTuple):
    """Where a datagram was sent."""

    address: bytes
    port: int


class Datagram(NamedTuple):
    """One UDP datagram.

    Attributes:
        captured_at_ns: the capturing host's wall clock, of its last fragment.
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
        address = ip_address(self.destination)
        return f"{f'[{address}]' if address.version == 6 else address}:{self.destination_port}"


class CaptureReader:
    """The UDP datagrams of one capture, in order.

    Args:
        file: the capture, decompressed and buffered; it is read as a stream.

    Attributes:
        frames: the frames of the capture.
        frame_count: frames read so far.
        other_count: frames so far that contain no UDP.
        cut: the datagrams so far that are not whole, by destination; None: that is cut off, too.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.frames = CaptureFrames(file)
        self._fragments = Reassembly()
        self.other_count = 0
        self.cut = Counter[Destination | None]()
        self.frame_count = 0

    @property
    def passed_over(self) -> int:
        """The frames that are no part of a whole UDP datagram."""
        return self.other_count + self.cut.total() + self.fragment_count

    @property
    def fragment_count(self) -> int:
        """The fragments that are no part of a whole UDP datagram."""
        return self._fragments.incomplete_count

    def __iter__(self) -> Iterator[Datagram]:
        """Raises FormatError, with the offset, if the file is damaged or not a capture."""
        for frame in self.frames:
            datagram = self.datagram(frame)
            if datagram is not None:
                yield datagram

    def datagram(self, frame: Frame) -> Datagram | None:
        """Count the next frame; returns its datagram, or the one that it completes."""
        self.frame_count += 1
        content = self._udp_content(frame)
        if content is None:
            return None
        source, destination, segment = content
        source_port, destination_port, size = struct.unpack_from(">HHH", segment)
        payload = bytes(segment[UDP_SIZE:size])
        return Datagram(frame.captured_at_ns, source, source_port, destination, destination_port, payload)

    def _udp_content(self, frame: Frame) -> tuple[bytes, bytes, memoryview] | None:
        """(source, destination, UDP segment) of a frame; None if it contains no segment, or not the end of one."""
        data, packet = memoryview(frame.data), None
        try:
            kind, offset = _network_layer(frame.link, data)
            packet = _ipv4(data[offset:]) if kind == IPV4 else _ipv6(data[offset:]) if kind == IPV6 else None
        except (IndexError, struct.error):  # the frame ends in a header
            if frame.is_cut:
                self.cut[None] += 1
                return None
        if packet is None or packet.protocol != UDP:
            self.other_count += 1
            return None
        content = packet.content
        if packet.number is not None:
            whole = self._fragments.add(
                packet.source, packet.destination, UDP, packet.number, packet.offset, bytes(content),
                is_last=packet.is_last,
            )  # fmt: skip
            if whole is None:
                return None
            content = memoryview(whole)
        if len(content) < UDP_SIZE or not UDP_SIZE <= int.from_bytes(content[4:6], "big") <= len(content):
            port = int.from_bytes(content[2:4], "big") if len(content) >= PORTS_SIZE else 0
            self.cut[Destination(packet.destination, port) if port else None] += 1
            return None
        return packet.source, packet.destination, content


class _Packet(NamedTuple):
    """An IP packet. Attributes: number: the identification of a fragment; None: the packet is whole."""

    source: bytes
    destination: bytes
    protocol: int
    content: memoryview
    number: int | None = None
    offset: int = 0
    is_last: bool = True


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


def _ipv4(packet: memoryview) -> _Packet:
    header_size = 4 * (packet[0] & 0xF)
    size, number, fragment = struct.unpack_from(">HHH", packet, 2)
    source, destination, protocol = bytes(packet[12:16]), bytes(packet[16:20]), packet[9]
    if not fragment & (IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET):
        return _Packet(source, destination, protocol, packet[header_size:])
    is_last = not fragment & IPV4_MORE_FRAGMENTS
    content = packet[header_size:size]  # without the padding of a short Ethernet frame
    offset = 8 * (fragment & IPV4_FRAGMENT_OFFSET)
    return _Packet(source, destination, protocol, content, number, offset, is_last)


def _ipv6(packet: memoryview) -> _Packet:
    kind, offset, end = packet[6], 40, 40 + struct.unpack_from(">H", packet, 4)[0]
    source, destination = bytes(packet[8:24]), bytes(packet[24:40])
    while kind in IPV6_EXTENSIONS:
        kind, offset = packet[offset], offset + 8 * (packet[offset + 1] + 1)
    if kind != IPV6_FRAGMENT:
        return _Packet(source, destination, kind, packet[offset:])
    kind, place, number = struct.unpack_from(">BxHI", packet, offset)
    return _Packet(source, destination, kind, packet[offset + 8 : end], number, place & 0xFFF8, not place & 1)
