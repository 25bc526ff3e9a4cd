"""The newest sequencing decisions of a channel, so that an adapter that missed some can ask for them.

Bounded: what has been forgotten is caught up by snapshot instead. Kept as bytes, not as objects: tens of thousands of
tuples would be looked at by every full collection of cyclic garbage, and the stream would stand still for it. Never
turns many rows into runs itself, for the same reason: whoever asked does, in a thread of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedcore.wire.lineage import Lineage
from feedcore.wire.position import FIRST_SEQ, MessageStreamState, Run

# A run's fields, in their order, as C would lay them out: numpy is slow with what is not aligned. Said twice, because
# packing a single row with numpy takes three times as long.
ROW = struct.Struct("@IqHqII?0q")
ROW_DTYPE = np.dtype(list(zip(Run._fields, ("u4", "i8", "u2", "i8", "u4", "u4", "?"), strict=True)), align=True)
assert ROW.size == ROW_DTYPE.itemsize
Rows: TypeAlias = NDArray[Any]


class DecisionLogTooShort(Exception):
    """The log does not reach back to the position asked for, or the position is ahead of it: take a snapshot."""


@dataclass(frozen=True, slots=True)
class RunsReply:
    """Decisions behind a position.

    Attributes:
        lineage: the history they belong to, the replying adapter's.
        runs: consecutive decisions; empty if there are none yet.
    """

    lineage: Lineage
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRuns:
    """A reply as it lies in the log. Attributes: rows: shape (runs,), ROW_DTYPE, a copy."""

    lineage: Lineage
    rows: Rows

    def reply(self) -> RunsReply:
        """The runs themselves; in any thread."""
        return RunsReply(self.lineage, tuple(Run(*row) for row in self.rows.tolist()))


class DecisionLog:
    """The last `count_max` runs of one channel, in order.

    At 1,000 runs a second the default remembers about a minute: longer than any adapter should be away without a
    snapshot, and 2 MB.
    """

    def __init__(self, count_max: int = 65_536) -> None:
        self._count_max = count_max
        self._ring = np.zeros(count_max * ROW.size, np.uint8)
        self._memory = self._ring.data
        self._count = 0  # appended since the restart
        self._begins_at = FIRST_SEQ  # the position before the oldest remembered run
        self._begins_at_source: dict[int, int] = {}

    def restart(self, position: MessageStreamState) -> None:
        """Forget everything; decisions will follow from `position`."""
        self._count = 0
        self._begins_at, self._begins_at_source = position.next_message_seq, dict(position.next_source_seqs)

    def append(self, run: Run) -> None:
        """Add the next decision; beyond `count_max` the oldest is forgotten."""
        place = self._count % self._count_max * ROW.size
        if self._count >= self._count_max:
            forgotten = Run(*ROW.unpack_from(self._memory, place))
            self._begins_at = forgotten.end_message_seq
            self._begins_at_source[forgotten.source_stream_id] = forgotten.end_source_seq
        ROW.pack_into(self._memory, place, *run)
        self._count += 1

    def since(self, position: MessageStreamState, lineage: Lineage, count_max: int = 10_000) -> LoggedRuns:
        """The decisions behind `position`, at most `count_max` of them.

        Args:
            lineage: the history that this log tells.

        Raises:
            DecisionLogTooShort: a snapshot is needed.
        """
        if not lineage.holds(position.epoch, position.next_message_seq):
            raise DecisionLogTooShort(
                f"message_seq {position.next_message_seq} of epoch {position.epoch} is not in the history "
                f"{lineage.entries}"
            )
        behind = _behind(self._in_order(), position)
        self._check_reach(behind, position)
        return LoggedRuns(lineage, behind[:count_max])

    def _in_order(self) -> Rows:
        """What is remembered, the oldest first."""
        end = self._count % self._count_max * ROW.size
        newest = self._ring[:end]
        if self._count < self._count_max:
            return newest.view(ROW_DTYPE)
        in_order = np.concatenate([self._ring[end:], newest])  # as bytes: row by row it takes ten times as long
        return in_order.view(ROW_DTYPE)

    def _check_reach(self, behind: Rows, position: MessageStreamState) -> None:
        """The chosen runs must join the position without a seam: in the channel, and in each source stream."""
        # In each source stream, too: a decision before the log that made no message shows nowhere else.
        lies_before = position.next_message_seq < self._begins_at or any(
            position.next_source_seqs.get(stream, FIRST_SEQ) < seq for stream, seq in self._begins_at_source.items()
        )
        if lies_before:
            raise DecisionLogTooShort("the position lies before the log")
        # Missed decisions that made no message have no place of their own among the messages.
        has_place = (behind["message_count"] > 0) | (behind["first_message_seq"] > position.next_message_seq)
        firsts = behind["first_message_seq"][has_place]
        if len(firsts) and firsts[0] != position.next_message_seq:
            raise DecisionLogTooShort(
                f"the log continues at message_seq {firsts[0]}, not at {position.next_message_seq}"
            )
        streams, places = np.unique(behind["source_stream_id"], return_index=True)
        for stream, first in zip(streams.tolist(), behind["first_source_seq"][places].tolist(), strict=True):
            if first != position.next_source_seqs.get(stream, FIRST_SEQ):
                raise DecisionLogTooShort(f"the log continues source stream {stream} at {first}")


def _behind(rows: Rows, position: MessageStreamState) -> Rows:
    """A copy of the rows that are not covered by a position."""
    ends = rows["first_source_seq"] + rows["source_count"]
    is_behind = np.ones(len(rows), bool)
    for stream, next_source_seq in position.next_source_seqs.items():
        is_behind &= (rows["source_stream_id"] != stream) | (ends > next_source_seq)
    return rows[is_behind]
