"""A dead letter as a record of the dead-letter journal: one refused source message, with the adapter, time and reason.

Layout (little-endian)::

    0  magic            b"TFD1"
    4  feed_id          u16
    6  channel_id       u16
    8  session          u32   trading day, YYYYMMDD
    12 source_stream_id u32
    16 source_seq       u64
    24 sent_at_ns       u64   the feed source's wall clock when it first sent the packet
    32 refused_at_ns    u64   this adapter's wall clock
    40 type_id          u64   of the source message
    48 reason_size      u16
    50 name_size        u16
    52 reason           ASCII: `adapter.conversion.table.reasons.Reason`, in lower case
    .. name             UTF-8: the source message's name, empty if the source format lacks this type
    .. frame            the message as the venue framed it, to the record's end

The reason is a word, not a number, so that releases with different reasons can read each other's records.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tandemfeed.adapter.conversion.dead_letters import DeadLetter

MAGIC = b"TFD1"
HEAD = struct.Struct("<4sHHIIQQQQHH")
NAME_SIZE_MAX = 65_535
assert HEAD.size == 52


class DeadLetterRecord(NamedTuple):
    """A refused source message.

    Attributes:
        sent_at_ns, refused_at_ns: the feed source's wall clock, and the adapter's.
        type_id, message: the message's type by number and by name.
        frame: the message as the venue framed it.
    """

    feed_id: int
    channel_id: int
    session: int
    source_stream_id: int
    source_seq: int
    sent_at_ns: int
    refused_at_ns: int
    type_id: int
    reason: str
    message: str
    frame: bytes

    @classmethod
    def of(cls, letter: DeadLetter, feed_id: int, channel_id: int, refused_at_ns: int) -> DeadLetterRecord:
        """The record of a message that a converter refused."""
        return cls(
            feed_id,
            channel_id,
            letter.session,
            letter.source_stream_id,
            letter.source_seq,
            letter.sent_at_ns,
            refused_at_ns,
            letter.type_id,
            letter.reason.name.lower(),
            letter.message,
            letter.frame,
        )


def encode_dead_letter(record: DeadLetterRecord) -> bytes:
    """Encode a dead letter as a record."""
    reason, name = record.reason.encode("ascii"), record.message.encode()[:NAME_SIZE_MAX]
    return HEAD.pack(MAGIC, *record[:8], len(reason), len(name)) + reason + name + record.frame


def decode_dead_letter(record: bytes) -> DeadLetterRecord:
    """Decode a record.

    Raises:
        ValueError: it is not a dead letter; the text says why.
    """
    if len(record) < HEAD.size or record[:4] != MAGIC:
        raise ValueError(f"not a dead letter: it begins with {record[:4]!r}")
    _, feed, channel, session, stream, seq, sent, refused, kind, reason_size, name_size = HEAD.unpack_from(record)
    name_at = HEAD.size + reason_size
    frame_at = name_at + name_size
    if len(record) < frame_at:
        raise ValueError(f"a dead letter of {len(record)} bytes is cut short; its sizes need at least {frame_at}")
    reason = record[HEAD.size : name_at].decode("ascii", "backslashreplace")
    name = record[name_at:frame_at].decode("utf-8", "replace")
    return DeadLetterRecord(feed, channel, session, stream, seq, sent, refused, kind, reason, name, record[frame_at:])
