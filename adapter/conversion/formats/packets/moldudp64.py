"""MoldUDP64: packets of numbered messages over UDP, as NASDAQ's and other venues' feeds send them.

A downstream packet is session (10 characters), sequence of the first message (u64) and count (u16), all big-endian,
then messages, each after its length (u16). A count of 0 is a heartbeat, whose `sequence` is that of the next message.
A count of 65535 is the end of the session. A request for old messages consists of the same 20 bytes alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk

MOLD_HEADER = struct.Struct(">10sQH")
MOLD_HEADER_SIZE = MOLD_HEADER.size
END_OF_SESSION_COUNT = 0xFFFF
MESSAGES_PER_PACKET_MAX = END_OF_SESSION_COUNT - 1
assert MOLD_HEADER_SIZE == 20


class MoldPacket(NamedTuple):
    """A downstream packet.

    Attributes:
        sequence: the number of the first message; in a heartbeat or at the end of the session, of the next message.
        message_count: the number of messages in the packet.
        frames: the messages, each after its length.
    """

    session: bytes
    sequence: int
    message_count: int
    is_end: bool
    frames: bytes


def decode_mold_packet(datagram: bytes, *, may_be_unnumbered: bool = False) -> MoldPacket:
    """Decode a downstream packet and check that its messages fill it; the content of messages is not checked.

    Args:
        may_be_unnumbered: accept messages with the sequence number 0, as in captures of some test systems.

    Raises:
        FormatError: its content does not match its header.
    """
    if len(datagram) < MOLD_HEADER_SIZE:
        raise FormatError(f"the datagram has {len(datagram)} bytes; a MoldUDP64 header has {MOLD_HEADER_SIZE}")
    session, sequence, count = MOLD_HEADER.unpack_from(datagram)
    is_end = count == END_OF_SESSION_COUNT
    if is_end:
        count = 0
    frames = datagram[MOLD_HEADER_SIZE:]
    if message_offset(frames, count) != len(frames):
        raise FormatError(f"{count} messages do not fill {len(frames)} bytes")
    if count and sequence == 0 and not may_be_unnumbered:
        raise FormatError("sequence 0: messages are numbered from 1")
    return MoldPacket(session, sequence, count, is_end, frames)


def encode_mold_packet(session: bytes, sequence: int, messages: Sequence[bytes]) -> bytes:
    """A downstream packet of these messages; without messages it is a heartbeat."""
    assert len(messages) <= MESSAGES_PER_PACKET_MAX
    head = MOLD_HEADER.pack(session.ljust(10), sequence, len(messages))
    return head + b"".join(struct.pack(">H", len(message)) + message for message in messages)


def encode_end_of_session(session: bytes, next_sequence: int) -> bytes:
    """The packet that ends a session: no message follows."""
    return MOLD_HEADER.pack(session.ljust(10), next_sequence, END_OF_SESSION_COUNT)


def encode_mold_request(session: bytes, sequence: int, count: int) -> bytes:
    """A request for `count` messages from `sequence` on."""
    return MOLD_HEADER.pack(session.ljust(10), sequence, count)


def message_offset(frames: bytes, skip: int) -> int:
    """Where message number `skip` begins.

    Raises:
        FormatError: the frames end before it.
    """
    offset = 0
    for _ in range(skip):
        if offset + 2 > len(frames):
            break
        offset += 2 + int.from_bytes(frames[offset : offset + 2], "big")
    else:
        if offset <= len(frames):
            return offset
    raise FormatError(f"the packet ends before message {skip}")


def chunk_from(packet: MoldPacket, first_sequence: int) -> FrameChunk:
    """The packet's messages from `first_sequence` on, which must be in the packet."""
    skip = first_sequence - packet.sequence
    assert 0 <= skip < packet.message_count
    frames = packet.frames[message_offset(packet.frames, skip) :] if skip else packet.frames
    return FrameChunk(frames, packet.message_count - skip, first_sequence, session=packet.session)
