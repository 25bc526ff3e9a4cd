"""CME MDP 3.0 over UDP: a packet header of 12 bytes (little-endian), then messages of CME's own SBE schema, each after
its size (u16, which includes its own two bytes).

CME numbers packets, not messages, and sends every packet on two lines. `MdpNumbering` merges the lines and numbers the
messages. It is a pure core that takes the time as an argument. The packet numbers of a channel restart at 1 each week.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk

MDP_HEADER = struct.Struct("<IQ")
MDP_HEADER_SIZE = MDP_HEADER.size
MESSAGE_PREFIX_SIZE = 10  # size and SBE message header
assert MDP_HEADER_SIZE == 12


class MdpPacket(NamedTuple):
    """A packet.

    Attributes:
        sequence: the number of the packet in its channel.
        sent_at_ns: nanoseconds since the Unix epoch.
        frames: the messages, each after its size.
    """

    sequence: int
    sent_at_ns: int
    message_count: int
    frames: bytes


def decode_mdp_packet(datagram: bytes) -> MdpPacket:
    """Decode a packet's header and check that its messages fill it.

    Raises:
        FormatError: its messages do not fill it.
    """
    if len(datagram) < MDP_HEADER_SIZE:
        raise FormatError(f"the datagram has {len(datagram)} bytes; an MDP header has {MDP_HEADER_SIZE}")
    sequence, sent_at_ns = MDP_HEADER.unpack_from(datagram)
    frames = datagram[MDP_HEADER_SIZE:]
    offset = count = 0
    while offset < len(frames):
        size = int.from_bytes(frames[offset : offset + 2], "little")
        if size < MESSAGE_PREFIX_SIZE or offset + size > len(frames):
            raise FormatError(f"offset {MDP_HEADER_SIZE + offset}: a message of {size} bytes does not fit")
        offset += size
        count += 1
    return MdpPacket(sequence, sent_at_ns, count, frames)


@dataclass(frozen=True, slots=True)
class MdpDeliver:
    """Messages of the next packet; messages are numbered from 1 since the numbering began."""

    packet_sequence: int
    chunk: FrameChunk


@dataclass(frozen=True, slots=True)
class MdpGap:
    """Packets that neither line delivered in time. The number of messages in them is unknown, so the numbering
    continues as if there were none, and the channel's books must be rebuilt from its snapshots."""

    first_packet: int
    packet_count: int


@dataclass(frozen=True, slots=True)
class MdpReset:
    """The channel's packet numbers restart at 1."""


MdpEffect: TypeAlias = MdpDeliver | MdpGap | MdpReset


class MdpNumbering:
    """Merges the lines of one channel.

    Args:
        wait_ns: how long to wait for the other line to deliver a missing packet.
        held_max: the most packets held after a missing one; with more, the missing packet is given up immediately.
        next_packet: the number of the first packet to deliver; None: the first packet received.
    """

    def __init__(self, wait_ns: int = 5_000_000, held_max: int = 10_000, next_packet: int | None = None) -> None:
        self._wait_ns = wait_ns
        self._held_max = held_max
        self._next_packet = next_packet
        self._next_message = 1
        self._held: dict[int, MdpPacket] = {}
        self._deadline_ns: int | None = None
        self.duplicates = 0
        self.malformed = 0

    def next_deadline_ns(self) -> int | None:
        """When `on_deadline` is due; None: no packet is missing."""
        return self._deadline_ns

    def on_packet(self, datagram: bytes, now_ns: int) -> list[MdpEffect]:
        """Take a datagram of any line."""
        try:
            packet = decode_mdp_packet(datagram)
        except FormatError:
            self.malformed += 1
            return []
        return self.take(packet, now_ns)

    def take(self, packet: MdpPacket, now_ns: int) -> list[MdpEffect]:
        """Take a decoded packet of any line; of any venue that numbers packets."""
        effects: list[MdpEffect] = []
        if self._next_packet is None:
            self._next_packet = packet.sequence
        elif packet.sequence == 1 and self._next_packet > 2:
            self._flush(effects)
            effects.append(MdpReset())
            self._next_packet = 1
        if packet.sequence < self._next_packet or packet.sequence in self._held:
            self.duplicates += 1
        else:
            self._held[packet.sequence] = packet
        self._drain(effects)
        if len(self._held) > self._held_max:
            self._skip(effects)
        self._arm(effects, now_ns)
        return effects

    def on_deadline(self, now_ns: int) -> list[MdpEffect]:
        """The deadline has passed: give up the missing packets."""
        effects: list[MdpEffect] = []
        if self._deadline_ns is not None and now_ns >= self._deadline_ns:
            self._skip(effects)
            self._arm(effects, now_ns)
        return effects

    def _drain(self, effects: list[MdpEffect]) -> None:
        assert self._next_packet is not None
        while (packet := self._held.pop(self._next_packet, None)) is not None:
            self._next_packet += 1
            if packet.message_count:
                chunk = FrameChunk(packet.frames, packet.message_count, self._next_message, packet.sent_at_ns)
                effects.append(MdpDeliver(packet.sequence, chunk))
                self._next_message += packet.message_count

    def _skip(self, effects: list[MdpEffect]) -> None:
        assert self._next_packet is not None
        first = min(self._held)
        effects.append(MdpGap(self._next_packet, first - self._next_packet))
        self._next_packet = first
        self._drain(effects)

    def _flush(self, effects: list[MdpEffect]) -> None:
        while self._held:
            self._skip(effects)

    def _arm(self, effects: list[MdpEffect], now_ns: int) -> None:
        if not self._held:
            self._deadline_ns = None
        elif self._deadline_ns is None or effects:  # another packet is missing now
            self._deadline_ns = now_ns + self._wait_ns
