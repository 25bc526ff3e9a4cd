"""Positions and decisions: what two adapters compare.

Every decision consumes at least one source message. So the number of source messages that a channel has consumed orders
all of its decisions, including those without a message. That number is the `input_seq`: the log index of the channel.

Invariant: a `Run` assigns consecutive source messages their `input_seq` and their `message_seq`; nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

FIRST_SEQ = 1  # input_seq, message_seq and source_seq all start here; 0 means "none"
SEQ_MAX = 1 << 62  # real numbers stay far below; packets beyond it are refused, so that no reader's 64 bits overflow


class Run(NamedTuple):
    """The sequencing decision for consecutive source messages.

    Attributes:
        epoch: the term of the active that decided.
        first_input_seq: place of the run's first source message in the channel's merged input.
        first_message_seq: place of the run's first application message in the channel.
        source_stream_id: the source stream of the run's source messages.
        first_source_seq: the first source message's number in that stream.
        source_count: how many source messages the run consumes.
        message_count: how many application messages they became (0 if all were filtered or bad).
        is_source_gap: the source messages are declared lost; the run's one message is the gap marker.
    """

    epoch: int
    first_input_seq: int
    first_message_seq: int
    source_stream_id: int
    first_source_seq: int
    source_count: int
    message_count: int
    is_source_gap: bool = False

    @property
    def end_input_seq(self) -> int:
        """The `input_seq` of the run's last source message plus one."""
        return self.first_input_seq + self.source_count

    @property
    def end_message_seq(self) -> int:
        """The run's last `message_seq` plus one."""
        return self.first_message_seq + self.message_count

    @property
    def end_source_seq(self) -> int:
        """The run's last `source_seq` plus one."""
        return self.first_source_seq + self.source_count


@dataclass(frozen=True, slots=True)
class MessageStreamState:
    """Message stream state of one channel: the next numbers.

    Attributes:
        epoch: the epoch of the last decision that this state includes; 0 before any.
        next_input_seq: the next `input_seq`; within one history it determines the other numbers.
        next_message_seq: the next `message_seq`.
        next_source_seqs: source_stream_id -> the next `source_seq`.
    """

    epoch: int = 0
    next_input_seq: int = FIRST_SEQ
    next_message_seq: int = FIRST_SEQ
    next_source_seqs: dict[int, int] = field(default_factory=dict)
