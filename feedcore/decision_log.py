"""The newest sequencing decisions of a channel, so that an adapter that missed some can ask for them.

Bounded: what has been forgotten is caught up by snapshot instead.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from feedcore.lineage import Lineage
from feedcore.position import FIRST_SEQ, MessageStreamState, Run


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


class DecisionLog:
    """The last `count_max` runs of one channel, in order.

    At 1,000 runs a second the default remembers about a minute: longer than any adapter should be away without a
    snapshot, and about 10 MB.
    """

    def __init__(self, count_max: int = 65_536) -> None:
        self._runs: deque[Run] = deque(maxlen=count_max)
        self._begins_at = FIRST_SEQ  # the position before the oldest remembered run
        self._begins_at_source: dict[int, int] = {}

    def restart(self, position: MessageStreamState) -> None:
        """Forget everything; decisions will follow from `position`."""
        self._runs.clear()
        self._begins_at, self._begins_at_source = position.next_message_seq, dict(position.next_source_seqs)

    def append(self, run: Run) -> None:
        """Add the next decision; beyond `count_max` the oldest is forgotten."""
        if len(self._runs) == self._runs.maxlen:
            forgotten = self._runs[0]
            self._begins_at = forgotten.end_message_seq
            self._begins_at_source[forgotten.source_stream_id] = forgotten.end_source_seq
        self._runs.append(run)

    def since(self, position: MessageStreamState, lineage: Lineage, count_max: int = 10_000) -> RunsReply:
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
        runs = [run for run in self._runs if not self._is_covered(run, position)]
        self._check_reach(runs, position)
        return RunsReply(lineage, tuple(runs[:count_max]))

    @staticmethod
    def _is_covered(run: Run, position: MessageStreamState) -> bool:
        return run.end_source_seq <= position.next_source_seqs.get(run.source_stream_id, FIRST_SEQ)

    def _check_reach(self, runs: list[Run], position: MessageStreamState) -> None:
        """The chosen runs must join the position without a seam: in the channel, and in each source stream."""
        # In each source stream, too: a decision before the log that made no message shows nowhere else.
        lies_before = position.next_message_seq < self._begins_at or any(
            position.next_source_seqs.get(stream, FIRST_SEQ) < seq for stream, seq in self._begins_at_source.items()
        )
        if lies_before:
            raise DecisionLogTooShort("the position lies before the log")
        # Missed decisions that made no message have no place of their own among the messages.
        continuing = [run for run in runs if run.message_count or run.first_message_seq > position.next_message_seq]
        if continuing and continuing[0].first_message_seq != position.next_message_seq:
            raise DecisionLogTooShort(
                f"the log continues at message_seq {continuing[0].first_message_seq}, "
                f"not at {position.next_message_seq}"
            )
        seen: set[int] = set()
        for run in runs:
            if run.source_stream_id not in seen:
                seen.add(run.source_stream_id)
                if run.first_source_seq != position.next_source_seqs.get(run.source_stream_id, FIRST_SEQ):
                    raise DecisionLogTooShort(
                        f"the log continues source stream {run.source_stream_id} at {run.first_source_seq}"
                    )
