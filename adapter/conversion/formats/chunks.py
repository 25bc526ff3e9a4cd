"""The output of the readers: a venue's frames, and the source packet made from them."""

from __future__ import annotations

from dataclasses import dataclass

from tandemfeed.feedcore.wire.source_packet import encode_source_header

MESSAGE_COUNT_MAX = 65_535  # per source packet: its count has 16 bits


class FormatError(ValueError):
    """The bytes do not follow the format; the text gives the offset."""


@dataclass(frozen=True, slots=True)
class FrameChunk:
    """Consecutive messages as the venue framed them.

    Attributes:
        message_count: at most `MESSAGE_COUNT_MAX`.
        sequence: the venue's number of the first message; in a file, numbers begin at 1.
        sent_at_ns: the venue's wall clock in the packet; 0 if it has none.
        session: the venue's name of its session; empty if it has none.
    """

    frames: bytes
    message_count: int
    sequence: int
    sent_at_ns: int = 0
    session: bytes = b""

    def source_packet(self, *, feed_id: int, source_stream_id: int, session: int) -> bytes:
        """The source packet of these messages: a header, then the unchanged frames.

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
