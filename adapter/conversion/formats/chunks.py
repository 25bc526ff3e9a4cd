"""The readers' output: a venue's frames, and the source packet made of them."""

from __future__ import annotations

from dataclasses import dataclass

from tandemfeed.feedcore.wire.source_packet import encode_source_header

MESSAGE_COUNT_MAX = 65_535  # of a source packet: its count has 16 bits


class FormatError(ValueError):
    """Bytes do not follow the format; the text names the offset."""


@dataclass(frozen=True, slots=True)
class FrameChunk:
    """Consecutive messages as the venue framed them.

    Attributes:
        message_count: at most `MESSAGE_COUNT_MAX`.
        sequence: the venue's number of the first message; 1 is a file's first.
        sent_at_ns: the venue's wall clock on the packet; 0 if it has none.
        session: the venue's name of its session; empty if it has none.
    """

    frames: bytes
    message_count: int
    sequence: int
    sent_at_ns: int = 0
    session: bytes = b""

    def source_packet(self, *, feed_id: int, source_stream_id: int, session: int) -> bytes:
        """The source packet of these messages: a source packet's header, then the frames as they are.

        Args:
            session: trading day, YYYYMMDD.
        """
        header = encode_source_header(
            feed_id=feed_id,
            source_stream_id=source_stream_id,
            message_count=self.message_count,
            session=session,
            first_source_seq=self.sequence,
            sent_at_ns=self.sent_at_ns,
        )
        return header + self.frames
