"""A channel's saved state as a record of the output journal: position and conversion state (`SaveState`).

The record has a `HEAD`, a `STREAM` for each source stream, and the converter's own bytes to its end.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.wire.layout import Layout
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState

MAGIC = b"TFS2"
HEAD = Layout(
    ("magic", "4s"),
    ("feed_id", "H"),
    ("channel_id", "H"),
    ("session", "I"),  # trading day, YYYYMMDD
    ("epoch", "I"),  # of the position
    ("epoch_first_input_seq", "Q"),
    ("epoch_first_message_seq", "Q"),
    ("next_input_seq", "Q"),
    ("next_message_seq", "Q"),
    ("stream_count", "I"),
    ("reserved", "I"),  # 0
)
STREAM = Layout(("source_stream_id", "I"), ("reserved", "I"), ("next_source_seq", "Q"))


class SavedState(NamedTuple):
    """A saved state and the feed and session it belongs to."""

    feed_id: int
    session: int
    snapshot: ChannelSnapshot


def encode_saved_state(state: SavedState) -> bytes:
    """Encode it as a record."""
    snapshot, position = state.snapshot, state.snapshot.position
    lineage, streams = snapshot.lineage, sorted(position.next_source_seqs.items())
    head = HEAD.struct.pack(
        *(MAGIC, state.feed_id, snapshot.channel_id, state.session, position.epoch),
        *(lineage.first_input_seq, lineage.first_message_seq),
        *(position.next_input_seq, position.next_message_seq, len(streams), 0),
    )
    rows = b"".join(STREAM.struct.pack(stream, 0, seq) for stream, seq in streams)
    return head + rows + snapshot.conversion_state


def decode_saved_state(record: bytes) -> SavedState:
    """Decode a record.

    Raises:
        ValueError: it is not a saved state; the text says why.
    """
    if len(record) < HEAD.size or record[: len(MAGIC)] != MAGIC:
        raise ValueError(f"not a saved state: it begins with {record[:4]!r}")
    _, feed_id, channel_id, session, epoch, first_input, first_message, *numbers = HEAD.struct.unpack_from(record)
    next_input, next_message, count, _ = numbers
    end = HEAD.size + count * STREAM.size
    if len(record) < end:
        raise ValueError(f"a saved state of {len(record)} bytes is cut short; {count} streams need at least {end}")
    streams = {stream: seq for stream, _, seq in STREAM.struct.iter_unpack(record[HEAD.size : end])}
    position = MessageStreamState(epoch, next_input, next_message, streams)
    lineage = Lineage((EpochStart(epoch, first_input, first_message),) if epoch else ())
    return SavedState(feed_id, session, ChannelSnapshot(channel_id, position, lineage, record[end:]))
