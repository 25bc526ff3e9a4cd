"""Positions in a live stream: what a Spark query has taken of a channel. Pure.

Messages are identified by their source message, because a takeover may number them again: a message is taken if its
`source_seq` is before the position's `next_source_seqs` of its source stream. `message_seq` only says where to begin to
read, and `epoch` in which history that number counts. Invariant: what lies between two positions is the same set of
messages whenever it is read, whichever adapter is active.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.wire.lineage import ENTRIES_MAX, EpochStart

NEVER, ALWAYS = 0, (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a channel.

    Attributes:
        epoch: in which `message_seq` counts; 0: in none, so it is to be taken as it is.
        message_seq: no message that has not been taken has a smaller number in that epoch.
        next_source_seqs: by source stream.
        is_ended: every source stream of the session has ended, and everything was taken.
    """

    session: int
    epoch: int
    message_seq: int
    next_source_seqs: Mapping[int, int] = field(default_factory=dict)
    is_ended: bool = False

    def as_json(self) -> dict[str, Any]:
        """As part of an offset of Spark; equal positions give equal text."""
        sources = {str(stream): seq for stream, seq in sorted(self.next_source_seqs.items())}
        return {
            "session": self.session,
            "epoch": self.epoch,
            "message_seq": self.message_seq,
            "sources": sources,
            "is_ended": self.is_ended,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Position:
        """From part of an offset."""
        sources = {int(stream): seq for stream, seq in value["sources"].items()}
        return cls(value["session"], value["epoch"], value["message_seq"], sources, value["is_ended"])

    def first_needed(self, starts: Sequence[EpochStart]) -> int:
        """The first number, in the present history, of what may not have been taken.

        An epoch that began after this position may have numbered again what was taken, in another order.

        Args:
            starts: the newest epochs of the present history.
        """
        if not self.epoch:
            return self.message_seq
        if len(starts) == ENTRIES_MAX and self.epoch < starts[0].epoch:
            return 1  # too many takeovers to know them all
        return min([self.message_seq, *(start.first_message_seq for start in starts if start.epoch > self.epoch)])

    def is_numbered_from(self, other: Position) -> bool:
        """True if this position's next number is not before that of another, whichever messages they are."""
        if self.session != other.session:
            return self.session > other.session
        return self.is_ended or self.message_seq >= other.message_seq

    def has_reached(self, other: Position) -> bool:
        """True if everything up to another position of the channel has been taken."""
        if self.session != other.session:
            return self.session > other.session
        if self.is_ended or other.is_ended:
            return self.is_ended
        reached = self.next_source_seqs
        return all(reached.get(stream, NEVER) >= seq for stream, seq in other.next_source_seqs.items())


def are_between(
    start: Position, end: Position, session: int, streams: NDArray[np.int64], seqs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """For each message of a session, whether it lies between two positions.

    Args:
        streams, seqs: the messages' source streams and `source_seq`.
    """
    chosen = np.zeros(len(seqs), np.bool_)
    if not start.session <= session <= end.session:
        return chosen
    for stream in np.unique(streams).tolist():
        low = start.next_source_seqs.get(stream, NEVER) if session == start.session else NEVER
        high = end.next_source_seqs.get(stream, NEVER) if session == end.session else ALWAYS
        chosen |= (streams == stream) & (seqs >= low) & (seqs < high)
    return chosen
