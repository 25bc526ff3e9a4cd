"""Makes source packets of the datagrams that a venue sends live, by the source format's <packet> and <framing>.

A message's source sequence number is its number at the venue, or follows from its packet's number and its place in the
packet (`packet_numbers`), so that every adapter that receives the stream, on any line, gives it the same number. The
source stream's tracker handles gaps and copies. Pure.
"""

from __future__ import annotations

from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.packets.framed_packets import PacketDecoder, VenuePacket
from tandemfeed.feedcore.documents.packet_numbers import filler_frame, filler_type, first_number, packets_of
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
        FormatError: a channel must be selected, or the header has none.
    """

    def __init__(
        self, source_format: SourceFormat, feed_id: int, source_stream_id: int, trading_day: int, channel: int | None
    ) -> None:
        self._decoder = PacketDecoder(source_format)
        self._header = header = self._decoder.header
        self._feed_id, self._source_stream_id, self._trading_day = feed_id, source_stream_id, trading_day
        self._channel = channel
        where = f"{source_format.document}: source stream {source_stream_id}"
        if (channel is None) is not (header.channel is None):
            has = "no channel" if header.channel is None else "a channel"
            need = "omit --channel" if header.channel is None else f"select it with --channel {source_stream_id}=NUMBER"
            raise FormatError(f"{where}: the header of {header.name} has {has}; {need}")
        filler = filler_type(source_format)
        self._filler = None if filler is None else filler_frame(source_format.framing, filler)
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
            self.malformed += not self._header.has_unnumbered
            return None
        if packet.channel == self._channel and self.session is None:
            self.session = packet.session
        if packet.channel != self._channel or packet.session != self.session:
            self.foreign += 1
            return None
        if self._filler is not None:
            return self._numbered_by_packet(packet, self._filler)
        flags = 0
        if packet.message_count == 0:
            flags = SourceFlag.HEARTBEAT | (SourceFlag.END_OF_STREAM if packet.is_end else 0)
        return self._packet(packet.sequence, packet.message_count, packet.frames, flags)

    def _numbered_by_packet(self, packet: VenuePacket, filler: bytes) -> bytes | None:
        """The source packet of a packet whose own number is known: as many messages as the number stands for."""
        size = self._header.messages_max
        if packet.message_count > size:
            self.malformed += 1
            return None
        frames = packet.frames + filler * (size - packet.message_count)
        return self._packet(first_number(packet.sequence, size), size, frames, 0)

    def _packet(self, first_source_seq: int, message_count: int, frames: bytes, flags: int) -> bytes:
        header = encode_source_header(
            feed_id=self._feed_id,
            source_stream_id=self._source_stream_id,
            message_count=message_count,
            session=self._trading_day,
            first_source_seq=first_source_seq,
            sent_at_ns=0,  # lines and repeats may differ in the venue's time, and adapters must convert equal bytes
            flags=flags,
        )
        return header + frames

    def request(self, first_source_seq: int, last_source_seq: int) -> bytes | None:
        """The request for these messages, or for as many as one request allows; None before the first packet, or if the
        venue's requests have another form."""
        header = self._header
        if self.session is None or not header.is_request:
            return None
        assert header.sequence is not None
        assert header.count is not None
        first, count = first_source_seq, last_source_seq - first_source_seq + 1
        if header.counts_packets:
            first, count = packets_of(first_source_seq, last_source_seq, header.messages_max)
        count_max = header.count.kind.maximum - 1  # the maximum itself may end a session
        datagram = bytearray(header.size)
        if header.session is not None:
            header.session.write(self.session, datagram)
        if header.channel is not None and self._channel is not None:
            header.channel.write(self._channel, datagram)
        header.sequence.write(first, datagram)
        header.count.write(min(count, count_max), datagram)
        return bytes(datagram)
