"""Reads the frames of a packet capture: pcap (micro- and nanoseconds, either byte order) and pcapng.

The file is read as a stream, one frame at a time, so a capture of any size needs little memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tandemfeed.adapter.conversion.formats.chunks import FormatError

PCAP_MAGICS = {0xA1B2C3D4: 1_000, 0xA1B23C4D: 1}  # -> nanoseconds per unit of the time stamp's fraction
PCAP_BEGINNINGS = {  # -> byte order; magic number and version 2.4
    struct.pack(order + "IHH", magic, 2, 4): order for magic in PCAP_MAGICS for order in "<>"
}
SECTION_HEADER, INTERFACE, OLD_PACKET, SIMPLE_PACKET, ENHANCED_PACKET = 0x0A0D0D0A, 1, 2, 3, 6
BYTE_ORDER_MAGIC = 0x1A2B3C4D
OPTION_TIME_RESOLUTION, OPTION_TIME_OFFSET = 9, 14
SIZE_MAX = 16 << 20  # of a block; tools write frames of at most 256 KiB, so a larger one is damage


class Frame(NamedTuple):
    """A captured frame.

    Attributes:
        captured_at_ns: the capturing host's wall clock.
        link: the type of its link layer (LINKTYPE_…).
        data: as many of its bytes as were captured.
        size: of the frame, in bytes.
    """

    captured_at_ns: int
    link: int
    data: bytes
    size: int

    @property
    def is_cut(self) -> bool:
        """True if not all of the frame was captured."""
        return self.size > len(self.data)


class Interface(NamedTuple):
    link: int
    ticks_per_second: int
    offset_seconds: int
    size_max: int

    def at_ns(self, ticks: int) -> int:
        return ticks * 1_000_000_000 // self.ticks_per_second + self.offset_seconds * 1_000_000_000


class CaptureFrames:
    """The frames of a capture, in order. What it knows of the file is public, for another reader beside this one.

    Args:
        file: decompressed and buffered, because it is read in small pieces.

    Attributes:
        offset: of what is read next. A reader that takes bytes from the file between two frames adds their number.
        is_pcapng: False: pcap.
        order: of bytes: < or >.
        unit_ns, link: of a pcap file's times, and its link layer.
        interfaces: of the pcapng section that is being read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.offset = 0
        self.is_pcapng, self.order = False, "<"
        self.unit_ns, self.link = 0, 0
        self.interfaces: list[Interface] = []

    def __iter__(self) -> Iterator[Frame]:
        """Raises FormatError, with the offset, if the file is damaged or not a capture."""
        magic = self._take_any(4)
        if len(magic) == 4:
            if int.from_bytes(magic, "big") == SECTION_HEADER:
                self.is_pcapng = True
                return self._pcapng_frames()
            for order in "<>":
                if struct.unpack(order + "I", magic)[0] in PCAP_MAGICS:
                    self.order = order
                    return self._pcap_frames(magic)
        raise FormatError("offset 0: neither a pcap nor a pcapng file")

    def _take_any(self, size: int) -> bytes:
        """The next bytes; fewer at the end of the file."""
        data = self._file.read(size)
        self.offset += len(data)
        return data

    def _take(self, size: int, what: str) -> bytes:
        """The next bytes, which belong to `what`."""
        if size > SIZE_MAX:
            raise FormatError(f"offset {self.offset}: {what} has {size} bytes; at most {SIZE_MAX} are possible")
        data = self._file.read(size)
        if len(data) < size:
            raise FormatError(f"offset {self.offset}: {what} has {size} bytes, but only {len(data)} are left")
        self.offset += size
        return data

    def _pcap_frames(self, magic: bytes) -> Iterator[Frame]:
        self._begin_pcap(magic + self._take(20, "the file's header"))
        while first := self._take_any(1):
            header = first + self._take(15, "a packet's header")
            if header[:8] in PCAP_BEGINNINGS:  # files were joined
                self._begin_pcap(header + self._take(8, "the file's header"))
                continue
            seconds, fraction, size, sent_size = struct.unpack(self.order + "IIII", header)
            at_ns = seconds * 1_000_000_000 + fraction * self.unit_ns
            yield Frame(at_ns, self.link, self._take(size, "a packet"), sent_size)

    def _begin_pcap(self, header: bytes) -> None:
        self.order = PCAP_BEGINNINGS.get(header[:8], self.order)
        self.unit_ns = PCAP_MAGICS[struct.unpack(self.order + "I", header[:4])[0]]
        self.link = struct.unpack(self.order + "20xI", header)[0] & 0x0FFF_FFFF

    def _pcapng_frames(self) -> Iterator[Frame]:
        """The frames, after the type of the first block was read."""
        begin, kind_bytes = 0, SECTION_HEADER.to_bytes(4, "big")
        while kind_bytes:
            rest = self._take(12 - len(kind_bytes), "a block")
            kind_bytes, size_bytes, start = (kind_bytes + rest)[:4], rest[-8:-4], rest[-4:]
            kind = int.from_bytes(kind_bytes, "big" if self.order == ">" else "little")
            if kind == SECTION_HEADER:
                self.order, self.interfaces = _byte_order(start, begin), []
            size = struct.unpack(self.order + "I", size_bytes)[0]
            if size < 12 or size % 4:
                raise FormatError(f"offset {begin}: a block has an impossible length of {size} bytes")
            body = (start + self._take(size - 12, "a block"))[: size - 12]
            try:
                if kind == INTERFACE:
                    self.interfaces.append(_interface(body, self.order))
                elif kind in (ENHANCED_PACKET, OLD_PACKET, SIMPLE_PACKET):
                    yield _block_frame(kind, body, self.order, self.interfaces)
            except (struct.error, IndexError):
                raise FormatError(f"offset {begin}: a block of type {kind} is damaged") from None
            begin = self.offset
            kind_bytes = self._take_any(1)


def _byte_order(magic: bytes, offset: int) -> str:
    for order in "<>":
        if struct.unpack(order + "I", magic)[0] == BYTE_ORDER_MAGIC:
            return order
    raise FormatError(f"offset {offset}: a section has no byte-order magic")


def _interface(body: bytes, order: str) -> Interface:
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
    return Interface(link, ticks, seconds, size_max)


def _block_frame(kind: int, body: bytes, order: str, interfaces: list[Interface]) -> Frame:
    if kind == SIMPLE_PACKET:
        sent_size = struct.unpack_from(order + "I", body)[0]
        interface, at_ns, begin = interfaces[0], 0, 4
        size = min(sent_size, interface.size_max or sent_size)
    else:
        layout = order + ("IIIII" if kind == ENHANCED_PACKET else "HxxIIII")
        number, high, low, size, sent_size = struct.unpack_from(layout, body)
        interface, begin = interfaces[number], 20
        at_ns = interface.at_ns(high << 32 | low)
    if begin + size > len(body):
        raise IndexError
    return Frame(at_ns, interface.link, body[begin : begin + size], sent_size)
