"""Makes source packets of the datagrams that a venue sends live, by the source format's <packet> and <framing>.

A message's source sequence number is its number at the venue, so that every adapter that receives the stream, on any
line, gives it the same number. The source stream's tracker handles gaps and copies. Pure.
"""

from __future__ import annotations

from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.framed_packets import PacketDecoder
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.wire.source_packet import SourceFlag, encode_source_header


class PacketTranslation:
    """Makes the source packets of one stream, including heartbeats and the end of the session.

    Args:
        channel: the channel in the packets' header that the stream consists of; None if the header has none.

    Attributes:
        session: the venue's name of its session, which the first packet received determines; packets of other sessions
            belong to another trading day. None until a packet is received.
        malformed: the number of packets that do not follow the format.
        foreign: the number of packets of another channel or session.

    Raises:
        FormatError: adapters cannot agree on the numbers of such packets' messages.
    """

    def __init__(
        self, source_format: SourceFormat, feed_id: int, source_stream_id: int, trading_day: int, channel: int | None
    ) -> None:
        self._decoder = PacketDecoder(source_format)
        self._header = header = self._decoder.header
        self._feed_id, self._source_stream_id, self._trading_day = feed_id, source_stream_id, trading_day
        self._channel = channel
        where = f"{source_format.document}: source stream {source_stream_id}"
        if header.counts_packets:
            raise FormatError(
                f"{where}: {header.name} numbers packets, not messages, so that adapters cannot agree on the numbers "
                "after a loss; receive such a feed with a process of your own that numbers its messages"
            )
        if (channel is None) is not (header.channel is None):
            has = "no channel" if header.channel is None else "a channel"
            need = "omit --channel" if header.channel is None else f"select it with --channel {source_stream_id}=NUMBER"
            raise FormatError(f"{where}: the header of {header.name} has {has}; {need}")
        self.session: bytes | None = None
        self.malformed = 0
        self.foreign = 0

    def source_packet(self, datagram: bytes) -> bytes | None:
        """The source packet for a venue's packet; None if the packet is malformed or foreign."""
        try:
            packet = self._decoder.packet(datagram)
        except FormatError:
            self.malformed += 1
            return None
        if packet.sequence == 0:  # venues number from 1; this packet is not part of the sequence
            self.malformed += 1
            return None
        if packet.channel == self._channel and self.session is None:
            self.session = packet.session
        if packet.channel != self._channel or packet.session != self.session:
            self.foreign += 1
            return None
        flags = 0
        if packet.message_count == 0:
            flags = SourceFlag.HEARTBEAT | (SourceFlag.END_OF_STREAM if packet.is_end else 0)
        header = encode_source_header(
            feed_id=self._feed_id,
            source_stream_id=self._source_stream_id,
            message_count=packet.message_count,
            session=self._trading_day,
            first_source_seq=packet.sequence,
            sent_at_ns=0,  # lines and repeats may differ in the venue's time, and adapters must convert equal bytes
            flags=flags,
        )
        return header + packet.frames

    def request(self, first_source_seq: int, last_source_seq: int) -> bytes | None:
        """The request for these messages, or for as many as one request allows; None before the first packet, or if the
        venue's requests have another form."""
        header = self._header
        if self.session is None or not header.is_request:
            return None
        assert header.sequence is not None
        assert header.count is not None
        count_max = header.count.kind.maximum - 1  # the maximum itself may end a session
        datagram = bytearray(header.size)
        if header.session is not None:
            header.session.write(self.session, datagram)
        if header.channel is not None and self._channel is not None:
            header.channel.write(self._channel, datagram)
        header.sequence.write(first_source_seq, datagram)
        header.count.write(min(last_source_seq - first_source_seq + 1, count_max), datagram)
        return bytes(datagram)
