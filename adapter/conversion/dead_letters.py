"""Samples of refused source messages, which the shell appends to the dead-letter journal.

One kernel call keeps at most `SAMPLES_MAX` samples, and at most `SAMPLES_KEPT_MAX` wait to be taken. A message is
extracted from its packet only on request, so that a broken feed costs little more than a healthy one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.table.reasons import REASONS, Reason
from tandemfeed.feedcore.documents.source_layout import Framing, SourceFormat
from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, unpack_source_header

SAMPLES_KEPT_MAX = 256  # a frame has at most 64 KB, but normally no more than a datagram


class RefusedPacket(NamedTuple):
    """A source packet with refused messages, and what the kernel recorded about them.

    Attributes:
        skip: the index in the packet of the first message that the kernel was given.
        samples: two values per message: the position of its frame in the packet; its index in the call << 8 | reason.
    """

    datagram: bytes
    skip: int
    samples: NDArray[np.int64]

    @property
    def sample_count(self) -> int:
        """The number of sampled messages."""
        return len(self.samples) // 2


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One refused message.

    Attributes:
        sent_at_ns: the feed source's wall clock when it first sent the packet.
        type_id: as in the frame; 0 if the packet ends before it.
        message: the source format's name for the type; if several messages have that type, those that the length does
            not rule out; empty for an unknown type.
        frame: its bytes with their framing; if its length is impossible, the rest of the packet.
    """

    reason: Reason
    source_stream_id: int
    source_seq: int
    session: int
    sent_at_ns: int
    type_id: int
    message: str
    frame: bytes

    @classmethod
    def of(cls, datagram: bytes, position: int, place: int, reason: Reason, source_format: SourceFormat) -> DeadLetter:
        """Make one from message number `place` of a source packet, at `position` in it."""
        header = unpack_source_header(datagram.ljust(SOURCE_HEADER_SIZE, b"\0"))
        framing = source_format.framing
        length = _number(datagram, position + framing.length.offset, framing.length.size, framing)
        length = length * framing.length_unit + framing.length_adds
        type_id = _number(datagram, position + framing.type.offset, framing.type.size, framing)
        frame = datagram[position : position + length] if length >= framing.size_min else datagram[position:]
        name = _name(source_format, type_id, length)
        return cls(
            reason,
            header.source_stream_id,
            header.first_source_seq + place,
            header.session,
            header.sent_at_ns,
            type_id,
            name,
            frame,
        )


def dead_letters_in(packets: Sequence[RefusedPacket], source_format: SourceFormat) -> list[DeadLetter]:
    """The sampled messages, in order; only the newest `SAMPLES_KEPT_MAX` if there are more."""
    letters: list[DeadLetter] = []
    for datagram, skip, samples in reversed(packets):
        for position, packed in reversed(samples.reshape(-1, 2).tolist()):
            if len(letters) == SAMPLES_KEPT_MAX:
                return letters[::-1]
            place, reason = skip + (packed >> 8), REASONS[packed & 255]
            letters.append(DeadLetter.of(datagram, position, place, reason, source_format))
    return letters[::-1]


def _number(datagram: bytes, at: int, size: int, framing: Framing) -> int:
    return int.from_bytes(datagram[at : at + size], "big" if framing.is_big_endian else "little")


def _name(source_format: SourceFormat, type_id: int, length: int) -> str:
    known = [message for message in source_format.messages.values() if message.type_id == type_id]
    fitting = [message for message in known if message.frame_size == length]
    return " or ".join(message.name for message in fitting or known)
