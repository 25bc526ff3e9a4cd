"""The source packet: one datagram of one source stream, in the feed source's first format.

Little-endian (docs/protocol.md clause 2): the header (`SOURCE_LAYOUT`), then the messages, each after a frame header
(`SOURCE_FRAME_LAYOUT`, unless the source format's document says otherwise). This is the only definition of the layout:
all other code takes sizes, offsets and structs from here.

The codec checks only the header. The converter's compiled `check` checks the frames, because a Python loop over frames
would take time per message.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tandemfeed.feedcore.wire.layout import Layout
from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal

SOURCE_MAGIC = int.from_bytes(b"TFS1", "little")
SOURCE_VERSION = 1
SOURCE_LAYOUT = Layout(
    ("magic", "I"),
    ("version", "B"),
    ("flags", "B"),  # SourceFlag bits
    ("feed_id", "H"),
    ("source_stream_id", "H"),
    ("message_count", "H"),  # 0 in a heartbeat
    ("session", "I"),  # trading day, YYYYMMDD
    ("first_source_seq", "Q"),  # of the first message; in a heartbeat the next one
    ("sent_at_ns", "Q"),  # wall clock of the feed source when it first sent the packet; 0 if unknown
)
SOURCE_HEADER = SOURCE_LAYOUT.struct
SOURCE_HEADER_SIZE = SOURCE_LAYOUT.size
SOURCE_FRAME_LAYOUT = Layout(
    ("frame_length", "H"),  # including this header
    ("message_type", "H"),
)
SOURCE_FRAME = SOURCE_FRAME_LAYOUT.struct
SOURCE_FRAME_SIZE = SOURCE_FRAME_LAYOUT.size
_new_tuple = tuple.__new__  # a named tuple's own constructor takes three times as long, and this runs for every packet


class SourceFlag(IntEnum):
    """Flag bits of a source packet. Not an IntFlag, because testing a bit of one takes 0.9 µs."""

    NONE = 0
    HEARTBEAT = 1  # no messages; first_source_seq is the next one, which reveals the loss of the last message
    RETRANSMISSION = 2  # came from the source journal
    END_OF_STREAM = 4  # with HEARTBEAT: the source has sent everything of this session


HEARTBEAT_BIT = int(SourceFlag.HEARTBEAT)  # as a plain integer, for the hot path


class SourceHeader(NamedTuple):
    """A source packet's unchecked header: the fields of `SOURCE_LAYOUT`."""

    magic: int
    version: int
    flags: int
    feed_id: int
    source_stream_id: int
    message_count: int
    session: int
    first_source_seq: int
    sent_at_ns: int


assert SourceHeader._fields == tuple(SOURCE_LAYOUT.offsets)


def unpack_source_header(data: bytes, offset: int = 0) -> SourceHeader:
    """The unchecked header of the source packet at `offset` of `data`, which must be long enough."""
    return SourceHeader._make(SOURCE_HEADER.unpack_from(data, offset))


class SourcePacket(NamedTuple):
    """A decoded source packet header with the whole datagram.

    Attributes:
        first_source_seq: source sequence number of the first message, or the next one in a heartbeat.
        message_count: messages in the packet; each takes one `source_seq`.
        sent_at_ns: the source's wall clock when the packet was first sent.
        datagram: the packet's bytes, header included.
    """

    source_stream_id: int
    first_source_seq: int
    message_count: int
    session: int
    flags: int
    sent_at_ns: int
    datagram: bytes

    @property
    def end_source_seq(self) -> int:
        """The packet's last `source_seq` plus one."""
        return self.first_source_seq + self.message_count


def decode_source_packet(datagram: bytes, feed_id: int) -> SourcePacket:
    """Decode and check a source packet's header.

    Args:
        datagram: the received bytes.
        feed_id: the feed the receiver belongs to.

    Raises:
        PacketRefused: with the reason; the caller counts it and drops the datagram.
    """
    if len(datagram) < SOURCE_HEADER_SIZE:
        raise PacketRefused(Refusal.TRUNCATED, f"{len(datagram)} bytes; a source header has {SOURCE_HEADER_SIZE}")
    magic, version, flags, feed, stream, count, session, first, sent_at = SOURCE_HEADER.unpack_from(datagram)
    if magic != SOURCE_MAGIC:
        raise PacketRefused(Refusal.FOREIGN, f"magic {magic:#010x} is not a source packet's")
    if version != SOURCE_VERSION:
        raise PacketRefused(Refusal.VERSION, f"source packet version {version}; expected {SOURCE_VERSION}")
    if feed != feed_id:
        raise PacketRefused(Refusal.WRONG_FEED, f"feed {feed}, expected {feed_id}")
    if (count == 0) != bool(flags & HEARTBEAT_BIT):
        raise PacketRefused(Refusal.MALFORMED, f"message count {count} with flags {flags:#04x}")
    if len(datagram) < SOURCE_HEADER_SIZE + count * SOURCE_FRAME_SIZE:
        raise PacketRefused(Refusal.TRUNCATED, f"{count} messages cannot fit in {len(datagram)} bytes")
    if not count and len(datagram) > SOURCE_HEADER_SIZE:
        raise PacketRefused(Refusal.MALFORMED, f"{len(datagram) - SOURCE_HEADER_SIZE} bytes after a heartbeat's header")
    if not 0 < first <= SEQ_MAX:
        raise PacketRefused(Refusal.MALFORMED, f"source_seq {first} is not from 1 to {SEQ_MAX}")
    return _new_tuple(SourcePacket, (stream, first, count, session, flags, sent_at, datagram))


def encode_source_header(
    *,
    feed_id: int,
    source_stream_id: int,
    message_count: int,
    session: int,
    first_source_seq: int,
    sent_at_ns: int,
    flags: int = 0,
) -> bytes:
    """Encode a source packet's header; the frames follow it."""
    return SOURCE_HEADER.pack(
        SOURCE_MAGIC,
        SOURCE_VERSION,
        flags,
        feed_id,
        source_stream_id,
        message_count,
        session,
        first_source_seq,
        sent_at_ns,
    )
