"""Positions and decisions: the words two adapters compare.

Invariant: a `Run` says which source messages take which message sequence numbers, and nothing else decides that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

FIRST_SEQ = 1  # message_seq and source_seq both start here; 0 means "none"
SEQ_MAX = 1 << 62  # no numbering comes near it: a packet beyond is refused, so that no reader's 64 bits overflow


class Run(NamedTuple):
    """The sequencing decision for consecutive messages.

    Attributes:
        epoch: the term of the active that decided.
        first_message_seq: place of the run's first application message in the channel.
        source_stream_id: where the run's source messages come from.
        first_source_seq: the first of them.
        source_count: how many source messages the run consumes.
        message_count: how many application messages they became (0 if all were filtered or bad).
        is_source_gap: the source messages are declared lost; the run's one message is the gap marker.
    """

    epoch: int
    first_message_seq: int
    source_stream_id: int
    first_source_seq: int
    source_count: int
    message_count: int
    is_source_gap: bool = False

    @property
    def end_message_seq(self) -> int:
        """One past the run's last `message_seq`."""
        return self.first_message_seq + self.message_count

    @property
    def end_source_seq(self) -> int:
        """One past the run's last `source_seq`."""
        return self.first_source_seq + self.source_count


@dataclass(frozen=True, slots=True)
class MessageStreamState:
    """Message stream state of one channel: what comes next.

    Attributes:
        epoch: the epoch of the last decision this state includes; 0 before any.
        next_message_seq: the next `message_seq`.
        next_source_seqs: per source_stream_id the next `source_seq`.
    """

    epoch: int = 0
    next_message_seq: int = FIRST_SEQ
    next_source_seqs: dict[int, int] = field(default_factory=dict)
