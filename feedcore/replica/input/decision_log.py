"""The newest sequencing decisions of a channel, so that an adapter that missed some can request them.

The log is bounded: an adapter that needs an older decision takes a snapshot instead. The decisions are kept as bytes,
not as objects, because every full garbage collection would examine tens of thousands of tuples and pause the stream.
For the same reason the log never turns many rows into runs; the caller does, in another thread.

Invariant: the runs are consecutive: each begins at the `input_seq` at which the previous one ends.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.replica.channel_state import RunsReply
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.position import FIRST_SEQ, MessageStreamState, Run

# A run's fields in order, laid out as C would do it, because numpy is slow with unaligned fields. Declared twice,
# because packing a single row with numpy takes three times as long.
ROW = struct.Struct("@IqqHqII?0q")
ROW_DTYPE = np.dtype(list(zip(Run._fields, ("u4", "i8", "i8", "u2", "i8", "u4", "u4", "?"), strict=True)), align=True)
assert ROW.size == ROW_DTYPE.itemsize
Rows: TypeAlias = NDArray[Any]
REPLY_RUNS_MAX = 10_000  # in one reply; the caller requests the rest


class DecisionLogTooShort(Exception):
    """The log cannot continue from the requested position; the caller must take a snapshot."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRuns:
    """A `RunsReply` in the log's own format. Attributes: rows: shape (runs,), ROW_DTYPE, a copy."""

    lineage: Lineage
    rows: Rows
    session: int

    def reply(self) -> RunsReply:
        """Make the runs themselves; may be called in any thread."""
        return RunsReply(self.lineage, tuple(Run(*row) for row in self.rows.tolist()), self.session)


class DecisionLog:
    """The last `count_max` runs of one channel, in order.

    At 1,000 runs a second, the default of 3 MB keeps about a minute. An adapter that was away longer takes a snapshot.
    """

    def __init__(self, count_max: int = 65_536) -> None:
        self._count_max = count_max
        self._ring = np.zeros(count_max * ROW.size, np.uint8)
        self._memory = self._ring.data
        self._count = 0  # how many were appended since the last restart
        self._restarted_at = FIRST_SEQ  # the input_seq of the first of them

    def restart(self, next_input_seq: int) -> None:
        """Forget everything; the next decision begins at `next_input_seq`."""
        self._count = 0
        self._restarted_at = next_input_seq

    def append(self, run: Run) -> None:
        """Add the next decision. If the log is full, it replaces the oldest."""
        ROW.pack_into(self._memory, self._count % self._count_max * ROW.size, *run)
        self._count += 1

    def since(self, position: MessageStreamState, lineage: Lineage, session: int = 0) -> LoggedRuns:
        """The decisions after `position`, at most `REPLY_RUNS_MAX` of them.

        In a channel of one source stream, the first may begin before `position`, because adapters may cut runs
        differently.

        Args:
            lineage, session: those of this log.

        Raises:
            DecisionLogTooShort: a snapshot is needed.
        """
        wanted = position.next_input_seq
        if not lineage.holds(position.epoch, wanted):
            raise DecisionLogTooShort(
                f"input_seq {wanted} of epoch {position.epoch} is not in the history {lineage.entries}"
            )
        oldest = max(0, self._count - self._count_max)
        begins_at = self._run(oldest).first_input_seq if oldest else self._restarted_at
        if wanted < begins_at:
            raise DecisionLogTooShort(f"the log begins at input_seq {begins_at}, after {wanted}")
        first = bisect_right(range(self._count), wanted, lo=oldest, key=lambda index: self._run(index).end_input_seq)
        if first < self._count:
            _, input_seq, message_seq, *_ = self._run(first)
            if input_seq == wanted and message_seq != position.next_message_seq:
                raise DecisionLogTooShort(
                    f"input_seq {wanted} is at message_seq {message_seq}, not {position.next_message_seq}"
                )
        places = np.arange(first, min(first + REPLY_RUNS_MAX, self._count)) % self._count_max
        return LoggedRuns(lineage, self._ring.view(ROW_DTYPE)[places], session)

    def _run(self, index: int) -> Run:
        return Run(*ROW.unpack_from(self._memory, index % self._count_max * ROW.size))
