"""Datagrams of any venue whose source format describes them: a packet header (<packet>), then frames (<framing>)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tandemfeed.adapter.conversion.formats.chunks import MESSAGE_COUNT_MAX, FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.frame_walk import FrameWalk
from tandemfeed.feedcore.documents.source_layout import SourceFormat


class FramedPacket(NamedTuple):
    """A decoded datagram.

    Attributes:
        chunk: its messages; None if it has none.
        channel: identifies the stream that its number belongs to.
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
        header = source_format.packet
        if header is None or header.sequence is None:
            what = f"{source_format.document}: this reader needs a <packet> with a <sequence>"
            raise FormatError(f"{what}, which numbers the messages of a datagram")
        self._header, self._sequence = header, header.sequence
        self._walk = FrameWalk(source_format.framing)

    def decode(self, datagram: bytes) -> FramedPacket:
        """Decode a datagram.

        Raises:
            FormatError: its header and its frames contradict each other.
        """
        header, size = self._header, len(datagram)
        if size < header.size:
            raise FormatError(f"the datagram has {size} bytes; a {header.name} header has {header.size}")
        if header.length is not None and header.length.read(datagram) != size:
            raise FormatError(f"the header gives {header.length.read(datagram)} bytes, the datagram has {size}")
        end, count = self._walk.skip(np.frombuffer(datagram, np.uint8), header.size, MESSAGE_COUNT_MAX)
        if end != size:
            raise FormatError(f"offset {end}: no whole message begins here")
        if header.count is not None and header.count.read(datagram) != count:
            raise FormatError(f"the header counts {header.count.read(datagram)} messages, the datagram has {count}")
        channel = b"" if header.channel is None else b"%d" % header.channel.read(datagram)
        sequence = self._sequence.read(datagram)
        if count == 0:
            return FramedPacket(None, channel, sequence)
        sent_at_ns = sum(part.read(datagram) for part in header.sent_at)
        chunk = FrameChunk(datagram[header.size :], count, sequence, sent_at_ns, channel)
        return FramedPacket(chunk, channel, sequence + count)
