"""IEX-TP, the transport of IEX's TOPS and DEEP: segments of numbered messages over UDP.

A segment is a header of 40 bytes (little-endian), then messages, each after its length (u16). A segment without
messages is a heartbeat. In each session of a channel of a protocol, sequence numbers begin at 1: TOPS and DEEP of a day
have the same session and channel, and numbers of their own.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk

IEX_TP_HEADER = struct.Struct("<BxHIIHHQQQ")
IEX_TP_HEADER_SIZE = IEX_TP_HEADER.size
IEX_TP_VERSION = 1
PROTOCOL_TOPS, PROTOCOL_DEEP = 0x8003, 0x8004
assert IEX_TP_HEADER_SIZE == 40


class IexSegment(NamedTuple):
    """One segment.

    Attributes:
        protocol: the protocol of the messages: TOPS or DEEP.
        stream_offset: the number of bytes of the session before this segment's messages.
        sequence: the number of the first message; in a heartbeat, of the next message.
        sent_at_ns: nanoseconds since the Unix epoch.
        frames: the messages, each after its length.
    """

    protocol: int
    channel_id: int
    session_id: int
    message_count: int
    stream_offset: int
    sequence: int
    sent_at_ns: int
    frames: bytes

    @property
    def session(self) -> bytes:
        """The name of the numbered stream: protocol, channel and session."""
        return stream_name(self.protocol, self.channel_id, self.session_id).encode()

    def chunk(self) -> FrameChunk | None:
        """The messages; None for a heartbeat."""
        if self.message_count == 0:
            return None
        return FrameChunk(self.frames, self.message_count, self.sequence, self.sent_at_ns, self.session)


def stream_name(protocol: int, channel: int, session: int) -> str:
    """The name of a numbered stream, such as `0x8003/1/17357`."""
    return f"{protocol:#06x}/{channel}/{session}"


def decode_iex_segment(datagram: bytes) -> IexSegment:
    """Decode a segment and check that its messages fill it.

    Raises:
        FormatError: its content does not match its header.
    """
    if len(datagram) < IEX_TP_HEADER_SIZE:
        raise FormatError(f"the datagram has {len(datagram)} bytes; an IEX-TP header has {IEX_TP_HEADER_SIZE}")
    version, protocol, channel, session, size, count, stream_offset, sequence, sent_at = IEX_TP_HEADER.unpack_from(
        datagram
    )
    if version != IEX_TP_VERSION:
        raise FormatError(f"the IEX-TP version is {version}; expected {IEX_TP_VERSION}")
    frames = datagram[IEX_TP_HEADER_SIZE:]
    if size != len(frames):
        raise FormatError(f"the payload has {len(frames)} bytes, but the header says {size}")
    offset = 0
    for _ in range(count):
        offset += 2 + int.from_bytes(frames[offset : offset + 2], "little")
        if offset > len(frames):
            break
    if offset != len(frames):
        raise FormatError(f"{count} messages do not fill {len(frames)} bytes")
    return IexSegment(protocol, channel, session, count, stream_offset, sequence, sent_at, frames)
