"""The record by which an output journal says that provisional packets before it became decisions of an epoch.

A provisional packet has its sender's own numbers. When the sender is granted a lease, the numbers count. The journal
keeps the packets as they were sent, and adds this record.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemfeed.feedcore.wire.layout import Layout

COMMIT_MAGIC = b"TFC2"
COMMIT_LAYOUT = Layout(
    ("magic", "4s"),
    ("channel_id", "I"),
    ("epoch", "I"),
    ("session", "I"),
    ("first_input_seq", "Q"),
    ("end_input_seq", "Q"),
    ("begin_index", "Q"),  # place in the journal of the first packet
    ("end_index", "Q"),  # after the last
)


class Commit(NamedTuple):
    """Provisional packets in a range of the journal that are now decisions of an epoch."""

    channel_id: int
    epoch: int
    first_input_seq: int
    end_input_seq: int
    begin_index: int
    end_index: int
    session: int

    def encode(self) -> bytes:
        """Encode it as a record."""
        return COMMIT_LAYOUT.struct.pack(COMMIT_MAGIC, self.channel_id, self.epoch, self.session, *self[2:-1])

    def holds(self, index: int, first_input_seq: int, end_input_seq: int) -> bool:
        """True if a packet of the channel is among the committed packets."""
        is_there = self.begin_index <= index < self.end_index
        return is_there and self.first_input_seq <= first_input_seq and end_input_seq <= self.end_input_seq


def decode_commit(record: bytes) -> Commit:
    """Decode a record.

    Raises:
        ValueError: it is not a commit; the text says why.
    """
    if len(record) != COMMIT_LAYOUT.size or record[:4] != COMMIT_MAGIC:
        raise ValueError(
            f"not a commit of provisional packets: {len(record)} bytes beginning with {record[:4]!r}, "
            f"expected {COMMIT_LAYOUT.size} beginning with {COMMIT_MAGIC!r}"
        )
    _, channel_id, epoch, session, first_seq, end_seq, begin_index, end_index = COMMIT_LAYOUT.struct.unpack(record)
    return Commit(channel_id, epoch, first_seq, end_seq, begin_index, end_index, session)
