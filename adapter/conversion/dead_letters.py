"""Samples of source messages that were refused: what a shell appends to the dead-letter journal.

They are samples: of one packet at most `SAMPLES_MAX` are kept, and `SAMPLES_KEPT_MAX` until they are taken, so that a
feed gone wrong costs no more than a healthy one.
"""

from __future__ import annotations

from dataclasses import dataclass

from adapter.conversion.reasons import Reason
from feedcore.source_layout import Framing
from feedcore.source_packet import SOURCE_HEADER, SOURCE_HEADER_SIZE

SAMPLES_KEPT_MAX = 256  # 64 KB a frame at most, though of a datagram's size normally


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One refused message.

    Attributes:
        frame: its bytes, as framed.
    """

    reason: Reason
    source_stream_id: int
    source_seq: int
    session: int
    frame: bytes

    @classmethod
    def of(cls, datagram: bytes, position: int, place: int, reason: Reason, framing: Framing) -> DeadLetter:
        """Message number `place` of a source packet, at `position` in it."""
        stream, session, first = 0, 0, 0
        if len(datagram) >= SOURCE_HEADER_SIZE:
            _, _, _, _, stream, _, session, first, _ = SOURCE_HEADER.unpack_from(datagram)
        order = "big" if framing.is_big_endian else "little"
        at = position + framing.length_offset
        length = int.from_bytes(datagram[at : at + framing.length.size], "big" if order == "big" else "little")
        return cls(
            reason,
            stream,
            first + place,
            session,
            datagram[position : position + length * framing.length_unit + framing.length_adds],
        )
