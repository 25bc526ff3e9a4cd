"""A channel's saved state as a record of the output journal: position and conversion state (`SaveState`).

Layout (little-endian)::

    0  magic                   b"TFS1"
    4  feed_id                 u16
    6  channel_id              u16
    8  session                 u32   trading day, YYYYMMDD
    12 epoch                   u32   of the position
    16 epoch_first_message_seq u64
    24 next_message_seq        u64
    32 stream_count            u32
    36 reserved                u32   0
    40 streams: each source_stream_id u32, reserved u32, next_source_seq u64
    .. conversion state: the converter's own bytes, to the record's end
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from feedcore.replica.channel_state import ChannelSnapshot
from feedcore.wire.lineage import Lineage
from feedcore.wire.position import MessageStreamState

MAGIC = b"TFS1"
HEAD = struct.Struct("<4sHHIIQQII")
STREAM = struct.Struct("<IIQ")
assert HEAD.size == 40


class SavedState(NamedTuple):
    """A saved state and whose it is."""

    feed_id: int
    session: int
    snapshot: ChannelSnapshot


def encode_saved_state(state: SavedState) -> bytes:
    """As a record."""
    snapshot, position = state.snapshot, state.snapshot.position
    head = HEAD.pack(
        *(MAGIC, state.feed_id, snapshot.channel_id, state.session, position.epoch, snapshot.lineage.first_message_seq),
        *(position.next_message_seq, len(position.next_source_seqs), 0),
    )
    streams = b"".join(STREAM.pack(stream, 0, seq) for stream, seq in sorted(position.next_source_seqs.items()))
    return head + streams + snapshot.conversion_state


def decode_saved_state(record: bytes) -> SavedState:
    """From a record.

    Raises:
        ValueError: it is none; the text says why.
    """
    if len(record) < HEAD.size or record[:4] != MAGIC:
        raise ValueError(f"no saved state: it begins with {record[:4]!r}")
    _, feed_id, channel_id, session, epoch, epoch_first, next_seq, count, _ = HEAD.unpack_from(record)
    end = HEAD.size + count * STREAM.size
    if len(record) < end:
        raise ValueError(f"a saved state of {count} streams has at least {end} bytes, not {len(record)}")
    streams = {stream: seq for stream, _, seq in STREAM.iter_unpack(record[HEAD.size : end])}
    position = MessageStreamState(epoch, next_seq, streams)
    lineage = Lineage(((epoch, epoch_first),) if epoch else ())
    return SavedState(feed_id, session, ChannelSnapshot(channel_id, position, lineage, record[end:]))
