"""Puts fragments of IP packets together again: RFC 791 (IPv4) and RFC 8200 section 4.5 (IPv6). Pure.

Invariant: the memory is bounded. When there are too many incomplete packets, the oldest is given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PACKETS_MAX = 64  # incomplete at the same time; the fragments of one packet follow each other closely
SIZE_MAX = 65_535  # of a packet's content


@dataclass(slots=True)
class _Incomplete:
    parts: dict[int, bytes] = field(default_factory=dict)  # by offset
    size: int | None = None  # known from the last fragment

    def content(self) -> bytes | None:
        """The whole content; None if parts are missing, or if they overlap."""
        joined = bytearray()
        for offset in sorted(self.parts):
            if offset != len(joined):
                return None
            joined += self.parts[offset]
        return bytes(joined) if len(joined) == self.size else None


class Reassembly:
    """The packets of a capture whose fragments have not all been seen.

    Attributes:
        incomplete_count: the fragments that did not become whole packets so far.
    """

    def __init__(self) -> None:
        self._packets: dict[tuple[bytes, bytes, int, int], _Incomplete] = {}
        self.incomplete_count = 0

    def add(
        self, source: bytes, destination: bytes, protocol: int, number: int, offset: int, data: bytes, *, is_last: bool
    ) -> bytes | None:
        """Take a fragment.

        Args:
            number: the identification that all fragments of a packet share.
            offset: of `data` in the packet's content, in bytes.

        Returns:
            The packet's content, once it is whole.
        """
        key = source, destination, protocol, number
        packet = self._packets.setdefault(key, _Incomplete())
        self.incomplete_count += 1
        if offset + len(data) <= SIZE_MAX:
            packet.parts[offset] = data
            if is_last:
                packet.size = offset + len(data)
            if packet.size is not None and (content := packet.content()) is not None:
                self.incomplete_count -= len(packet.parts)
                del self._packets[key]
                return content
        if len(self._packets) > PACKETS_MAX:
            del self._packets[next(iter(self._packets))]
        return None
