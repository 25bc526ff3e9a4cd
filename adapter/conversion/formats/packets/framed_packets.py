"""Datagrams of any venue whose source format describes them: a packet header (<packet>), then frames (<framing>)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tandemfeed.adapter.conversion.formats.chunks import MESSAGE_COUNT_MAX, FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.frames.frame_walk import FrameWalk
from tandemfeed.adapter.conversion.formats.frames.message_measure import MessageMeasure
from tandemfeed.feedcore.documents.source_layout import HeaderPart, PacketHeader, SourceFormat


class VenuePacket(NamedTuple):
    """A datagram by its header.

    Attributes:
        sequence: the number of the first message; without messages, of the next one. Of the packet, if the format's
            numbers count packets.
        channel: the number of the channel; None if the header has none.
        session: the venue's name of its session; empty if the header has none.
        is_end: the session has ended.
    """

    sequence: int
    message_count: int
    channel: int | None
    session: bytes
    sent_at_ns: int
    is_end: bool
    frames: bytes

    @property
    def stream(self) -> bytes:
        """The name of the stream that its number belongs to."""
        channel = b"" if self.channel is None else b"%d" % self.channel
        return b" ".join(part for part in (channel, self.session) if part)


class FramedPacket(NamedTuple):
    """A decoded datagram of a capture.

    Attributes:
        chunk: its messages; None if it has none.
        channel: identifies the stream that its number belongs to, by channel and session.
        end: the number after its last message.
    """

    chunk: FrameChunk | None
    channel: bytes
    end: int


class PacketDecoder:
    """Decodes datagrams by a source format.

    Raises:
        FormatError: the format does not say where a packet's sequence number is.
    """

    def __init__(self, source_format: SourceFormat) -> None:
        self.header, self._sequence = numbered_header(source_format)
        self._walk = FrameWalk(source_format.framing)
        self._measure = MessageMeasure(source_format) if source_format.framing.is_measured else None

    def packet(self, datagram: bytes) -> VenuePacket:
        """Decode a datagram.

        Raises:
            FormatError: its header and its frames contradict each other.
        """
        header, size = self.header, len(datagram)
        if size < header.size:
            raise FormatError(f"the datagram has {size} bytes; a {header.name} header has {header.size}")
        if header.length is not None and header.length.read(datagram) + header.length_adds != size:
            given = header.length.read(datagram) + header.length_adds
            raise FormatError(f"the header gives {given} bytes, the datagram has {size}")
        frames, count = self._frames(datagram, header.size)
        counted = count if header.count is None else header.count.read(datagram)
        is_end = counted == header.end_of_session
        if count != (0 if is_end else counted):
            raise FormatError(f"the header counts {counted} messages, the datagram has {count}")
        return VenuePacket(
            self._sequence.read(datagram),
            count,
            None if header.channel is None else header.channel.read(datagram),
            b"" if header.session is None else header.session.read(datagram),
            sum(part.read(datagram) for part in header.sent_at),
            is_end,
            frames,
        )

    def _frames(self, datagram: bytes, start: int) -> tuple[bytes, int]:
        """(the messages from `start` on, each with its length; their number)."""
        data = np.frombuffer(datagram, np.uint8)
        if self._measure is not None:
            frames, count, end = self._measure.frames(data, start)
        else:
            end, count = self._walk.skip(data, start, MESSAGE_COUNT_MAX)
            frames = datagram[start:]
        if end != len(datagram):
            raise FormatError(f"offset {end}: no whole message begins here")
        return frames, count

    def decode(self, datagram: bytes) -> FramedPacket:
        """Decode a datagram of a capture.

        Raises:
            FormatError: its header and its frames contradict each other.
        """
        packet = self.packet(datagram)
        first, count = packet.sequence, packet.message_count
        chunk = FrameChunk(packet.frames, count, first, packet.sent_at_ns, packet.stream) if count else None
        return FramedPacket(chunk, packet.stream, first + count)


def numbered_header(source_format: SourceFormat) -> tuple[PacketHeader, HeaderPart]:
    """A format's packet header, and the place of the sequence number in it.

    Raises:
        FormatError: the format does not describe them.
    """
    header = source_format.packet
    if header is None or header.sequence is None:
        what = f"{source_format.document}: this reader needs a <packet> with a <sequence>"
        raise FormatError(f"{what}, which numbers the messages of a datagram")
    return header, header.sequence
